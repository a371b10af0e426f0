/*
 * A loop over events whose thread gives back what it keeps before a long wait, not before each one. It waits for a
 * moment first, as long as events usually follow each other; only when that passes in vain it says that it is idle, and
 * then waits for as long as it takes.
 *
 *     cc -O2 -pthread events.c -lcairn -o events && ./events
 */
#define _DEFAULT_SOURCE
#include <cairn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { THREADS = 16, EVENTS = 2000, BLOCKS = 200, MOMENT_MS = 20 };

static _Atomic int says_idle;

/* What an event takes: up to 200 KiB for a while. */
static void serve(uint32_t *random)
{
    static _Thread_local void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        *random = *random * 1664525 + 1013904223;
        size_t size = 1 + (*random >> 8) % 2000;
        blocks[i] = malloc(size);
        if (blocks[i] == NULL) abort();
        memset(blocks[i], 1, size);
    }
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
}

static void *loop(void *pipe_end)
{
    int in = *(int *)pipe_end, events = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (events < 0 || epoll_ctl(events, EPOLL_CTL_ADD, in, &event) != 0) abort();
    for (uint32_t random = (uint32_t)in;;) {
        int ready = epoll_wait(events, &event, 1, MOMENT_MS);
        if (ready == 0) {
            if (says_idle) cairn_thread_idle();
            ready = epoll_wait(events, &event, 1, -1);
        }
        char byte;
        if (ready < 0 || read(in, &byte, 1) <= 0) break;
        serve(&random);
    }
    close(events);
    return NULL;
}

static long resident_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (file == NULL) abort();
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Rss: %ld", &kib) == 1) break;
    fclose(file);
    return kib;
}

int main(void)
{
    pthread_t threads[THREADS];
    int pipes[THREADS][2];
    for (int t = 0; t < THREADS; t++)
        if (pipe(pipes[t]) != 0 || pthread_create(&threads[t], NULL, loop, &pipes[t][0]) != 0) abort();
    long left[2];
    for (says_idle = 0; says_idle < 2; says_idle++) {
        for (int event = 0; event < EVENTS; event++)
            if (write(pipes[event % THREADS][1], "", 1) != 1) abort();
        usleep(300 * 1000);
        cairn_purge();
        left[says_idle] = resident_kib();
    }
    for (int t = 0; t < THREADS; t++) close(pipes[t][1]), pthread_join(threads[t], NULL);
    printf("%d threads wait: %ld KiB resident, %ld after cairn_thread_idle\n", THREADS, left[0], left[1]);
    return 0;
}
