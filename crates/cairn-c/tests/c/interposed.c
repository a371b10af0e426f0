/*
 * What a program does while somebody stands before the C library and allocates there (interposers.c), and where the C
 * library itself allocates inside the allocator.
 */
#include "check.h"

#include <sys/wait.h>

enum { THREADS = 300, BLOCKS = 200, BLOCK = 512, KEYS = 32 };

static void use(uint64_t seed)
{
    unsigned char *blocks[BLOCKS] = {0};
    size_t sizes[BLOCKS] = {0};
    for (size_t round = 0; round < 4 * BLOCKS; round++) {
        size_t at = round % BLOCKS, size = random_size(&seed, round % 50 ? 12 : 22) + 1;
        if (blocks[at]) CHECK(ends_hold(blocks[at], sizes[at], (unsigned)at), "%zu bytes", sizes[at]);
        unsigned char *block = round % 3 ? realloc(blocks[at], size) : (free(blocks[at]), calloc(1, size));
        CHECK(block != NULL, "%zu bytes", size);
        fill_ends(block, size, (unsigned)at);
        blocks[at] = block, sizes[at] = size;
    }
    for (size_t at = 0; at < BLOCKS; at++) free(blocks[at]);
}

static void *user(void *seed)
{
    use((uint64_t)(uintptr_t)seed);
    return NULL;
}

static void in_threads(size_t count, void *(*body)(void *))
{
    static void *threads[THREADS];
    for (size_t i = 0; i < count; i++) threads[i] = started(body, (void *)(i + 1));
    for (size_t i = 0; i < count; i++) joined(threads[i]);
}

/* Of a crowd that is there at one time: its last ones have no heaps at first. */
static pthread_barrier_t all_are_there;
static void *one_of_many(void *seed)
{
    free(malloc(100));
    pthread_barrier_wait(&all_are_there);
    /* Where all is counted each call takes long. */
    int counts = (uintptr_t)seed % 32 == 0;
    int (*count)(int) = counts ? (int (*)(int))dlsym(RTLD_DEFAULT, "cairn_count") : NULL;
    if (count) count(1);
    use((uint64_t)(uintptr_t)seed);
    if (count) count(0);
    return NULL;
}

static void in_a_crowd(void)
{
    CHECK(pthread_barrier_init(&all_are_there, NULL, THREADS) == 0, "a barrier");
    in_threads(THREADS, one_of_many);
}

static void everything(void)
{
    use(1);
    in_threads(8, user);
    for (size_t i = 0; i < 8; i++) in_threads(1, user);
    in_a_crowd();
    char *mapped = malloc(40 * MIB);
    fill_ends(mapped, 40 * MIB, 1);
    mapped = realloc(mapped, 90 * MIB);
    CHECK(mapped != NULL && ends_hold(mapped, 64, 1), "a mapping");
    free(mapped);
    free(valloc(100));
    malloc_trim(0);
    pid_t child = fork();
    CHECK(child >= 0, "a child");
    if (child == 0) {
        use(2);
        in_threads(4, user);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %d", status);
    long (*calls)(const char *) = (long (*)(const char *))dlsym(RTLD_DEFAULT, "interposed_calls");
    if (calls == NULL) return;
    const char *const called[] = {"__register_atfork", "getauxval", "pthread_key_create", "pthread_setspecific", "pthread_getspecific"};
    for (size_t i = 0; i < COUNT_OF(called); i++) CHECK(calls(called[i]) > 0, "nobody stands before %s", called[i]);
}

/* Values under later keys are in memory that the C library allocates when a thread stores its first one: the allocator's
 * own, as the thread arrives. */
static void *one_of_that_size(void *unused)
{
    (void)unused;
    char *volatile blocks[4];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) CHECK((blocks[i] = calloc(1, BLOCK)) != NULL, "block %zu", i);
    for (size_t i = 0; i < COUNT_OF(blocks); i++)
        for (size_t j = 0; j < i; j++) CHECK(blocks[i] != blocks[j], "one block for two");
    for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
    return NULL;
}

static void take_keys(void)
{
    for (int i = 0; i < KEYS; i++) {
        pthread_key_t key;
        CHECK(pthread_key_create(&key, NULL) == 0, "key %d", i);
    }
}
/* Before anybody has allocated. */
__attribute__((section(".preinit_array"), used)) static void (*take_keys_first)(void) = take_keys;

static void keys_beyond_the_static_ones(void)
{
    one_of_that_size(NULL);
    for (int i = 0; i < 4; i++) joined(started(one_of_that_size, NULL));
    in_a_crowd();
}

static const struct test_case cases[] = {
    {"everything", everything},
    {"keys_beyond_the_static_ones", keys_beyond_the_static_ones},
};
MAIN(cases)
