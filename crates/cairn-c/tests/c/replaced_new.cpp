// A program with its own operator new: ours must stand back.
#include "check.h"

#include <new>
#include <string>
#include <vector>

static size_t own_news, own_deletes;

void *operator new(size_t size)
{
    own_news++;
    void *block = malloc(size ? size : 1);
    if (!block) throw std::bad_alloc();
    return block;
}

void operator delete(void *block) noexcept
{
    own_deletes++;
    free(block);
}

void operator delete(void *block, size_t) noexcept
{
    own_deletes++;
    free(block);
}

static void program_wins()
{
    size_t before = own_news;
    delete new int(7);
    // The C++ library must use the program's one too.
    {
        std::vector<std::string> texts;
        for (int i = 0; i < 100; i++) texts.push_back(std::string(100, 'x'));
    }
    CHECK(own_news > before + 100, "%zu calls", own_news - before);
    CHECK(own_deletes >= own_news - before, "%zu and %zu calls", own_news, own_deletes);
    // The forms the program does not replace call the ones it does.
    before = own_news;
    delete[] static_cast<char *>(hide(new char[100]));
    char *quiet = static_cast<char *>(hide(new (std::nothrow) char));
    ::operator delete(quiet, std::nothrow);
    CHECK(own_news == before + 2, "%zu calls", own_news - before);
}

static const struct test_case cases[] = {{"program_wins", program_wins}};
MAIN(cases)
