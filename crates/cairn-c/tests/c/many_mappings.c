/*
 * The process itself has as many mappings as the kernel allows, but for a few: what the allocator
 * may then split, add or remove differs with each. Requests succeed or say that there is no
 * memory, nothing that is live changes, and all is well once the mappings are gone.
 */
#include "check.h"

#include <sys/mman.h>

enum { SINGLES_MAX = 4096, SLACK_MAX = 40, LEAST_FREE = 64 };

static size_t page;

static size_t mapping_limit(void)
{
    char text[32] = {0};
    int fd = open("/proc/sys/vm/max_map_count", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "/proc is needed");
    close(fd);
    return strtoul(text, NULL, 10);
}

/* --- as many mappings as there may be --- */

static char *stripes;
static size_t stripe_pages;
static void *singles[SINGLES_MAX];
static size_t single_count;

/* A mapping that never merges with another. */
static int add_single(void)
{
    if (single_count == SINGLES_MAX) return 0;
    void *at = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 0;
    singles[single_count++] = at;
    return 1;
}

static void remove_singles(size_t count)
{
    while (count-- > 0 && single_count > 0) munmap(singles[--single_count], page);
}

/* Leaves room for `slack` mappings. */
static void leave_room(size_t slack)
{
    while (add_single()) {}
    remove_singles(slack);
}

/* Pages of alternating access, until the kernel refuses, and some mappings that can be taken away. */
static void use_up_mappings(void)
{
    size_t limit = mapping_limit();
    stripe_pages = 2 * limit;
    stripes = mmap(NULL, stripe_pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(stripes != MAP_FAILED, "addresses");
    for (int i = 0; i < LEAST_FREE; i++) CHECK(add_single(), "mapping %d", i);
    size_t at = 0;
    while (at < stripe_pages && mprotect(stripes + at * page, page, PROT_READ) == 0) at += 2;
    CHECK(at > limit / 2 && at < stripe_pages, "%zu pages of alternating access do not reach the limit", at);
    leave_room(0);
}

static void give_up_mappings(void)
{
    CHECK(munmap(stripes, stripe_pages * page) == 0, "munmap");
    remove_singles(single_count);
}

/* --- what is live --- */

enum { LIVE_MAX = 600 };
static struct { unsigned char *at; size_t size; } live[LIVE_MAX];
static size_t live_count, refusals, successes;

static void *asked(void *block, size_t size, int error)
{
    if (block == NULL) CHECK(error == ENOMEM, "%zu bytes: null with errno %d", size, error);
    else CHECK(error == 4711, "%zu bytes: success with errno %d", size, error);
    *(block == NULL ? &refusals : &successes) += 1;
    return block;
}

#define ASK(call, size) (errno = 4711, result = (call), asked(result, (size), errno))

static void keep(void *block, size_t size)
{
    if (block == NULL) return;
    CHECK(live_count < LIVE_MAX, "too much is live");
    live[live_count].at = block;
    live[live_count].size = size;
    fill_ends(block, size, (unsigned)live_count++);
}

static void expect_live(const char *when)
{
    for (size_t i = 0; i < live_count; i++)
        CHECK(live[i].at == NULL || ends_hold(live[i].at, live[i].size, (unsigned)i), "%s: block %zu of %zu bytes", when, i, live[i].size);
}

static void drop(size_t i)
{
    CHECK(live[i].at == NULL || ends_hold(live[i].at, live[i].size, (unsigned)i), "block %zu of %zu bytes", i, live[i].size);
    errno = 4711;
    free(live[i].at);
    CHECK(errno == 4711, "free leaves errno %d", errno);
    live[i].at = NULL;
}

static void drop_all(void)
{
    for (size_t i = 0; i < live_count; i++) drop(i);
    live_count = 0;
}

/* The start of each block is kept; its end is written anew. */
static void resize(size_t i, size_t size)
{
    void *result;
    size_t least = live[i].size < size ? live[i].size : size;
    size_t kept = least < 64 ? least : 64;
    if (live[i].at == NULL) return;
    unsigned char *block = ASK(realloc(live[i].at, size), size);
    if (block == NULL) {
        CHECK(ends_hold(live[i].at, live[i].size, (unsigned)i), "block %zu of %zu bytes, not made %zu", i, live[i].size, size);
        return;
    }
    for (size_t at = 0; at < kept; at++)
        CHECK(block[at] == pattern_at(at, (unsigned)i), "block %zu, from %zu to %zu bytes", i, live[i].size, size);
    live[i].at = block;
    live[i].size = size;
    fill_ends(block, size, (unsigned)i);
}

static const size_t sizes[] = {40, 900, 5000, 60 * KIB, 100 * KIB, 400 * KIB, 2 * MIB, 6 * MIB, 33 * MIB, 40 * MIB};

static void ask_for_all_sizes(void)
{
    void *result;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        keep(ASK(malloc(sizes[i]), sizes[i]), sizes[i]);
        keep(ASK(calloc(1, sizes[i]), sizes[i]), sizes[i]);
        keep(ASK(aligned_alloc(4 * MIB, sizes[i]), sizes[i]), sizes[i]);
    }
}

/* Everything that makes the kernel split, move or merge mappings. */
static void use_everything(size_t slack)
{
    size_t before = live_count;
    ask_for_all_sizes();
    expect_live("asked");
    for (size_t i = 0; i < before; i++) {
        /* No address space has room for it: what has been moved for it must come back. */
        resize(i, (size_t)1 << 47);
        resize(i, live[i].size + live[i].size / 2 + 8 * MIB);
    }
    expect_live("grown");
    for (size_t i = 0; i < live_count; i += 3) resize(i, live[i].size / 2 + 1);
    expect_live("shrunk");
    for (size_t i = slack % 2; i < live_count; i += 2) drop(i);
    malloc_trim(0);
    expect_live("trimmed");
    ask_for_all_sizes();
    expect_live("asked again");
}

static void at_the_limit(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    ask_for_all_sizes();
    drop_all();
    malloc_trim(0);
    size_t resident = resident_kib(), in_use = mallinfo2().uordblks;
    use_up_mappings();
    size_t base = resident_kib();
    for (size_t slack = 0; slack <= SLACK_MAX; slack++) {
        remove_singles(LEAST_FREE);
        refusals = 0;
        ask_for_all_sizes();
        CHECK(refusals == 0, "%zu refusals with room for %d mappings", refusals, LEAST_FREE);
        leave_room(slack);
        successes = 0;
        use_everything(slack);
        if (getenv("TEST_SAYS_FIGURES")) fprintf(stderr, "room for %zu: %zu granted, %zu refused\n", slack, successes, refusals);
        drop_all();
        malloc_trim(0);
        CHECK(resident_kib() < base + 8 * KIB, "room for %zu: %zu KiB, before %zu", slack, resident_kib(), base);
    }
    give_up_mappings();
    refusals = 0;
    ask_for_all_sizes();
    for (size_t i = 0; i < live_count; i++) resize(i, live[i].size * 3);
    CHECK(refusals == 0, "%zu refusals with all mappings gone", refusals);
    drop_all();
    malloc_trim(0);
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks <= in_use && info.hblks == 0 && info.keepcost == 0, "%zu bytes in use, %zu mappings, %zu dirty", info.uordblks, info.hblks, info.keepcost);
    CHECK(resident_kib() < resident + 8 * KIB, "%zu KiB, at first %zu", resident_kib(), resident);
}

static const struct test_case cases[] = {
    {"at_the_limit", at_the_limit},
};
MAIN(cases)
