/*
 * Built to run at a fixed address: what has been taken of an operator is a stub's address in the program. As a library: two
 * operators of one that comes first, or one, whose blocks are larger than asked for.
 */
#include <cstddef>
#include <cstdlib>
#include <new>

#ifdef LIBRARY
void *operator new(std::size_t size) { return std::malloc(size + 64); }
#ifndef NEW_ALONE
void operator delete(void *block) noexcept { std::free(block); }
#endif
#else
int main()
{
    void *(*volatile allocate)(std::size_t) = ::operator new;
    void *block = allocate(64);
#ifdef TAKES_BOTH
    void (*volatile give_back)(void *) = ::operator delete;
    give_back(allocate(64));
    ::operator delete(block, std::size_t{64});
#else
    ::operator delete(block, std::size_t{640});
#endif
    return 0;
}
#endif
