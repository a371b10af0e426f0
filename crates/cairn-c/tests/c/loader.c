/*
 * Loads the library at run time, as a plug-in would: this program is not linked with it and
 * keeps the C library's allocator. The second argument is the path of the library.
 */
#include "check.h"

typedef struct {
    void *handle;
    void *(*malloc)(size_t);
    void (*free)(void *);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    size_t (*usable_size)(void *);
} loaded_t;

static loaded_t loaded;
static pthread_barrier_t barrier;

static void *found(const char *name)
{
    void *address = dlsym(loaded.handle, name);
    CHECK(address != NULL, "%s", name);
    return address;
}

static void load(void)
{
    loaded.handle = dlopen(case_arguments[0], RTLD_NOW | RTLD_LOCAL);
    CHECK(loaded.handle != NULL, "%s", dlerror());
    loaded.malloc = (void *(*)(size_t))found("malloc");
    loaded.free = (void (*)(void *))found("free");
    loaded.calloc = (void *(*)(size_t, size_t))found("calloc");
    loaded.realloc = (void *(*)(void *, size_t))found("realloc");
    loaded.usable_size = (size_t (*)(void *))found("malloc_usable_size");
}

static void *use(void *seed)
{
    enum { LIVE = 500 };
    struct { char *block; size_t size; } live[LIVE] = {{NULL, 0}};
    uint64_t random = 521288629 + (uintptr_t)seed;
    for (int step = 0; step < 20000; step++) {
        size_t slot = random_next(&random) % LIVE, size = random_size(&random, step % 100 ? 13 : 21);
        void *of_the_c_library = malloc(size);
        CHECK(of_the_c_library != NULL, "malloc");
        if (live[slot].block)
            CHECK(holds(live[slot].block, live[slot].size, (unsigned)slot), "step %d", step);
        switch (random_next(&random) % 3) {
        case 0: live[slot].block = loaded.realloc(live[slot].block, ++size); break;
        case 1:
            loaded.free(live[slot].block);
            live[slot].block = loaded.calloc(size, 1);
            break;
        default:
            loaded.free(live[slot].block);
            live[slot].block = loaded.malloc(size);
        }
        CHECK(live[slot].block && loaded.usable_size(live[slot].block) >= size, "%zu", size);
        live[slot].size = size;
        fill(live[slot].block, size, (unsigned)slot);
        free(of_the_c_library);
    }
    for (size_t slot = 0; slot < LIVE; slot++) loaded.free(live[slot].block);
    return NULL;
}

/* Older than the library. */
static void *use_when_loaded(void *seed)
{
    pthread_barrier_wait(&barrier);
    return use(seed);
}

/* Uses the library, and ends after it was closed. */
static void *outlive(void *seed)
{
    use(seed);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    free(malloc(100));
    return NULL;
}

static void use_in_threads(void)
{
    void *threads[8];
    pthread_barrier_init(&barrier, NULL, 5);
    for (size_t i = 0; i < 4; i++) threads[i] = started(use_when_loaded, (void *)i);
    load();
    pthread_barrier_wait(&barrier);
    for (size_t i = 4; i < 8; i++) threads[i] = started(use, (void *)i);
    use((void *)8);
    for (size_t i = 0; i < 8; i++) joined(threads[i]);
    CHECK(dlclose(loaded.handle) == 0, "%s", dlerror());
}

static void threads_outlive_it(void)
{
    void *threads[4];
    pthread_barrier_init(&barrier, NULL, 5);
    load();
    for (size_t i = 0; i < 4; i++) threads[i] = started(outlive, (void *)i);
    use((void *)8);
    pthread_barrier_wait(&barrier);
    CHECK(dlclose(loaded.handle) == 0, "%s", dlerror());
    pthread_barrier_wait(&barrier);
    for (size_t i = 0; i < 4; i++) joined(threads[i]);
}

static void load_again_and_again(void)
{
    for (int round = 0; round < 20; round++) {
        load();
        void *thread = started(use, NULL);
        use((void *)1);
        joined(thread);
        CHECK(dlclose(loaded.handle) == 0, "%s", dlerror());
    }
    CHECK(peak_resident_kib() < 128 * KIB, "%zu KiB: something is left each time", peak_resident_kib());
}

static const struct test_case cases[] = {
    {"use_in_threads", use_in_threads},
    {"threads_outlive_it", threads_outlive_it},
    {"load_again_and_again", load_again_and_again},
};
MAIN(cases)
