// Size feedback: operator new that tells the size, as LLVM declares it.
#include "cxx_sized.h"

#include <sys/resource.h>
#include <vector>

static void tells_the_size()
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(3 * MIB, sizes);
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[i];
        sized_ptr blocks[] = {__size_returning_new(size), __size_returning_new_hot_cold(size, 128)};
        for (auto [p, n] : blocks) {
            CHECK(p && n >= size && n == malloc_usable_size(p), "%zu", size);
            fill_ends(p, n, 1);
        }
        ::operator delete(blocks[0].p, blocks[0].n);
        ::operator delete(blocks[1].p, size);
        for (size_t alignment = 1; alignment <= 64 * KIB; alignment *= 8) {
            std::align_val_t at{alignment};
            sized_ptr aligned[] = {__size_returning_new_aligned(size, at), __size_returning_new_aligned_hot_cold(size, at, 0)};
            for (auto [p, n] : aligned) {
                CHECK(is_aligned(p, alignment) && n >= size && n == malloc_usable_size(p), "%zu %zu", size, alignment);
                fill_ends(p, n, 1);
            }
            ::operator delete(aligned[0].p, aligned[0].n, at);
            ::operator delete(aligned[1].p, size, at);
        }
    }
}

static int calls;
static std::vector<void *> kept;

static void free_some()
{
    if (++calls > 2) {
        for (void *block : kept) ::operator delete(block);
        kept.clear();
        std::set_new_handler(nullptr);
    }
}

// The handler frees memory; then the block is there, and so is its size.
static void handler_is_called()
{
    kept.reserve(100000);
    struct rlimit limit = {(virtual_kib() * KIB) + 600 * MIB, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "a limit");
    while (void *block = ::operator new(40 * MIB, std::nothrow)) kept.push_back(block);
    CHECK(kept.size() > 3, "%zu", kept.size());
    std::set_new_handler(free_some);
    sized_ptr block = __size_returning_new(60 * MIB);
    CHECK(calls == 3 && block.p && block.n >= 60 * MIB && block.n == malloc_usable_size(block.p), "%d", calls);
    ::operator delete(block.p);
}

static void throws()
{
    int caught = 0;
    for (int form = 0; form < 4; form++) {
        try {
            size_t size = hide_size(PTRDIFF_MAX);
            std::align_val_t at{64};
            if (form == 0) __size_returning_new(size);
            if (form == 1) __size_returning_new_aligned(size, at);
            if (form == 2) __size_returning_new_hot_cold(size, 1);
            if (form == 3) __size_returning_new_aligned_hot_cold(size, at, 1);
        } catch (const std::bad_alloc &) {
            caught++;
        }
    }
    CHECK(caught == 4, "%d", caught);
}

static const struct test_case cases[] = {
    {"tells_the_size", tells_the_size},
    {"handler_is_called", handler_is_called},
    {"throws", throws},
};
MAIN(cases)
