/* The program under trace: threads that allocate and hand blocks over, for ever.
 *
 *   subject SHAPE THREADS
 *
 * It runs at full speed until each thread has done its share of warming up. Then it writes a line:
 * the addresses of malloc, of free and of `traced`, and the numbers of its threads. It goes on until
 * it is killed or its input ends. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 256, SIZE = 64, SET = 64, FEW = 8 };

/* On lines of its own. */
#define APART _Alignas(128)

/* Null, or a block that belongs to the slot. */
typedef _Atomic(size_t *) slot;

struct worker {
    APART atomic_size_t done;
    _Atomic pid_t id;
    int index;
    size_t random;
};

static struct worker workers[MOST_THREADS];
static struct { APART slot slots[SET]; } sets[2 * MOST_THREADS];
/* Numbers of sets that no thread has. */
static struct { APART atomic_int set; } boxes[MOST_THREADS];
static struct { APART atomic_char byte; } traced;
static int threads;
static void (*shape)(struct worker *);

/* A block has its size in its first word; its last byte is written, too. */
static size_t *fresh(size_t size) {
    size_t *block = malloc(size);
    if (block == NULL)
        abort();
    ((volatile char *)block)[size - 1] = 1;
    *(volatile size_t *)block = size;
    return block;
}

static void count(struct worker *me) {
    size_t done = atomic_load_explicit(&me->done, memory_order_relaxed);
    atomic_store_explicit(&me->done, done + 1, memory_order_relaxed);
}

static void put(slot *to, size_t *block) {
    atomic_store_explicit(to, block, memory_order_release);
}

static size_t *look(slot *from) {
    return atomic_load_explicit(from, memory_order_acquire);
}

static size_t *take(slot *from) {
    size_t *block = look(from);
    put(from, NULL);
    return block;
}

static void give_back(struct worker *me, size_t *block) {
    if (block == NULL)
        return;
    (void)*(volatile size_t *)block;
    free(block);
    count(me);
}

static size_t below(struct worker *me, size_t bound) {
    me->random ^= me->random << 13;
    me->random ^= me->random >> 7;
    me->random ^= me->random << 17;
    return me->random % bound;
}

/* Others may need this core, but for a traced thread, which has one to itself. */
static void give_way(void) {
    if (!atomic_load_explicit(&traced.byte, memory_order_relaxed))
        sched_yield();
}

static void wait_a_turn(void) {
    __builtin_ia32_pause();
    give_way();
}

static void produce(struct worker *me, slot *ring) {
    for (int at = 0;; at = (at + 1) % SET) {
        size_t *block = fresh(SIZE);
        while (look(&ring[at]) != NULL)
            wait_a_turn();
        put(&ring[at], block);
        count(me);
    }
}

static void consume(struct worker *me, slot *ring, int length) {
    for (int at = 0;; at = (at + 1) % length) {
        while (look(&ring[at]) == NULL)
            wait_a_turn();
        give_back(me, take(&ring[at]));
    }
}

/* Each thread frees its own, the oldest of 64 first. */
static void local(struct worker *me) {
    size_t *set[SET] = {NULL};
    for (int at = 0;; at = (at + 1) % SET) {
        size_t *old = set[at];
        set[at] = fresh(SIZE);
        give_back(me, old);
    }
}

/* Half the threads allocate, each for one that frees, through a ring of 64. */
static void pairs(struct worker *me) {
    slot *ring = sets[me->index / 2].slots;
    if (me->index % 2 == 0)
        produce(me, ring);
    else
        consume(me, ring, SET);
}

/* Each thread replaces random blocks in a set of 64, of 1/4 to 4 times the size. After each 64 it
 * changes sets with others. */
static void larson_like(struct worker *me) {
    for (int mine = me->index;;) {
        slot *set = sets[mine].slots;
        for (int turn = 0; turn < SET; turn++) {
            slot *at = &set[below(me, SET)];
            size_t *old = take(at);
            put(at, fresh(SIZE / 4 + below(me, SIZE * 4 - SIZE / 4 + 1)));
            give_back(me, old);
        }
        mine = atomic_exchange(&boxes[below(me, threads)].set, mine);
    }
}

/* One thread allocates for all others, 8 blocks at a time. */
static void one_to_all(struct worker *me) {
    if (me->index > 0)
        consume(me, sets[me->index].slots, FEW);
    for (;;) {
        for (int other = 1; other < threads; other++)
            for (slot *at = sets[other].slots; at < sets[other].slots + FEW; at++)
                if (look(at) == NULL) {
                    put(at, fresh(SIZE));
                    count(me);
                }
        give_way();
    }
}

static const struct {
    const char *name;
    void (*run)(struct worker *);
} shapes[] = {
    {"local", local}, {"pairs", pairs}, {"larson-like", larson_like}, {"one-to-all", one_to_all}};

static void *work(void *argument) {
    struct worker *me = argument;
    me->id = gettid();
    shape(me);
    return NULL;
}

static void warm_up(struct worker *worker) {
    size_t enough = 200000 / threads;
    while (worker->done < (enough < 4000 ? 4000 : enough))
        usleep(1000);
}

int main(int argc, char **argv) {
    if (argc != 3 || (threads = atoi(argv[2])) < 1 || threads > MOST_THREADS)
        return 2;
    for (size_t at = 0; at < sizeof shapes / sizeof *shapes; at++)
        if (strcmp(argv[1], shapes[at].name) == 0)
            shape = shapes[at].run;
    if (shape == NULL)
        return 2;
    for (int at = 0; at < threads; at++)
        boxes[at].set = threads + at;
    for (int at = 0; at < threads; at++) {
        pthread_t thread;
        workers[at].index = at;
        workers[at].random = at + 1;
        if (pthread_create(&thread, NULL, work, &workers[at]) != 0)
            return 1;
    }
    for (int at = 0; at < threads; at++)
        warm_up(&workers[at]);
    printf("%zu %zu", (size_t)dlsym(RTLD_DEFAULT, "malloc"), (size_t)dlsym(RTLD_DEFAULT, "free"));
    printf(" %zu", (size_t)&traced.byte);
    for (int at = 0; at < threads; at++)
        printf(" %d", workers[at].id);
    puts("");
    fflush(stdout);
    char nothing;
    _exit(read(STDIN_FILENO, &nothing, 1) < 0);
}
