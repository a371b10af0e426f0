/* Calls beyond the malloc family, through the header. */
#include "check.h"
#include "cairn.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* What a call that no program may make writes before the process ends. */
static void expect_end(void (*mistake)(void *), void *block, const char *call)
{
    char said[512] = "";
    int ends[2], status;
    CHECK(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], 2);
        mistake(block);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t length = 0, more; (more = read(ends[0], said + length, sizeof said - 1 - (size_t)length)) > 0;)
        length += more;
    close(ends[0]);
    CHECK(waitpid(child, &status, 0) == child, "wait");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s: status %#x, %s", call, status, said);
    CHECK(strstr(said, call) != NULL, "%s is not named: %s", call, said);
}

static void sizes(void)
{
    CHECK(cairn_class_count() > 40 && cairn_class_size(cairn_class_count()) == 0, "%u", cairn_class_count());
    CHECK(cairn_class_size(~0u) == 0, "no class");
    for (unsigned i = 0; i < cairn_class_count(); i++) {
        size_t size = cairn_class_size(i);
        CHECK(i == 0 || size > cairn_class_size(i - 1), "class %u", i);
        CHECK(cairn_good_size(size) == size && cairn_good_size(size - 1) == size, "%zu", size);
    }
    errno = 12345;
    CHECK(cairn_good_size(0) == cairn_class_size(0), "0");
    CHECK(cairn_good_size(SIZE_MAX) == 0 && cairn_good_size((size_t)PTRDIFF_MAX + 1) == 0, "too much");
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(40 * MIB, sizes);
    for (size_t i = 0; i < count; i++) {
        size_t good = cairn_good_size(sizes[i]);
        char *block = malloc(good);
        CHECK(good >= sizes[i] && cairn_good_size(good) == good, "%zu for %zu", good, sizes[i]);
        CHECK(malloc_usable_size(block) >= good, "%zu for %zu", good, sizes[i]);
        free(block);
    }
    CHECK(errno == 12345, "errno");
}

static void expand_wrong(void *block) { CHECK(cairn_try_expand(block, 10) == 2, "it came back"); }

static void expand(void)
{
    errno = 12345;
    CHECK(cairn_try_expand(NULL, 0) == 0, "NULL");
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(40 * MIB, sizes);
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[i], usable;
        char *block = hide(malloc(size));
        fill_ends(block, size, 1);
        usable = malloc_usable_size(block);
        CHECK(cairn_try_expand(block, usable) == 1 && cairn_try_expand(block, size) == 1, "%zu", size);
        CHECK(cairn_try_expand(block, SIZE_MAX) == 0 && cairn_try_expand(block, PTRDIFF_MAX) == 0, "%zu", size);
        CHECK(malloc_usable_size(block) >= size, "%zu", size);
        if (cairn_try_expand(block, 2 * size + 1)) {
            CHECK(malloc_usable_size(block) >= 2 * size + 1, "%zu", size);
            CHECK(ends_hold(block, size, 1), "%zu", size);
            fill_ends(block, 2 * size + 1, 2);
        }
        free(block);
    }
    CHECK(errno == 12345, "errno");
    /* A buffer that grows with nothing behind it need not move. */
    size_t grown = 0, size = 100000;
    char *block = hide(malloc(size));
    free(malloc(20 * MIB));
    cairn_purge();
    for (; size < 12 * MIB; size = 2 * size) grown += (size_t)cairn_try_expand(block, 2 * size);
    CHECK(grown >= 6, "%zu times", grown);
    memset(block, 1, malloc_usable_size(block));
    free(block);
    void *freed = hide(malloc(100));
    free(freed);
    expect_end(expand_wrong, freed, "cairn_try_expand");
    expect_end(expand_wrong, &grown, "cairn_try_expand");
}

static void expect_good_end(void (*does)(const size_t *), const size_t *sizes)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        does(sizes);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%zu, %zu: %#x", sizes[0], sizes[1], status);
}

static void shrink(const size_t *sizes)
{
    char *block = hide(malloc(sizes[0]));
    CHECK(cairn_try_expand(block, sizes[1]) == 1, "%zu to %zu", sizes[0], sizes[1]);
    fill_ends(block, sizes[1], 1);
    free_sized(block, sizes[1]);
}

/* What has become smaller where it stands has that size, and no larger one than there is room for. */
static void shrunk(void)
{
    static const size_t sizes[][2] = {{1000, 100},       {40000, 1},   {MIB, 100}, {MIB, 200000},
                                      {300 * KIB, 5000}, {64 * MIB, 100}, {64 * MIB, 33 * MIB}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) expect_good_end(shrink, sizes[i]);
    CHECK(cairn_guard_every(1) == 1, "guards");
    expect_good_end(shrink, sizes[0]);
}

static void at_least(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(40 * MIB, sizes), usable;
    errno = 12345;
    for (size_t i = 0; i < count; i++) {
        char *block = cairn_malloc_at_least(sizes[i], &usable);
        CHECK(block && usable >= sizes[i] && usable == malloc_usable_size(block), "%zu", sizes[i]);
        fill_ends(block, usable, 1);
        free(block);
        for (size_t align = 1; align <= MIB; align *= 4) {
            block = cairn_aligned_alloc_at_least(align, sizes[i], &usable);
            CHECK(block && is_aligned(block, align) && is_aligned(block, 16), "%zu %zu", sizes[i], align);
            CHECK(usable >= sizes[i] && usable == malloc_usable_size(block), "%zu %zu", sizes[i], align);
            fill_ends(block, usable, 1);
            free(block);
        }
    }
    CHECK(errno == 12345, "errno");
    usable = 1;
    CHECK(cairn_malloc_at_least(hide_size(SIZE_MAX), &usable) == NULL && errno == ENOMEM && usable == 0, "too much");
    errno = 0, usable = 1;
    CHECK(cairn_aligned_alloc_at_least(hide_size(48), 1, &usable) == NULL && errno == EINVAL && usable == 0, "48");
    errno = 0, usable = 1;
    CHECK(cairn_aligned_alloc_at_least(64, hide_size(PTRDIFF_MAX), &usable) == NULL && errno == ENOMEM, "too much");
}

static void aligned_at(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(2 * MIB, sizes);
    static const size_t offsets[] = {1, 8, 24, 64, 4000, 4096, 20000};
    errno = 12345;
    for (size_t i = 0; i < count; i += 3) {
        for (size_t at = 0; at < COUNT_OF(offsets); at++) {
            for (size_t align = 1; align <= MIB; align *= 8) {
                char *block = cairn_aligned_alloc_at(align, offsets[at], sizes[i]);
                CHECK(block && is_aligned(block + offsets[at], align), "%zu + %zu at %zu", sizes[i], offsets[at], align);
                fill_ends(block, sizes[i], 1);
                CHECK(ends_hold(block, sizes[i], 1) && cairn_base(block) == block, "%zu", sizes[i]);
                free(block);
            }
        }
    }
    CHECK(errno == 12345, "errno");
    CHECK(cairn_aligned_alloc_at(hide_size(48), 8, 10) == NULL && errno == EINVAL, "48");
    CHECK(cairn_aligned_alloc_at(64, 8, hide_size(PTRDIFF_MAX)) == NULL && errno == ENOMEM, "too much");
}

static void free_twice(void *block)
{
    void *blocks[] = {malloc(10), block, NULL, block};
    cairn_free_batch(blocks, 4);
}

static void *free_some(void *blocks)
{
    cairn_free_batch(blocks, 1000);
    return NULL;
}

static void batches(void)
{
    static void *blocks[1000];
    errno = 12345;
    for (size_t size = 0; size < 100000; size = size * 3 + 7) {
        CHECK(cairn_malloc_batch(size, 1000, blocks) == 1000, "%zu", size);
        for (unsigned i = 0; i < 1000; i++) fill_ends(blocks[i], size, i);
        for (unsigned i = 0; i < 1000; i++) CHECK(ends_hold(blocks[i], size, i), "%zu, %u", size, i);
        free(blocks[500]);
        blocks[500] = NULL;
        if (size % 2) joined(started(free_some, blocks));
        else cairn_free_batch(blocks, 1000);
    }
    cairn_free_batch(NULL, 0);
    CHECK(cairn_malloc_batch(8, 0, NULL) == 0 && errno == 12345, "none");
    expect_end(free_twice, hide(malloc(100)), "free");
    blocks[0] = blocks;
    CHECK(cairn_malloc_batch(hide_size(SIZE_MAX), 2, blocks) == 0 && errno == ENOMEM, "too much");
    CHECK(blocks[0] == blocks, "the place is as it was");
    /* Until there is no more: what there is is whole. */
    errno = 0;
    struct rlimit limit = {status_kib("VmData:") * KIB + 100 * MIB, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0, "a limit");
    size_t count = cairn_malloc_batch(5 * MIB, 1000, blocks);
    CHECK(count > 5 && count < 100 && errno == ENOMEM, "%zu blocks", count);
    for (unsigned i = 0; i < count; i++) fill_ends(blocks[i], 5 * MIB, i);
    for (unsigned i = 0; i < count; i++) CHECK(ends_hold(blocks[i], 5 * MIB, i), "%u", i);
    cairn_free_batch(blocks, count);
    CHECK(cairn_malloc_batch(5 * MIB, 5, blocks) == 5, "what was freed is there");
}

/* An array that has grown is as one of its size: it leaves a block that an alignment has made far larger. */
static void grow_aligned(const size_t *sizes)
{
    unsigned char *block = hide(aligned_alloc(sizes[0], sizes[1]));
    fill(block, sizes[1], 3);
    block = cairn_recallocarray(block, sizes[1], sizes[2], 1);
    CHECK(block && holds(block, sizes[1], 3) && all_zero(block + sizes[1], sizes[2] - sizes[1]), "%zu", sizes[2]);
    CHECK(malloc_usable_size(block) < sizes[0], "%zu bytes", malloc_usable_size(block));
    free_sized(block, sizes[2]);
}

static void recallocarray_aligned(void)
{
    static const size_t sizes[][3] = {{512, 53, 80}, {4096, 1, 1000}, {32 * KIB, 100, 101}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) expect_good_end(grow_aligned, sizes[i]);
}

static void wrong_count(void *block) { (void)!cairn_recallocarray(block, 1000000, 10, 10); }
static void freed_array(void *block) { (void)!cairn_recallocarray(block, 10, 5, 10); }

static void recallocarray_(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(8 * MIB, sizes);
    errno = 12345;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = i % 5; j < count; j += 5) {
            size_t old = sizes[i], new = sizes[j], kept = old < new ? old : new;
            if (old + new > 2 * MIB && (i + j) % 7) continue;
            unsigned char *block = cairn_recallocarray(NULL, old, 1, old), *moved;
            block = cairn_recallocarray(block, 1, 1, old);
            CHECK(block && all_zero(block, old), "%zu", old);
            fill(block, old, 3);
            unsigned char *before = hide(block);
            moved = cairn_recallocarray(block, old, new, 1);
            CHECK(moved && malloc_usable_size(moved) >= new, "%zu to %zu", old, new);
            CHECK(holds(moved, kept, 3), "%zu to %zu", old, new);
            CHECK(all_zero(moved + kept, new - kept), "%zu to %zu: zero", old, new);
            /* Hardened, a word behind the end is a canary. */
            size_t end = kept + sizeof(size_t), had = malloc_usable_size(moved) < old ? 0 : old;
            if (moved == before) CHECK(all_zero(moved + end, had < end ? 0 : had - end), "%zu to %zu: wiped", old, new);
            else if (old > 32 && old <= 64 * KIB) CHECK(all_zero(before + 16, old - 16), "%zu to %zu: left behind", old, new);
            free(moved);
        }
    }
    unsigned char *block = hide(malloc(1000));
    fill(block, 1000, 1);
    CHECK(errno == 12345, "errno");
    CHECK(cairn_recallocarray(block, 10, hide_size(SIZE_MAX), 100) == NULL && errno == ENOMEM, "too much");
    CHECK(cairn_recallocarray(block, SIZE_MAX, 1, 100) == NULL && errno == EINVAL, "too much before");
    CHECK(cairn_recallocarray(block, 10, hide_size(PTRDIFF_MAX / 100), 100) == NULL && errno == ENOMEM, "too much");
    CHECK(cairn_recallocarray(NULL, 10, hide_size(SIZE_MAX), 100) == NULL && errno == ENOMEM, "too much");
    CHECK(holds(block, 1000, 1), "it is whole");
    expect_end(wrong_count, block, "cairn_recallocarray");
    free(block);
    expect_end(freed_array, block, "free");
}

static void overflow_array(void *sizes)
{
    size_t old = ((size_t *)sizes)[0], new = ((size_t *)sizes)[1];
    unsigned char *block = cairn_recallocarray(calloc(old, 1), old, new, 1);
    block[new] = (unsigned char)~block[new];
    free(block);
}

/* Hardened: a resized array ends where the program has said. */
static void recallocarray_overflow(void)
{
    size_t sizes[][2] = {{900, 950}, {950, 900}, {100000, 100050}, {100050, 100000}, {100, 5000}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) expect_end(overflow_array, sizes[i], "free");
}

static void *work_then_wait(void *barrier)
{
    enum { COUNT = 4000 };
    static __thread void *blocks[COUNT];
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT; i++) memset(blocks[i] = malloc(i % 500 * 8), 1, i % 500 * 8);
        for (size_t i = 0; i < COUNT; i++) free(blocks[i * 1021 % COUNT]);
    }
    memset(blocks[0] = malloc(200 * KIB), 1, 200 * KIB);
    free(blocks[0]);
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    cairn_thread_idle();
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    free(malloc(100));
    return NULL;
}

static void idle_pool(void)
{
    enum { THREADS = 30 };
    pthread_barrier_t barrier;
    void *threads[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS + 1) == 0, "a barrier");
    cairn_purge();
    size_t before = resident_kib();
    for (size_t i = 0; i < THREADS; i++) threads[i] = started(work_then_wait, &barrier);
    pthread_barrier_wait(&barrier);
    cairn_purge();
    size_t busy = resident_kib();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    cairn_purge();
    size_t idle = resident_kib();
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < THREADS; i++) joined(threads[i]);
    /* Their stacks and thread storage: 32 KiB of blocks[], and a few pages; of cairn's a page each. Hardened 30 KiB each, and what
     * describes spans stays: a 30th of what was in use at most. */
    int is_hardened = getenv("TEST_IS_HARDENED") != NULL;
    size_t most = is_hardened ? THREADS * 90 + busy / 30 : THREADS * 160;
    CHECK(idle < before + most && idle - before < (busy - before) / 3, "%zu KiB before, %zu busy, %zu idle", before, busy, idle);
    CHECK(busy > idle + THREADS * 50, "%zu KiB before, %zu busy, %zu idle", before, busy, idle);
}

static void *count_until_the_end(void *blocks)
{
    size_t size = malloc_usable_size(*(void **)blocks);
    CHECK(cairn_thread_allocated() == 0 && cairn_thread_freed() == 0, "a new thread");
    CHECK(cairn_count(1) == 1, "on");
    free(*(void **)blocks);
    CHECK(cairn_thread_freed() == size && cairn_thread_allocated() == 0, "%zu", cairn_thread_freed());
    return malloc(10);
}

static void counts(void)
{
    static void *blocks[10000];
    size_t allocated = 0, freed = 0;
    errno = 12345;
    CHECK(cairn_count(1) == 1 && cairn_count(1) == 1, "on");
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        size_t size = i * i % 9000 * (i % 100 == 0 ? 50 : 1);
        blocks[i] = i % 3 ? malloc(size) : calloc(1, size);
        allocated += malloc_usable_size(blocks[i]);
        if (i % 2) continue;
        freed += malloc_usable_size(blocks[i / 2]);
        free(blocks[i / 2]);
        blocks[i / 2] = NULL;
    }
    CHECK(cairn_thread_allocated() == allocated, "%zu, not %zu", cairn_thread_allocated(), allocated);
    CHECK(cairn_thread_freed() == freed, "%zu, not %zu", cairn_thread_freed(), freed);
    CHECK(errno == 12345, "errno");
    /* A child that is forked while its thread counts goes on with it, and with its heap. */
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        size_t before = cairn_thread_freed();
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            freed += blocks[i] ? malloc_usable_size(blocks[i]) : 0;
            free(blocks[i]);
        }
        CHECK(cairn_thread_freed() >= before && cairn_thread_freed() == freed, "%zu", cairn_thread_freed());
        CHECK(cairn_count(0) == 1, "off");
        free(malloc(1000));
        CHECK(cairn_thread_freed() == freed, "off");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %#x", status);
    CHECK(cairn_count(0) == 1, "off");
    for (int i = 0; i < 100; i++) {
        blocks[0] = malloc(100 + 1000 * (size_t)i);
        joined(started(count_until_the_end, blocks));
    }
}

static char document[65536];
static int allocates;

static void add(void *length, const char *text, size_t n)
{
    size_t *at = length;
    CHECK(n > 0 && *at + n < sizeof document, "%zu bytes more", n);
    memcpy(document + *at, text, n);
    *at += n;
    if (allocates) free(malloc(n));
}

static void json(void)
{
    static char before[sizeof document];
    cairn_heap *heap = cairn_heap_new();
    void *kept[] = {malloc(1000), malloc(300 * KIB), malloc(40 * MIB), malloc(8), cairn_heap_malloc(heap, 100)};
    size_t length = 0, again = 0;
    allocates = 1;
    cairn_stats_json(add, &length);
    allocates = 0;
    for (int round = 0; round < 2; round++) {
        memcpy(before, document, sizeof before);
        again = length, length = 0;
        cairn_stats_json(add, &length);
    }
    /* Nothing has been allocated in between. */
    CHECK(length == again && memcmp(document, before, length) == 0, "%s, then %s", before, document);
    CHECK(write(1, document, length) == (ssize_t)length, "standard output");
    CHECK(kept[3] && kept[4], "kept");
}

/* The same moment three times: JSON, the text for Prometheus, and single figures, each behind a line of its own. */
static void figures(void)
{
    static const char *const names[] = {"allocated", "active", "cached", "dirty", "retained", "mapped", "metadata",
                                        "resident", "given_back", "blocks", "heaps"};
    static size_t values[COUNT_OF(names)];
    cairn_heap *heap = cairn_heap_new();
    void *kept[] = {malloc(1000), malloc(300 * KIB), malloc(40 * MIB), malloc(8), cairn_heap_malloc(heap, 100)};
    size_t length = 0, value = 7;
    CHECK(cairn_set_memory_limits(0, 8 * GIB), "a limit");
    for (size_t i = 0; i < COUNT_OF(names); i++) CHECK(cairn_stats_get(names[i], &values[i]) == 1, "%s", names[i]);
    CHECK(cairn_stats_get("", &value) == 0 && cairn_stats_get("allocate", &value) == 0, "nothing");
    CHECK(cairn_stats_get("allocated Blocks", &value) == 0, "nothing");
    CHECK(cairn_stats_get("allocated ", &value) == 0 && cairn_stats_get("\xff", &value) == 0 && value == 7, "nothing");
    cairn_stats_json(add, &length);
    document[length++] = '\n';
    cairn_stats_prometheus(add, &length);
    CHECK(write(1, document, length) == (ssize_t)length, "standard output");
    for (size_t i = 0; i < COUNT_OF(names); i++) dprintf(1, "get %s %zu\n", names[i], values[i]);
    CHECK(kept[3] && kept[4], "kept");
}

static const struct test_case cases[] = {
    {"sizes", sizes},
    {"expand", expand},
    {"shrunk", shrunk},
    {"at_least", at_least},
    {"aligned_at", aligned_at},
    {"batches", batches},
    {"recallocarray", recallocarray_},
    {"recallocarray_aligned", recallocarray_aligned},
    {"recallocarray_overflow", recallocarray_overflow},
    {"idle_pool", idle_pool},
    {"counts", counts},
    {"json", json},
    {"figures", figures},
};
MAIN(cases)
