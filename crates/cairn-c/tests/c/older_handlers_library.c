/* A library with a lock that it holds over forks; loaded last, its constructor runs first. */
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void library_enter(void)
{
    pthread_mutex_lock(&lock);
}

void library_leave(void)
{
    pthread_mutex_unlock(&lock);
}

/* In the child: before the handlers of whoever has asked later. */
static void in_child(void)
{
    for (int i = 0; i < 20; i++) {
        void *volatile block = malloc((size_t)64 << i);
        free(block);
    }
    library_leave();
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(library_enter, library_leave, in_child);
}
