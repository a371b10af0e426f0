/* Programs whose account is asked for: with children, with signals, without standard error. */
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern char **environ;

static void *kept[1000];

/* Something for the account to tell of. */
static void hold(void)
{
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        kept[i] = malloc(1000);
        memset(kept[i], 1, 1000);
    }
}

/* 64 MiB touched and not freed. */
static void hold_much(void)
{
    for (size_t i = 0; i < 64; i++) memset(kept[i] = malloc(MIB), 1, MIB);
}

/* 64 MiB not touched. */
static void hold_untouched(void)
{
    kept[0] = malloc(64 * MIB);
}

/* 32 MiB each, which are freed behind `main`. */
static void *of_first, *of_last;

static void hold_until_the_end(void)
{
    of_first = memset(malloc(32 * MIB), 1, 32 * MIB);
    of_last = memset(malloc(32 * MIB), 1, 32 * MIB);
}

__attribute__((destructor)) static void free_first(void)
{
    free(of_first);
}

__attribute__((destructor(101))) static void free_last(void)
{
    free(of_last);
}

/* 128 MiB in small blocks, of which one in ten survives. */
static void leave_holes(void)
{
    size_t count = 128 * KIB;
    void **blocks = malloc(count * sizeof *blocks);
    for (size_t i = 0; i < count; i++) memset(blocks[i] = malloc(1000), 1, 1000);
    for (size_t i = 0; i < count; i++)
        if (i % 10) free(blocks[i]);
    kept[0] = blocks;
}

static void become(const char *what)
{
    char *arguments[] = {(char *)"itself", (char *)what, NULL};
    execve("/proc/self/exe", arguments, environ);
    _exit(99);
}

static void becomes_another(void)
{
    become("hold");
}

static void wait_for(pid_t child, int expected)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "wait");
    CHECK(status == expected, "status %#x", status);
}

/* One child that goes on with this program, and one that is a program of its own. */
static void children(void)
{
    hold();
    pid_t forked = fork();
    if (forked == 0) exit(0);
    wait_for(forked, 0);
    pid_t started = fork();
    if (started == 0) become("hold");
    wait_for(started, 0);
}

/* As servers do, whose titles tell what they are at. */
static void changes_its_title(void)
{
    hold();
    memset(case_arguments[-2], 't', strlen(case_arguments[-2]));
}

/* As ls and its kind do. */
static void closes_standard_error(void)
{
    hold();
    close(2);
}

/* As a server does that is up. */
static void closes_all_and_waits(void)
{
    hold();
    for (int descriptor = 0; descriptor < 3; descriptor++)
        close(descriptor);
    alarm(20);
    pause();
}

/* As with `program 2>&1 >file | head -1`. What is printed is written at the exit. */
static void loses_its_reader(void)
{
    hold();
    printf("kept");
    lose_the_reader_of_standard_error();
    exit(7);
}

/* The file that is named beside the case, opened with these flags, gets the number of standard error. */
static void put_in_its_place(int flags)
{
    hold();
    close(2);
    CHECK(open(case_arguments[0], flags | O_CREAT, 0666) == 2, "%s", case_arguments[0]);
}

static void puts_data_in_its_place(void)
{
    put_in_its_place(O_RDWR);
}

static void puts_data_in_the_place_of_both(void)
{
    put_in_its_place(O_RDWR);
    for (int descriptor = 3; descriptor < 200; descriptor++) close(descriptor);
}

static void puts_a_log_in_its_place(void)
{
    put_in_its_place(O_WRONLY | O_APPEND);
}

static void puts_a_socket_in_its_place(void)
{
    int ends[2];
    hold();
    close(2);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && ends[0] == 2, "socketpair");
}

/* A daemon: the child lives until standard input ends, and holds on to no other stream. */
static void leaves_a_child(void)
{
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child > 0) return;
    alarm(300);
    close(1);
    close(2);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    _exit(0);
}

static void say_ready(void)
{
    if (write(1, "ready\n", 6) != 6) _exit(98);
}

static void waits(void)
{
    hold();
    say_ready();
    for (;;) pause();
}

static void ends_when_interrupted(void)
{
    hold();
    say_ready();
    pause();
}

static void *busy(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument;
    void *blocks[64] = {NULL};
    for (;;) {
        size_t i = random_next(&random) % COUNT_OF(blocks);
        free(blocks[i]);
        /* Beyond spans at times: the locks of the arena and of the mappings are taken. */
        blocks[i] = malloc(random_size(&random, 27));
    }
}

static void waits_busily(void)
{
    started(busy, (void *)1);
    started(busy, (void *)2);
    say_ready();
    busy((void *)3);
}

static volatile sig_atomic_t heard;

static void hear(int signal)
{
    heard = signal;
}

static void handles_it_itself(void)
{
    struct sigaction action = {.sa_handler = hear};
    CHECK(sigaction(SIGTERM, &action, NULL) == 0, "sigaction");
    CHECK(raise(SIGTERM) == 0 && heard == SIGTERM, "heard %d", (int)heard);
}

static void ignores_it(void)
{
    struct sigaction action;
    CHECK(sigaction(SIGTERM, NULL, &action) == 0 && action.sa_handler == SIG_IGN, "inherited");
    raise(SIGTERM);
}

/* A forked child has no thread of ours. */
static void child_gets_it(void)
{
    pid_t child = fork();
    if (child == 0) {
        raise(SIGTERM);
        _exit(97);
    }
    wait_for(child, SIGTERM);
}

/* The first process of a namespace, and of another one its child. */
static void child_has_its_number(void)
{
    hold();
    CHECK(getpid() == 1 && unshare(CLONE_NEWPID) == 0, "namespaces");
    pid_t child = fork();
    if (child == 0) {
        CHECK(getpid() == 1, "the number is %d", (int)getpid());
        exit(0);
    }
    wait_for(child, 0);
}

static void *ends(void *argument)
{
    return argument;
}

/* The process ends with its last thread. */
static void main_thread_leaves(void)
{
    started(ends, NULL);
    pthread_exit(NULL);
}

static void main_thread_leaves_and_it_comes(void)
{
    started(busy, (void *)1);
    say_ready();
    pthread_exit(NULL);
}

static const struct test_case cases[] = {
    {"hold", hold},
    {"hold_much", hold_much},
    {"hold_until_the_end", hold_until_the_end},
    {"hold_untouched", hold_untouched},
    {"leave_holes", leave_holes},
    {"becomes_another", becomes_another},
    {"children", children},
    {"changes_its_title", changes_its_title},
    {"closes_standard_error", closes_standard_error},
    {"closes_all_and_waits", closes_all_and_waits},
    {"loses_its_reader", loses_its_reader},
    {"puts_data_in_its_place", puts_data_in_its_place},
    {"puts_data_in_the_place_of_both", puts_data_in_the_place_of_both},
    {"puts_a_log_in_its_place", puts_a_log_in_its_place},
    {"puts_a_socket_in_its_place", puts_a_socket_in_its_place},
    {"leaves_a_child", leaves_a_child},
    {"waits", waits},
    {"ends_when_interrupted", ends_when_interrupted},
    {"waits_busily", waits_busily},
    {"handles_it_itself", handles_it_itself},
    {"ignores_it", ignores_it},
    {"child_gets_it", child_gets_it},
    {"child_has_its_number", child_has_its_number},
    {"main_thread_leaves", main_thread_leaves},
    {"main_thread_leaves_and_it_comes", main_thread_leaves_and_it_comes},
};
MAIN(cases)
