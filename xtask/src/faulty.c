/*
 * Mistakes of a program, one per case: memcheck is to find each of them in a program on cairn, and
 * helgrind and drd the race of its threads.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The compiler must not see what is wrong. */
static char *hide(char *pointer)
{
    __asm__ volatile("" : "+r"(pointer));
    return pointer;
}

/* Threads that hand blocks to each other under a lock; racing, one also counts without it. */
enum { ROUNDS = 3000, PLACES = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *places[PLACES];
static long handed_over;
static int racing;

static void *exchange(void *argument)
{
    unsigned long state = (unsigned long)argument;
    for (int round = 0; round < ROUNDS; round++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t size = state >> 33 & (round % 100 ? 511 : 65535);
        char *block = malloc(size + 1);
        memset(block, round, size + 1);
        pthread_mutex_lock(&lock);
        char *other = places[state >> 50 & (PLACES - 1)];
        places[state >> 50 & (PLACES - 1)] = block;
        if (!racing) handed_over++;
        pthread_mutex_unlock(&lock);
        if (racing) handed_over++;
        free(other);
    }
    return NULL;
}

static void start_threads(void)
{
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, exchange, (void *)(i + 1));
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < PLACES; i++) free(places[i]);
}

int main(int argc, char **argv)
{
    const char *mistake = argc > 1 ? argv[1] : "none";
    racing = !strcmp(mistake, "race");
    if (racing || !strcmp(mistake, "threads")) start_threads();
    char *block = hide(malloc(100));
    memset(block, 1, 100);
    if (!strcmp(mistake, "overrun")) block[100] = 1;
    if (!strcmp(mistake, "underrun")) printf("%d\n", block[-1]);
    if (!strcmp(mistake, "uninitialised")) {
        char *fresh = hide(malloc(100));
        if (fresh[50]) puts("set");
        free(fresh);
    }
    free(block);
    if (!strcmp(mistake, "after_free")) printf("%d\n", hide(block)[10]);
    if (!strcmp(mistake, "twice")) free(hide(block));
    if (!strcmp(mistake, "leak")) memset(hide(malloc(200)), 1, 200);
    return 0;
}
