/*
 * Processes that fall idle while the library has a thread of its own (CAIRN_PURGE_THREAD=1), and
 * what that thread must not change for them.
 *
 * Where a case waits for something, it looks again and again, without allocating. How long it may
 * take is generous: the tests run beside others.
 */
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { SECONDS_AT_MOST = 30 };

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Looks until it holds. */
#define EXPECT_SOON(condition, ...)                                                                \
    do {                                                                                           \
        for (double began = now(); !(condition); nap())                                            \
            CHECK(now() < began + SECONDS_AT_MOST, __VA_ARGS__);                                   \
    } while (0)

/* --- memory --- */

/* Blocks that hold on to each other: a table of them would be resident itself. */
struct block {
    struct block *next;
};

static struct block *filled(size_t bytes, size_t size, unsigned bits, uint64_t *random)
{
    struct block *all = NULL;
    for (size_t done = 0; done < bytes;) {
        size_t next = size ? size : 16 + random_size(random, bits);
        struct block *block = malloc(next);
        CHECK(block != NULL, "%zu", next);
        memset(block, 1, next);
        block->next = all;
        all = block;
        done += next;
    }
    return all;
}

static void freed(struct block *all)
{
    while (all != NULL) {
        struct block *next = all->next;
        free(all);
        all = next;
    }
}

/* 8 MiB above what was resident before; nobody comes to the allocator meanwhile. */
static void expect_given_back(size_t before)
{
    double began = now();
    size_t at_once = resident_kib();
    EXPECT_SOON(resident_kib() <= before + 8 * KIB, "%zu KiB before, %zu now", before, resident_kib());
    if (getenv("TEST_SAYS_FIGURES"))
        fprintf(stderr, "%zu KiB, %zu when freed, %zu after %.2f s\n", before, at_once, resident_kib(), now() - began);
}

static void fill_and_free(size_t bytes, size_t size, unsigned bits)
{
    uint64_t random = 88172645463325252u;
    size_t before = resident_kib();
    struct block *all = filled(bytes, size, bits, &random);
    CHECK(resident_kib() >= bytes / KIB, "%zu KiB", resident_kib());
    freed(all);
    expect_given_back(before);
}

static void blocks_of_one_size(void) { fill_and_free(64 * MIB, 64, 0); }
static void small_blocks(void) { fill_and_free(64 * MIB, 0, 10); }
static void medium_blocks(void) { fill_and_free(96 * MIB, 0, 16); }
static void large_blocks(void) { fill_and_free(96 * MIB, 700 * KIB, 0); }
static void largest_runs(void) { fill_and_free(96 * MIB, 24 * MIB, 0); }
static void mappings(void) { fill_and_free(120 * MIB, 40 * MIB, 0); }

static void *fills_and_leaves(void *argument)
{
    uint64_t random = 362436069;
    *(struct block **)argument = filled(64 * MIB, 0, 10, &random);
    return NULL;
}

/* What a thread that is gone has allocated. */
static void blocks_of_another_thread(void)
{
    struct block *all = NULL;
    size_t before = resident_kib();
    joined(started(fills_and_leaves, &all));
    freed(all);
    expect_given_back(before);
}

/*
 * In a memory cgroup of 80 MiB, or one with room: 6 MiB are free beside 71 in use. No bound is reached
 * by that, and time does not pass: the purge delay is an hour. What is in use is near the limit by
 * itself (an eighth of 80 is left), so that a look between two frees is not the last one that gives back.
 */
static void fill_beside_71_mib(void)
{
    uint64_t random = 1;
    struct block *kept = filled(71 * MIB, 700 * KIB, 0, &random);
    freed(filled(6 * MIB, 700 * KIB, 0, &random));
    CHECK(kept != NULL, "kept");
}

static void near_the_limit(void)
{
    fill_beside_71_mib();
    /* The last run stays with its thread's heap, and 2 MiB are the program's own. Hardened, a page has the canary behind
     * each block. The kernel counts for each processor by itself: half a MiB is within its error. */
    size_t canaries = getenv("TEST_IS_HARDENED") != NULL ? 71 * MIB / (700 * KIB) * 4 : 0;
    EXPECT_SOON(resident_kib() <= 75 * KIB + KIB / 2 + canaries, "%zu KiB", resident_kib());
}

static void far_from_the_limit(void)
{
    fill_beside_71_mib();
    for (double began = now(); now() < began + 0.5; nap())
        CHECK(resident_kib() >= 76 * KIB, "%zu KiB", resident_kib());
}

/* A fork that hangs must not outlive the test: alarms are not inherited. */
static pid_t forked(void)
{
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) alarm(120);
    return child;
}

static void expect_success(pid_t child)
{
    int status = -1;
    while (waitpid(child, &status, 0) != child) CHECK(errno == EINTR, "no child");
    CHECK(status == 0, "wait status %#x (0xe: it hangs)", status);
}

static void children(void)
{
    uint64_t random = 88172645463325252u;
    size_t before = resident_kib();
    struct block *inherited = filled(64 * MIB, 0, 10, &random);
    pid_t child = forked();
    if (child == 0) {
        freed(inherited);
        expect_given_back(before);
        fill_and_free(64 * MIB, 64, 0);
        /* And the child of a child. */
        pid_t grandchild = forked();
        if (grandchild == 0) {
            fill_and_free(64 * MIB, 64, 0);
            _exit(0);
        }
        expect_success(grandchild);
        exit(0);
    }
    expect_success(child);
    freed(inherited);
    expect_given_back(before);
}

/* --- the thread --- */

static size_t threads(void)
{
    struct stat tasks;
    CHECK(stat("/proc/self/task", &tasks) == 0, "/proc is needed");
    return tasks.st_nlink - 2;
}

/* A file of /proc; what it holds is cut to the room. */
static void read_into(const char *path, char *text, size_t room)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, room - 1);
    if (file >= 0) close(file);
    text[length < 0 ? 0 : length] = 0;
}

/* The status of the library's thread; empty if there is none, or it has no name yet. */
static void status_of_ours(char *text, size_t room)
{
    char path[64];
    text[0] = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL, "/proc is needed");
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%.20s/status", entry->d_name);
        read_into(path, text, room);
        if (strncmp(text, "Name:\tcairn-purge\n", 18) == 0) break;
        text[0] = 0;
    }
    closedir(tasks);
}

static unsigned long long field(const char *status, const char *name, int base)
{
    const char *found = strstr(status, name);
    CHECK(found != NULL, "no field %s in %s", name, status);
    return strtoull(found + strlen(name), NULL, base);
}

static void there_is_one(void)
{
    char status[4096];
    EXPECT_SOON((status_of_ours(status, sizeof status), status[0] != 0), "no thread of that name");
    /* The kernel lists a thread for a moment after it has been joined. */
    EXPECT_SOON(threads() == 2, "%zu threads", threads());
    /* All but two can be blocked; C libraries keep two or three for themselves. */
    unsigned long long blocked = field(status, "SigBlk:", 16);
    unsigned long long all = ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1));
    CHECK((blocked | 7ull << 31) == all, "blocked: %llx", blocked);
}

static void there_is_none(void)
{
    free(hide(malloc(100)));
    for (int i = 0; i < 30; i++) {
        CHECK(threads() == 1, "%zu threads", threads());
        nap();
    }
}

/* The C library has each thread change its user, by a signal. Exit code 7: only root can. */
static void the_user_changes(void)
{
    enum { NOBODY = 65534 };
    char status[4096];
    if (geteuid() != 0) exit(7);
    there_is_one();
    CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0, "setresgid");
    CHECK(setresuid(NOBODY, NOBODY, NOBODY) == 0, "setresuid");
    status_of_ours(status, sizeof status);
    CHECK(field(status, "Uid:", 10) == NOBODY && field(status, "Gid:", 10) == NOBODY, "%s", status);
}

/* --- signals --- */

static atomic_int handled, strays;

static void handle(int signal)
{
    (void)signal;
    if (gettid() != getpid()) atomic_fetch_add(&strays, 1);
    atomic_fetch_add(&handled, 1);
}

static void signals_are_the_programs(void)
{
    static const int all[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGALRM, SIGCHLD};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    there_is_one();
    for (size_t i = 0; i < COUNT_OF(all); i++) sigaction(all[i], &action, NULL);
    int sent = 0;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < COUNT_OF(all); i++) {
            kill(getpid(), all[i]);
            EXPECT_SOON(atomic_load(&handled) == sent + 1, "signal %d", all[i]);
            sent++;
        }
    }
    for (int round = 0; round < 20; round++, sent++) {
        pid_t child = forked();
        if (child == 0) _exit(0);
        expect_success(child);
        EXPECT_SOON(atomic_load(&handled) == sent + 1, "SIGCHLD");
    }
    CHECK(atomic_load(&strays) == 0, "%d on another thread", atomic_load(&strays));

    /* Blocked by the program: they wait for it, and are not taken by another thread. */
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < COUNT_OF(all); i++) sigaddset(&set, all[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        kill(getpid(), all[i]);
        nap();
        CHECK(atomic_load(&handled) == sent, "%d has been handled", all[i]);
        CHECK(sigtimedwait(&set, NULL, &(struct timespec){.tv_sec = 10}) == all[i], "%d is lost", all[i]);
    }
}

/* --- ends --- */

static void leaves_by_exit(void) { there_is_one(); exit(0); }
static void leaves_by_quick_exit(void) { there_is_one(); quick_exit(0); }
static void leaves_by_underscore_exit(void) { there_is_one(); _exit(0); }
static void aborts(void) { there_is_one(); abort(); }

/* With its own environment, and so with a thread again. */
static void is_replaced(void)
{
    there_is_one();
    execl("/proc/self/exe", "itself", "there_is_one", (char *)NULL);
    CHECK(0, "execl");
}

static void at_the_end_of_the_last(void)
{
    CHECK(gettid() == getpid(), "handlers run on another thread");
    CHECK(threads() == 1, "%zu threads", threads());
    _exit(0);
}

/* The purge delay is an hour: nothing wakes the thread but who ends it. */
static void the_last_thread_leaves(void)
{
    there_is_one();
    atexit(at_the_end_of_the_last);
    pthread_exit(NULL);
}

static pthread_t main_thread;

static void *the_last(void *unused)
{
    pthread_join(main_thread, NULL);
    uint64_t random = 1;
    for (int i = 0; i < 10; i++) freed(filled(16 * MIB, 0, 12, &random));
    return unused;
}

static void main_leaves_first(void)
{
    there_is_one();
    main_thread = pthread_self();
    started(the_last, NULL);
    pthread_exit(NULL);
}

/* The thread that forks is the child's first. */
static void *forks_and_waits(void *unused)
{
    pid_t child = forked();
    if (child == 0) {
        there_is_one();
        pthread_exit(NULL);
    }
    expect_success(child);
    return unused;
}

static void the_last_thread_of_a_child_leaves(void)
{
    joined(started(forks_and_waits, NULL));
    there_is_one();
}

/* --- forks --- */

static atomic_int stop;

static void *short_lived(void *unused) { return unused; }

static void *starts_threads(void *unused)
{
    uint64_t random = 88172645463325252u;
    while (!atomic_load(&stop)) {
        joined(started(short_lived, NULL));
        freed(filled(1 * MIB, 0, 14, &random));
    }
    return unused;
}

/* Children start a thread while what it takes may have been caught halfway in the parent. */
static void forks_from_busy(void)
{
    void *busy[2];
    long forks = argument_or(100);
    uint64_t random = 1;
    for (size_t i = 0; i < COUNT_OF(busy); i++) busy[i] = started(starts_threads, NULL);
    for (long i = 0; i < forks; i++) {
        pid_t child = forked();
        if (child == 0) {
            there_is_one();
            freed(filled(1 * MIB, 0, 14, &random));
            if (i % 2) exit(0);
            _exit(0);
        }
        expect_success(child);
    }
    atomic_store(&stop, 1);
    for (size_t i = 0; i < COUNT_OF(busy); i++) joined(busy[i]);
}

static const struct test_case cases[] = {
    {"blocks_of_one_size", blocks_of_one_size},
    {"small_blocks", small_blocks},
    {"medium_blocks", medium_blocks},
    {"large_blocks", large_blocks},
    {"largest_runs", largest_runs},
    {"mappings", mappings},
    {"blocks_of_another_thread", blocks_of_another_thread},
    {"near_the_limit", near_the_limit},
    {"far_from_the_limit", far_from_the_limit},
    {"children", children},
    {"there_is_one", there_is_one},
    {"there_is_none", there_is_none},
    {"the_user_changes", the_user_changes},
    {"signals_are_the_programs", signals_are_the_programs},
    {"leaves_by_exit", leaves_by_exit},
    {"leaves_by_quick_exit", leaves_by_quick_exit},
    {"leaves_by_underscore_exit", leaves_by_underscore_exit},
    {"aborts", aborts},
    {"is_replaced", is_replaced},
    {"the_last_thread_leaves", the_last_thread_leaves},
    {"main_leaves_first", main_leaves_first},
    {"the_last_thread_of_a_child_leaves", the_last_thread_of_a_child_leaves},
    {"forks_from_busy", forks_from_busy},
};
MAIN(cases)
