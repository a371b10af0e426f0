// What a C++ program sees when calls of the allocator to the system fail: bad_alloc, null from the
// nothrow forms, and the new-handler called, each only after a call has failed. faults.h fails
// them, from `main` on: what the C++ runtime sets aside at its start is its own affair.
#define FAULTS_START_PAUSED 1
#include "faults.h"

#include <initializer_list>
#include <new>

namespace {

enum { HUNG_AFTER_SECONDS = 300, HELD_MAX = 2000 };

struct {
    char *block;
    size_t size, alignment;
} held[HELD_MAX];
size_t held_count;

void keep(void *block, size_t size, size_t alignment)
{
    CHECK(is_aligned(block, alignment), "%p, alignment %zu", block, alignment);
    CHECK(malloc_usable_size(block) >= size, "%zu bytes are %zu", size, malloc_usable_size(block));
    CHECK(held_count < HELD_MAX, "too much is held");
    fill_ends(block, size, (unsigned)held_count);
    held[held_count++] = {static_cast<char *>(block), size, alignment};
}

void expect_contents()
{
    for (size_t i = 0; i < held_count; i++)
        CHECK(ends_hold(held[i].block, held[i].size, (unsigned)i), "block %zu of %zu bytes", i, held[i].size);
}

void release_all()
{
    expect_contents();
    while (held_count > 0) {
        auto &last = held[--held_count];
        errno = ANY_ERRNO;
        if (last.alignment > 16) ::operator delete(last.block, std::align_val_t(last.alignment));
        else ::operator delete(last.block);
        CHECK(errno == ANY_ERRNO, "delete leaves errno %d", errno);
    }
}

// Calls `request` until it has a block, at most twice; `request` answers null or throws.
template <typename Request> bool take(size_t size, size_t alignment, bool may_throw, Request request)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        void *block = nullptr;
        bool is_thrown = false;
        errno = ANY_ERRNO;
        try {
            block = request();
        } catch (const std::bad_alloc &) {
            is_thrown = true;
        }
        if (block != nullptr) {
            CHECK(errno == ANY_ERRNO, "%zu bytes: success with errno %d", size, errno);
            keep(block, size, alignment);
            return true;
        }
        CHECK(is_fired(), "%zu bytes: refused without a reason", size);
        CHECK(is_thrown == may_throw, "%zu bytes: %s", size, is_thrown ? "thrown by a nothrow form" : "null from new");
        CHECK(attempt == 0 || faults.from, "%zu bytes: refused twice", size);
        expect_contents();
    }
    return false;
}

const size_t sizes[] = {16, 100, 1000, 5000, 60 * KIB, 100 * KIB, 3 * MIB, 33 * MIB};

size_t count_of(size_t size) { return size < 64 * KIB ? 100 : 4; }

void throwing()
{
    for (size_t size : sizes)
        for (size_t i = 0; i < count_of(size); i++) {
            bool done = i % 2 ? take(size, 16, true, [=] { return ::operator new(size); })
                              : take(size, 16, true, [=] { return ::operator new[](size); });
            if (!done) break;
        }
}

void nothrow()
{
    for (size_t size : sizes)
        for (size_t i = 0; i < count_of(size); i++) {
            bool done = i % 2 ? take(size, 16, false, [=] { return ::operator new(size, std::nothrow); })
                              : take(size, 16, false, [=] { return ::operator new[](size, std::nothrow); });
            if (!done) break;
        }
}

void aligned()
{
    for (size_t alignment : {64 * size_t(1), 4 * KIB, MIB, 4 * MIB})
        for (size_t size : {size_t(100), 50 * KIB, 2 * MIB, 33 * MIB}) {
            std::align_val_t at{alignment};
            take(size, alignment, true, [=] { return ::operator new(size, at); });
            take(size, alignment, false, [=] { return ::operator new(size, at, std::nothrow); });
        }
}

int handled;

// Memory turns up at the third call.
void handler()
{
    if (++handled % 3 == 0) pause_faults(1);
}

void with_handler()
{
    std::set_new_handler(handler);
    for (size_t size : sizes)
        for (size_t i = 0; i < count_of(size); i++) {
            CHECK(take(size, 16, true, [=] { return ::operator new(size); }), "%zu bytes", size);
            pause_faults(0);
            CHECK(take(size, 16, false, [=] { return ::operator new(size, std::nothrow); }), "%zu bytes", size);
            pause_faults(0);
        }
    CHECK(handled == 0 || is_fired(), "the handler is called without a reason");
    std::set_new_handler(nullptr);
}

const struct {
    const char *name;
    void (*run)();
} scenarios[] = {{"throwing", throwing}, {"nothrow", nothrow}, {"aligned", aligned}, {"with_handler", with_handler}};

} // namespace

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "the first argument names the scenario");
    alarm(HUNG_AFTER_SECONDS);
    expect_the_library();
    struct mallinfo2 before = mallinfo2();
    pause_faults(0);
    for (auto &scenario : scenarios) {
        if (strcmp(scenario.name, argv[1]) != 0) continue;
        scenario.run();
        pause_faults(1);
        expect_contents();
        faults.from = 0;
        for (size_t size : sizes) keep(::operator new(size), size, 16);
        release_all();
        malloc_trim(0);
        struct mallinfo2 after = mallinfo2();
        CHECK(after.uordblks <= before.uordblks, "%zu bytes, then %zu, are in use", before.uordblks, after.uordblks);
        CHECK(after.hblks == before.hblks, "%zu mappings, then %zu", before.hblks, after.hblks);
        CHECK(after.keepcost == 0, "%zu bytes are dirty", after.keepcost);
        return exit_code();
    }
    check_failed(__FILE__, __LINE__, "no such scenario", "%s", argv[1]);
}
