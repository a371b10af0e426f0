/*
 * The first operation of a process, at each place where a process can have code: see life.h for
 * the operations. `life PLACE OPERATION [PLUGIN]` prints one line, and ends with 0 if the first
 * operation and the work-out after it went well.
 */
#include "life.h"

#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/time.h>
#include <sys/wait.h>

extern char **environ;

/* Places that a static program does not have are left out of it. */
#ifndef LIFE_IS_STATIC
#define LIFE_IS_STATIC 0
#endif

static void here(const char *place)
{
    if (is_place(place)) first_of_all();
}

static void here_and_thread(const char *place)
{
    if (!is_place(place)) return;
    first_of_all();
    work_out();
}

/* --- before main --- */

static void before_constructors(void) { here("preinit"); }
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = before_constructors;

__attribute__((constructor(101))) static void early_constructor(void) { here("early_constructor"); }
__attribute__((constructor)) static void constructor(void) { here("constructor"); }

/* --- after main --- */

static void at_exit(void) { here_and_thread("atexit"); }
static void at_exit_quickly(void) { here_and_thread("quick_exit"); }
__attribute__((destructor)) static void destructor(void) { here_and_thread("destructor"); }

/* --- threads --- */

static void *in_thread(void *argument)
{
    first_of_all();
    return argument;
}

static void in_new_thread(void) { joined(started(in_thread, NULL)); }

static void in_destructor(void *unused)
{
    (void)unused;
    first_of_all();
}

static void *with_key(void *key)
{
    static char not_null;
    CHECK(pthread_setspecific(*(pthread_key_t *)key, &not_null) == 0, "key");
    return NULL;
}

static void in_thread_key(void)
{
    pthread_key_t key;
    CHECK(pthread_key_create(&key, in_destructor) == 0, "key");
    joined(started(with_key, &key));
}

#ifdef __GLIBC__
/* What a compiler makes of a thread_local object with a destructor. */
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
extern char __dso_handle[];

static void *with_local(void *argument)
{
    CHECK(__cxa_thread_atexit_impl(in_destructor, NULL, __dso_handle) == 0, "thread_local");
    return argument;
}

static void in_thread_local(void) { joined(started(with_local, NULL)); }
static void in_first_threads_local(void) { with_local(NULL); }
#endif

/* --- signals --- */

static void in_handler(int number)
{
    (void)number;
    first_of_all();
}

static void in_signal_handler(void)
{
    CHECK(signal(SIGUSR1, in_handler) != SIG_ERR && raise(SIGUSR1) == 0, "signal");
}

static void on_alternate_stack(void)
{
    static char memory[256 << 10];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0, "stack");
    CHECK(kill(getpid(), SIGUSR1) == 0, "kill");
}

/* A timer that fires all the time: its handler works on memory of its own and of the program,
 * and leaves the allocator alone. The timer is that of the alarm that ends what hangs. */
static volatile sig_atomic_t interruptions;
static unsigned char *volatile watched;
static unsigned char scratch[4096];

static void interrupt(int number)
{
    (void)number;
    CHECK(interruptions < 30000, "it hangs");
    memset(scratch, interruptions & 0xff, sizeof scratch);
    /* A block that the interrupted code is not working on. */
    if (watched) CHECK(holds(watched, 3000, 6), "interruption %d", (int)interruptions);
    interruptions = interruptions + 1;
}

static void interrupted(void)
{
    enum { INTERRUPTIONS = 5 };
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "sigaction");
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
    first_of_all();
    unsigned char *block = malloc(3000);
    fill(block, 3000, 6);
    watched = block;
    const operation_t *operation = chosen_operation();
    for (int until = interruptions + INTERRUPTIONS; interruptions < until;)
        take_back(operation, operate(operation));
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0, "setitimer");
    alarm(60);
    watched = NULL;
    free(block);
}

/* --- processes --- */

static void expect_success(pid_t child, const char *what)
{
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, __WALL) == child, "%s", what);
    CHECK(status == 0, "%s: wait status %#x", what, status);
}

static void child_is_first(pid_t child)
{
    if (child == 0) {
        alarm(30);
        first_of_all();
        work_out();
        exit(0);
    }
    expect_success(child, "the child");
}

static void in_forked(void) { child_is_first(fork()); }

/* In the parent, then in the child, in the child's child, and in the parent again. */
static void in_forked_again(void)
{
    const operation_t *operation = chosen_operation();
    void *before = operate(operation), *again = operate(operation);
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        take_back(operation, before);
        work_out();
        child_is_first(fork());
        take_back(operation, again);
        exit(0);
    }
    expect_success(child, "the child");
    take_back(operation, again);
    take_back(operation, before);
}

/* No handlers run; this process has one thread. */
static void in_bare_fork(void)
{
    pid_t child = _Fork();
    if (child == 0) {
        first_of_all();
        _exit(0);
    }
    expect_success(child, "the child");
}

static char clone_stack[256 << 10] __attribute__((aligned(64)));

static int in_clone(void *unused)
{
    (void)unused;
    first_of_all();
    return 0;
}

/* A process in our memory, thread-local storage included; we wait for it. */
static void in_cloned_process(void)
{
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD;
    expect_success(clone(in_clone, clone_stack + sizeof clone_stack, flags, NULL), "the clone");
}

/* A thread that the C library knows nothing of; we wait for it. */
static void in_cloned_thread(void)
{
    static volatile pid_t alive = 1;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM
                | CLONE_CHILD_CLEARTID;
    CHECK(clone(in_clone, clone_stack + sizeof clone_stack, flags, NULL, NULL, NULL, &alive) > 0, "clone");
    while (alive) usleep(100);
}

/* The children of vfork and posix_spawn share our memory until they are other programs. */
static void beside_spawned(void)
{
    char program[] = "/proc/self/exe", name[] = "life", none[] = "none";
    char *arguments[] = {name, none, none, NULL};
    pid_t child = vfork();
    if (child == 0) {
        execve(program, arguments, environ);
        _exit(99);
    }
    expect_success(child, "after vfork");
    CHECK(posix_spawn(&child, program, NULL, NULL, arguments, environ) == 0, "posix_spawn");
    expect_success(child, "spawned");
    CHECK(system("exit 0") == 0, "system");
    first_of_all();
    FILE *pipe = popen("echo text", "r");
    char line[16];
    CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "text\n") == 0, "popen");
    CHECK(pclose(pipe) == 0, "pclose");
    child = vfork();
    if (child == 0) _exit(0);
    expect_success(child, "another vfork");
}

/* --- plugins --- */

#if !LIFE_IS_STATIC
static void *plugin;

static void *plugin_function(const char *name, int flags)
{
    plugin = dlopen(word(3), RTLD_NOW | RTLD_LOCAL | flags);
    CHECK(plugin != NULL, "%s", dlerror());
    void *function = dlsym(plugin, name);
    CHECK(function != NULL, "%s", name);
    return function;
}

static void close_plugin(void) { CHECK(dlclose(plugin) == 0, "%s", dlerror()); }

static void in_plugin_with(int flags)
{
    ((void (*)(void))plugin_function("plugin_first", flags))();
    close_plugin();
}

static void in_plugin(void) { in_plugin_with(0); }
static void in_plugin_deeply_bound(void) { in_plugin_with(RTLD_DEEPBIND); }

/* Its constructor, or its destructor, does it. */
static void around_plugin(void)
{
    plugin_function("plugin_first", 0);
    close_plugin();
}

/* What a plugin has allocated outlives it. */
static void after_plugin(void)
{
    void *block = ((void *(*)(void))plugin_function("plugin_keep", 0))();
    close_plugin();
    take_back(chosen_operation(), block);
    first_of_all();
}
#endif

static void nothing(void) {}
static void at_main(void) { first_of_all(); }
static void register_at_exit(void) { CHECK(atexit(at_exit) == 0, "atexit"); }
static void leave_quickly(void)
{
    CHECK(at_quick_exit(at_exit_quickly) == 0, "at_quick_exit");
    quick_exit(0);
}

/* How many heaps one thread takes; the document says so. */
static void count_heaps(void)
{
    static char buffer[1 << 16];
    CHECK(setvbuf(stdout, buffer, _IOFBF, sizeof buffer) == 0, "setvbuf");
    free(malloc(100));
    CHECK(malloc_info(0, stdout) == 0 && fflush(stdout) == 0, "malloc_info");
}

static const struct {
    const char *name;
    void (*go)(void);
    /* The first operation comes after main: what main does now would come before it. */
    int is_late;
} places[] = {
    {"preinit", nothing, 0},
    {"early_constructor", nothing, 0},
    {"constructor", nothing, 0},
    {"library_constructor", nothing, 0},
    {"main", at_main, 0},
    {"thread", in_new_thread, 0},
    {"thread_key", in_thread_key, 0},
#ifdef __GLIBC__
    {"thread_local", in_thread_local, 0},
    {"main_thread_local", in_first_threads_local, 1},
#endif
    {"handler", in_signal_handler, 0},
    {"alternate_stack", on_alternate_stack, 0},
    {"interrupted", interrupted, 0},
    {"forked", in_forked, 0},
    {"forked_again", in_forked_again, 0},
    {"bare_fork", in_bare_fork, 0},
    {"cloned_process", in_cloned_process, 0},
    {"cloned_thread", in_cloned_thread, 0},
    {"beside_spawned", beside_spawned, 0},
#if !LIFE_IS_STATIC
    {"plugin", in_plugin, 0},
    {"plugin_deepbind", in_plugin_deeply_bound, 0},
    {"plugin_constructor", around_plugin, 0},
    {"plugin_destructor", around_plugin, 0},
    {"after_plugin", after_plugin, 0},
#endif
    {"atexit", register_at_exit, 1},
    {"quick_exit", leave_quickly, 1},
    {"destructor", nothing, 1},
    {"library_destructor", nothing, 1},
    {"heaps", count_heaps, 1},
    {"none", nothing, 1},
};

int main(void)
{
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        if (!is_place(places[i].name)) continue;
        places[i].go();
        if (!places[i].is_late) work_out();
        return 0;
    }
    CHECK(0, "no place %s", word(1));
}
