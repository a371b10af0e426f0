/* Four patterns of allocation for a simulator that counts instructions. Each runs on functions
 * that do nothing, for the cost of the loop, and on the real ones, once before it counts. */
#include <stdint.h>
#include <stdlib.h>
#include <valgrind/callgrind.h>

enum { OPERATIONS = 20000, BATCH = 1000, SLOTS = 10000, LEAST = 16, MOST = 2048 };

struct functions {
    void *(*allocate)(size_t);
    void *(*resize)(void *, size_t);
    void (*release)(void *);
};

static uint64_t memory[1];

static void *no_malloc(size_t size) {
    (void)size;
    return memory;
}

static void *no_realloc(void *block, size_t size) {
    (void)size;
    return block;
}

static void no_free(void *block) { (void)block; }

static const struct functions real = {malloc, realloc, free};
static const struct functions none = {no_malloc, no_realloc, no_free};

/* The compiler must not know which functions are called. */
static const struct functions *volatile use;

static uint64_t *slots[SLOTS];
static uint16_t sizes[OPERATIONS + SLOTS], places[OPERATIONS];

static void pair(const struct functions *f) {
    for (int i = 0; i < OPERATIONS; i++) {
        uint64_t *block = f->allocate(64);
        *block = i;
        f->release(block);
    }
}

static void batch(const struct functions *f) {
    for (int done = 0; done < OPERATIONS; done += BATCH) {
        for (int i = 0; i < BATCH; i++) {
            slots[i] = f->allocate(64);
            *slots[i] = i;
        }
        for (int i = 0; i < BATCH; i++) f->release(slots[i]);
    }
}

static void fill(const struct functions *f) {
    for (int i = 0; i < SLOTS; i++) slots[i] = f->allocate(sizes[OPERATIONS + i]);
}

static void replace(const struct functions *f) {
    for (int i = 0; i < OPERATIONS; i++) {
        uint64_t *block = f->allocate(sizes[i]);
        *block = i;
        f->release(slots[places[i]]);
        slots[places[i]] = block;
    }
}

static void clear(const struct functions *f) {
    for (int i = 0; i < SLOTS; i++) f->release(slots[i]);
}

static void grow(const struct functions *f) {
    uint64_t *block = f->allocate(LEAST);
    for (int i = 0, size = LEAST; i < OPERATIONS; i++) {
        size += 16;
        if (size > MOST) {
            f->release(block);
            block = f->allocate(size = LEAST);
        }
        block = f->resize(block, size);
        *block = i;
    }
    f->release(block);
}

static void prepare(void) {
    for (int i = 0; i < OPERATIONS + SLOTS; i++) {
        /* Small sizes more often than large ones. */
        sizes[i] = 16 + rand() % (1 + rand() % 1009);
    }
    for (int i = 0; i < OPERATIONS; i++) places[i] = rand() % SLOTS;
}

static void nothing(const struct functions *f) { (void)f; }

typedef void step(const struct functions *);

static void count(step *before, step *counted, step *after, const char *loop, const char *name) {
    for (int on_real = 0; on_real < 2; on_real++) {
        use = on_real ? &real : &none;
        before(use);
        counted(use); /* A warm-up. */
        CALLGRIND_ZERO_STATS;
        counted(use);
        CALLGRIND_DUMP_STATS_AT(on_real ? name : loop);
        after(use);
    }
}

int main(void) {
    prepare();
    count(nothing, pair, nothing, "pair-64-loop", "pair-64");
    count(nothing, batch, nothing, "batch-64-loop", "batch-64");
    count(fill, replace, clear, "random-small-loop", "random-small");
    count(nothing, grow, nothing, "realloc-loop", "realloc");
}
