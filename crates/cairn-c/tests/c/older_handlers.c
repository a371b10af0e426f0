/*
 * Forks in a program whose library has asked for fork handlers before anything was allocated: its lock is
 * taken last and held over the fork, and threads allocate under it.
 */
#include "check.h"
#include <sys/wait.h>

static int done;
static void (*enter)(void), (*leave)(void);

static void *allocates(void *size)
{
    while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
        enter();
        char *block = malloc((size_t)size);
        CHECK(block != NULL, "%zu", (size_t)size);
        block[0] = 1;
        free(block);
        leave();
        free(hide(malloc(1000)));
    }
    return NULL;
}

static void forks_end(void)
{
    *(void **)&enter = dlsym(RTLD_DEFAULT, "library_enter");
    *(void **)&leave = dlsym(RTLD_DEFAULT, "library_leave");
    CHECK(enter != NULL && leave != NULL, "the library is not loaded");
    void *threads[] = {
        started(allocates, (void *)(300 * KIB)),
        started(allocates, (void *)(5 * MIB)),
        started(allocates, (void *)(40 * MIB)),
    };
    for (int i = 0; i < 500; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (size_t size = 16; size <= 64 * MIB; size *= 4) free(hide(malloc(size)));
            _exit(0);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "fork %d: %x", i, status);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELAXED);
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
}

static const struct test_case cases[] = {{"forks_end", forks_end}};
MAIN(cases)
