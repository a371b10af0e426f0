/*
 * Limits of the process's memory: by the environment, by call, and those of a memory cgroup.
 */
#include "check.h"

#ifndef CAIRN_IS_LINKED
#include "../../include/cairn.h"
#endif
#include <sys/wait.h>

/* Present where the program is preloaded, too. */
#pragma weak cairn_set_memory_limits
#pragma weak cairn_get_memory
#pragma weak cairn_on_low_memory

enum { BLOCKS = 20000 };
static void *blocks[BLOCKS];

static size_t fill_up(size_t size)
{
    size_t count = 0;
    while (count < BLOCKS && (blocks[count] = malloc(size)) != NULL) {
        memset(blocks[count], 1, size);
        count++;
    }
    CHECK(count < BLOCKS && errno == ENOMEM, "%zu of %zu", count, size);
    return count;
}

static void empty(size_t count)
{
    while (count > 0) free(blocks[--count]);
}

/* Runs with CAIRN_MEMORY_LIMIT=64M. */
static void stops(void)
{
    static const size_t sizes[] = {8000, 60 * KIB, 300 * KIB, 5 * MIB};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t count = fill_up(sizes[i]), size = sizes[i];
        void *other = &other, *moved;
        CHECK(count * size > 45 * MIB && count * size < 64 * MIB, "%zu of %zu", count, size);
        CHECK(resident_kib() < 72 * KIB, "%zu KiB", resident_kib());
        CHECK(calloc(32, MIB) == NULL && errno == ENOMEM, "calloc");
        errno = 0;
        moved = realloc(blocks[0], 40 * MIB);
        CHECK(moved == NULL && errno == ENOMEM, "realloc");
        CHECK(*(char *)blocks[0] == 1 && ((char *)blocks[0])[size - 1] == 1, "the block is whole");
        CHECK(posix_memalign(&other, 64, 32 * MIB) == ENOMEM && other == &other, "posix_memalign");
        empty(count);
    }
    /* A mapping takes the place of what was free. */
    blocks[0] = malloc(50 * MIB);
    CHECK(blocks[0] != NULL && malloc(20 * MIB) == NULL && errno == ENOMEM, "a mapping");
    blocks[1] = realloc(blocks[0], 60 * MIB);
    CHECK(blocks[1] != NULL && realloc(blocks[1], 70 * MIB) == NULL, "it grows as far as it may");
    free(blocks[1]);
}

/* The same, in a child that is forked while other threads take memory. */
static void *take_and_give(void *stop)
{
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
        void *some[40];
        for (int i = 0; i < 40; i++) some[i] = malloc(100 * KIB);
        for (int i = 0; i < 40; i++) free(some[i]);
    }
    return NULL;
}

static void child_stops(void)
{
    int stop = 0;
    void *threads[2];
    for (int i = 0; i < 2; i++) threads[i] = started(take_and_give, &stop);
    for (int i = 0; i < 20; i++) {
        int status = 0;
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            size_t count = fill_up(300 * KIB);
            CHECK(count > 130 && count < 220, "%zu", count);
            empty(count);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %d", status);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) joined(threads[i]);
}

/* Compilers believe that malloc changes no variable of the program. */
static volatile size_t near, failed;
static void *volatile spare;

static void told(size_t size, void *argument)
{
    CHECK(argument == &near, "the argument");
    if (size == 0) {
        near++;
        return;
    }
    failed++;
    free(spare);
    spare = NULL;
}

static void calls(void)
{
    struct cairn_memory memory;
    size_t count;
    if (cairn_set_memory_limits == NULL) return;
    CHECK(cairn_set_memory_limits(2, 1) == 0 && errno == EINVAL, "the soft one is more");
    CHECK(cairn_set_memory_limits(0, 50 * MIB) == 1, "limits");
    cairn_get_memory(&memory, sizeof memory);
    CHECK(memory.hard_limit == 50 * MIB && memory.soft_limit == 0, "%zu", memory.hard_limit);
    cairn_on_low_memory(told, (void *)&near);
    spare = malloc(10 * MIB);
    count = fill_up(100 * KIB);
    CHECK(near == 1 && failed == 2 && spare == NULL, "%zu, %zu", near, failed);
    CHECK(count * 100 * KIB > 44 * MIB, "%zu: the spare serves", count);
    cairn_get_memory(&memory, sizeof memory);
    CHECK(memory.counted > 45 * MIB && memory.counted <= 50 * MIB, "%zu", memory.counted);
    cairn_on_low_memory(NULL, NULL);
    CHECK(cairn_set_memory_limits(0, 0) == 1, "no limits");
    blocks[count] = malloc(60 * MIB);
    CHECK(blocks[count] != NULL, "no limit");
    empty(count + 1);
}

static void ends(size_t size, void *argument)
{
    (void)size;
    (void)argument;
    pthread_exit(NULL);
}

static void *fills_up(void *argument)
{
    fill_up(100 * KIB);
    return argument;
}

/* A thread ends in the function: who takes that back does not wait for it. The first one has the C library load what unwinds,
 * which allocates; the second has nothing but large blocks. */
static void ends_inside(void)
{
    void *result;
    if (cairn_set_memory_limits == NULL) return;
    alarm(60);
    CHECK(cairn_set_memory_limits(SIZE_MAX, 50 * MIB) == 1, "a limit");
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        cairn_on_low_memory(ends, NULL);
        CHECK(pthread_create(&thread, NULL, fills_up, blocks) == 0, "a thread");
        CHECK(pthread_join(thread, &result) == 0 && result == NULL, "it has ended inside");
        cairn_on_low_memory(NULL, NULL);
        for (size_t nth = 0; blocks[nth] != NULL; nth++) {
            free(blocks[nth]);
            blocks[nth] = NULL;
        }
    }
}

/* Lives in `argument` MiB at most, for some rounds: what is freed lies elsewhere than what comes. */
static void lives(void)
{
    const size_t most = (size_t)argument_or(55) * MIB;
    size_t held = 0, sizes[BLOCKS], count = 0;
    uint64_t state = 88172645463325252u;
    for (size_t round = 0; round < 60; round++) {
        size_t shift = 12 + round % 8;
        for (size_t i = 0; i < count; i++) {
            size_t other = random_next(&state) % count;
            if (held < most / 2) break;
            free(blocks[other]);
            held -= sizes[other];
            count--;
            blocks[other] = blocks[count];
            sizes[other] = sizes[count];
        }
        for (;;) {
            size_t size = ((size_t)20 << shift) / 4 + random_next(&state) % ((size_t)20 << shift);
            if (held + size > most || count == BLOCKS) break;
            blocks[count] = malloc(size);
            CHECK(blocks[count] != NULL, "%zu of %zu", size, held);
            memset(blocks[count], 1, size);
            sizes[count++] = size;
            held += size;
        }
    }
    empty(count);
}

/* What cannot be had is refused at once, however much is free: a cache that evicts when it is would wait else. */
static void refuses(void)
{
    enum { BLOCKS = 256, TURNS = 200 };
    static void *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) CHECK((blocks[i] = malloc(15 * MIB)) != NULL, "%zu", i);
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
    malloc_trim(0);
    CHECK(malloc((size_t)3584 * MIB) != NULL, "most of it");
    alarm(60);
    for (int turn = 0; turn < TURNS; turn++) {
        void *block = NULL;
        CHECK(malloc(600 * MIB) == NULL, "turn %d", turn);
        CHECK(posix_memalign(&block, 2 * MIB, 600 * MIB) == ENOMEM, "turn %d", turn);
    }
}

static const struct test_case cases[] = {
    {"refuses", refuses},
    {"stops", stops},
    {"child_stops", child_stops},
    {"calls", calls},
    {"ends_inside", ends_inside},
    {"lives", lives},
};
MAIN(cases)
