/* Built to run at a fixed address: what has been taken of an operator is a stub's address in the program. */
#include <cstddef>
#include <new>

int main()
{
    void *(*volatile allocate)(std::size_t) = ::operator new;
    void *block = allocate(64);
    ::operator delete(block, std::size_t{32});
    return 0;
}
