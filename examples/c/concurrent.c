/*
 * A runtime without a global lock. Threads read objects out of a shared table and count references to them, while others
 * replace and free the same objects. A reader looks at an object's head before it knows that the object is still there.
 * Four things of cairn's make that safe and cheap:
 *
 * - Each thread allocates from its part of one shared heap, without a lock.
 * - The first 16 bytes of a freed object stay: a count of 0 says to a late reader that the object is gone.
 * - Memory of objects that have gone waits until no thread can be reading it: the runtime counts epochs.
 * - The thread that owns an object's memory is known, so an object is sent there to be freed, without atomic steps inside.
 *
 *     cc -O2 -pthread concurrent.c -lcairn -o concurrent && ./concurrent [OPERATIONS]
 */
#include <cairn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, SLOTS = 2000, HEAD = 16, PAUSE = 256 };

struct object {
    /* The head. */
    _Atomic size_t references; /* 0: gone */
    size_t slot;
    /* The rest is anybody's once the object is free. */
    struct object *next;
    size_t count;
    size_t values[];
};

struct worker {
    pthread_t thread;
    _Atomic size_t number;          /* cairn's number of the thread */
    _Atomic size_t epoch;           /* it reads nothing that was freed before */
    _Atomic(struct object *) inbox; /* objects of its own that others have dropped */
    size_t made, freed, sent, read, gone;
};

static cairn_heap *heap;
static _Atomic(struct object *) table[SLOTS];
static struct worker workers[THREADS];
static _Atomic size_t epoch = 1;
static atomic_flag advancing = ATOMIC_FLAG_INIT;
static size_t operations = 200000;

static size_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (size_t)(*state >> 20);
}

static struct object *make(struct worker *worker, size_t slot, size_t count)
{
    struct object *object = cairn_heap_malloc(heap, sizeof *object + count * sizeof(size_t));
    if (object == NULL) {
        perror("cairn_heap_malloc");
        exit(1);
    }
    object->slot = slot;
    object->count = count;
    for (size_t nth = 0; nth < count; nth++) object->values[nth] = slot + nth;
    atomic_store(&object->references, 1);
    worker->made++;
    return object;
}

/* The last reference has gone. Who owns the memory frees it fastest. */
static void release(struct worker *worker, struct object *object)
{
    size_t owner = cairn_owner_thread(object);
    for (size_t nth = 0; nth < THREADS; nth++) {
        if (&workers[nth] != worker && owner == atomic_load(&workers[nth].number) && owner != 0) {
            object->next = atomic_load(&workers[nth].inbox);
            while (!atomic_compare_exchange_weak(&workers[nth].inbox, &object->next, object)) continue;
            worker->sent++;
            return;
        }
    }
    free(object);
    worker->freed++;
}

static void drop(struct worker *worker, struct object *object)
{
    if (atomic_fetch_sub(&object->references, 1) == 1) release(worker, object);
}

/* Takes a reference to the object in a slot; NULL if it went while it was being looked at. */
static struct object *take(size_t slot)
{
    struct object *object = atomic_load(&table[slot]);
    size_t count = atomic_load(&object->references);
    do {
        if (count == 0) return NULL;
    } while (!atomic_compare_exchange_weak(&object->references, &count, count + 1));
    return object;
}

static void check(const struct object *object)
{
    for (size_t nth = 0; nth < object->count; nth++) {
        if (object->values[nth] != object->slot + nth) {
            fprintf(stderr, "an object of slot %zu has lost its contents\n", object->slot);
            exit(1);
        }
    }
}

/* Frees what has been sent to a thread. */
static void empty_inbox(struct worker *worker, struct worker *of)
{
    struct object *object = atomic_exchange(&of->inbox, NULL);
    while (object != NULL) {
        struct object *next = object->next;
        free(object);
        worker->freed++;
        object = next;
    }
}

/* Between two operations a thread holds no pointer that it has not counted. */
static void pause_here(struct worker *worker)
{
    empty_inbox(worker, worker);
    atomic_store(&worker->epoch, atomic_load(&epoch));
    if (atomic_flag_test_and_set(&advancing)) return;
    size_t now = atomic_load(&epoch) + 1, safe = now;
    for (size_t nth = 0; nth < THREADS; nth++) {
        size_t seen = atomic_load(&workers[nth].epoch);
        if (seen < safe) safe = seen;
    }
    /* The allocator hears of the epoch before a reader enters it. */
    cairn_heap_set_epoch(heap, now, safe);
    atomic_store(&epoch, now);
    atomic_flag_clear(&advancing);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    uint64_t random = 88172645463325252u + (uint64_t)(worker - workers);
    atomic_store(&worker->number, cairn_thread_number());
    for (size_t nth = 0; nth < operations; nth++) {
        size_t slot = draw(&random) % SLOTS;
        if (draw(&random) % 4 == 0) {
            size_t count = draw(&random) % 1000 == 0 ? 20000 : draw(&random) % 60;
            struct object *old = atomic_exchange(&table[slot], make(worker, slot, count));
            drop(worker, old);
        } else {
            struct object *object = take(slot);
            if (object == NULL) {
                worker->gone++;
            } else {
                /* It may be another slot's by now, made where the old one was; it is whole all the same. */
                check(object);
                worker->read++;
                drop(worker, object);
            }
        }
        if (nth % PAUSE == 0) pause_here(worker);
    }
    /* It reads nothing any more. */
    atomic_store(&worker->epoch, SIZE_MAX);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc > 1) operations = strtoul(argv[1], NULL, 10);
    heap = cairn_heap_new_concurrent(HEAD);
    if (heap == NULL) {
        perror("cairn_heap_new_concurrent");
        return errno == ENOTSUP ? 77 : 1;
    }
    struct worker self = {0};
    for (size_t slot = 0; slot < SLOTS; slot++) atomic_store(&table[slot], make(&self, slot, 10));
    for (size_t nth = 0; nth < THREADS; nth++) {
        if (pthread_create(&workers[nth].thread, NULL, work, &workers[nth]) != 0) return 1;
    }
    for (size_t nth = 0; nth < THREADS; nth++) pthread_join(workers[nth].thread, NULL);
    for (size_t slot = 0; slot < SLOTS; slot++) drop(&self, atomic_load(&table[slot]));
    for (size_t nth = 0; nth < THREADS; nth++) {
        empty_inbox(&self, &workers[nth]);
        self.made += workers[nth].made;
        self.freed += workers[nth].freed;
        self.sent += workers[nth].sent;
        self.read += workers[nth].read;
        self.gone += workers[nth].gone;
    }
    printf("%zu objects made, %zu freed, %zu of them sent to their owners; %zu read, %zu seen after they had gone; epoch %zu\n",
           self.made, self.freed, self.sent, self.read, self.gone, (size_t)atomic_load(&epoch));
    int lost = self.made != self.freed;
    cairn_heap_destroy(heap);
    return lost;
}
