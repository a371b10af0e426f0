/* What the environment does to a program, and what a program may do to its environment. */
#include "check.h"

#include <sys/auxv.h>
#include <sys/wait.h>

extern char **environ;

static void some_work(void)
{
    for (size_t size = 1; size < 4 * MIB; size = size * 3 + 1) {
        void *block = malloc(size);
        CHECK(block != NULL, "%zu", size);
        memset(block, 1, size);
        free(block);
    }
}

/* Something must stay in use for statistics to tell of. */
static void work(void)
{
    static void *kept[100];
    some_work();
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        kept[i] = malloc(1000);
        memset(kept[i], 1, 1000);
    }
}

/* Exit code 7: the kernel does not see a change of user here. */
static void secure(void)
{
    if (!getauxval(AT_SECURE)) exit(7);
    some_work();
}

/* This process and one that it starts. */
static void child_works(void)
{
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        char *arguments[] = {(char *)"itself", (char *)"work", NULL};
        execve("/proc/self/exe", arguments, environ);
        _exit(99);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "wait status %#x", status);
}

/* Prints what of LD_PRELOAD a child gets, and whether the library is active in it. */
static void child_of_preload(void)
{
    some_work();
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        char *arguments[] = {(char *)"itself", (char *)"print_preload", NULL};
        /* The child is a program of its own: it may well be without the library. */
        unsetenv("TEST_EXPECTS_CAIRN");
        execve("/proc/self/exe", arguments, environ);
        _exit(99);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "wait status %#x", status);
}

static void print_preload(void)
{
    const char *preload = getenv("LD_PRELOAD");
    printf("%s\n", preload ? preload : "(not set)");
}

/* The environment is the program's: it may be gone, or be changed, at any time. */
static void environment_is_taken_away(void)
{
    clearenv();
    some_work();
    environ = NULL;
    some_work();
    char *few[] = {(char *)"CAIRN_STATS=1", NULL};
    environ = few;
    some_work();
}

static void start_without_environment(void)
{
    char *arguments[] = {(char *)"itself", (char *)"work", NULL};
    execve("/proc/self/exe", arguments, (char *[]){NULL});
    CHECK(0, "execve");
}

/* How much is reserved; and what has no room in it is refused or mapped, and nothing breaks. */
static void address_space(void)
{
    enum { BLOCKS = 10000 };
    static char *blocks[BLOCKS];
    size_t before, beyond = 0;
    some_work();
    before = virtual_kib();
    for (size_t i = 0; i < BLOCKS; i++) {
        size_t size = i % 100 ? 60000 : 3 * MIB;
        if (!(blocks[i] = malloc(size))) beyond++;
        else blocks[i][0] = blocks[i][size - 1] = 1;
    }
    for (size_t i = 0; i < BLOCKS; i++) free(blocks[i]);
    some_work();
    printf("%zu %zu\n", before, beyond);
}

/* Standard error is closed and its number is a file of the program. */
static void standard_error_is_a_file(void)
{
    FILE *file = tmpfile();
    CHECK(file != NULL, "tmpfile");
    close(2);
    int copy = dup(fileno(file));
    CHECK(copy == 2, "%d", copy);
    some_work();
    close(2);
}

static const struct test_case cases[] = {
    {"work", work},
    {"secure", secure},
    {"child_works", child_works},
    {"child_of_preload", child_of_preload},
    {"print_preload", print_preload},
    {"environment_is_taken_away", environment_is_taken_away},
    {"start_without_environment", start_without_environment},
    {"address_space", address_space},
    {"standard_error_is_a_file", standard_error_is_a_file},
};
MAIN(cases)
