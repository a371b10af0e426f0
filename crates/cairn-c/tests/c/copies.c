/*
 * Two allocators in one process: the program's, and that of a plugin. The plugin (plugin.c, its
 * path is the argument after the case) has linked a copy of cairn in and keeps it to itself; or
 * it is bound so deeply that it finds the C library's.
 */
#include "check.h"

#include <signal.h>
#include <sys/wait.h>

static struct {
    void *handle;
    void *(*give)(size_t);
    void (*take)(void *);
    void *(*resize)(void *, size_t);
    size_t (*size)(void *);
} plugin;

static void *found(const char *name)
{
    void *address = dlsym(plugin.handle, name);
    CHECK(address != NULL, "%s", name);
    return address;
}

static void load(int flags)
{
    plugin.handle = dlopen(case_arguments[0], RTLD_NOW | RTLD_LOCAL | flags);
    CHECK(plugin.handle != NULL, "%s", dlerror());
    plugin.give = (void *(*)(size_t))found("plugin_give");
    plugin.take = (void (*)(void *))found("plugin_take");
    plugin.resize = (void *(*)(void *, size_t))found("plugin_resize");
    plugin.size = (size_t (*)(void *))found("plugin_size");
    void *(*its_malloc)(void) = (void *(*)(void))found("plugin_malloc");
    CHECK(its_malloc() != (void *)malloc, "the plugin has no allocator of its own");
}

static const size_t sizes[] = {0, 16, 100, 1024, 5000, 65536, 65537, 200000, MIB, 5 * MIB, 33 * MIB};

static void *use_both(void *seed)
{
    enum { LIVE = 200 };
    static __thread struct { void *block; size_t size; int is_its; } live[LIVE];
    uint64_t random = 521288629 + (uintptr_t)seed;
    for (int step = 0; step < 10000; step++) {
        size_t slot = random_next(&random) % LIVE;
        if (live[slot].block) {
            CHECK(ends_hold(live[slot].block, live[slot].size, 2), "step %d", step);
            (live[slot].is_its ? plugin.take : free)(live[slot].block);
        }
        live[slot].size = random_size(&random, step % 200 ? 13 : 23);
        live[slot].is_its = random_next(&random) % 2;
        live[slot].block = (live[slot].is_its ? plugin.give : malloc)(live[slot].size);
        CHECK(live[slot].block != NULL, "%zu", live[slot].size);
        fill_ends(live[slot].block, live[slot].size, 2);
    }
    for (size_t slot = 0; slot < LIVE; slot++) {
        (live[slot].is_its ? plugin.take : free)(live[slot].block);
        live[slot].block = NULL;
    }
    return NULL;
}

static void expect_success(pid_t child)
{
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%#x", status);
}

/* Threads and forks find their way through both. */
static void work_side_by_side(int flags)
{
    void *threads[6];
    load(flags);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(use_both, (void *)i);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            use_both((void *)7);
            joined(started(use_both, (void *)8));
            exit(0);
        }
        expect_success(child);
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    use_both((void *)9);
    CHECK(dlclose(plugin.handle) == 0, "%s", dlerror());
}

static void side_by_side(void) { work_side_by_side(0); }
static void side_by_side_deeply_bound(void) { work_side_by_side(RTLD_DEEPBIND); }

static void *use_and_wait(void *barrier)
{
    use_both(barrier);
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    return NULL;
}

/* Threads that have used it end when it has been closed. */
static void threads_outlive_it(void)
{
    pthread_barrier_t barrier;
    void *threads[4];
    pthread_barrier_init(&barrier, NULL, COUNT_OF(threads) + 1);
    load(0);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(use_and_wait, &barrier);
    pthread_barrier_wait(&barrier);
    CHECK(dlclose(plugin.handle) == 0, "%s", dlerror());
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    pid_t child = fork();
    if (child == 0) exit(0);
    expect_success(child);
}

static void resize(void *block) { (void)!realloc(block, 300000); }
static void ask_size(void *block) { malloc_usable_size(block); }
static void its_resize(void *block) { plugin.resize(block, 300000); }
static void its_size(void *block) { plugin.size(block); }

typedef struct {
    const char *name;
    void (*call)(void *);
} call_t;

/* What a child says that gives `block` to the wrong allocator, and how it ends. */
static void expect_message(const call_t *call, void *block, size_t size)
{
    int ends[2], status = -1;
    char said[1024], expected[256];
    CHECK(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        dup2(ends[1], 2);
        call->call(block);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t got; (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0;) length += (size_t)got;
    close(ends[0]);
    said[length] = 0;
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    snprintf(expected, sizeof expected, "cairn: %s(%p): the pointer is not from this allocator\n", call->name, block);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strcmp(said, expected) == 0,
          "%s of %zu bytes: wait status %#x, said `%s`, expected `%s`", call->name, size, status, said, expected);
}

/* Each end of every size, among many others: both allocators have blocks at equal distances from
 * where their memory begins. */
static void mixed_up(int program_tells, int plugin_tells)
{
    static const call_t to_programs[] = {{"free", free}, {"realloc", resize}, {"malloc_usable_size", ask_size}};
    const call_t to_plugins[] = {{"free", plugin.take}, {"realloc", its_resize}, {"malloc_usable_size", its_size}};
    enum { EACH = 20 };
    void *programs[COUNT_OF(sizes)][EACH], *its[COUNT_OF(sizes)][EACH];
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t j = 0; j < EACH; j++) {
            programs[i][j] = malloc(sizes[i]), its[i][j] = plugin.give(sizes[i]);
            CHECK(programs[i][j] && its[i][j], "%zu", sizes[i]);
        }
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t j = 0; j < EACH; j += EACH - 1) {
            for (size_t k = 0; k < 3; k++) {
                if (program_tells) expect_message(&to_programs[k], its[i][j], sizes[i]);
                if (plugin_tells) expect_message(&to_plugins[k], programs[i][j], sizes[i]);
            }
        }
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (size_t j = 0; j < EACH; j++) free(programs[i][j]), plugin.take(its[i][j]);
}

static void both_tell(void)
{
    load(0);
    mixed_up(1, 1);
}

/* The C library's allocator, on the other side, has messages of its own. */
static void the_plugin_tells(void)
{
    load(0);
    mixed_up(0, 1);
}

static void the_program_tells_deeply_bound(void)
{
    load(RTLD_DEEPBIND);
    mixed_up(1, 0);
}

static const struct test_case cases[] = {
    {"side_by_side", side_by_side},
    {"side_by_side_deeply_bound", side_by_side_deeply_bound},
    {"threads_outlive_it", threads_outlive_it},
    {"both_tell", both_tell},
    {"the_plugin_tells", the_plugin_tells},
    {"the_program_tells_deeply_bound", the_program_tells_deeply_bound},
};
MAIN(cases)
