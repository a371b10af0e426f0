/*
 * The same event again and again while threads allocate: forks, threads that come and go,
 * cancellations. The argument after the case says how often.
 */
#include "check.h"

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <sys/wait.h>

static size_t sizes[EDGE_SIZES_MAX], size_count;

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

static void expect_success(pid_t child, long which)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child, "child %ld", which);
    CHECK(status == 0, "child %ld: wait status %#x (0xe: it hangs)", which, status);
}

/* Of the heaps, by malloc_info: `count=` that there are, or `in_use=` by threads. -1 if the
 * allocator under test knows no such thing. */
static long heaps(const char *field)
{
    static char text[1 << 16];
    FILE *stream = fmemopen(text, sizeof text, "w");
    CHECK(stream != NULL && malloc_info(0, stream) == 0 && fclose(stream) == 0, "malloc_info");
    const char *row = strstr(text, "<heaps "), *value = row ? strstr(row, field) : NULL;
    return value ? strtol(value + strlen(field) + 1, NULL, 10) : -1;
}

/* --- forks --- */

enum { BUSY_THREADS = 8, INHERITED = 60 };
static struct { void *block; size_t size; } inherited[BUSY_THREADS][INHERITED];
static _Atomic(void *) exchanged[256];
static atomic_int stop;
static pthread_barrier_t ready;
static void *threads[BUSY_THREADS];

static void busy_step(uint64_t *random)
{
    size_t size = random_size(random, random_next(random) % 1000 ? 15 : 22);
    size_t *block = random_next(random) % 16 ? malloc(size + 16) : memalign(256, size + 16);
    CHECK(block != NULL, "%zu", size);
    /* The size twice: whoever frees it can tell whether it is whole. */
    block[0] = size, block[1] = ~size;
    block = atomic_exchange(&exchanged[random_next(random) % COUNT_OF(exchanged)], block);
    if (block == NULL) return;
    CHECK(block[0] == ~block[1], "%#zx %#zx", block[0], block[1]);
    if (random_next(random) % 32 == 0) {
        block = realloc(block, 2 * block[0] + 16);
        CHECK(block != NULL && block[0] == ~block[1], "realloc");
    }
    free(block);
}

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
        busy_step(&random);
        /* The processor is there for the children as well. */
        if (i % 64 == 0) usleep(50);
    }
    return NULL;
}

static void start_busy(void)
{
    pthread_barrier_init(&ready, NULL, BUSY_THREADS + 1);
    for (size_t i = 0; i < BUSY_THREADS; i++) threads[i] = started(busy, (void *)i);
    pthread_barrier_wait(&ready);
}

static void stop_busy(void)
{
    atomic_store(&stop, 1);
    for (size_t i = 0; i < BUSY_THREADS; i++) joined(threads[i]);
}

static void use_what_is_inherited(void)
{
    for (size_t i = 0; i < BUSY_THREADS; i++) {
        for (size_t j = 0; j < INHERITED; j++) {
            CHECK(ends_hold(inherited[i][j].block, inherited[i][j].size, (unsigned)j), "%zu %zu", i, j);
            free(inherited[i][j].block);
        }
    }
    for (size_t i = 0; i < COUNT_OF(exchanged); i++) free(atomic_exchange(&exchanged[i], NULL));
}

static void *work_in_child(void *argument)
{
    uint64_t random = 1234567 + (size_t)argument;
    for (int i = 0; i < 200; i++) busy_step(&random);
    allocate_every_size(3);
    return NULL;
}

static void live_as_child(long which)
{
    use_what_is_inherited();
    void *thread = started(work_in_child, (void *)which);
    allocate_every_size((unsigned)which);
    uint64_t random = 7654321 + (size_t)which;
    for (int i = 0; i < 200; i++) busy_step(&random);
    joined(thread);
    /* Those of the parent's threads are free. */
    long used = heaps("in_use=");
    CHECK(used == -1 || used == 1, "%ld heaps for one thread", used);
}

static void at_exit_of_child(void) { free(malloc(5000)); }

/* Each child frees what the threads of the parent had, has a thread of its own, and ends in one
 * of the ways there are. */
static void fork_storm(void)
{
    long forks = argument_or(300);
    CHECK(atexit(at_exit_of_child) == 0, "atexit");
    start_busy();
    for (long i = 0; i < forks; i++) {
        pid_t child = forked();
        if (child == 0) {
            live_as_child(i);
            switch (i % 4) {
            case 0: _exit(0);
            case 1: exit(0);
            case 2: {
                pid_t grandchild = forked();
                if (grandchild == 0) {
                    allocate_every_size(2);
                    joined(started(work_in_child, (void *)i));
                    exit(0);
                }
                expect_success(grandchild, i);
                exit(0);
            }
            default: quick_exit(0);
            }
        }
        expect_success(child, i);
        if (i % 50 == 0) {
            allocate_every_size((unsigned)i);
            CHECK(resident_kib() < 256 * KIB, "fork %ld: %zu KiB", i, resident_kib());
        }
    }
    stop_busy();
    CHECK(heaps("count=") <= BUSY_THREADS + 4, "%ld heaps", heaps("count="));
}

/* Registered before anything was allocated, with a lock that is held over allocations: such
 * handlers run inside those of an allocator that comes later. */
static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER;
static void lock_outer(void) { pthread_mutex_lock(&outer); }
static void unlock_outer(void) { pthread_mutex_unlock(&outer); }

static int is_case(const char *name)
{
    char line[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "/proc is needed");
    ssize_t length = read(fd, line, sizeof line - 1);
    close(fd);
    CHECK(length > 0, "/proc is needed");
    line[length] = 0;
    return strcmp(line + strlen(line) + 1, name) == 0;
}

static void nothing(void) {}

static void *allocate_inside(void *argument)
{
    uint64_t random = 521288629 + (size_t)argument;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        pthread_mutex_lock(&outer);
        void *blocks[4];
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            size_t size = random_size(&random, 19);
            blocks[i] = malloc(size);
            CHECK(blocks[i] != NULL, "%zu", size);
            fill_ends(blocks[i], size, 1);
        }
        for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
        pthread_mutex_unlock(&outer);
        /* It is not fair: leave it to others now and then. */
        usleep(50);
    }
    return NULL;
}

static void early_fork_handlers(void)
{
    long forks = argument_or(50);
    for (size_t i = 0; i < 4; i++) threads[i] = started(allocate_inside, (void *)i);
    for (long i = 0; i < forks; i++) {
        alarm(60);
        pid_t child = forked();
        if (child == 0) {
            allocate_every_size(1);
            exit(0);
        }
        expect_success(child, i);
    }
    atomic_store(&stop, 1);
    for (size_t i = 0; i < 4; i++) joined(threads[i]);
}

static void many_fork_handlers(void)
{
    for (long i = 0; i < 20; i++) {
        pid_t child = forked();
        if (child == 0) {
            allocate_every_size(1);
            exit(0);
        }
        expect_success(child, i);
        allocate_every_size(2);
    }
}

/* A thread that forks when its heap has gone already: in the last round of its destructors. */
static pthread_key_t late_key;
static int rounds_left[4], is_child;

static void fork_late(void *value)
{
    int *left = value;
    /* In the child glibc may hand a new thread the values of one that was ending in the parent. */
    if (is_child) return;
    if (--*left > 0) {
        pthread_setspecific(late_key, value);
        return;
    }
    pid_t child = forked();
    if (child == 0) {
        is_child = 1;
        use_what_is_inherited();
        allocate_every_size(1);
        joined(started(work_in_child, NULL));
        exit(0);
    }
    expect_success(child, *left);
    allocate_every_size(2);
}

static void *end_late(void *argument)
{
    int *left = argument;
    *left = 3;
    free(malloc(1000));
    CHECK(pthread_setspecific(late_key, left) == 0, "key");
    return NULL;
}

static void fork_in_destructors(void)
{
    void *late[4];
    CHECK(pthread_key_create(&late_key, fork_late) == 0, "key");
    start_busy();
    for (long round = argument_or(30); round > 0; round--) {
        for (size_t i = 0; i < 4; i++) late[i] = started(end_late, &rounds_left[i]);
        for (size_t i = 0; i < 4; i++) joined(late[i]);
    }
    stop_busy();
}

/* A thread is ending when the process forks: its value for the allocator's key is still there.
 * In the child glibc hands its stack to the next thread, values and all: that thread must not
 * give away a heap that meanwhile is another's. */
static pthread_key_t older_key;
static pid_t first_process;
static sem_t is_ending, may_end, has_allocated, may_go_on;
static char not_null;

static void linger(void *unused)
{
    (void)unused;
    if (getpid() != first_process) return;
    sem_post(&is_ending);
    sem_wait(&may_end);
}

static void *end_slowly(void *argument)
{
    free(malloc(100));
    CHECK(pthread_setspecific(older_key, &not_null) == 0, "key");
    return argument;
}

static void *end_without_allocating(void *argument)
{
    CHECK(pthread_setspecific(older_key, &not_null) == 0, "key");
    sem_wait(&may_end);
    return argument;
}

static void *allocate_together(void *argument)
{
    enum { BLOCKS = 20000 };
    static __thread unsigned char *blocks[BLOCKS];
    unsigned seed = (unsigned)(size_t)argument;
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(i % 200);
        CHECK(blocks[i] != NULL, "%zu", i);
        fill(blocks[i], i % 200, seed);
        /* Both have a heap now, or believe so. */
        if (i == 100) sem_post(&has_allocated), sem_wait(&may_go_on);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(holds(blocks[i], i % 200, seed), "%zu: two threads have one heap", i);
        free(blocks[i]);
    }
    return NULL;
}

static void values_of_ending_threads(void)
{
    first_process = getpid();
    sem_init(&is_ending, 0, 0), sem_init(&may_end, 0, 0);
    sem_init(&has_allocated, 0, 0), sem_init(&may_go_on, 0, 0);
    void *slow = started(end_slowly, NULL);
    sem_wait(&is_ending);
    pid_t child = forked();
    if (child == 0) {
        void *first = started(end_without_allocating, NULL);
        void *second = started(allocate_together, (void *)1);
        sem_wait(&has_allocated);
        long before = heaps("in_use=");
        sem_post(&may_end);
        joined(first);
        CHECK(heaps("in_use=") == before, "a thread without a heap has given one away");
        void *third = started(allocate_together, (void *)2);
        sem_wait(&has_allocated);
        sem_post(&may_go_on), sem_post(&may_go_on);
        joined(second), joined(third);
        exit(0);
    }
    expect_success(child, 0);
    sem_post(&may_end);
    joined(slow);
}

/* --- short threads --- */

enum { AT_ONCE = 8 };
static _Atomic(size_t *) legacies[512];

static void *short_life(void *argument)
{
    uint64_t random = 362436069 + (size_t)argument * 104729;
    size_t *kept[16];
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        size_t size = 16 + random_size(&random, i % 8 ? 11 : 17);
        kept[i] = malloc(size);
        CHECK(kept[i] != NULL, "%zu", size);
        fill_ends(kept[i], size, 1);
        kept[i][0] = size, kept[i][1] = ~size;
    }
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        size_t *block = kept[i];
        /* Some are left to whoever comes by. */
        if (i % 4 == 0) block = atomic_exchange(&legacies[random_next(&random) % COUNT_OF(legacies)], block);
        if (block) CHECK(block[0] == ~block[1], "%#zx %#zx", block[0], block[1]);
        free(block);
    }
    return NULL;
}

static void short_threads(void)
{
    size_t count = (size_t)argument_or(5000);
    for (size_t i = 0; i < count; i += AT_ONCE) {
        void *some[AT_ONCE];
        for (size_t j = 0; j < AT_ONCE; j++) some[j] = started(short_life, (void *)(i + j));
        for (size_t j = 0; j < AT_ONCE; j++) joined(some[j]);
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
    CHECK(heaps("count=") <= AT_ONCE + 4, "%ld heaps", heaps("count="));
    for (size_t i = 0; i < COUNT_OF(legacies); i++) free(legacies[i]);
}

/* --- signals --- */

static atomic_long interruptions;
static unsigned char *watched;

/* It may have interrupted the allocator anywhere, and leaves it alone. */
static void interrupt(int number)
{
    int error = errno;
    unsigned char scratch[2048];
    fill(scratch, sizeof scratch, (unsigned)number);
    CHECK(holds(scratch, sizeof scratch, (unsigned)number), "the stack");
    CHECK(holds(watched, 3000, 6), "a block");
    atomic_fetch_add(&interruptions, 1);
    errno = error;
}

static void signal_storm(void)
{
    long wanted = argument_or(500);
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    watched = malloc(3000);
    fill(watched, 3000, 6);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
    start_busy();
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    /* All of them to the threads. */
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0, "mask");
    for (int i = 0; i < 60000 && atomic_load(&interruptions) < wanted; i++) usleep(1000);
    stop_busy();
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0, "setitimer");
    CHECK(atomic_load(&interruptions) >= wanted, "%ld", atomic_load(&interruptions));
    use_what_is_inherited();
}

/* Whatever it interrupted, the allocator included: a lone thread may fork. */
static void interrupt_by_fork(int number)
{
    int error = errno;
    (void)number;
    pid_t child = fork();
    if (child == 0) _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child, "fork");
    errno = error;
}

static void forks_in_handlers(void)
{
    static void *blocks[4096];
    struct sigaction action = {.sa_handler = interrupt_by_fork, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    uint64_t random = 88172645463325252u;
    for (long i = 0, rounds = argument_or(40000); i < rounds; i++) {
        struct itimerval once = {{0, 0}, {0, 1 + (long)(random_next(&random) % 30)}};
        if (i % 100 == 0) CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0, "setitimer");
        size_t slot = (size_t)i % COUNT_OF(blocks);
        for (size_t j = 0; slot == 0 && j < COUNT_OF(blocks); j++) {
            free(blocks[j]);
            blocks[j] = NULL;
        }
        blocks[slot] = malloc(random_size(&random, 15));
        CHECK(blocks[slot] != NULL, "malloc");
    }
}

/* --- cancellation --- */

static atomic_long owned;

static void *own(size_t size)
{
    void *block = malloc(size);
    CHECK(block != NULL, "%zu", size);
    fill_ends(block, size, 4);
    atomic_fetch_add(&owned, 1);
    return block;
}

typedef struct { void *block; size_t size; } owned_t;

static void disown(void *argument)
{
    owned_t *it = argument;
    CHECK(ends_hold(it->block, it->size, 4), "%zu", it->size);
    free(it->block);
    atomic_fetch_sub(&owned, 1);
    /* Handlers work with memory as other code does. */
    free(malloc(it->size / 2 + 1));
}

/* Requests take effect at `usleep` and `pthread_testcancel` alone. */
static void *until_deferred(void *argument)
{
    uint64_t random = 88172645463325252u + (size_t)argument;
    for (;;) {
        owned_t outer_block = {.size = random_size(&random, 15)};
        outer_block.block = own(outer_block.size);
        pthread_cleanup_push(disown, &outer_block);
        owned_t inner_block = {.size = random_size(&random, 18)};
        inner_block.block = own(inner_block.size);
        pthread_cleanup_push(disown, &inner_block);
        if (random_next(&random) % 2) usleep(1);
        else pthread_testcancel();
        pthread_cleanup_pop(1);
        for (int i = 0; i < 20; i++) free(calloc(1, random_size(&random, 13)));
        pthread_cleanup_pop(1);
    }
    return NULL;
}

/* Requests take effect at any instruction, but only while no function is being called. (It is the
 * type that is switched: to disable cancellation is not enough for glibc 2.36, whose handler of
 * a request that was sent before looks at the type alone.) */
static void *until_at_once(void *argument)
{
    uint64_t random = 521288629 + (size_t)argument;
    int old;
    for (;;) {
        owned_t it = {.size = 100 + random_size(&random, 15)};
        it.block = own(it.size);
        pthread_cleanup_push(disown, &it);
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
        for (int i = 0; i < 200; i++) (void)((volatile unsigned char *)it.block)[i % 100];
        pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
        pthread_cleanup_pop(1);
    }
    return NULL;
}

/* The account is written to standard error by system calls of its own: none is where a request takes effect, which comes
 * meanwhile and waits. No lock may be left behind. */
static void *until_stats(void *argument)
{
    void (*print)(void) = (void (*)(void))argument;
    for (;;) {
        print();
        pthread_testcancel();
    }
    return NULL;
}

/* Their bodies never end: to have ended is to have been cancelled. (The result may be NULL: glibc
 * forgets it when a request takes effect in pthread_setcanceltype.) */
static void expect_cancelled(pthread_t thread) { joined((void *)thread); }

static void cancel_storm(void)
{
    static void *(*const bodies[])(void *) = {until_deferred, until_at_once};
    size_t count = (size_t)argument_or(500);
    uint64_t random = 123456789;
    for (size_t i = 0; i < count; i += AT_ONCE) {
        pthread_t some[AT_ONCE];
        alarm(60);
        for (size_t j = 0; j < AT_ONCE; j++)
            CHECK(pthread_create(&some[j], NULL, bodies[j % 2], (void *)(i + j)) == 0, "a thread");
        if (random_next(&random) % 2) usleep((useconds_t)(random_next(&random) % 500));
        for (size_t j = 0; j < AT_ONCE; j++) pthread_cancel(some[j]);
        for (size_t j = 0; j < AT_ONCE; j++) expect_cancelled(some[j]);
        CHECK(atomic_load(&owned) == 0, "%ld blocks are left after %zu threads", atomic_load(&owned), i);
        if (i % 64 == 0) allocate_every_size(2);
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
    CHECK(heaps("count=") <= AT_ONCE + 4, "%ld heaps", heaps("count="));
}

static void cancel_in_stats(void)
{
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC), kept = dup(2);
    CHECK(nowhere >= 0 && kept >= 0 && dup2(nowhere, 2) == 2, "/dev/null");
    for (int i = 0; i < 200; i++) {
        pthread_t some[4];
        alarm(60);
        for (size_t j = 0; j < COUNT_OF(some); j++)
            CHECK(pthread_create(&some[j], NULL, until_stats, (void *)malloc_stats) == 0, "a thread");
        usleep((useconds_t)(i * 5));
        for (size_t j = 0; j < COUNT_OF(some); j++) pthread_cancel(some[j]);
        for (size_t j = 0; j < COUNT_OF(some); j++) expect_cancelled(some[j]);
        allocate_every_size(1);
        malloc_trim(0);
    }
    malloc_stats();
    CHECK(dup2(kept, 2) == 2, "dup2");
}

/* Before anything has been allocated, if the C library has not done so. */
__attribute__((constructor(101))) static void register_early(void)
{
    if (is_case("early_fork_handlers"))
        CHECK(pthread_atfork(lock_outer, unlock_outer, unlock_outer) == 0, "pthread_atfork");
    /* More than the C library has room for without allocating. */
    /* The allocator's key comes after this one, and so does its destructor. */
    if (is_case("values_of_ending_threads"))
        CHECK(pthread_key_create(&older_key, linger) == 0, "key");
    if (!is_case("many_fork_handlers")) return;
    alarm(60);
    for (int i = 0; i < 200; i++) CHECK(pthread_atfork(nothing, nothing, nothing) == 0, "%d", i);
}

static const struct test_case cases[] = {
    {"fork_storm", fork_storm},
    {"early_fork_handlers", early_fork_handlers},
    {"many_fork_handlers", many_fork_handlers},
    {"fork_in_destructors", fork_in_destructors},
    {"values_of_ending_threads", values_of_ending_threads},
    {"short_threads", short_threads},
    {"signal_storm", signal_storm},
    {"forks_in_handlers", forks_in_handlers},
    {"cancel_storm", cancel_storm},
    {"cancel_in_stats", cancel_in_stats},
};

int main(int argc, char **argv)
{
    size_count = edge_sizes(MIB, sizes);
    return run_case(cases, COUNT_OF(cases), argc, argv);
}
