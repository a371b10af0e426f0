/*
 * Inside a sandbox: with all system calls forbidden but those that docs/guide/limits.md lists, and with
 * some of those refused. The filter is the kernel's (seccomp), so that nothing escapes it,
 * whoever makes the call.
 */
#include "check.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "which architecture is this?"
#endif

/* --- filters --- */

struct entry { const char *name; long number; };

/* What the allocator may call at all. */
static const struct entry allocators[] = {
    {"mmap", SYS_mmap},         {"munmap", SYS_munmap},   {"mprotect", SYS_mprotect},
    {"madvise", SYS_madvise},   {"mremap", SYS_mremap},   {"mincore", SYS_mincore},
    {"futex", SYS_futex},       {"prlimit64", SYS_prlimit64},
    {"clock_gettime", SYS_clock_gettime}, {"write", SYS_write},
    {"openat", SYS_openat},     {"read", SYS_read},       {"close", SYS_close},
};

/* What it calls once it has started, where huge pages are switched off: as glibc's malloc does. The clock enters the
 * kernel only where that has none to read in the process. */
static const struct entry common[] = {
    {"mmap", SYS_mmap},     {"munmap", SYS_munmap}, {"mprotect", SYS_mprotect},
    {"mremap", SYS_mremap}, {"futex", SYS_futex},   {"clock_gettime", SYS_clock_gettime},
};

/* What the C library needs besides for a process to end, ... */
static const struct entry ends[] = {{"exit_group", SYS_exit_group}};

/* ... for threads, */
static const struct entry thread_calls[] = {
    {"clone", SYS_clone}, {"clone3", SYS_clone3}, {"set_robust_list", SYS_set_robust_list},
    {"rseq", SYS_rseq},   {"exit", SYS_exit},     {"rt_sigprocmask", SYS_rt_sigprocmask},
    {"rt_sigaction", SYS_rt_sigaction},
};

/* ... and the head of a report. */
static const struct entry report_calls[] = {
    {"getpid", SYS_getpid}, {"rt_sigprocmask", SYS_rt_sigprocmask},
};

enum { FILTER_MAX = 128 };
static struct sock_filter filter[FILTER_MAX];
static unsigned short filter_length;

static void rule(unsigned short code, unsigned char yes, unsigned char no, unsigned value)
{
    CHECK(filter_length < FILTER_MAX, "a filter too long");
    filter[filter_length++] = (struct sock_filter){code, yes, no, value};
}

static void begin_filter(void)
{
    filter_length = 0;
    rule(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, arch));
    rule(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCHITECTURE);
    rule(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS);
    rule(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr));
}

static void answer(long number, unsigned action)
{
    rule(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)number);
    rule(BPF_RET | BPF_K, 0, 0, action);
}

static void allow(const struct entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) answer(entries[i].number, SECCOMP_RET_ALLOW);
}

static void end_filter(unsigned otherwise)
{
    rule(BPF_RET | BPF_K, 0, 0, otherwise);
    struct sock_fprog program = {filter_length, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "the kernel has no filters");
}

/* A forbidden call ends the process; this tells which it was. */
static void forbidden(int signal, siginfo_t *info, void *unused)
{
    (void)signal, (void)unused;
    check_failed(__FILE__, __LINE__, "only listed calls", "system call %d is not on the list", info->si_syscall);
}

static void tell_what_is_forbidden(void)
{
    struct sigaction action = {.sa_sigaction = forbidden, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0, "a handler");
}

static void forbid_all_but_common(void)
{
    tell_what_is_forbidden();
    begin_filter();
    allow(common, COUNT_OF(common));
    allow(ends, COUNT_OF(ends));
    /* No other advice than this. */
    rule(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, (unsigned)SYS_madvise);
    rule(BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[2]));
    rule(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, MADV_DONTNEED);
    rule(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
    rule(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_TRAP);
    /* What a failed check says. */
    answer(SYS_write, SECCOMP_RET_ALLOW);
    end_filter(SECCOMP_RET_TRAP);
}

static void forbid_all_but_listed(int threads, int reports)
{
    tell_what_is_forbidden();
    begin_filter();
    allow(allocators, COUNT_OF(allocators));
    allow(ends, COUNT_OF(ends));
    if (threads) allow(thread_calls, COUNT_OF(thread_calls));
    if (reports) allow(report_calls, COUNT_OF(report_calls));
    end_filter(SECCOMP_RET_TRAP);
}

/* The arguments: an error's number, then the names of the calls that answer it. */
static void refuse_named(void)
{
    unsigned error = (unsigned)argument_or(0);
    CHECK(error != 0, "an error and the names of calls");
    begin_filter();
    for (char **name = case_arguments + 1; *name != NULL; name++) {
        size_t i = 0;
        while (i < COUNT_OF(allocators) && strcmp(allocators[i].name, *name) != 0) i++;
        CHECK(i < COUNT_OF(allocators), "%s is not on the list", *name);
        answer(allocators[i].number, SECCOMP_RET_ERRNO | error);
    }
    end_filter(SECCOMP_RET_ALLOW);
}

/* --- what a program does --- */

enum { BLOCKS = 600, STEPS = 40000 };
struct block { unsigned char *at; size_t size; };

static void expect_success(void *block, const char *call, size_t size)
{
    CHECK(block != NULL, "%s of %zu bytes", call, size);
}

/* All sizes up to 2^bits, by every call. Contents are checked. */
static void mix(struct block *blocks, uint64_t random, unsigned bits, int steps)
{
    memset(blocks, 0, BLOCKS * sizeof *blocks);
    for (int step = 0; step < steps; step++) {
        struct block *one = &blocks[random_next(&random) % BLOCKS];
        unsigned seed = (unsigned)(one - blocks);
        size_t size = 16 + random_size(&random, step % 100 ? 14 : bits), kept;
        CHECK(one->at == NULL || ends_hold(one->at, one->size, seed), "step %d, %zu bytes", step, one->size);
        errno = 4711;
        switch (random_next(&random) % 4) {
        case 0:
            free(one->at);
            one->at = calloc(1, size);
            expect_success(one->at, "calloc", size);
            CHECK(all_zero(one->at, size < 64 * KIB ? size : 64 * KIB), "calloc of %zu bytes", size);
            break;
        case 1:
            free(one->at);
            one->at = aligned_alloc(4096, size);
            expect_success(one->at, "aligned_alloc", size);
            break;
        case 2:
            kept = one->at == NULL ? 0 : one->size < size ? one->size : size;
            one->at = realloc(one->at, size);
            expect_success(one->at, "realloc", size);
            for (size_t i = 0; i < kept && i < 16; i++)
                CHECK(one->at[i] == pattern_at(i, seed), "realloc from %zu to %zu bytes", one->size, size);
            break;
        default:
            free(one->at);
            one->at = malloc(size);
            expect_success(one->at, "malloc", size);
        }
        CHECK(errno == 4711, "errno is %d after success", errno);
        one->size = size;
        fill_ends(one->at, size, seed);
        if (step % 5000 == 4999) malloc_trim(0);
    }
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i].at);
}

/* A block that grows from a span to a run and through mappings, and shrinks again. */
static void grow_and_shrink(void)
{
    size_t size = 20 * KIB;
    unsigned char *block = malloc(size), *neighbour;
    expect_success(block, "malloc", size);
    fill(block, size, 5);
    while (size < 100 * MIB) {
        neighbour = malloc(100 * KIB);
        size_t larger = size * 3 / 2;
        block = realloc(block, larger);
        expect_success(block, "realloc", larger);
        CHECK(holds(block, 20 * KIB, 5) && (size == 20 * KIB || block[size - 1] == 7), "%zu to %zu bytes", size, larger);
        block[larger - 1] = 7;
        size = larger;
        free(neighbour);
    }
    while (size > 40 * KIB) {
        size = size * 3 / 5;
        block = realloc(block, size);
        expect_success(block, "realloc", size);
        CHECK(holds(block, 20 * KIB, 5), "shrunk to %zu bytes", size);
    }
    free(block);
}

/* More mappings than fit into one page of their table. */
static void many_mappings(void)
{
    enum { COUNT = 400 };
    static void *blocks[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i] = malloc(33 * MIB);
        CHECK(blocks[i] != NULL, "mapping %zu", i);
        *(size_t *)blocks[i] = i;
    }
    for (size_t i = 0; i < COUNT; i++) {
        CHECK(*(size_t *)blocks[i] == i, "mapping %zu", i);
        free(blocks[i]);
    }
}

static struct block table[BLOCKS];

static void use_everything(void)
{
    mix(table, 88172645463325252u, 24, STEPS);
    grow_and_shrink();
    many_mappings();
    malloc_trim(0);
    mix(table, 521288629, 20, STEPS / 4);
}

/* --- cases --- */

static void only_listed_calls(void)
{
    forbid_all_but_listed(0, 0);
    use_everything();
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks < 2 * MIB, "%zu bytes are in use", info.uordblks);
    _exit(0);
}

static void only_common_calls(void)
{
    free(malloc(100));
    forbid_all_but_common();
    use_everything();
    _exit(0);
}

static void only_listed_calls_in_a_report(void)
{
    int nowhere = open("/dev/null", O_WRONLY), kept = dup(2);
    CHECK(kept >= 0 && dup2(nowhere, 2) == 2, "/dev/null is needed");
    forbid_all_but_listed(0, 1);
    use_everything();
    malloc_stats();
    _exit(0);
}

static void *in_thread(void *argument)
{
    static __thread struct block own[BLOCKS];
    mix(own, 88172645463325252u + (uintptr_t)argument, 22, STEPS / 8);
    return NULL;
}

static void only_listed_calls_in_threads(void)
{
    forbid_all_but_listed(1, 0);
    for (int round = 0; round < 5; round++) {
        void *threads[4];
        for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(in_thread, (void *)i);
        use_everything();
        for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    }
    _exit(0);
}

/* Refused from before the first request. */
static void refused_from_the_start(void)
{
    refuse_named();
    use_everything();
}

/* Refused once the allocator runs. */
static void refused_later(void)
{
    free(malloc(100));
    refuse_named();
    use_everything();
}

/* The same with threads. */
static void refused_in_threads(void)
{
    void *threads[4];
    refuse_named();
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(in_thread, (void *)i);
    use_everything();
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
}

/* Where pages cannot be made accessible any more, what is accessible goes on to serve, blocks
 * get mappings of their own as far as they do today, and the rest is told so. */
static void without_access(void)
{
    enum { COUNT = 3000 };
    static struct block blocks[COUNT];
    static const size_t sizes[] = {50, 3000, 40 * KIB, 100 * KIB, 33 * MIB};
    size_t granted[COUNT_OF(sizes)] = {0};
    free(malloc(100));
    refuse_named();
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i].size = sizes[i % COUNT_OF(sizes)];
        errno = 0;
        blocks[i].at = malloc(blocks[i].size);
        CHECK(blocks[i].at != NULL || errno == ENOMEM, "null with errno %d", errno);
        if (blocks[i].at == NULL) continue;
        granted[i % COUNT_OF(sizes)]++;
        fill_ends(blocks[i].at, blocks[i].size, (unsigned)i);
    }
    for (size_t i = 0; i < COUNT; i++) {
        if (blocks[i].at == NULL) continue;
        CHECK(ends_hold(blocks[i].at, blocks[i].size, (unsigned)i), "block %zu of %zu bytes", i, blocks[i].size);
        free(blocks[i].at);
    }
    CHECK(granted[0] > 0 && granted[3] == COUNT / COUNT_OF(sizes) && granted[4] == COUNT / COUNT_OF(sizes),
          "granted: %zu, %zu, %zu, %zu, %zu", granted[0], granted[1], granted[2], granted[3], granted[4]);
}

/* Nothing can be had but what the library took when it was loaded: a request is served out of
   that, whole, or says so. */
static void without_anything(void)
{
    refuse_named();
    for (size_t size = 1; size < GIB; size *= 3) {
        errno = 0;
        char *block = hide(malloc(size));
        CHECK(block != NULL || errno == ENOMEM, "%zu bytes: errno %d", size, errno);
        if (block != NULL) block[0] = block[size - 1] = 1;
        free(block);
        errno = 0;
        block = hide(calloc(size, 2));
        CHECK(block != NULL || errno == ENOMEM, "%zu bytes: errno %d", size, errno);
        CHECK(block == NULL || (block[0] == 0 && block[2 * size - 1] == 0), "%zu bytes: not zero", size);
        free(block);
    }
    free(NULL);
    malloc_trim(0);
    _exit(0);
}

static const struct test_case cases[] = {
    {"only_common_calls", only_common_calls},
    {"only_listed_calls", only_listed_calls},
    {"only_listed_calls_in_a_report", only_listed_calls_in_a_report},
    {"only_listed_calls_in_threads", only_listed_calls_in_threads},
    {"refused_from_the_start", refused_from_the_start},
    {"refused_later", refused_later},
    {"refused_in_threads", refused_in_threads},
    {"without_access", without_access},
    {"without_anything", without_anything},
};
MAIN(cases)
