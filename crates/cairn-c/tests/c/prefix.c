/* A program, or with -DIS_PLUGIN a part of a plugin, whose copy of cairn has settings of its own. */
#include "check.h"

#include <sys/wait.h>

#ifdef PREFIX
const char cairn_settings_prefix[] = PREFIX;
#endif

#ifndef IS_PLUGIN
extern char **environ;

static void work(void)
{
    void *block = malloc(1000);
    CHECK(block != NULL, "malloc");
    memset(block, 1, 1000);
    free(block);
}

/* This process and one that it starts. */
static void child_works(void)
{
    work();
    pid_t child = fork();
    if (child == 0) {
        char *arguments[] = {(char *)"itself", (char *)"work", NULL};
        execve("/proc/self/exe", arguments, environ);
        _exit(99);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "wait status %#x", status);
}

static void loads_a_plugin(void)
{
    work();
    CHECK(dlopen(case_arguments[0], RTLD_NOW | RTLD_LOCAL) != NULL, "%s", dlerror());
}

static const struct test_case cases[] = {
    {"work", work},
    {"child_works", child_works},
    {"loads_a_plugin", loads_a_plugin},
};
MAIN(cases)
#endif
