/*
 * Functions that allocate, for the heap profile. Each case says on standard output where they are, and how many blocks each
 * has allocated; the test compares that with the profile. Run with CAIRN_PROFILE=file.
 */
#include "check.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define APART __attribute__((noinline, noclone))
/* A call that is the last thing a function does must stay a call. */
#define STAY __asm__ volatile("" ::: "memory")

enum { PAIRS = 300000, HELD = 60000, ALIGNED = 20000, LARGE_BLOCKS = 1000, TOGETHER = 64 };

static void *held[HELD];

APART static void *pairs(void)
{
    void *block = malloc(64);
    STAY;
    return block;
}

APART static void *keeps(void)
{
    void *block = malloc(100);
    STAY;
    return block;
}

APART static void *aligns(void)
{
    void *block = NULL;
    CHECK(posix_memalign(&block, 256, 1000) == 0, "there is memory");
    STAY;
    return block;
}

APART static void *zeroes(void)
{
    void *block = calloc(3, 1000);
    STAY;
    return block;
}

APART static void *grows(void *block)
{
    block = realloc(block, 5000);
    STAY;
    return block;
}

APART static void *large(void)
{
    void *block = malloc(200000);
    STAY;
    return block;
}

/* Of 64 blocks of one size this one allocates the first. */
APART static void *seldom(void)
{
    void *block = malloc(200);
    STAY;
    return block;
}

APART static void *often(void)
{
    void *block = malloc(200);
    STAY;
    return block;
}

/* printf allocates for it: the buffer of standard output. */
APART static void say(const char *name, const void *function, long allocated, long live)
{
    printf("%s %#zx %ld %ld\n", name, (size_t)(uintptr_t)function, allocated, live);
}

#define SAY(function, allocated, live) say(#function, (void *)(uintptr_t)function, allocated, live)

APART static void allocates(void)
{
    static void *block[TOGETHER];

    for (int i = 0; i < PAIRS; i++)
        free(pairs());
    for (int i = 0; i < HELD; i++)
        held[i] = keeps();
    for (int i = 0; i < HELD / 2; i++)
        free(held[i]);
    for (int i = 0; i < ALIGNED; i++) {
        free(aligns());
        free(grows(zeroes()));
    }
    for (int i = 0; i < LARGE_BLOCKS; i++)
        free(large());
    for (int round = 0; round < 3000; round++) {
        for (int i = 0; i < TOGETHER; i++)
            block[i] = i == 0 ? seldom() : often();
        for (int i = 0; i < TOGETHER; i++)
            free(block[i]);
    }
    /* Where others of them end. */
    SAY(say, -1, -1);
    SAY(allocates, -1, -1);
    SAY(pairs, PAIRS, 0);
    SAY(keeps, HELD, HELD - HELD / 2);
    SAY(aligns, ALIGNED, 0);
    SAY(zeroes, ALIGNED, 0);
    SAY(grows, ALIGNED, 0);
    SAY(large, LARGE_BLOCKS, 0);
    SAY(seldom, 3000, 0);
    SAY(often, 3000 * (TOGETHER - 1), 0);
    fflush(stdout);
}

/* A child that is forked, and one that another program takes the place of. */
APART static void forks(char *path)
{
    for (int i = 0; i < HELD; i++)
        held[i] = keeps();
    for (int child = 0; child < 2; child++) {
        pid_t process = fork();
        if (process == 0) {
            for (int i = 0; i < HELD; i++)
                free(held[i]);
            if (child == 1)
                execl(path, path, "nothing", NULL);
            exit(0);
        }
        int status = 1;
        CHECK(waitpid(process, &status, 0) == process && status == 0, "a child ends well");
    }
    SAY(say, -1, -1);
    SAY(keeps, HELD, HELD);
    SAY(pairs, -1, -1);
    SAY(aligns, -1, -1);
    fflush(stdout);
}

#ifdef CAIRN_IS_LINKED
static size_t written;

static void count(void *arg, const char *text, size_t n)
{
    CHECK(arg == &written && text != NULL, "it is called as it wants to be");
    written += n;
}

/* The profile by the calls, to the descriptor behind standard error. */
static void calls(void)
{
    CHECK(cairn_profile_every(64 << 10) == 1, "there is memory");
    allocates();
    cairn_profile_text(count, &written);
    CHECK(written > 1000, "there is a profile");
    CHECK(cairn_profile_write(1) == 1, "it can be written");
    CHECK(cairn_profile_write(-1) == 0, "it cannot be written");
    CHECK(cairn_profile_every(0) == 1, "it ends");
}
#endif

#if defined(CAIRN_IS_LINKED) && defined(__x86_64__)
enum { STACK = 256 << 10, BEYOND = 64 << 10, SWITCHES = 200000 };

static char *stack_end;
static atomic_int is_over;

__attribute__((used)) APART static void allocates_one(void)
{
    void *block = malloc(100);
    STAY;
    free(block);
}

/* Calls it on another stack, whose end it gets. By its table, its caller is beyond that end. */
void changes_stacks(char *end);
__asm__(".text\n"
        ".type changes_stacks, @function\n"
        "changes_stacks:\n"
        "    .cfi_startproc\n"
        "    pushq %rbx\n"
        "    .cfi_def_cfa_offset 16\n"
        "    subq $320, %rsp\n"
        "    .cfi_def_cfa_offset 336\n"
        "    movq %rsp, %rbx\n"
        "    movq %rdi, %rsp\n"
        "    call allocates_one\n"
        "    movq %rbx, %rsp\n"
        "    addq $320, %rsp\n"
        "    .cfi_def_cfa_offset 16\n"
        "    popq %rbx\n"
        "    .cfi_def_cfa_offset 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size changes_stacks, . - changes_stacks");

static void *comes_and_goes(void *argument)
{
    while (!atomic_load(&is_over)) {
        char *beyond = mmap(stack_end, BEYOND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(beyond == stack_end, "there is memory");
        beyond[300] = 1;
        for (volatile int i = 0; i < 200; i++)
            ;
        munmap(beyond, BEYOND);
    }
    return argument;
}

/* What lies beyond the end of a stack goes while stacks are looked at. */
static void neighbours_go(void)
{
    pthread_t thread;
    char *stack = mmap(NULL, STACK + BEYOND, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED, "there is memory");
    stack_end = stack + STACK;
    CHECK(cairn_profile_every(1) == 1, "there is memory");
    CHECK(pthread_create(&thread, NULL, comes_and_goes, NULL) == 0, "a thread");
    for (int i = 0; i < SWITCHES; i++)
        changes_stacks(stack_end);
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0, "it ends");
}
#endif

static void *allocates_there(void *argument)
{
    usleep(100000);
    allocates();
    return argument;
}

/* The last thread that ends is another than the first one. */
static void main_thread_leaves(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocates_there, NULL) == 0, "a thread");
    pthread_exit(NULL);
}

int main(int count_of, char **arguments)
{
    CHECK(count_of == 2, "one case");
    if (strcmp(arguments[1], "allocates") == 0)
        allocates();
    else if (strcmp(arguments[1], "forks") == 0)
        forks(arguments[0]);
    else if (strcmp(arguments[1], "main_thread_leaves") == 0)
        main_thread_leaves();
#ifdef CAIRN_IS_LINKED
    else if (strcmp(arguments[1], "calls") == 0)
        calls();
#endif
#if defined(CAIRN_IS_LINKED) && defined(__x86_64__)
    else if (strcmp(arguments[1], "neighbours_go") == 0)
        neighbours_go();
#endif
    return 0;
}
