/* Regions, through the header. */
#define _GNU_SOURCE
#include "check.h"
#include "cairn.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* Memory with inaccessible pages on both sides. */
static char *fenced(size_t bytes)
{
    char *at = mmap(NULL, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED, "%zu bytes", bytes);
    CHECK(mprotect(at + PAGE, bytes, PROT_READ | PROT_WRITE) == 0, "%zu bytes", bytes);
    return at + PAGE;
}

static cairn_region *region_of(void *start, size_t bytes)
{
    cairn_region *region = cairn_region_new(start, bytes, NULL);
    CHECK(region, "a region of %zu bytes: errno %d", bytes, errno);
    return region;
}

static size_t used(const cairn_region *region)
{
    struct cairn_region_stats stats;
    cairn_region_get_stats(region, &stats, sizeof stats);
    CHECK(stats.used <= stats.bytes, "%zu of %zu", stats.used, stats.bytes);
    return stats.used;
}

/* Fills a heap to the last block, frees every other one, fills it again. */
static size_t fill_up(cairn_heap *heap, const char *start, size_t bytes, size_t size)
{
    static void *blocks[100000];
    size_t count = 0, total = 0;
    for (int round = 0; round < 3; round++) {
        while (count < COUNT_OF(blocks)) {
            errno = 0;
            char *block = cairn_heap_malloc(heap, size);
            if (!block) {
                CHECK(errno == ENOMEM, "%d", errno);
                break;
            }
            CHECK(block >= start && block + size <= start + bytes, "%p of %zu", (void *)block, size);
            CHECK(cairn_heap_of(block) == heap && malloc_usable_size(block) >= size, "%zu", size);
            memset(block, round, size);
            blocks[count++] = block;
        }
        total = count;
        for (size_t i = 0; i < count; i += 2) {
            free(blocks[i]);
            blocks[i] = blocks[--count];
        }
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
    cairn_heap_purge(heap);
    return total;
}

static void fences(void)
{
    size_t bytes = 3 * MIB + 5 * PAGE;
    char *start = fenced(bytes);
    cairn_region *region = region_of(start, bytes);
    size_t sizes[] = {1, 48, 1000, 5000, 40000, 100000, 1000000, 2 * MIB};
    for (int shared = 0; shared < 2; shared++) {
        cairn_heap *heap = shared ? cairn_heap_new_shared_in(region) : cairn_heap_new_in(region);
        CHECK(heap, "shared: %d", shared);
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            size_t size = sizes[i], count = fill_up(heap, start, bytes, size);
            CHECK(count * size > bytes / 3 || size == 1, "%zu of %zu", count, size);
            CHECK(used(region) == 0, "%zu bytes of %zu", used(region), size);
        }
        CHECK(cairn_region_end(region) == 0 && errno == EBUSY, "a heap is there");
        cairn_heap_destroy(heap);
    }
    CHECK(cairn_region_end(region) == 1, "nothing is in use");
    /* The memory is the program's again. */
    memset(start, 1, bytes);
    cairn_region *again = region_of(start, bytes);
    CHECK(again != region && cairn_region_end(again), "the same memory");
}

static void file(void)
{
    size_t bytes = 8 * MIB;
    FILE *file = tmpfile();
    int fd = fileno(file);
    CHECK(ftruncate(fd, (off_t)bytes) == 0, "%zu bytes", bytes);
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(start != MAP_FAILED, "errno %d", errno);
    cairn_region *region = region_of(start, bytes);
    cairn_heap *heap = cairn_heap_new_in(region);
    char *text = cairn_heap_malloc(heap, 100), *large = cairn_heap_malloc(heap, 200000), got[100];
    strcpy(text, "what is written to a block is in the file");
    memset(large, 7, 200000);
    CHECK(pread(fd, got, 100, text - start) == 100 && strcmp(got, text) == 0, "%s", got);
    CHECK(pread(fd, got, 1, large - start + 199999) == 1 && got[0] == 7, "%d", got[0]);
    /* Where no block has been, nothing has. */
    size_t touched = 0;
    for (size_t at = 0; at < bytes; at += PAGE) touched += start[at] || start[at + PAGE - 1];
    CHECK(touched < 60, "%zu pages", touched);
    cairn_heap_destroy(heap);
    CHECK(cairn_region_end(region) && munmap(start, bytes) == 0, "it ends");
    fclose(file);
}

static void shared_memory(void)
{
    size_t bytes = 4 * MIB;
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cairn_region *region = region_of(start, bytes);
    cairn_heap *heap = cairn_heap_new_in(region);
    volatile int *box = cairn_heap_calloc(heap, 1, sizeof *box);
    pid_t child = fork();
    if (child == 0) {
        *box = 42;
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK(*box == 42, "%d", *box);
    cairn_heap_destroy(heap);
    CHECK(cairn_region_end(region), "it ends");
}

struct calls {
    size_t reserved, released, committed, decommitted;
    int may_reserve, may_commit;
};

static void *reserve(size_t *bytes, void *argument)
{
    struct calls *calls = argument;
    if (calls->may_reserve-- <= 0) return NULL;
    if (*bytes < MIB) *bytes = MIB;
    calls->reserved += *bytes;
    void *at = mmap(NULL, *bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static int commit(void *at, size_t bytes, void *argument)
{
    struct calls *calls = argument;
    if (!calls->may_commit) return -1;
    calls->committed += bytes;
    return mprotect(at, bytes, PROT_READ | PROT_WRITE);
}

static int decommit(void *at, size_t bytes, void *argument)
{
    ((struct calls *)argument)->decommitted += bytes;
    return mprotect(at, bytes, PROT_NONE);
}

static void release(void *at, size_t bytes, void *argument)
{
    ((struct calls *)argument)->released += bytes;
    CHECK(munmap(at, bytes) == 0, "%p", at);
}

static void functions(void)
{
    struct calls calls = {0, 0, 0, 0, 4, 1};
    struct cairn_region_calls given = {reserve, commit, decommit, release, &calls};
    cairn_region *region = cairn_region_new(NULL, 0, &given);
    CHECK(region, "errno %d", errno);
    cairn_heap *heap = cairn_heap_new_shared_in(region);
    char *blocks[5000];
    size_t count = 0;
    while (count < COUNT_OF(blocks) && (blocks[count] = cairn_heap_malloc(heap, 3000))) {
        memset(blocks[count++], 1, 3000);
    }
    CHECK(count > 1000 && count < COUNT_OF(blocks), "%zu", count);
    CHECK(calls.reserved == 4 * MIB && calls.committed >= count * 3000, "%zu", calls.committed);
    for (size_t i = 10; i < count; i++) free(blocks[i]);
    cairn_heap_purge(heap);
    CHECK(calls.decommitted > 2 * MIB, "%zu", calls.decommitted);
    CHECK(blocks[9][2999] == 1, "what is in use stays");
    char *large = cairn_heap_malloc(heap, 500000);
    memset(large, 2, 500000);
    free(large);
    cairn_region_purge(region);
    calls.may_commit = 0;
    CHECK(cairn_heap_malloc(heap, 500000) == NULL && errno == ENOMEM, "it cannot be committed");
    cairn_heap_destroy(heap);
    CHECK(cairn_region_end(region) && calls.released == calls.reserved, "%zu", calls.released);
}

static void refused(void *start, size_t bytes, int reason)
{
    errno = 0;
    CHECK(!cairn_region_new(start, bytes, NULL) && errno == reason, "%p, %zu: %d", start, bytes, errno);
}

static void failures(void)
{
    char *start = fenced(MIB);
    refused(NULL, MIB, EINVAL);
    refused(start, 0, EINVAL);
    refused(start, 16383, EINVAL);
    refused(start, SIZE_MAX, EINVAL);
    void *ours = malloc(300000);
    refused(ours, 300000, EINVAL);
    free(ours);
    cairn_region *region = region_of(start, MIB);
    refused(start + MIB / 2, MIB / 4, EINVAL);
    cairn_heap *heap = cairn_heap_new_in(region);
    CHECK(!cairn_heap_malloc(heap, MIB + 1) && errno == ENOMEM, "more than there is");
    CHECK(!cairn_heap_aligned_alloc(heap, (size_t)1 << 46, 1) && errno == ENOMEM, "an alignment");
    CHECK(!cairn_heap_malloc(heap, SIZE_MAX) && errno == ENOMEM, "too much");
    void *block = cairn_heap_malloc(heap, 1000);
    cairn_heap_delete(heap);
    CHECK(!cairn_region_end(region) && errno == EBUSY, "a block is in use");
    free(block);
    CHECK(cairn_region_end(region) && cairn_region_end(NULL), "none is");
}

static cairn_heap *theirs;

static void *work(void *unused)
{
    (void)unused;
    char *mine[50] = {0};
    for (int i = 0; i < 20000; i++) {
        int at = i * 7 % 50;
        free(mine[at]);
        mine[at] = cairn_heap_malloc(theirs, (size_t)(i % 10) * 100 + 1);
        if (mine[at]) *mine[at] = (char)i;
    }
    for (int i = 0; i < 50; i++) free(mine[i]);
    return NULL;
}

static void threads(void)
{
    size_t bytes = 16 * MIB;
    cairn_region *region = region_of(fenced(bytes), bytes);
    theirs = cairn_heap_new_shared_in(region);
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    cairn_heap_destroy(theirs);
    CHECK(used(region) == 0 && cairn_region_end(region), "nothing is left");
}

static void *ends_once(size_t *bytes, void *argument)
{
    int *calls = argument;
    if ((*calls)++ == 0) pthread_exit(NULL);
    if (*bytes < 4 * MIB) *bytes = 4 * MIB;
    void *at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void *allocates(void *argument)
{
    return cairn_heap_malloc(theirs, *(size_t *)argument);
}

/* A thread ends in the function: the next ones have the region grow all the same. */
static void ends_inside(void)
{
    int calls = 0;
    size_t size = 1000;
    struct cairn_region_calls given = {ends_once, NULL, NULL, NULL, &calls};
    cairn_region *region = cairn_region_new(NULL, 0, &given);
    theirs = cairn_heap_new_shared_in(region);
    alarm(60);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        void *block;
        CHECK(pthread_create(&thread, NULL, allocates, &size) == 0, "a thread");
        CHECK(pthread_join(thread, &block) == 0 && !block == !i, "thread %d: %p", i, block);
    }
    CHECK(allocates(&size) && calls == 2, "%d calls", calls);
    cairn_heap_destroy(theirs);
    CHECK(cairn_region_end(region), "nothing is left");
}

static void ended(void)
{
    cairn_region *region = region_of(fenced(MIB), MIB);
    CHECK(cairn_region_end(region), "it ends");
    cairn_heap_new_in(region) ? puts("made") : puts("none");
}

static void foreign(void)
{
    int other;
    cairn_region_purge((cairn_region *)&other);
}

static void null(void)
{
    cairn_heap_new_shared_in(NULL) ? puts("made") : puts("none");
}

static const struct test_case cases[] = {
    {"fences", fences},
    {"file", file},
    {"shared_memory", shared_memory},
    {"functions", functions},
    {"failures", failures},
    {"threads", threads},
    {"ends_inside", ends_inside},
    {"ended", ended},
    {"foreign", foreign},
    {"null", null},
};
MAIN(cases)
