/* Heaps, through the header. */
#include "check.h"
#include "cairn.h"

#include <sys/wait.h>

enum { COUNT = 1000 };

static size_t held(const cairn_heap *heap)
{
    struct cairn_heap_stats stats;
    cairn_heap_get_stats(heap, &stats, sizeof stats);
    return stats.spans + stats.large;
}

static void *filled(void *block, size_t size, int with)
{
    CHECK(block != NULL, "%zu bytes", size);
    CHECK((uintptr_t)block % 16 == 0, "%p", block);
    CHECK(malloc_usable_size(block) >= size, "%zu bytes", size);
    memset(block, with, size < 5000 ? size : 5000);
    return block;
}

static void calls(void)
{
    cairn_heap *heap = cairn_heap_new(), *other = cairn_heap_new();
    CHECK(heap && other && heap != other, "two heaps");
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(40 * MIB, sizes);
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[i];
        char *blocks[] = {cairn_heap_malloc(heap, size), cairn_heap_calloc(heap, 1, size),
                          cairn_heap_aligned_alloc(heap, 4096, size), cairn_heap_realloc(heap, NULL, size),
                          cairn_heap_malloc_inline(heap, size)};
        for (size_t j = 0; j < size; j += 1 + j / 2) CHECK(blocks[1][j] == 0, "%zu of %zu", j, size);
        CHECK((uintptr_t)blocks[2] % 4096 == 0, "%p", (void *)blocks[2]);
        for (size_t kind = 0; kind < COUNT_OF(blocks); kind++) {
            filled(blocks[kind], size, 1);
            CHECK(cairn_heap_of(blocks[kind]) == heap, "kind %zu, %zu", kind, size);
            CHECK(cairn_heap_contains(heap, blocks[kind] + size / 2), "kind %zu, %zu", kind, size);
            CHECK(!cairn_heap_contains(other, blocks[kind]), "kind %zu, %zu", kind, size);
        }
        char *grown = cairn_heap_realloc(heap, blocks[0], size * 3 + 1);
        CHECK(grown && cairn_heap_of(grown) == heap, "%zu", size);
        for (size_t j = 0; j < size && j < 5000; j++) CHECK(grown[j] == 1, "%zu of %zu", j, size);
        free(grown);
        for (size_t kind = 1; kind < COUNT_OF(blocks); kind++) free(blocks[kind]);
    }
    void *mine = malloc(100);
    CHECK(cairn_heap_of(mine) == NULL && cairn_heap_of(NULL) == NULL && cairn_heap_of(&mine) == NULL, "no heap's");
    char *moved = cairn_heap_realloc(heap, filled(mine, 100, 5), 3000);
    CHECK(cairn_heap_of(moved) == heap && moved[99] == 5, "a thread's block moves in");
    moved = cairn_heap_realloc(other, moved, 9000);
    // A large block that is another one's shrinks all the same.
    for (size_t few = 300000; few > 3000; few /= 50) {
        char *large = filled(malloc(64 << 20), few, 5);
        CHECK((large = cairn_heap_realloc(heap, large, few)) && large[few < 5000 ? few - 1 : 4999] == 5, "%zu", few);
        CHECK(cairn_usable_size(large) < MIB, "%zu", cairn_usable_size(large));
        large = filled(cairn_heap_malloc(other, 3 << 20), few, 5);
        CHECK((large = cairn_heap_realloc(heap, large, few)) && large[few < 5000 ? few - 1 : 4999] == 5, "%zu", few);
        CHECK(cairn_usable_size(large) < MIB, "%zu", cairn_usable_size(large));
        free(large);
    }
    CHECK(cairn_heap_of(moved) == other && moved[99] == 5, "from heap to heap");
    CHECK(cairn_heap_of(cairn_heap_realloc(other, moved, 0)) == other, "0 does not free");
    cairn_heap_set_tag(heap, 42);
    CHECK(cairn_heap_tag(heap) == 42 && cairn_heap_tag(other) == 0, "tags");
    cairn_heap_destroy(other);
    cairn_heap_delete(heap);
    cairn_heap_delete(NULL);
    cairn_heap_destroy(NULL);
}

static void failures(void)
{
    cairn_heap *heap = cairn_heap_new();
    void *block = cairn_heap_malloc(heap, 100);
    errno = 0;
    CHECK(cairn_heap_malloc(heap, hide_size(SIZE_MAX / 2)) == NULL && errno == ENOMEM, "%d", errno);
    errno = 0;
    CHECK(cairn_heap_malloc_inline(heap, hide_size(SIZE_MAX / 2)) == NULL && errno == ENOMEM, "%d", errno);
    errno = 0;
    CHECK(cairn_heap_calloc(heap, hide_size(SIZE_MAX / 2), 16) == NULL && errno == ENOMEM, "%d", errno);
    errno = 0;
    CHECK(cairn_heap_aligned_alloc(heap, 48, 100) == NULL && errno == EINVAL, "%d", errno);
    errno = 0;
    CHECK(cairn_heap_realloc(heap, block, hide_size(SIZE_MAX / 2)) == NULL && errno == ENOMEM, "%d", errno);
    errno = 0;
    CHECK(!cairn_heap_set_limits(heap, 0, 10, NULL, NULL) && errno == EINVAL, "%d", errno);
    CHECK(cairn_heap_set_limits(heap, 0, MIB, NULL, NULL), "a limit");
    errno = 0;
    CHECK(cairn_heap_malloc(heap, 2 * MIB) == NULL && errno == ENOMEM, "%d", errno);
    void *blocks[COUNT * 4];
    errno = 0;
    size_t got = cairn_heap_malloc_batch(heap, 500, COUNT * 4, blocks);
    CHECK(got > 1500 && got < 2100 && errno == ENOMEM, "%zu blocks", got);
    CHECK(held(heap) <= MIB, "%zu", held(heap));
    free(filled(malloc(2 * MIB), 2 * MIB, 1));
    errno = 3;
    for (size_t i = 0; i < got; i++) free(blocks[i]);
    free(block);
    CHECK(errno == 3, "%d", errno);
    cairn_heap_purge(heap);
    CHECK(held(heap) == 0, "%zu", held(heap));
    cairn_heap_destroy(heap);
}

static int told;

static void on_soft(cairn_heap *heap, void *argument)
{
    CHECK(argument == &told, "%p", argument);
    free(filled(cairn_heap_malloc(heap, 700), 700, 1));
    told++;
}

static void soft_limit(void)
{
    cairn_heap *heap = cairn_heap_new_shared();
    CHECK(cairn_heap_set_limits(heap, MIB, 0, on_soft, &told), "a limit");
    for (int i = 0; i < 4 * COUNT; i++) filled(cairn_heap_malloc(heap, 500), 500, 1);
    CHECK(told == 1, "%d times", told);
    struct cairn_heap_stats stats[2];
    memset(stats, 1, sizeof stats);
    cairn_heap_get_stats(heap, stats, sizeof stats);
    CHECK(stats->soft_limit == MIB && stats->peak > MIB && stats[1].spans == 0, "what it holds");
    memset(stats, 1, sizeof stats);
    cairn_heap_get_stats(heap, stats, sizeof stats->spans);
    CHECK(stats->spans > MIB && stats->large == (size_t)-1 / 255, "no more than there is room for");
    cairn_heap_destroy(heap);
}

static cairn_heap *shared;

static void *uses_shared(void *keep)
{
    void **blocks = keep;
    for (int i = 0; i < COUNT; i++) blocks[i] = filled(cairn_heap_malloc(shared, 10 + i), 10 + i, 7);
    return NULL;
}

static void threads(void)
{
    shared = cairn_heap_new_shared();
    static void *blocks[8][COUNT];
    for (int round = 0; round < 3; round++) {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, uses_shared, blocks[i]), "thread");
        for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < COUNT; j++) {
                CHECK(*(char *)blocks[i][j] == 7 && cairn_heap_of(blocks[i][j]) == shared, "%d of %d", j, i);
                if (j % 2) free(blocks[i][j]);
            }
    }
    cairn_heap_destroy(shared);
}

static void *attaches(void *heap)
{
    cairn_heap_attach(heap);
    void *block = filled(cairn_heap_malloc(heap, 64), 64, 1);
    cairn_heap_detach(heap);
    return block;
}

static void *ends(void *heap)
{
    cairn_heap_attach(heap);
    return filled(cairn_heap_malloc(heap, 64), 64, 1);
}

static void moves(void)
{
    cairn_heap *heap = cairn_heap_new();
    void *(*const works[])(void *) = {attaches, ends, attaches};
    cairn_heap_detach(heap);
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        pthread_t thread;
        void *block;
        CHECK(!pthread_create(&thread, NULL, works[i], heap), "thread");
        pthread_join(thread, &block);
        CHECK(cairn_heap_of(block) == heap, "%zu", i);
        free(block);
    }
    cairn_heap_attach(heap);
    void *mine = cairn_heap_malloc(heap, 64);
    CHECK(cairn_owner_thread(mine) == cairn_thread_number() && cairn_thread_number(), "this thread's");
    free(mine);
    cairn_heap_destroy(heap);
}

static int visits(const struct cairn_area *area, void *block, void *sum)
{
    if (block) *(size_t *)sum += area->block_size;
    return 1;
}

static void visit(void)
{
    cairn_heap *heap = cairn_heap_new();
    void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) blocks[i] = cairn_heap_malloc(heap, 48);
    for (int i = 0; i < COUNT; i += 4) free(blocks[i]);
    size_t sum = 0, all = 0;
    CHECK(cairn_visit(heap, 1, visits, &sum), "to the end");
    CHECK(sum >= COUNT / 4 * 3 * 48 && sum <= COUNT / 4 * 3 * (cairn_good_size(48) + 8), "%zu bytes", sum);
    void *mine = malloc(2000);
    CHECK(cairn_visit(NULL, 1, visits, &all) && all >= sum + 2000, "%zu bytes", all);
    free(mine);
    cairn_heap_destroy(heap);
}

/* The child has both kinds, and what other threads had of the shared one is blocks of no heap. */
static void forks(void)
{
    cairn_heap *heap = cairn_heap_new();
    void *mine = cairn_heap_malloc(heap, 300);
    static void *blocks[COUNT];
    shared = cairn_heap_new_shared();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, uses_shared, blocks), "thread");
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < COUNT; i += 2) free(blocks[i]);
        free(mine);
        filled(cairn_heap_malloc(heap, 300), 300, 1);
        filled(cairn_heap_malloc(shared, 300), 300, 1);
        cairn_heap_destroy(shared);
        cairn_heap_destroy(heap);
        cairn_purge();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
    cairn_heap_destroy(heap);
    cairn_heap_destroy(shared);
}

/* What must end with a message. */
static void destroyed(void)
{
    cairn_heap *heap = cairn_heap_new();
    cairn_heap_destroy(heap);
    cairn_heap_malloc(hide(heap), 100);
}

static void *just_uses(void *heap)
{
    return cairn_heap_malloc(heap, 100);
}

static void of_another_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, just_uses, cairn_heap_new());
    pthread_join(thread, NULL);
}

static void *just_attaches(void *heap)
{
    cairn_heap_attach(heap);
    return heap;
}

static void attached_twice(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, just_attaches, cairn_heap_new());
    pthread_join(thread, NULL);
}

static void no_heap(void)
{
    cairn_heap_attach(malloc(100));
}

static void attaches_null(void)
{
    cairn_heap_attach(hide(NULL));
}

static void detaches_null(void)
{
    cairn_heap_detach(hide(NULL));
}

static void purges_null(void)
{
    cairn_heap_purge(hide(NULL));
}

static const struct test_case cases[] = {
    {"calls", calls},
    {"failures", failures},
    {"soft_limit", soft_limit},
    {"threads", threads},
    {"moves", moves},
    {"visit", visit},
    {"forks", forks},
    {"destroyed", destroyed},
    {"of_another_thread", of_another_thread},
    {"attached_twice", attached_twice},
    {"no_heap", no_heap},
    {"attaches_null", attaches_null},
    {"detaches_null", detaches_null},
    {"purges_null", purges_null},
};
MAIN(cases)
