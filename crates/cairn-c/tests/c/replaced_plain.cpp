// A program with the two plain operators of its own, and none of the other forms.
#include "replaced.h"

#define CALLS(count) CHECK(own_news == (count) && own_deletes == (count), "%zu and %zu calls", own_news, own_deletes)

// Sized and array forms, of small blocks and of large ones, end in the program's.
static void other_forms_follow()
{
    own_news = own_deletes = 0;
    ::operator delete(hide(::operator new(100)), hide_size(100));
    CALLS(1);
    ::operator delete[](hide(::operator new[](100)));
    CALLS(2);
    ::operator delete[](hide(::operator new[](100)), hide_size(100));
    CALLS(3);
    ::operator delete(hide(::operator new(100000)), hide_size(100000));
    CALLS(4);
    ::operator delete[](hide(::operator new[](100000)), hide_size(100000));
    CALLS(5);
}

// What it throws arrives.
static void exceptions_pass()
{
    size_t caught = 0;
    try {
        ::operator delete[](hide(::operator new[](hide_size(PTRDIFF_MAX))));
    } catch (const std::bad_alloc &) {
        caught++;
    }
    CHECK(caught == 1, "it throws");
}

static const struct test_case cases[] = {
    {"other_forms_follow", other_forms_follow},
    {"exceptions_pass", exceptions_pass},
};
MAIN(cases)
