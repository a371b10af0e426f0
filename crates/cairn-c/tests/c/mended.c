/*
 * Large blocks that hardly hold anything, blocks at far alignments, a steady loop, and what is known of
 * a block's address: each case is a process of its own.
 */
#include "check.h"

enum { COUNT = 100 };

static size_t resident_bytes(void)
{
    return resident_kib() * KIB;
}

/* Hardened, a word is written behind each block: a page, and a huge one before any block has been seen to stay empty. */
static size_t behind_blocks(void)
{
    return getenv("TEST_IS_HARDENED") != NULL ? COUNT * 4 * KIB + 2 * MIB : 0;
}

/* A block that is filled, and then many of its size that hold a byte each. */
static void zeroed_blocks(void)
{
    size_t size = 20 * MIB;
    memset(hide(malloc(size)), 1, size);
    size_t before = resident_bytes();
    for (int i = 0; i < COUNT; i++) {
        char *block = hide(calloc(1, size));
        CHECK(block != NULL && block[size / 2] == 0, "block %d", i);
        block[size / 2] = 1;
    }
    CHECK(resident_bytes() <= before + behind_blocks() + 6 * MIB, "%zu MiB more", (resident_bytes() - before) / MIB);
}

/* Blocks that are filled and freed, and then some that hold nothing. */
static void untouched_blocks(void)
{
    for (size_t i = 0; i < 20; i++) {
        size_t size = (16 + i % 15) * MIB;
        char *block = malloc(size);
        memset(hide(block), 1, size);
        free(block);
    }
    malloc_trim(0);
    size_t before = resident_bytes();
    for (size_t i = 0; i < COUNT; i++) CHECK(hide(malloc((16 + i % 15) * MIB)) != NULL, "block %zu", i);
    CHECK(resident_bytes() <= before + behind_blocks() + 3 * MIB, "%zu MiB more", (resident_bytes() - before) / MIB);
}

/* More blocks at multiples of 2 MiB than there may be mappings in a process; threads still start. */
static void *nothing(void *unused)
{
    return unused;
}

static void far_alignments(void)
{
    enum { BLOCKS = 70000 };
    static void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = memalign(2 * MIB, 4096);
        CHECK(blocks[i] != NULL && (uintptr_t)blocks[i] % (2 * MIB) == 0, "block %d at %p", i, blocks[i]);
    }
    joined(started(nothing, NULL));
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    malloc_trim(0);
    CHECK(resident_bytes() <= 2 * GIB, "%zu MiB", resident_bytes() / MIB);
}

/* A heap that has shrunk gives back what it does not need, also if all that happens then is a loop over
 * one block, large or small. */
static void loop_gives_back(size_t size)
{
    enum { BLOCKS = 200 * 1024 };
    static void *blocks[BLOCKS];
    size_t before = resident_bytes();
    for (int tooth = 0; tooth < 12; tooth++) {
        for (int i = 0; i < BLOCKS; i++) memset(hide(blocks[i] = malloc(1000)), 1, 1000);
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    }
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 10000; i++) free(hide(malloc(size)));
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec - start.tv_sec < 3);
    CHECK(resident_bytes() <= before + 20 * MIB, "%zu MiB more", (resident_bytes() - before) / MIB);
}

static void steady_loop(void)
{
    loop_gives_back(100 * KIB);
}

static void steady_small_loop(void)
{
    loop_gives_back(64);
}

/* Says where blocks are, and the metadata. */
static void addresses(void)
{
#ifdef CAIRN_IS_LINKED
    const struct cairn_header *header = &cairn_header;
    char *small = malloc(64), *large = malloc(MIB);
    printf("%p %p %p %p\n", small, large, header->map->descriptors, header->map->heaps);
    free(small);
    free(large);
#endif
}

static const struct test_case cases[] = {
    {"zeroed_blocks", zeroed_blocks},
    {"untouched_blocks", untouched_blocks},
    {"far_alignments", far_alignments},
    {"steady_loop", steady_loop},
    {"steady_small_loop", steady_small_loop},
    {"addresses", addresses},
};
MAIN(cases)
