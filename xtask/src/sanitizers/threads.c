/*
 * Threads that hand blocks to each other under a lock; with "race", one also counts without it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

int main(int argc, char **argv)
{
    pthread_t threads[4];
    racing = argc > 1 && !strcmp(argv[1], "race");
    for (size_t i = 0; i < 4; i++) pthread_create(&threads[i], NULL, exchange, (void *)(i + 1));
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < PLACES; i++) free(places[i]);
    return 0;
}
