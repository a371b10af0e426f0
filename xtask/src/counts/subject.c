/* The workloads whose costs are counted: `subject ROW` runs the one of that name once.
 *
 * Each does the same in every run: sizes and places come from a generator with a fixed seed,
 * and threads take turns. It ends before anything is due by the clock. A byte is written in
 * each page of a block, as a program would. */

#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* What cairn has beside the malloc family. The library is preloaded. */
typedef struct cairn_heap cairn_heap;
extern cairn_heap *cairn_heap_new(void) __attribute__((weak));
extern cairn_heap *cairn_heap_new_shared(void) __attribute__((weak));
extern void *cairn_heap_malloc(cairn_heap *, size_t) __attribute__((weak));
extern void cairn_heap_delete(cairn_heap *) __attribute__((weak));
extern void cairn_heap_destroy(cairn_heap *) __attribute__((weak));

enum { PAGE = 4096, KIB = 1024, MIB = 1024 * KIB };
enum { SLOTS = 20000, HAND_OVERS = 100 };

static void *slots[SLOTS];

static void *touched(void *block, size_t size) {
    if (block == NULL)
        abort();
    for (size_t at = 0; at < size; at += PAGE)
        ((volatile char *)block)[at] = 1;
    return block;
}

static void *allocate(size_t size) { return touched(malloc(size), size); }

static uint64_t state = 1;

static uint32_t chance(uint32_t below) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (uint32_t)((state >> 32) * below >> 32);
}

/* Small sizes more often than large ones. */
static size_t size_up_to(uint32_t most) { return 16 + chance(1 + chance(most - 16)); }

static void pairs_64(void) {
    for (int i = 0; i < 200000; i++)
        free(allocate(64));
}

/* One block of each small size after the other. */
static void every_size(void) {
    for (int round = 0; round < 60; round++)
        for (size_t size = 1; size <= 2048; size++)
            free(allocate(size));
}

static void fill(int count, size_t size) {
    for (int i = 0; i < count; i++)
        slots[i] = allocate(size);
}

static void fifo(int count, size_t size, int rounds) {
    for (int round = 0; round < rounds; round++) {
        fill(count, size);
        for (int i = 0; i < count; i++)
            free(slots[i]);
    }
}

static void lifo(int count, size_t size, int rounds) {
    for (int round = 0; round < rounds; round++) {
        fill(count, size);
        for (int i = count; i-- > 0;)
            free(slots[i]);
    }
}

static void fifo_64(void) { fifo(1000, 64, 200); }
static void lifo_64(void) { lifo(1000, 64, 200); }
static void fifo_many(void) { fifo(SLOTS, 256, 10); }

/* Blocks of many sizes, each replaced in its turn of chance. */
static void replace(int count, uint32_t most, int times) {
    for (int i = 0; i < count; i++)
        slots[i] = allocate(size_up_to(most));
    for (int i = 0; i < times; i++) {
        void **slot = &slots[chance((uint32_t)count)];
        free(*slot);
        *slot = allocate(size_up_to(most));
    }
    for (int i = 0; i < count; i++)
        free(slots[i]);
}

static void mixed_small(void) { replace(10000, 1024, 150000); }
static void mixed_medium(void) { replace(1000, 64 * KIB, 60000); }
static void mixed_large(void) { replace(60, MIB, 10000); }

/* Nine blocks of ten go, in an order of chance, and larger ones come. */
static void survivors(void) {
    for (int round = 0; round < 4; round++) {
        fill(SLOTS, 64 + 48 * (size_t)round);
        for (int i = SLOTS - 1; i > 0; i--) {
            uint32_t other = chance((uint32_t)i + 1);
            void *block = slots[i];
            slots[i] = slots[other];
            slots[other] = block;
        }
        for (int i = SLOTS / 10; i < SLOTS; i++)
            free(slots[i]);
    }
}

static void realloc_small(void) {
    for (int round = 0; round < 600; round++) {
        void *block = NULL;
        for (size_t size = 16; size <= 2048; size += 16)
            block = touched(realloc(block, size), size);
        free(block);
    }
}

static void realloc_large(void) {
    for (int round = 0; round < 4; round++) {
        void *block = NULL;
        for (size_t size = 4 * KIB; size <= 16 * MIB; size += size / 2)
            block = touched(realloc(block, size), size);
        free(block);
    }
}

static void callocs(size_t size, int count, int rounds) {
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++)
            slots[i] = touched(calloc(1, size), size);
        for (int i = 0; i < count; i++)
            free(slots[i]);
    }
}

static void calloc_small(void) { callocs(100, 1000, 150); }
static void calloc_large(void) { callocs(300 * KIB, 8, 20); }

static void aligned(size_t most, int rounds) {
    for (int round = 0; round < rounds; round++) {
        for (size_t alignment = 16; alignment <= most; alignment *= 2)
            for (int i = 0; i < 10; i++) {
                size_t size = alignment * (size_t)(1 + i);
                free(touched(aligned_alloc(alignment, size), size));
            }
    }
}

static void aligned_small(void) { aligned(512, 2000); }
static void aligned_large(void) { aligned(64 * KIB, 100); }

/* Two blocks of 1 to 32 MiB at a time. */
static void large(void) {
    void *before = NULL;
    for (int round = 0; round < 12; round++)
        for (size_t size = MIB; size <= 32 * MIB; size *= 2) {
            void *block = allocate(size);
            free(before);
            before = block;
        }
    free(before);
}

static void heap_of(cairn_heap *heap, int blocks, void end(cairn_heap *)) {
    for (int i = 0; i < blocks; i++)
        touched(cairn_heap_malloc(heap, 16 + 16 * (size_t)(i % 16)), 1);
    end(heap);
}

static void heaps(void) {
    for (int round = 0; round < 1000; round++)
        heap_of(cairn_heap_new(), 50, cairn_heap_destroy);
    for (int round = 0; round < 100; round++)
        heap_of(cairn_heap_new_shared(), 50, cairn_heap_delete);
}

/* Threads that work by turns: of two semaphores each waits for its own. */
static sem_t turns[2];

static void *frees(void *of) {
    for (int i = 0; i < HAND_OVERS; i++) {
        sem_wait(&turns[1]);
        for (int slot = 0; slot < *(int *)of; slot++)
            free(slots[slot]);
        sem_post(&turns[0]);
    }
    return NULL;
}

/* One allocates, the other frees. */
static void remote(int count, uint32_t most) {
    pthread_t other;
    sem_init(&turns[0], 0, 1);
    sem_init(&turns[1], 0, 0);
    pthread_create(&other, NULL, frees, &count);
    for (int i = 0; i < HAND_OVERS; i++) {
        sem_wait(&turns[0]);
        for (int slot = 0; slot < count; slot++)
            slots[slot] = allocate(size_up_to(most));
        sem_post(&turns[1]);
    }
    pthread_join(other, NULL);
}

static void remote_small(void) { remote(1000, 64); }
static void remote_mixed(void) { remote(500, 8 * KIB); }

static void *passes(void *unused) {
    for (int i = 0; i < 5000; i++) {
        void **slot = &slots[chance(2000)];
        free(*slot);
        *slot = allocate(size_up_to(1024));
    }
    return unused;
}

/* Each thread frees what earlier ones have left. */
static void chain(void) {
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, passes, NULL);
        pthread_join(thread, NULL);
    }
}

static void *little(void *unused) {
    lifo(20, 100, 1);
    return unused;
}

static void threads(void) {
    for (int i = 0; i < 400; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, little, NULL);
        pthread_join(thread, NULL);
    }
}

/* Children that work with what they have got. */
static void forks(void) {
    fill(1000, 100);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int slot = 0; slot < 1000; slot += 2)
                free(slots[slot]);
            lifo(500, 200, 1);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status != 0)
            abort();
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} rows[] = {
    {"pairs_64", pairs_64},
    {"every_size", every_size},
    {"fifo_64", fifo_64},
    {"lifo_64", lifo_64},
    {"fifo_many", fifo_many},
    {"mixed_small", mixed_small},
    {"mixed_medium", mixed_medium},
    {"mixed_large", mixed_large},
    {"survivors", survivors},
    {"realloc_small", realloc_small},
    {"realloc_large", realloc_large},
    {"calloc_small", calloc_small},
    {"calloc_large", calloc_large},
    {"aligned_small", aligned_small},
    {"aligned_large", aligned_large},
    {"large", large},
    {"heaps", heaps},
    {"remote_small", remote_small},
    {"remote_mixed", remote_mixed},
    {"chain", chain},
    {"threads", threads},
    {"forks", forks},
};

static int same(const char *a, const char *b) {
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

int main(int count, char **arguments) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (count == 2 && same(arguments[1], rows[i].name)) {
            rows[i].run();
            return 0;
        }
    return 2;
}
