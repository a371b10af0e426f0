/*
 * What stays resident after a burst of which a few blocks survive, scattered over all of it. The floor is
 * the pages that hold a part of a live block. TEST_SAYS_FIGURES=1 prints both, with any allocator.
 */
#include "check.h"
#include <sys/mman.h>

enum { THREADS_MAX = 8, PAGE = 4096 };

static struct burst {
    size_t bytes, least, most; /* for each thread */
    unsigned kept;             /* one block in so many */
    int in_order;
} burst;

struct part {
    char **blocks;
    uint32_t *sizes;
    size_t count;
    uint64_t random;
};

static struct part parts[THREADS_MAX];

/* Memory that no allocator counts. */
static void *apart(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%zu", bytes);
    return at;
}

static void *fills_and_thins(void *of)
{
    struct part *part = of;
    size_t done = 0;
    for (part->count = 0; done < burst.bytes; part->count++) {
        size_t size = burst.least + random_next(&part->random) % (burst.most - burst.least + 1);
        char *block = malloc(size);
        CHECK(block != NULL, "%zu", size);
        memset(block, (int)part->count, size);
        part->blocks[part->count] = block;
        part->sizes[part->count] = (uint32_t)size;
        done += size;
    }
    uint32_t *order = apart(part->count * sizeof *order);
    for (size_t i = 0; i < part->count; i++) {
        size_t other = burst.in_order ? i : random_next(&part->random) % (i + 1);
        order[i] = order[other];
        order[other] = (uint32_t)i;
    }
    for (size_t i = 0; i < part->count; i++) {
        if (random_next(&part->random) % burst.kept == 0) continue;
        free(part->blocks[order[i]]);
        part->blocks[order[i]] = NULL;
    }
    munmap(order, part->count * sizeof *order);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uintptr_t left = *(const uintptr_t *)a, right = *(const uintptr_t *)b;
    return (left > right) - (left < right);
}

/* Pages with a part of a live block, which is whole. */
static size_t floor_kib(size_t threads)
{
    size_t most = 0, count = 0, distinct = 0;
    for (size_t t = 0; t < threads; t++) most += parts[t].count * (burst.most / PAGE + 2);
    uintptr_t *pages = apart(most * sizeof *pages);
    for (size_t t = 0; t < threads; t++) {
        for (size_t i = 0; i < parts[t].count; i++) {
            char *block = parts[t].blocks[i];
            size_t size = parts[t].sizes[i];
            if (block == NULL) continue;
            for (size_t at = 0; at < size; at++) CHECK(block[at] == (char)i, "%zu of %zu", at, size);
            uintptr_t last = ((uintptr_t)block + size - 1) / PAGE;
            for (uintptr_t page = (uintptr_t)block / PAGE; page <= last; page++) pages[count++] = page;
        }
    }
    qsort(pages, count, sizeof *pages, compare);
    for (size_t i = 0; i < count; i++) distinct += i == 0 || pages[i] != pages[i - 1];
    munmap(pages, most * sizeof *pages);
    return distinct * (PAGE / KIB);
}

/* What others than blocks need: free slices, what heaps hold, metadata. Where one thread frees while another
 * allocates, more slices stay free: what goes would be needed. */
static size_t besides_kib(size_t threads) { return threads > 1 ? 32 * KIB : 12 * KIB; }

static void survives(size_t threads)
{
    void *running[THREADS_MAX];
    for (size_t t = 0; t < threads; t++) {
        size_t most = burst.bytes / burst.least + 1;
        parts[t] = (struct part){apart(most * sizeof(char *)), apart(most * sizeof(uint32_t)), 0, 88172645463325252u + t};
    }
    size_t before = resident_kib(), tables = 0;
    if (threads == 1) fills_and_thins(&parts[0]);
    for (size_t t = 0; threads > 1 && t < threads; t++) running[t] = started(fills_and_thins, &parts[t]);
    for (size_t t = 0; threads > 1 && t < threads; t++) joined(running[t]);
    for (size_t t = 0; t < threads; t++) tables += parts[t].count * (sizeof(char *) + sizeof(uint32_t)) / KIB;
    size_t left = resident_kib() - before - tables, floor = floor_kib(threads);
    if (getenv("TEST_SAYS_FIGURES")) fprintf(stderr, "%zu MiB left, floor %zu\n", left / KIB, floor / KIB);
    CHECK(left <= floor + floor / 10 + besides_kib(threads), "%zu KiB left, floor %zu", left, floor);
}

static void one_in_order(void)
{
    burst = (struct burst){160 * MIB, 512, 2048, 20, 1};
    survives(1);
}

static void one_in_any_order(void)
{
    burst = (struct burst){160 * MIB, 16, 4096, 16, 0};
    survives(1);
}

static void four_in_order(void)
{
    burst = (struct burst){80 * MIB, 16, 4096, 16, 1};
    survives(4);
}

static void eight_in_any_order(void)
{
    burst = (struct burst){60 * MIB, 32, 4096, 16, 0};
    survives(8);
}

static const struct test_case cases[] = {
    {"one_in_order", one_in_order},
    {"one_in_any_order", one_in_any_order},
    {"four_in_order", four_in_order},
    {"eight_in_any_order", eight_in_any_order},
};
MAIN(cases)
