/* Threads, forks, new programs. */
#include "check.h"

#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

extern char **environ;

static size_t sizes[EDGE_SIZES_MAX], size_count;

/* Some of each size class; only the ends of large blocks become resident. */
static void allocate_every_size(unsigned seed)
{
    void *blocks[EDGE_SIZES_MAX];
    for (size_t i = 0; i < size_count; i++) {
        blocks[i] = malloc(sizes[i]);
        CHECK(blocks[i] != NULL, "%zu", sizes[i]);
        fill_ends(blocks[i], sizes[i], seed);
    }
    for (size_t i = 0; i < size_count; i++) {
        CHECK(ends_hold(blocks[i], sizes[i], seed), "%zu", sizes[i]);
        free(blocks[i]);
    }
}

/* A fork that hangs must not outlive the test: alarms are not inherited. */
static pid_t forked(void)
{
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) alarm(60);
    return child;
}

static void expect_success(pid_t child, const char *what)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child, "%s", what);
    CHECK(status == 0, "%s: wait status %#x (0xe: it hangs)", what, status);
}

/* --- fork from a busy parent --- */

enum { BUSY_THREADS = 8, INHERITED = 60 };
static struct { void *block; size_t size; } inherited[BUSY_THREADS][INHERITED];
static _Atomic(void *) exchanged[256];
static atomic_int stop;
static pthread_barrier_t ready;

static void *busy(void *argument)
{
    size_t self = (size_t)argument;
    uint64_t random = 88172645463325252u + self * 7919;
    for (size_t i = 0; i < INHERITED; i++) {
        inherited[self][i].size = random_size(&random, i % 20 ? 14 : 21);
        inherited[self][i].block = malloc(inherited[self][i].size);
        fill_ends(inherited[self][i].block, inherited[self][i].size, (unsigned)i);
    }
    pthread_barrier_wait(&ready);
    for (size_t i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++) {
        /* The processor is there for the children as well. */
        if (i % 64 == 0) usleep(50);
        size_t size = random_size(&random, random_next(&random) % 1000 ? 15 : 22);
        void *block = random_next(&random) % 16 ? malloc(size) : memalign(256, size);
        CHECK(block != NULL, "%zu", size);
        if (size > 0) *(char *)block = 1;
        /* Freed by whichever thread comes next. */
        free(atomic_exchange(&exchanged[random_next(&random) % COUNT_OF(exchanged)], block));
    }
    return NULL;
}

static void start_busy(void **threads)
{
    pthread_barrier_init(&ready, NULL, BUSY_THREADS + 1);
    for (size_t i = 0; i < BUSY_THREADS; i++) threads[i] = started(busy, (void *)i);
    pthread_barrier_wait(&ready);
}

static void stop_busy(void **threads)
{
    atomic_store(&stop, 1);
    for (size_t i = 0; i < BUSY_THREADS; i++) joined(threads[i]);
}

static void use_what_is_inherited(void)
{
    for (size_t i = 0; i < BUSY_THREADS; i++) {
        for (size_t j = 0; j < INHERITED; j++) {
            CHECK(ends_hold(inherited[i][j].block, inherited[i][j].size, (unsigned)j), "%zu %zu", i, j);
            if (j % 3 == 0) {
                inherited[i][j].block = realloc(inherited[i][j].block, inherited[i][j].size + 1000);
                CHECK(inherited[i][j].block != NULL, "realloc");
            }
            free(inherited[i][j].block);
        }
    }
    for (size_t i = 0; i < COUNT_OF(exchanged); i++) free(exchanged[i]);
}

static void fork_from_busy(void)
{
    void *threads[BUSY_THREADS];
    long forks = argument_or(2000);
    start_busy(threads);
    for (long i = 0; i < forks; i++) {
        pid_t child = forked();
        if (child == 0) {
            use_what_is_inherited();
            allocate_every_size((unsigned)i);
            /* Every other one leaves as a program does, through its exit handlers. */
            if (i % 2) exit(0);
            _exit(0);
        }
        expect_success(child, "child of a busy parent");
        if (i % 100 == 0) allocate_every_size((unsigned)i);
    }
    stop_busy(threads);
}

static void *work_in_child(void *unused)
{
    (void)unused;
    allocate_every_size(3);
    return NULL;
}

/* A child with threads of its own, which forks as well. */
static void descend(int depth)
{
    void *threads[4];
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(work_in_child, NULL);
    if (depth > 0) {
        pid_t child = forked();
        if (child == 0) {
            descend(depth - 1);
            exit(0);
        }
        expect_success(child, "child of a child");
    }
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    allocate_every_size(4);
}

static void fork_in_children(void)
{
    void *threads[BUSY_THREADS];
    long lines = argument_or(30);
    start_busy(threads);
    for (long i = 0; i < lines; i++) {
        pid_t child = forked();
        if (child == 0) {
            use_what_is_inherited();
            descend(4);
            exit(0);
        }
        expect_success(child, "first of the line");
    }
    stop_busy(threads);
}

/* The thread that forks is the only one of the child, and is not its first. */
static void *fork_here(void *argument)
{
    void *mine = malloc(1000);
    fill(mine, 1000, 1);
    for (long i = 0, forks = argument_or(100); i < forks; i++) {
        pid_t child = forked();
        if (child == 0) {
            CHECK(holds(mine, 1000, 1), "contents");
            free(mine);
            use_what_is_inherited();
            joined(started(work_in_child, NULL));
            exit(0);
        }
        expect_success(child, "child of a thread");
    }
    free(mine);
    return argument;
}

static void fork_from_threads(void)
{
    void *threads[BUSY_THREADS], *forking[3];
    start_busy(threads);
    for (size_t i = 0; i < COUNT_OF(forking); i++) forking[i] = started(fork_here, NULL);
    for (size_t i = 0; i < COUNT_OF(forking); i++) joined(forking[i]);
    stop_busy(threads);
}

/* Handlers of the program that allocate around the fork, as many libraries have them. */
static void at_fork(void)
{
    free(malloc(100));
    free(malloc(40000));
}

static void fork_handlers_may_allocate(void)
{
    void *threads[BUSY_THREADS];
    CHECK(pthread_atfork(at_fork, at_fork, at_fork) == 0, "pthread_atfork");
    long forks = argument_or(200);
    start_busy(threads);
    for (long i = 0; i < forks; i++) {
        pid_t child = forked();
        if (child == 0) {
            allocate_every_size(1);
            exit(0);
        }
        expect_success(child, "child with handlers");
    }
    stop_busy(threads);
}

/* --- other programs --- */

static void spawn_and_vfork(void)
{
    void *threads[BUSY_THREADS];
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(length > 0, "/proc is needed");
    self[length] = 0;
    char *arguments[] = {self, (char *)"every_size", NULL};
    long rounds = argument_or(60);
    start_busy(threads);
    for (long i = 0; i < rounds; i++) {
        pid_t child;
        CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0, "posix_spawn");
        expect_success(child, "spawned");
        child = vfork();
        if (child == 0) {
            execve(self, arguments, environ);
            _exit(99);
        }
        CHECK(child > 0, "vfork");
        expect_success(child, "after vfork");
        CHECK(system("exit 0") == 0, "system");
        FILE *pipe = popen("echo text", "r");
        char *line = NULL;
        size_t capacity = 0;
        CHECK(pipe && getline(&line, &capacity, pipe) == 5, "popen");
        free(line);
        CHECK(pclose(pipe) == 0, "pclose");
    }
    stop_busy(threads);
}

static void every_size(void) { allocate_every_size(1); }

/* The program is replaced while its threads allocate. */
static void exec_while_busy(void)
{
    void *threads[BUSY_THREADS];
    char *arguments[] = {(char *)"itself", (char *)"every_size", NULL};
    start_busy(threads);
    usleep(5000);
    execve("/proc/self/exe", arguments, environ);
    CHECK(0, "execve");
}

/* --- threads --- */

static void *short_life(void *argument)
{
    void *blocks[40];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        size_t size = (i * i * 16) % 20000;
        blocks[i] = malloc(size);
        CHECK(blocks[i] != NULL, "%zu", size);
        fill_ends(blocks[i], size, 1);
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
    return argument;
}

static void short_threads(void)
{
    for (int round = 0; round < 2500; round++) {
        void *threads[8];
        for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(short_life, NULL);
        for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
}

/* A queue between threads; it allocates nothing. */
enum { QUEUE_ROOM = 4096, BATCH = 64 };
typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    void *items[QUEUE_ROOM];
    size_t room, head, tail;
} queue_t;

static void queue_init(queue_t *queue, size_t room)
{
    pthread_mutex_init(&queue->mutex, NULL);
    pthread_cond_init(&queue->changed, NULL);
    queue->room = room < QUEUE_ROOM ? room : QUEUE_ROOM;
    queue->head = queue->tail = 0;
}

static void put(queue_t *queue, void **items, size_t count)
{
    pthread_mutex_lock(&queue->mutex);
    while (queue->tail - queue->head + count > queue->room) pthread_cond_wait(&queue->changed, &queue->mutex);
    for (size_t i = 0; i < count; i++) queue->items[queue->tail++ % QUEUE_ROOM] = items[i];
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
}

static void take(queue_t *queue, void **items, size_t count)
{
    pthread_mutex_lock(&queue->mutex);
    while (queue->tail - queue->head < count) pthread_cond_wait(&queue->changed, &queue->mutex);
    for (size_t i = 0; i < count; i++) items[i] = queue->items[queue->head++ % QUEUE_ROOM];
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->mutex);
}

static queue_t flow;
static size_t flow_size, flow_count;

/* Never frees. The size of each block is at its start. */
static void *only_allocates(void *unused)
{
    uint64_t random = 362436069;
    void *batch[BATCH];
    for (size_t sent = 0; sent < flow_count; sent += BATCH) {
        for (size_t i = 0; i < BATCH; i++) {
            size_t size = sizeof(size_t) + random_next(&random) % (2 * flow_size);
            size_t *block = malloc(size);
            CHECK(block != NULL, "%zu", size);
            fill_ends(block, size, (unsigned)size);
            *block = size;
            batch[i] = block;
        }
        put(&flow, batch, BATCH);
    }
    return unused;
}

/* Never allocates. */
static void *only_frees(void *unused)
{
    void *batch[BATCH];
    for (size_t taken = 0; taken < flow_count; taken += BATCH) {
        take(&flow, batch, BATCH);
        for (size_t i = 0; i < BATCH; i++) {
            size_t size = *(size_t *)batch[i], end = size < 72 ? 0 : 64;
            const unsigned char *last = (unsigned char *)batch[i] + size - end;
            for (size_t j = 0; j < end; j++)
                CHECK(last[j] == pattern_at(size - end + j, (unsigned)size), "%zu", size);
            free(batch[i]);
        }
    }
    return unused;
}

/* 1 GiB flows from one thread to another; little of it may stay. */
static void one_allocates_one_frees(void)
{
    static const size_t means[] = {48, 400, 3000, 12000};
    for (size_t i = 0; i < COUNT_OF(means); i++) {
        flow_size = means[i];
        flow_count = GIB / COUNT_OF(means) / means[i] / BATCH * BATCH;
        /* No more than 8 MiB wait in the queue. */
        queue_init(&flow, 8 * MIB / means[i]);
        void *from = started(only_allocates, NULL), *to = started(only_frees, NULL);
        joined(from), joined(to);
        CHECK(peak_resident_kib() < 64 * KIB, "mean %zu: %zu KiB", means[i], peak_resident_kib());
    }
}

/* Each thread frees what the one before allocated, allocates for the next, starts it and ends. */
enum { LINKS = 500, CARRIED = 300 };
static void *carried[CARRIED];
static atomic_int links;

static void *link_of_chain(void *argument)
{
    size_t link = (size_t)argument;
    for (size_t i = 0; i < CARRIED; i++) {
        size_t size = i * 41 + 1;
        if (link > 0) CHECK(holds(carried[i], size, (unsigned)(link - 1)), "link %zu", link);
        free(carried[i]);
        carried[i] = malloc(size);
        CHECK(carried[i] != NULL, "%zu", size);
        fill(carried[i], size, (unsigned)link);
    }
    if (link + 1 < LINKS) {
        pthread_t next;
        CHECK(pthread_create(&next, NULL, link_of_chain, (void *)(link + 1)) == 0, "a thread");
        pthread_detach(next);
    }
    atomic_fetch_add(&links, 1);
    return NULL;
}

static void chain(void)
{
    started(link_of_chain, NULL);
    while (atomic_load(&links) < LINKS) usleep(1000);
    for (size_t i = 0; i < CARRIED; i++) {
        CHECK(holds(carried[i], i * 41 + 1, LINKS - 1), "%zu", i);
        free(carried[i]);
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
}

/* Threads that nobody waits for, and that do not allocate. The C library frees what it has allocated for such a thread as the
 * last thing that this does; with many stacks, what it has for others, too. */
enum { DETACHED = 40, STACK = 256 * KIB };
static atomic_int ended;

static void *only_sleeps(void *argument)
{
    (void)argument;
    usleep(20000);
    atomic_fetch_add(&ended, 1);
    return NULL;
}

static void detached_threads(void)
{
    free(malloc(100));
    for (size_t round = 0; round < 2; round++) {
        atomic_store(&ended, 0);
        for (size_t i = 0; i < DETACHED; i++) {
            pthread_attr_t attr;
            CHECK(pthread_attr_init(&attr) == 0, "attributes");
            CHECK(pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0, "detached");
            if (round == 0) {
                CHECK(pthread_attr_setstacksize(&attr, 8 * MIB) == 0, "8 MiB");
            } else {
                char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(stack != MAP_FAILED && pthread_attr_setstack(&attr, stack, STACK) == 0, "its own");
            }
            pthread_t thread;
            CHECK(pthread_create(&thread, &attr, only_sleeps, NULL) == 0, "a thread");
            pthread_attr_destroy(&attr);
        }
        while (atomic_load(&ended) < DETACHED) usleep(1000);
        /* They are on their way still. */
        usleep(200000);
    }
}

/* Threads exchange blocks through a table: nearly each is freed where it was not allocated. */
static _Atomic(size_t *) table[2000];

static void *exchange(void *argument)
{
    uint64_t random = 521288629 + (size_t)argument * 104729;
    for (int step = 0; step < 150000; step++) {
        size_t size = sizeof(size_t) * (1 + random_size(&random, random_next(&random) % 200 ? 8 : 15));
        size_t *block = random_next(&random) % 8 ? malloc(size) : calloc(1, size);
        CHECK(block != NULL, "%zu", size);
        /* Every word tells of the block: two owners would be noticed. */
        for (size_t i = 0; i < size / sizeof *block; i++) block[i] = size ^ i;
        block[0] = size;
        block = atomic_exchange(&table[random_next(&random) % COUNT_OF(table)], block);
        if (block == NULL) continue;
        size = block[0];
        for (size_t i = 1; i < size / sizeof *block; i++) CHECK(block[i] == (size ^ i), "%zu of %zu", i, size);
        if (random_next(&random) % 8 == 0) {
            block = realloc(block, 2 * size);
            CHECK(block != NULL && block[0] == size, "realloc to %zu", 2 * size);
        }
        free(block);
    }
    return NULL;
}

static void exchange_blocks(void)
{
    for (int round = 0; round < 3; round++) {
        void *threads[6];
        for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(exchange, (void *)(i + 10));
        for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    }
    for (size_t i = 0; i < COUNT_OF(table); i++) free(table[i]);
}

/* The memory of threads that are gone is used again. */
enum { LEFT = 4000 };
static struct { void *block; size_t size; } left[LEFT];

static void *leave_blocks(void *unused)
{
    uint64_t random = 123456789;
    for (size_t i = 0; i < LEFT; i++) {
        left[i].size = random_size(&random, i % 100 ? 13 : 17);
        left[i].block = malloc(left[i].size);
        CHECK(left[i].block != NULL, "%zu", left[i].size);
        fill_ends(left[i].block, left[i].size, (unsigned)i);
    }
    return unused;
}

static void free_after_death(void)
{
    for (int round = 0; round < 150; round++) {
        joined(started(leave_blocks, NULL));
        for (size_t i = 0; i < LEFT; i++) {
            CHECK(ends_hold(left[i].block, left[i].size, (unsigned)i), "round %d", round);
            free(left[i].block);
        }
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
}

/* Freed by one thread after another: what a dead thread left changes hands. */
static void *free_part(void *argument)
{
    size_t part = (size_t)argument;
    for (size_t i = part; i < LEFT; i += 4) {
        CHECK(ends_hold(left[i].block, left[i].size, (unsigned)i), "part %zu", part);
        free(left[i].block);
        free(malloc(left[i].size));
    }
    return NULL;
}

static void free_in_parts_after_death(void)
{
    for (int round = 0; round < 100; round++) {
        void *threads[4];
        joined(started(leave_blocks, NULL));
        for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(free_part, (void *)i);
        for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    }
    CHECK(peak_resident_kib() < 96 * KIB, "%zu KiB", peak_resident_kib());
}

/* --- cancellation --- */

static atomic_int got_through;

static void *cancelled_while_allocating(void *argument)
{
    uint64_t random = 88172645463325252u + (size_t)argument;
    for (;;) {
        size_t size = random_size(&random, random_next(&random) % 100 ? 14 : 22);
        void *block = calloc(1, size);
        CHECK(block != NULL, "%zu", size);
        free(realloc(block, size + 5000));
        pthread_testcancel();
    }
    return NULL;
}

/* No call of the allocator is a point of cancellation: a pending request stays pending. */
static void *cancelled_before(void *unused)
{
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&ready);
    allocate_every_size(1);
    malloc_trim(0);
    free(memalign(64 * KIB, 33 * MIB));
    atomic_fetch_add(&got_through, 1);
    pthread_testcancel();
    CHECK(0, "not cancelled at all");
    return unused;
}

static void expect_cancelled(pthread_t thread)
{
    void *result;
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED, "not cancelled");
}

static void cancel(void)
{
    for (int round = 0; round < 200; round++) {
        pthread_t threads[4];
        for (size_t i = 0; i < COUNT_OF(threads); i++)
            CHECK(pthread_create(&threads[i], NULL, cancelled_while_allocating, (void *)i) == 0, "a thread");
        usleep(500);
        for (size_t i = 0; i < COUNT_OF(threads); i++) pthread_cancel(threads[i]);
        for (size_t i = 0; i < COUNT_OF(threads); i++) expect_cancelled(threads[i]);
        allocate_every_size(2);
    }
    pthread_barrier_init(&ready, NULL, 2);
    for (int round = 0; round < 50; round++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, cancelled_before, NULL) == 0, "a thread");
        pthread_barrier_wait(&ready);
        pthread_cancel(thread);
        pthread_barrier_wait(&ready);
        expect_cancelled(thread);
        CHECK(atomic_load(&got_through) == round + 1, "the allocator was left by a cancellation");
    }
}

static const struct test_case cases[] = {
    {"fork_from_busy", fork_from_busy},
    {"fork_in_children", fork_in_children},
    {"fork_from_threads", fork_from_threads},
    {"fork_handlers_may_allocate", fork_handlers_may_allocate},
    {"spawn_and_vfork", spawn_and_vfork},
    {"every_size", every_size},
    {"exec_while_busy", exec_while_busy},
    {"short_threads", short_threads},
    {"one_allocates_one_frees", one_allocates_one_frees},
    {"chain", chain},
    {"detached_threads", detached_threads},
    {"exchange_blocks", exchange_blocks},
    {"free_after_death", free_after_death},
    {"free_in_parts_after_death", free_in_parts_after_death},
    {"cancel", cancel},
};

int main(int argc, char **argv)
{
    size_count = edge_sizes(16 * MIB, sizes);
    sizes[size_count++] = 33 * MIB;
    return run_case(cases, COUNT_OF(cases), argc, argv);
}
