/*
 * How much memory threads make a program hold. Each case is a process of its own, and the bound
 * is on the most that was ever resident. Bounds are generous: they tell a heap that uses again
 * what other threads have freed from one that keeps it for each thread.
 */
#include "check.h"

/* What the process itself needs, stacks and tables included. */
#define ITSELF (12 * MIB)

static void expect_peak(size_t bound)
{
    if (getenv("TEST_SAYS_FIGURES")) fprintf(stderr, "peak %zu KiB, bound %zu\n", peak_resident_kib(), (bound + ITSELF) / KIB);
    CHECK(peak_resident_kib() * KIB <= bound + ITSELF, "%zu KiB at most, not %zu", (bound + ITSELF) / KIB, peak_resident_kib());
}

/* A heap of blocks, filled with at least so many bytes. */
enum { BLOCKS_MAX = 1 << 21 };

struct load {
    void **blocks;
    size_t count;
};

static struct load load_at(size_t which)
{
    static void *blocks[4][BLOCKS_MAX];
    return (struct load){blocks[which], 0};
}

/* Sizes from 16 bytes to 2^bits, small ones as frequent as large ones; or all of one size. */
static void take(struct load *load, size_t bytes, size_t size, unsigned bits, uint64_t *random)
{
    size_t done = 0;
    while (done < bytes) {
        size_t next = size ? size : 16 + random_size(random, bits);
        CHECK(load->count < BLOCKS_MAX, "%zu blocks", load->count);
        void *block = malloc(next);
        CHECK(block != NULL, "%zu", next);
        memset(block, 1, next);
        load->blocks[load->count++] = block;
        done += next;
    }
}

static void give(struct load *load)
{
    for (size_t i = 0; i < load->count; i++) free(load->blocks[i]);
    load->count = 0;
}

/* Each block by another one of its size, 16 bytes to 1 KiB, one at a time: always the same sizes. */
static void replace(struct load *load, size_t bytes)
{
    uint64_t random = 123456789;
    size_t count = 0;
    for (size_t done = 0; done < bytes; count++) {
        size_t size = 16 + random_next(&random) % 1009;
        void *block = malloc(size);
        CHECK(block != NULL, "%zu", size);
        memset(block, 1, size);
        if (count < load->count) free(load->blocks[count]);
        load->blocks[count] = block;
        done += size;
    }
    load->count = count;
}

/* --- a thread that only frees, and one that only allocates --- */

static pthread_barrier_t turn;
static struct load passed;
enum { ROUNDS = 20 };

static void *only_frees(void *unused)
{
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&turn);
        give(&passed);
        pthread_barrier_wait(&turn);
    }
    return unused;
}

/* 64 MiB are live at a time. */
static void one_only_frees(void)
{
    uint64_t random = 88172645463325252u;
    pthread_barrier_init(&turn, NULL, 2);
    passed = load_at(0);
    void *thread = started(only_frees, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        take(&passed, 64 * MIB, 0, 14, &random);
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
    }
    joined(thread);
    expect_peak(96 * MIB);
}

static struct load loads[4];

static void *only_allocates(void *argument)
{
    size_t which = (size_t)argument;
    uint64_t random = 521288629 + which;
    for (int round = 0; round < ROUNDS; round++) {
        take(&loads[which], 16 * MIB, 0, 14, &random);
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
    }
    return NULL;
}

/* 64 MiB are live at a time. */
static void some_only_allocate(void)
{
    void *threads[4];
    pthread_barrier_init(&turn, NULL, 5);
    for (size_t i = 0; i < 4; i++) loads[i] = load_at(i);
    for (size_t i = 0; i < 4; i++) threads[i] = started(only_allocates, (void *)i);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&turn);
        for (size_t i = 0; i < 4; i++) give(&loads[i]);
        pthread_barrier_wait(&turn);
    }
    for (size_t i = 0; i < 4; i++) joined(threads[i]);
    expect_peak(112 * MIB);
}

/* --- a chain of threads that stay --- */

enum { CHAIN_MAX = 200 };

static struct chain {
    struct load load;
    size_t links, bytes, size;
    unsigned bits;
    int by_turns;
    pthread_mutex_t may_go;
} chain = {.links = 50, .bytes = 20 * MIB, .may_go = PTHREAD_MUTEX_INITIALIZER};

static void *link_of_chain(void *argument)
{
    uint64_t random = 123456789 + (size_t)argument;
    if (chain.by_turns) {
        replace(&chain.load, chain.bytes);
    } else {
        give(&chain.load);
        take(&chain.load, chain.bytes, chain.size, chain.bits, &random);
    }
    pthread_barrier_wait(&turn);
    pthread_mutex_lock(&chain.may_go);
    pthread_mutex_unlock(&chain.may_go);
    return NULL;
}

/* Each of 50 threads frees what the one before it has allocated, allocates as much, and stays.
 * 20 MiB are live at a time, and two and a half times of it is the bound: a heap that keeps what it
 * was given for its thread needs 50 times. Small blocks need twice, and the system's count of
 * resident pages is off by hundreds of KiB, more with more processors: twice is no bound. */
static void chain_of(size_t size, unsigned bits)
{
    void *threads[CHAIN_MAX];
    chain.load = load_at(0);
    chain.size = size;
    chain.bits = bits;
    pthread_barrier_init(&turn, NULL, 2);
    pthread_mutex_lock(&chain.may_go);
    for (size_t i = 0; i < chain.links; i++) {
        threads[i] = started(link_of_chain, (void *)i);
        pthread_barrier_wait(&turn);
    }
    pthread_mutex_unlock(&chain.may_go);
    for (size_t i = 0; i < chain.links; i++) joined(threads[i]);
    expect_peak(chain.bytes * 5 / 2);
}

static void chain_of_small(void) { chain_of(0, 9); }
/* Each frees one and allocates one, in spans that are its own by then: what it frees was its predecessor's to the last. */
static void chain_by_turns(void)
{
    chain.by_turns = 1;
    chain.links = CHAIN_MAX;
    chain.bytes = 100 * MIB;
    chain_of(0, 0);
}
static void chain_of_mixed(void) { chain_of(0, 12); }
static void chain_of_medium(void) { chain_of(0, 16); }
static void chain_of_one_size(void) { chain_of(200, 0); }
static void chain_of_one_medium_size(void) { chain_of(6000, 0); }
static void chain_of_large(void) { chain_of(0, 20); }

/* --- short-lived threads --- */

static void *short_lived(void *unused)
{
    static __thread void *own[4096];
    uint64_t random = 88172645463325252u + (uintptr_t)unused;
    struct load mine = {own, 0};
    /* Half of it is left for main to free. */
    take(&passed, 128 * KIB, 0, 11, &random);
    while (mine.count < COUNT_OF(own) / 8) {
        size_t size = 16 + random_size(&random, 11);
        own[mine.count] = malloc(size);
        CHECK(own[mine.count] != NULL, "%zu", size);
        memset(own[mine.count++], 1, size);
    }
    give(&mine);
    return NULL;
}

static void short_lived_threads(void)
{
    passed = load_at(0);
    for (size_t i = 0; i < 2000; i++) {
        joined(started(short_lived, (void *)i));
        if (i % 8 == 7) give(&passed);
    }
    expect_peak(8 * MIB);
}

/* --- half of it freed by a thread that never allocates --- */

static uint64_t shuffle_state = 362436069;

static void *frees_half_and_stays(void *unused)
{
    for (size_t i = passed.count; i-- > 1;) {
        size_t other = random_next(&shuffle_state) % (i + 1);
        void *block = passed.blocks[i];
        passed.blocks[i] = passed.blocks[other];
        passed.blocks[other] = block;
    }
    size_t half = passed.count / 2;
    for (size_t i = half; i < passed.count; i++) free(passed.blocks[i]);
    passed.count = half;
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    return unused;
}

static void *allocates_half(void *size)
{
    uint64_t random = 1;
    take(&loads[1], 32 * MIB, (size_t)size, 0, &random);
    return NULL;
}

/* Of 64 MiB, a random half is free when 32 MiB of the same size are asked for by a third
 * thread. At least three quarters of them are to come out of what is free, or has gone back: what was
 * resident when all was in use is enough for the rest. */
static void half_is_used_again(size_t size)
{
    uint64_t random = 1;
    passed = load_at(0);
    loads[1] = load_at(1);
    pthread_barrier_init(&turn, NULL, 2);
    take(&passed, 64 * MIB, size, 0, &random);
    size_t full = resident_kib();
    void *freeing = started(frees_half_and_stays, NULL);
    pthread_barrier_wait(&turn);
    joined(started(allocates_half, (void *)size));
    size_t after = resident_kib();
    /* The table of what has been allocated is written for the first time, too. */
    size_t table = loads[1].count * sizeof(void *) / KIB;
    pthread_barrier_wait(&turn);
    joined(freeing);
    if (getenv("TEST_SAYS_FIGURES")) fprintf(stderr, "%zu KiB, then %zu, table %zu\n", full, after, table);
    CHECK(after <= full + 8 * KIB + table + 1 * KIB, "%zu: %zu KiB, then %zu", size, full, after);
}

static void half_of_64(void) { half_is_used_again(64); }
static void half_of_1024(void) { half_is_used_again(1024); }
static void half_of_3000(void) { half_is_used_again(3000); }
static void half_of_16384(void) { half_is_used_again(16384); }

/* A block at a time of up to 60,000 bytes, of all sizes by turns. */
static void *many_classes(void *seed)
{
    void **barrier = seed;
    uint64_t state = 88172645463325252u + (uintptr_t)seed;
    for (size_t i = 0; i < 3000; i++) {
        size_t size = 1 + random_next(&state) % 60000;
        char *block = malloc(size);
        memset(block, 1, size);
        free(block);
    }
    pthread_barrier_wait((pthread_barrier_t *)*barrier);
    return NULL;
}

/* Of a span for each class little is touched: no huge pages come to lie there. */
static void thin_spans(void)
{
    enum { THREADS = 30 };
    pthread_barrier_t barrier;
    void *threads[THREADS], *seeds[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0, "a barrier");
    size_t before = resident_kib();
    for (size_t i = 0; i < THREADS; i++) {
        seeds[i] = &barrier;
        threads[i] = started(many_classes, &seeds[i]);
    }
    for (size_t i = 0; i < THREADS; i++) joined(threads[i]);
    size_t most = status_kib("VmHWM:");
    size_t page = (size_t)sysconf(_SC_PAGESIZE) / KIB;
    CHECK(most < before + 10 * KIB * page, "%zu KiB before, %zu at most", before, most);
}

/* The same with small classes, and threads that wait for each other. */
static void *small_classes(void *barrier)
{
    for (size_t i = 0; i < 50; i++) {
        for (size_t size = 16; size <= 192; size += 16) free(memset(malloc(size), 1, size));
        for (size_t size = 1200; size <= 3000; size += 600) free(memset(malloc(size), 1, size));
    }
    pthread_barrier_wait(barrier);
    return NULL;
}

static void thin_small_spans(void)
{
    enum { THREADS = 200 };
    pthread_barrier_t barrier;
    void *threads[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0, "a barrier");
    size_t before = resident_kib();
    for (size_t i = 0; i < THREADS; i++) threads[i] = started(small_classes, &barrier);
    for (size_t i = 0; i < THREADS; i++) joined(threads[i]);
    size_t most = status_kib("VmHWM:"), page = (size_t)sysconf(_SC_PAGESIZE) / KIB;
    CHECK(most < before + 12 * KIB * page, "%zu KiB before, %zu at most", before, most);
}

static const struct test_case cases[] = {
    {"thin_small_spans", thin_small_spans},
    {"thin_spans", thin_spans},
    {"one_only_frees", one_only_frees},
    {"some_only_allocate", some_only_allocate},
    {"chain_of_small", chain_of_small},
    {"chain_by_turns", chain_by_turns},
    {"chain_of_mixed", chain_of_mixed},
    {"chain_of_medium", chain_of_medium},
    {"chain_of_one_size", chain_of_one_size},
    {"chain_of_one_medium_size", chain_of_one_medium_size},
    {"chain_of_large", chain_of_large},
    {"short_lived_threads", short_lived_threads},
    {"half_of_64", half_of_64},
    {"half_of_1024", half_of_1024},
    {"half_of_3000", half_of_3000},
    {"half_of_16384", half_of_16384},
};
MAIN(cases)
