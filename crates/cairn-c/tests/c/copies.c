/*
 * Several allocators in one process: the program's, and those that the arguments behind the case
 * name. An argument is a sign and the path of a library: `+` if its allocator is cairn, `-` if it
 * is another. The library is an allocator's own, or a plugin (plugin.c) that has one.
 */
#include "check.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { ALLOCATORS_MAX = 16, LIVE = 200, SHARED = 64 };

typedef struct {
    int is_cairn;
    void *handle;
    void *(*give)(size_t);
    void (*take)(void *);
    void *(*resize)(void *, size_t);
    size_t (*size)(void *);
} allocator_t;

static allocator_t allocators[ALLOCATORS_MAX];
static size_t count;

static void *found(const allocator_t *its, const char *in_plugins, const char *in_allocators)
{
    void *address = dlsym(its->handle, in_plugins);
    if (!address) address = dlsym(its->handle, in_allocators);
    CHECK(address != NULL, "%s, %s", in_plugins, in_allocators);
    return address;
}

static void load(int flags)
{
    allocators[count++] = (allocator_t){getenv("TEST_EXPECTS_CAIRN") != NULL, NULL,
                                        malloc, free, realloc, malloc_usable_size};
    for (char **argument = case_arguments; *argument; argument++) {
        CHECK(count < ALLOCATORS_MAX, "too many");
        allocator_t *its = &allocators[count++];
        its->is_cairn = **argument == '+';
        its->handle = dlopen(*argument + 1, RTLD_NOW | RTLD_LOCAL | flags);
        CHECK(its->handle != NULL, "%s", dlerror());
        its->give = (void *(*)(size_t))found(its, "plugin_give", "malloc");
        its->take = (void (*)(void *))found(its, "plugin_take", "free");
        its->resize = (void *(*)(void *, size_t))found(its, "plugin_resize", "realloc");
        its->size = (size_t (*)(void *))found(its, "plugin_size", "malloc_usable_size");
        void *(*plugins)(void) = (void *(*)(void))dlsym(its->handle, "plugin_malloc");
        void *its_malloc = plugins ? plugins() : (void *)its->give;
        CHECK(its_malloc != (void *)malloc, "%s has no allocator of its own", *argument);
    }
    CHECK(count > 1, "no library is named");
}

static void unload(void)
{
    for (size_t i = 1; i < count; i++) CHECK(dlclose(allocators[i].handle) == 0, "%s", dlerror());
}

/* Each block knows whose it is, so that any thread can free it. */
typedef struct {
    size_t size, owner;
} block_t;

static block_t *made(uint64_t *random, unsigned bits)
{
    size_t size = sizeof(block_t) + random_size(random, bits), owner = random_next(random) % count;
    block_t *block = allocators[owner].give(size);
    CHECK(block != NULL, "%zu", size);
    fill_ends(block + 1, size - sizeof *block, 2);
    *block = (block_t){size, owner};
    return block;
}

static void end(block_t *block)
{
    if (!block) return;
    CHECK(block->owner < count, "%zu", block->owner);
    CHECK(ends_hold(block + 1, block->size - sizeof *block, 2), "%zu bytes of %zu", block->size, block->owner);
    allocators[block->owner].take(block);
}

/* Where threads leave blocks to each other. */
static _Atomic(block_t *) shared[SHARED];

static void *use_all(void *seed)
{
    static __thread block_t *live[LIVE];
    uint64_t random = 521288629 + (uintptr_t)seed;
    for (int step = 0; step < 10000; step++) {
        block_t **own = &live[random_next(&random) % LIVE];
        if (random_next(&random) % 4 == 0) *own = atomic_exchange(&shared[random_next(&random) % SHARED], *own);
        end(*own);
        *own = made(&random, step % 200 ? 13 : 23);
        if (step % 7 == 0) {
            allocator_t *its = &allocators[(*own)->owner];
            size_t size = sizeof(block_t) + random_size(&random, 13), owner = (*own)->owner;
            block_t *moved = its->resize(*own, size);
            CHECK(moved && its->size(moved) >= size && moved->owner == owner, "%zu", size);
            fill_ends(moved + 1, size - sizeof *moved, 2);
            moved->size = size, *own = moved;
        }
    }
    for (size_t slot = 0; slot < LIVE; slot++) end(live[slot]), live[slot] = NULL;
    return NULL;
}

static void expect_success(pid_t child)
{
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%#x", status);
}

/* Threads and forks find their way through all. */
static void work_side_by_side(int flags)
{
    void *threads[4];
    load(flags);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(use_all, (void *)i);
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            use_all((void *)7);
            joined(started(use_all, (void *)8));
            exit(0);
        }
        expect_success(child);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    use_all((void *)9);
    for (size_t i = 0; i < SHARED; i++) end(shared[i]);
    unload();
}

static void side_by_side(void) { work_side_by_side(0); }
static void side_by_side_deeply_bound(void) { work_side_by_side(RTLD_DEEPBIND); }

static void *use_and_wait(void *barrier)
{
    use_all(barrier);
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    return NULL;
}

/* Threads that have used them end when all have been closed. */
static void threads_outlive_them(void)
{
    pthread_barrier_t barrier;
    void *threads[4];
    pthread_barrier_init(&barrier, NULL, COUNT_OF(threads) + 1);
    load(0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(use_and_wait, &barrier);
    pthread_barrier_wait(&barrier);
    unload();
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    pid_t child = fork();
    if (child == 0) exit(0);
    expect_success(child);
}

/* Closed and opened again it is the same copy: its blocks are still good. */
static void they_come_again(void)
{
    load(0);
    void *block = allocators[1].give(1000), (*take)(void *) = allocators[1].take;
    for (int i = 0; i < 50; i++) {
        unload();
        count = 0;
        load(0);
        joined(started(use_all, (void *)(uintptr_t)i));
    }
    CHECK(allocators[1].take == take, "another copy");
    take(block);
}

/* The calls whose messages are compared. */
static const char *const names[] = {"free", "realloc", "malloc_usable_size"};

static void give_wrongly(const allocator_t *to, size_t call, void *block)
{
    switch (call) {
    case 0: to->take(block); return;
    case 1: (void)!to->resize(block, 300000); return;
    case 2: to->size(block);
    }
}

/* What a child says that gives `block` to the wrong allocator, and how it ends. */
static void expect_message(const allocator_t *to, size_t call, void *block, size_t size)
{
    int ends[2], status = -1;
    char said[1024], expected[256];
    CHECK(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        dup2(ends[1], 2);
        give_wrongly(to, call, block);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0;) length += (size_t)got;
    close(ends[0]);
    said[length] = 0;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    snprintf(expected, sizeof expected, "cairn: %s(%p): the pointer is not from this allocator\n", names[call], block);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strcmp(said, expected) == 0,
          "%zu bytes given to %zu: wait status %#x, said `%s`, expected `%s`", size, (size_t)(to - allocators), status,
          said, expected);
}

/* Each end of every size, among many others: all copies of cairn have blocks at equal distances from
 * where their memory begins. What is no cairn has messages of its own, or none. */
static void work_mixed_up(int flags)
{
    static const size_t sizes[] = {0, 16, 100, 1024, 5000, 65536, 65537, 200000, MIB, 5 * MIB, 33 * MIB};
    enum { EACH = 20 };
    static void *blocks[ALLOCATORS_MAX][COUNT_OF(sizes)][EACH];
    load(flags);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (size_t j = 0; j < EACH; j++)
            for (size_t k = 0; k < count; k++) {
                blocks[k][i][j] = allocators[k].give(sizes[i]);
                CHECK(blocks[k][i][j] != NULL, "%zu", sizes[i]);
            }
    for (size_t from = 0; from < count; from++)
        for (size_t to = 0; to < count; to++)
            for (size_t i = 0; i < COUNT_OF(sizes) && from != to && allocators[to].is_cairn; i++)
                for (size_t j = 0; j < EACH; j += EACH - 1)
                    expect_message(&allocators[to], (i + j) % COUNT_OF(names), blocks[from][i][j], sizes[i]);
    for (size_t k = 0; k < count; k++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            for (size_t j = 0; j < EACH; j++) allocators[k].take(blocks[k][i][j]);
}

static void mixed_up(void) { work_mixed_up(0); }
static void mixed_up_deeply_bound(void) { work_mixed_up(RTLD_DEEPBIND); }

/* This program has no C++ library: it comes with the plugin, and others do not see it. */
static void plugin_gives_up(void)
{
    void *plugin = dlopen(case_arguments[0], RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin != NULL, "%s", dlerror());
    int (*gives_up)(void) = (int (*)(void))dlsym(plugin, "gives_up");
    CHECK(gives_up != NULL && gives_up() == 4, "a block of nearly all addresses");
}

static const struct test_case cases[] = {
    {"side_by_side", side_by_side},
    {"side_by_side_deeply_bound", side_by_side_deeply_bound},
    {"threads_outlive_them", threads_outlive_them},
    {"they_come_again", they_come_again},
    {"plugin_gives_up", plugin_gives_up},
    {"mixed_up", mixed_up},
    {"mixed_up_deeply_bound", mixed_up_deeply_bound},
};
MAIN(cases)
