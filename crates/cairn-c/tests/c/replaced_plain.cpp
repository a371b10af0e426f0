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

// So do the forms that do not throw.
static void quiet_forms_follow()
{
    own_news = own_deletes = 0;
    ::operator delete(hide(new (std::nothrow) char));
    CALLS(1);
    ::operator delete[](hide(new (std::nothrow) char[100]));
    CALLS(2);
    CHECK(new (std::nothrow) char[hide_size(PTRDIFF_MAX)] == nullptr && own_news == 3, "%zu calls", own_news);
    CHECK(::operator new(hide_size(PTRDIFF_MAX), std::nothrow) == nullptr && own_news == 4, "%zu calls", own_news);
}

// The argument is the path of one whose constructor waits for a thread that allocates.
static void plugin_waits_for_a_thread()
{
    alarm(20);
    CHECK(dlopen(case_arguments[0], RTLD_NOW) != nullptr, "%s", dlerror());
}

static const struct test_case cases[] = {
    {"other_forms_follow", other_forms_follow},
    {"exceptions_pass", exceptions_pass},
    {"quiet_forms_follow", quiet_forms_follow},
    {"plugin_waits_for_a_thread", plugin_waits_for_a_thread},
};
MAIN(cases)
