// What a C++ program sees at the hard limit of memory: as where the system has none.
#include "check.h"

#include <new>

namespace {

char *volatile spare;
volatile size_t calls;

void free_the_spare()
{
    calls++;
    if (spare == nullptr) throw std::bad_alloc();
    delete[] spare;
    spare = nullptr;
}

// Runs with CAIRN_MEMORY_LIMIT=64M.
void throws()
{
    bool caught = false;
    try {
        char *block = new char[70 * MIB];
        hide(block);
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    CHECK(caught, "new throws");
    CHECK(new (std::nothrow) char[70 * MIB] == nullptr, "nothrow new does not");
    // The handler makes room.
    spare = new char[40 * MIB];
    std::set_new_handler(free_the_spare);
    char *block = new char[50 * MIB];
    CHECK(calls == 1 && spare == nullptr, "%zu calls", calls);
    CHECK(new (std::nothrow) char[50 * MIB] == nullptr && calls == 2, "%zu calls", calls);
    delete[] block;
}

const struct test_case cases[] = {
    {"throws", throws},
};

} // namespace

MAIN(cases)
