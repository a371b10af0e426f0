// A program with array forms of its own, too.
#include "replaced.h"

static size_t own_arrays;

void *operator new[](size_t size)
{
    own_arrays++;
    if (size > MIB) throw size;
    return malloc(size);
}

void operator delete[](void *block) noexcept
{
    own_arrays--;
    free(block);
}

// The quiet array form ends in the program's, whatever that throws.
static void quiet_forms_follow()
{
    own_news = own_arrays = 0;
    char *array = new (std::nothrow) char[hide_size(100)];
    CHECK(array && own_arrays == 1 && own_news == 0, "%zu and %zu calls", own_arrays, own_news);
    delete[] array;
    CHECK(own_arrays == 0 && own_deletes == 0, "%zu and %zu calls", own_arrays, own_deletes);
    CHECK(new (std::nothrow) char[hide_size(2 * MIB)] == nullptr && own_arrays == 1, "%zu calls", own_arrays);
}

static const struct test_case cases[] = {
    {"quiet_forms_follow", quiet_forms_follow},
};
MAIN(cases)
