/* Alignment over all entry points, every power of two up to 1 GiB. */
#include "check.h"

static void *aligned_block(int entry, size_t alignment, size_t size)
{
    void *block = NULL;
    switch (entry) {
    case 0: return memalign(alignment, size);
    case 1: return aligned_alloc(alignment, size);
    default:
        if (alignment < sizeof(void *)) alignment = sizeof(void *);
        return posix_memalign(&block, alignment, size) == 0 ? block : NULL;
    }
}

/* All of it for common sizes; both ends of what would take long to fill. */
static void write_and_check(void *block, size_t usable, unsigned seed)
{
    if (usable <= MIB) {
        fill(block, usable, seed);
        CHECK(holds(block, usable, seed), "%zu usable bytes", usable);
    } else {
        fill_ends(block, usable, seed);
        CHECK(ends_hold(block, usable, seed), "%zu usable bytes", usable);
    }
}

static void every_power_of_two(void)
{
    static const size_t sizes[] = {0,    1,    7,    8,     9,     15,    16,     17,     31,      33,
                                   48,   64,   100,  1000,  4095,  4096,  4097,   10000,  32768,   65537,
                                   200000, MIB, MIB + 1, 3 * MIB, 17 * MIB, 33 * MIB};
    for (size_t alignment = 1; alignment <= GIB; alignment *= 2) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            for (int entry = 0; entry < 3; entry++) {
                void *block = aligned_block(entry, alignment, sizes[i]);
                CHECK(block != NULL, "entry %d, %zu at %zu", entry, sizes[i], alignment);
                CHECK(is_aligned(block, alignment), "entry %d, %zu at %zu", entry, sizes[i], alignment);
                size_t usable = malloc_usable_size(block);
                CHECK(usable >= sizes[i], "entry %d, %zu at %zu", entry, sizes[i], alignment);
                write_and_check(block, usable, (unsigned)entry);
                free(block);
            }
        }
    }
}

/* What fits any type, without being asked. */
static void natural(void)
{
    for (size_t size = 1; size < 100000; size = size < 2000 ? size + 1 : size + size / 7) {
        size_t expected = size > 8 ? _Alignof(max_align_t) : 8;
        void *a = malloc(size), *b = calloc(size, 1), *c = realloc(malloc(1), size);
        CHECK(is_aligned(a, expected), "malloc(%zu)", size);
        CHECK(is_aligned(b, expected), "calloc(%zu)", size);
        CHECK(is_aligned(c, expected), "realloc(%zu)", size);
        free(a), free(b), free(c);
    }
}

static void many_at_once(void)
{
    enum { COUNT = 4000 };
    static struct { void *block; size_t usable; } live[COUNT];
    uint64_t random = 123456789;
    for (int step = 0; step < 10 * COUNT; step++) {
        size_t slot = random_next(&random) % COUNT;
        if (live[slot].block) {
            CHECK(ends_hold(live[slot].block, live[slot].usable, (unsigned)slot), "step %d", step);
            free(live[slot].block);
        }
        size_t alignment = (size_t)1 << random_next(&random) % 17, size = random_size(&random, 15);
        live[slot].block = aligned_block((int)(random_next(&random) % 3), alignment, size);
        CHECK(live[slot].block && is_aligned(live[slot].block, alignment), "%zu at %zu", size, alignment);
        live[slot].usable = malloc_usable_size(live[slot].block);
        fill_ends(live[slot].block, live[slot].usable, (unsigned)slot);
    }
    for (size_t slot = 0; slot < COUNT; slot++) free(live[slot].block);
}

static void realloc_of_aligned(void)
{
    for (size_t alignment = 16; alignment <= 64 * MIB; alignment *= 4) {
        for (size_t size = 1; size <= 4 * MIB; size = size * 5 + 3) {
            char *block = aligned_block((int)(size % 3), alignment, size);
            CHECK(block != NULL, "%zu at %zu", size, alignment);
            fill(block, size, 1);
            block = realloc(block, size * 3);
            CHECK(block && holds(block, size, 1) && malloc_usable_size(block) >= size * 3, "%zu at %zu", size, alignment);
            block = realloc(block, size / 2 + 1);
            CHECK(block && holds(block, size / 2 + (size > 1), 1), "%zu at %zu", size, alignment);
            free(block);
        }
    }
}

/* Strict alignment must not cost its own size in resident memory. */
static void strict_alignment_is_cheap(void)
{
    static void *blocks[32];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = memalign(64 * MIB, 100);
        CHECK(blocks[i] && is_aligned(blocks[i], 64 * MIB), "%zu", i);
        memset(blocks[i], 1, 100);
    }
    CHECK(resident_kib() < 32 * KIB, "%zu KiB", resident_kib());
    for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
}

static const struct test_case cases[] = {
    {"every_power_of_two", every_power_of_two},
    {"natural", natural},
    {"many_at_once", many_at_once},
    {"realloc_of_aligned", realloc_of_aligned},
    {"strict_alignment_is_cheap", strict_alignment_is_cheap},
};
MAIN(cases)
