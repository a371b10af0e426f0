/* Our own functions, through the header. */
#include "check.h"
#include "cairn.h"

static int a_static;

static void version(void)
{
    const char *text = cairn_version();
    unsigned major, minor, patch;
    CHECK(text != NULL && text == cairn_version(), "the same text each time");
    CHECK(sscanf(text, "%u.%u.%u", &major, &minor, &patch) == 3, "%s", text);
    CHECK(cairn_is_active() == 1, "active");
}

static void base(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(40 * MIB, sizes);
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[i];
        char *blocks[] = {malloc(size), calloc(size, 1), memalign(4096, size), memalign(64 * KIB, size)};
        for (size_t kind = 0; kind < COUNT_OF(blocks); kind++) {
            char *block = blocks[kind];
            CHECK(cairn_base(block) == block, "kind %zu, size %zu", kind, size);
            for (size_t offset = 1; offset < size; offset = offset * 3 + 1)
                CHECK(cairn_base(block + offset) == block, "kind %zu, %zu of %zu", kind, offset, size);
            if (size) CHECK(cairn_base(block + size - 1) == block, "kind %zu, last of %zu", kind, size);
        }
        for (size_t kind = 0; kind < COUNT_OF(blocks); kind++) free(blocks[kind]);
    }
}

static void base_of_foreign(void)
{
    int a_local;
    CHECK(cairn_base(NULL) == NULL, "NULL");
    CHECK(cairn_base(&a_local) == NULL, "stack");
    CHECK(cairn_base(&a_static) == NULL, "static");
    CHECK(cairn_base((void *)(uintptr_t)base) == NULL, "code");
    CHECK(cairn_base(hide((void *)(uintptr_t)16)) == NULL, "low");
    CHECK(cairn_base(hide((void *)(uintptr_t)0xdead000000000000)) == NULL, "not canonical");
    CHECK(cairn_base(hide((void *)UINTPTR_MAX)) == NULL, "last");
}

static void usable_size(void)
{
    CHECK(cairn_usable_size(NULL) == 0, "NULL");
    for (size_t size = 0; size < 40 * MIB; size = size * 3 + 1) {
        void *block = malloc(size);
        CHECK(cairn_usable_size(block) == malloc_usable_size(block), "%zu", size);
        CHECK(cairn_usable_size(block) >= size, "%zu", size);
        free(block);
    }
}

enum { COUNT = 100000, SIZE = 1000 };

static void *churn(void *argument)
{
    void **blocks = calloc(COUNT, sizeof *blocks);
    for (size_t i = 0; i < COUNT / 4; i++) {
        blocks[i] = malloc(SIZE);
        memset(blocks[i], 1, SIZE);
    }
    for (size_t i = 0; i < COUNT / 4; i++) free(blocks[i]);
    free(blocks);
    if (argument) {
        pthread_barrier_wait((pthread_barrier_t *)argument);
        pthread_barrier_wait((pthread_barrier_t *)argument);
    }
    return NULL;
}

static void purge(void)
{
    size_t before = resident_kib();
    for (int round = 0; round < 4; round++) {
        churn(NULL);
        cairn_purge();
        CHECK(resident_kib() < before + 8 * KIB, "%zu KiB, then %zu", before, resident_kib());
    }
}

/* Four threads hold freed memory and sleep. */
static void purge_idle_threads(void)
{
    pthread_barrier_t barrier;
    void *threads[4];
    size_t before = resident_kib();
    pthread_barrier_init(&barrier, NULL, COUNT_OF(threads) + 1);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(churn, &barrier);
    pthread_barrier_wait(&barrier);
    cairn_purge();
    CHECK(resident_kib() < before + 16 * KIB, "%zu KiB, then %zu", before, resident_kib());
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
}

static void stats_print(void)
{
    void *block = malloc(1000);
    cairn_stats_print();
    free(block);
}

static const struct test_case cases[] = {
    {"version", version},
    {"base", base},
    {"base_of_foreign", base_of_foreign},
    {"usable_size", usable_size},
    {"purge", purge},
    {"purge_idle_threads", purge_idle_threads},
    {"stats_print", stats_print},
};
MAIN(cases)
