/* The malloc family with allocation tokens, called as clang would. */
#include "tokens.h"
#include "check.h"

/* Small ones, one beyond the partitions, and what a hash may be. */
static const size_t tokens[] = {0, 1, 7, 15, 16, 1000003, SIZE_MAX / 3, SIZE_MAX};

static void whole(void *block, size_t size, size_t alignment)
{
    CHECK(block != NULL && is_aligned(block, alignment), "%p, %zu at %zu", block, size, alignment);
    CHECK(malloc_usable_size(block) >= size, "%zu usable of %zu", malloc_usable_size(block), size);
    fill_ends(block, size, 3);
    CHECK(ends_hold(block, size, 3), "%zu", size);
    free(block);
}

/* Each function with these arguments; the token stands in their name or behind them. */
#define EACH(prefix, size, ...)                                                                    \
    do {                                                                                           \
        void *placed = NULL;                                                                       \
        whole(prefix##malloc(size __VA_ARGS__), size, 16);                                         \
        whole(prefix##calloc(size, 1 __VA_ARGS__), size, 16);                                      \
        whole(prefix##realloc(NULL, size __VA_ARGS__), size, 16);                                  \
        whole(prefix##reallocarray(NULL, 1, size __VA_ARGS__), size, 16);                          \
        CHECK(prefix##posix_memalign(&placed, 64, size __VA_ARGS__) == 0, "%zu", size);            \
        whole(placed, size, 64);                                                                   \
        whole(prefix##memalign(48, size __VA_ARGS__), size, 64);                                   \
        whole(prefix##aligned_alloc(256, size __VA_ARGS__), size, 256);                            \
        whole(prefix##valloc(size __VA_ARGS__), size, 4096);                                       \
        whole(prefix##pvalloc(size __VA_ARGS__), (size + 4095) & ~(size_t)4095, 4096);             \
    } while (0)
#define WITH(token) , token

static void every_function(void)
{
    static const size_t sizes[] = {1, 16, 100, 1000, 5000, 65536, 65537, 3 * MIB, 40 * MIB};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t size = hide_size(sizes[i]);
        for (size_t t = 0; t < COUNT_OF(tokens); t++) EACH(__alloc_token_, size, WITH(tokens[t]));
        EACH(__alloc_token_0_, size);
        EACH(__alloc_token_7_, size);
        EACH(__alloc_token_15_, size);
    }
}

static void calloc_gives_zeros(void)
{
    for (size_t size = 1; size <= MIB; size = size * 3 + 1) {
        for (size_t t = 0; t < COUNT_OF(tokens); t++) {
            char *blocks[20];
            for (size_t i = 0; i < COUNT_OF(blocks); i++) {
                blocks[i] = __alloc_token_malloc(size, tokens[t]);
                CHECK(blocks[i] != NULL, "%zu", size);
                memset(blocks[i], 0xff, size);
            }
            for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
            for (size_t i = 0; i < COUNT_OF(blocks); i++) {
                blocks[i] = __alloc_token_calloc(1, size, tokens[t]);
                CHECK(blocks[i] != NULL && all_zero(blocks[i], size), "%zu", size);
            }
            for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
        }
    }
}

static void fails(void *block, int expected)
{
    CHECK(block == NULL && errno == expected, "%p", block);
    errno = 0;
}

static void errors_are_the_plain_ones(void)
{
    size_t most = hide_size(SIZE_MAX), half = hide_size(SIZE_MAX / 2 + 1);
    void *placed = hide(tokens), *kept = malloc(100);
    fill(kept, 100, 9);
    for (size_t t = 0; t < COUNT_OF(tokens); t++) {
        size_t token = tokens[t];
        errno = 0;
        fails(__alloc_token_malloc(half, token), ENOMEM);
        fails(__alloc_token_calloc(half, 2, token), ENOMEM);
        fails(__alloc_token_calloc(half, 1, token), ENOMEM);
        fails(__alloc_token_realloc(kept, half, token), ENOMEM);
        fails(__alloc_token_reallocarray(kept, half, 2, token), ENOMEM);
        fails(__alloc_token_reallocarray(kept, half / 2, 2, token), ENOMEM);
        fails(__alloc_token_memalign(most, 1, token), EINVAL);
        fails(__alloc_token_aligned_alloc(48, 1, token), EINVAL);
        fails(__alloc_token_aligned_alloc(0, 1, token), EINVAL);
        fails(__alloc_token_valloc(half, token), ENOMEM);
        fails(__alloc_token_pvalloc(most, token), ENOMEM);
        CHECK(__alloc_token_posix_memalign(&placed, 4, 1, token) == EINVAL, "4");
        CHECK(__alloc_token_posix_memalign(&placed, 48, 1, token) == EINVAL, "48");
        CHECK(__alloc_token_posix_memalign(&placed, 64, half, token) == ENOMEM, "64");
        CHECK(placed == tokens && errno == 0, "%p", placed);
        CHECK(holds(kept, 100, 9), "a realloc that fails changes nothing");
    }
    free(kept);
    CHECK(__alloc_token_realloc(malloc(10), 0, 3) == NULL && errno == 0, "realloc to 0 frees");
    void *empty = __alloc_token_realloc(NULL, 0, 3);
    CHECK(empty != NULL && empty != __alloc_token_malloc(0, 3), "%p", empty);
}

/* Blocks of any origin, resized with any token. */
static void realloc_keeps_contents(void)
{
    uint64_t state = 42;
    size_t size = 1;
    char *block = malloc(size);
    fill(block, size, 5);
    for (int i = 0; i < 20000; i++) {
        size_t next = random_size(&state, i % 100 ? 14 : 21) + 1, token = random_next(&state);
        size_t usable = malloc_usable_size(block);
        char *moved = i % 3 ? __alloc_token_realloc(block, next, token) : __alloc_token_7_realloc(block, next);
        CHECK(moved != NULL, "%zu", next);
        CHECK(moved == block || next > usable || next < usable / 2 + 1, "%zu of %zu moves", next, usable);
        CHECK(holds(moved, next < size ? next : size, 5), "%zu to %zu", size, next);
        fill(moved, next, 5);
        block = moved, size = next;
    }
    free(block);
}

#ifdef CAIRN_IS_LINKED
/* For programs that choose for themselves. */
static void own_interface(void)
{
    for (unsigned partition = 0; partition < 40; partition++) {
        whole(cairn_malloc_in(partition, 100), 100, 16);
        whole(cairn_aligned_alloc_in(partition, 128, 100), 100, 128);
        char *block = cairn_calloc_in(partition, 10, 10);
        CHECK(block && all_zero(block, 100), "%u", partition);
        fill(block, 100, 1);
        block = cairn_realloc_in(partition, block, 10000);
        CHECK(block && holds(block, 100, 1), "%u", partition);
        free(block);
        errno = 0;
        fails(cairn_malloc_in(partition, hide_size(SIZE_MAX)), ENOMEM);
        fails(cairn_calloc_in(partition, hide_size(SIZE_MAX), 2), ENOMEM);
        fails(cairn_aligned_alloc_in(partition, 3, 1), EINVAL);
    }
}
#endif

static const struct test_case cases[] = {
    {"every_function", every_function},
    {"calloc_gives_zeros", calloc_gives_zeros},
    {"errors_are_the_plain_ones", errors_are_the_plain_ones},
    {"realloc_keeps_contents", realloc_keeps_contents},
#ifdef CAIRN_IS_LINKED
    {"own_interface", own_interface},
#endif
};
MAIN(cases)
