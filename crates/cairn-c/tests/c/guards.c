/*
 * Accesses that guards notice. Each case says on standard output where its functions are; the test
 * compares them with the stacks of the report. Run with CAIRN_GUARDS=1, unless a case says otherwise.
 */
#include "check.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

#define APART __attribute__((noinline, noclone))
/* A call that is the last thing a function does must stay a call. */
#define STAY __asm__ volatile("" ::: "memory")

APART static void *allocates(size_t size)
{
    void *block = malloc(size);
    STAY;
    return block;
}

APART static void frees(void *block)
{
    free(block);
    STAY;
}

APART static void writes(char *at)
{
    *(volatile char *)at = 1;
    STAY;
}

APART static char reads(const char *at)
{
    char value = *(const volatile char *)at;
    STAY;
    return value;
}

APART static void resizes(void *block)
{
    CHECK(realloc(block, 5000) == NULL, "it came back");
    STAY;
}

static void say(const char *name, const void *function) { printf("%s %#zx\n", name, (size_t)(uintptr_t)function); }

/* Where the functions are. */
static void announce(void)
{
    say("allocates", (void *)(uintptr_t)allocates);
    say("frees", (void *)(uintptr_t)frees);
    say("writes", (void *)(uintptr_t)writes);
    say("reads", (void *)(uintptr_t)reads);
    say("resizes", (void *)(uintptr_t)resizes);
    fflush(stdout);
}

/* A guarded block: what may be used is what was asked for. */
static char *guarded(size_t size)
{
    for (int i = 0; i < 1000; i++) {
        char *block = allocates(size);
        if (malloc_usable_size(block) == size) return block;
    }
    CHECK(0, "no block of %zu bytes is guarded", size);
    return NULL;
}

/* One that lies against the page behind it, or in front. */
static char *guarded_at(size_t size, int at_end)
{
    for (int i = 0; i < 100; i++) {
        char *block = guarded(size);
        if ((uintptr_t)(at_end ? block + size : block) % 4096 == 0) return block;
    }
    CHECK(0, "no such block of %zu bytes", size);
    return NULL;
}

static void overflow_write(void) { writes((char *)hide(guarded_at(112, 1)) + 112); }
static void overflow_read(void) { reads((char *)hide(guarded_at(4096, 1)) + 4096 + 10); }
static void underflow(void) { writes((char *)hide(guarded_at(100, 0)) - 1); }

static char *freed(size_t size)
{
    char *block = guarded(size);
    memset(block, 1, size);
    frees(block);
    return hide(block);
}

static void read_after_free(void) { reads(freed(100) + 8); }
static void write_after_free(void) { writes(freed(65520)); }
static void double_free(void) { frees(freed(100)); }
static void realloc_freed(void) { resizes(freed(100)); }
static void free_inside(void) { frees((char *)hide(guarded(100)) + 16); }

static void write_behind(void)
{
    char *block = guarded_at(100, 0);
    writes((char *)hide(block) + 100);
    frees(block);
}

static void write_in_front(void)
{
    char *block = guarded_at(112, 1);
    writes((char *)hide(block) - 3);
    frees(block);
}

static void copy_after_free(void)
{
    static char copy[64];
    memcpy(copy, freed(100), sizeof copy);
    printf("%c", copy[5]);
}

static void *freeing_thread(void *block)
{
    frees(block);
    return NULL;
}

static void freed_by_a_thread(void)
{
    char *block = guarded(100);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, freeing_thread, block) == 0, "a thread");
    CHECK(pthread_join(thread, NULL) == 0, "a thread");
    reads(hide(block));
}

static void *accessing_thread(void *block)
{
    reads(block);
    return NULL;
}

/* Reports of many threads are whole, and the process ends. */
static void accessed_by_threads(void)
{
    char *block = freed(100);
    pthread_t threads[8];
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, accessing_thread, block) == 0, "a thread");
    for (size_t i = 0; i < COUNT_OF(threads); i++) pthread_join(threads[i], NULL);
}

static void in_a_child(void)
{
    char *block = freed(100);
    pid_t child = fork();
    if (child == 0) {
        guarded(200);
        reads(block);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "a child");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %#x", status);
    frees(guarded(300));
}

static int (*guard_every)(size_t);

static void find_guard_every(void)
{
#ifdef CAIRN_IS_LINKED
    guard_every = cairn_guard_every;
#else
    guard_every = (int (*)(size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "cairn_guard_every");
#endif
    CHECK(guard_every != NULL, "no such function");
}

static void own_handler(int signal)
{
    static const char text[] = "handled\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(2);
    _exit(signal == SIGSEGV ? 42 : 43);
}

/* The program's handler was there first. Without CAIRN_GUARDS. */
static void handler_before(void)
{
    signal(SIGSEGV, own_handler);
    find_guard_every();
    CHECK(guard_every(1) == 1, "no memory");
    reads(freed(100));
}

/* It comes later, and takes our place. */
static void handler_after(void)
{
    signal(SIGSEGV, own_handler);
    reads(freed(100));
}

static sigjmp_buf back;
static volatile int faults;

static void leaving_handler(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    CHECK(info->si_addr != NULL, "no address");
    faults++;
    siglongjmp(back, 1);
}

/* The handler leaves by a jump, and the program goes on. Without CAIRN_GUARDS. */
static void handler_leaves(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = leaving_handler;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0, "sigaction");
    find_guard_every();
    CHECK(guard_every(1) == 1, "no memory");
    char *block = freed(100);
    for (volatile int i = 0; i < 3; i++)
        if (sigsetjmp(back, 1) == 0) reads(block);
    CHECK(faults == 3, "%d faults", faults);
    /* Those that are none of ours, too. */
    if (sigsetjmp(back, 1) == 0) reads(hide((void *)(uintptr_t)4096));
    CHECK(faults == 4, "%d faults", faults);
}

static void other_fault(void) { reads(hide((void *)(uintptr_t)4096)); }
enum { SIGNAL_STACK = 64 << 10, UNTOUCHED = 0x5a };

static char signal_stack[SIGNAL_STACK];

static void leaving_plain_handler(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

/* How many bytes of the signals' stack a fault takes that is not about guards. */
static size_t fault_depth(void)
{
    memset(signal_stack, UNTOUCHED, sizeof signal_stack);
    if (sigsetjmp(back, 1) == 0) reads(hide((void *)(uintptr_t)4096));
    size_t untouched = 0;
    while (untouched < sizeof signal_stack && signal_stack[untouched] == UNTOUCHED) untouched++;
    return sizeof signal_stack - untouched;
}

/* The program's handler may have a small stack. Without CAIRN_GUARDS. */
static void handler_has_room(void)
{
    stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof signal_stack};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = leaving_plain_handler;
    action.sa_flags = SA_ONSTACK;
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0, "a handler");
    /* The loader finds functions at the first. */
    fault_depth();
    size_t before = fault_depth();
    find_guard_every();
    CHECK(guard_every(1 << 20) == 1, "no memory");
    size_t with_guards = fault_depth();
    CHECK(with_guards < before + 512, "%zu bytes, %zu without guards", with_guards, before);
}

static void sent_signal(void) { raise(SIGSEGV); }

/* Ends: blocks are ordinary ones; those that are guarded can still be freed. */
static void off(void)
{
    find_guard_every();
    char *block = guarded(100);
    CHECK(guard_every(0) == 1, "it ends");
    for (int i = 0; i < 1000; i++) {
        char *other = malloc(100);
        CHECK(malloc_usable_size(other) != 100, "it goes on");
        if (i % 2) free(other);
    }
    free(block);
    reads(hide(block));
}

/* What was asked for is all that a guarded block has, and each call knows it. */
static void is_a_block(void)
{
    for (size_t size = 0; size <= 65536; size += size / 3 + 1) {
        char *block = guarded(size);
        CHECK((uintptr_t)block % 16 == 0, "%zu bytes at %p", size, (void *)block);
        memset(block, 7, size);
#ifdef CAIRN_IS_LINKED
        if (size > 0) CHECK(cairn_base(block + size - 1) == block, "%zu bytes", size);
#endif
        block = realloc(block, size + 100);
        for (size_t i = 0; i < size; i++) CHECK(block[i] == 7, "byte %zu of %zu", i, size);
        block = realloc(block, size / 2 + 1);
        for (size_t i = 0; i < size / 2; i++) CHECK(block[i] == 7, "byte %zu of %zu", i, size);
        free(block);
        block = calloc(size, 1);
        for (size_t i = 0; i < size; i++) CHECK(block[i] == 0, "byte %zu of %zu", i, size);
        free(block);
    }
    for (size_t align = 16; align <= 65536; align *= 2)
        for (int i = 0; i < 20; i++) {
            char *block = aligned_alloc(align, 100);
            CHECK((uintptr_t)block % align == 0, "%p for %zu", (void *)block, align);
            memset(block, 1, 100);
            free(block);
        }
}

static void *busy_thread(void *seed)
{
    static __thread struct { unsigned char *block; size_t size; } held[64];
    uintptr_t random = (uintptr_t)seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 10000; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t at = random % COUNT_OF(held), size = random / 64 % (random % 16 ? 400 : 40000);
        if (held[at].block != NULL) {
            CHECK(held[at].size == 0 || held[at].block[held[at].size - 1] == (unsigned char)at, "it changed");
            free(held[at].block);
        }
        held[at].block = i % 3 ? malloc(size) : calloc(1, size);
        held[at].size = size;
        if (size > 0) held[at].block[size - 1] = (unsigned char)at;
    }
    for (size_t at = 0; at < COUNT_OF(held); at++) free(held[at].block);
    return NULL;
}

/* Many blocks, some of them guarded, and nothing is wrong with any. */
static void threads_at_work(void)
{
    pthread_t threads[4];
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        CHECK(pthread_create(&threads[i], NULL, busy_thread, (void *)(uintptr_t)(i + 1)) == 0, "a thread");
    for (size_t i = 0; i < COUNT_OF(threads); i++) CHECK(pthread_join(threads[i], NULL) == 0, "a thread");
}

/* Memory stays bounded, however many blocks there are. */
static void many_blocks(void)
{
    for (int i = 0; i < 20000; i++) {
        char *block = allocates(200);
        memset(block, 1, 200);
    }
    /* Not code: how much of a file comes with one page is the kernel's choice. */
    printf("resident %zu\n", 1024 * status_kib("RssAnon:"));
}

/* Allocates and frees until somebody ends it; for `cairn guards`. */
static void until_killed(void)
{
    for (;;) {
        char *blocks[100];
        for (size_t i = 0; i < COUNT_OF(blocks); i++) blocks[i] = allocates(100);
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            if (malloc_usable_size(blocks[i]) == 100) {
                frees(blocks[i]);
                reads(hide(blocks[i]));
            }
            free(blocks[i]);
        }
    }
}

static void with_places(void (*run)(void))
{
    announce();
    run();
}

#define CASE(name)                                                                                 \
    static void run_##name(void) { with_places(name); }
CASE(overflow_write)
CASE(overflow_read)
CASE(underflow)
CASE(read_after_free)
CASE(write_after_free)
CASE(double_free)
CASE(realloc_freed)
CASE(free_inside)
CASE(write_behind)
CASE(write_in_front)
CASE(copy_after_free)
CASE(freed_by_a_thread)
CASE(accessed_by_threads)
CASE(in_a_child)
CASE(handler_before)
CASE(handler_after)
CASE(handler_leaves)
CASE(handler_has_room)
CASE(other_fault)
CASE(sent_signal)
CASE(off)
CASE(is_a_block)
CASE(threads_at_work)
CASE(many_blocks)
CASE(until_killed)

static const struct test_case cases[] = {
    {"overflow_write", run_overflow_write},
    {"overflow_read", run_overflow_read},
    {"underflow", run_underflow},
    {"read_after_free", run_read_after_free},
    {"write_after_free", run_write_after_free},
    {"double_free", run_double_free},
    {"realloc_freed", run_realloc_freed},
    {"free_inside", run_free_inside},
    {"write_behind", run_write_behind},
    {"write_in_front", run_write_in_front},
    {"copy_after_free", run_copy_after_free},
    {"freed_by_a_thread", run_freed_by_a_thread},
    {"accessed_by_threads", run_accessed_by_threads},
    {"in_a_child", run_in_a_child},
    {"handler_before", run_handler_before},
    {"handler_after", run_handler_after},
    {"handler_leaves", run_handler_leaves},
    {"handler_has_room", run_handler_has_room},
    {"other_fault", run_other_fault},
    {"sent_signal", run_sent_signal},
    {"off", run_off},
    {"is_a_block", run_is_a_block},
    {"threads_at_work", run_threads_at_work},
    {"many_blocks", run_many_blocks},
    {"until_killed", run_until_killed},
};
MAIN(cases)
