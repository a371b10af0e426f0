// Allocations before main, after main, and while threads are taken down.
#include "check.h"

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

static void *early[3];
static std::map<std::string, std::string> of_the_start = {{"a key too long to be kept in place", "and its value"}};

static void allocate_early(int which)
{
    early[which] = malloc(static_cast<size_t>(1000 << which));
    if (early[which]) fill(early[which], static_cast<size_t>(1000 << which), static_cast<unsigned>(which));
    free(malloc(3 * MIB));
    free(calloc(100, 100));
}

extern "C" {
static void before_all(void) { allocate_early(0); }
__attribute__((section(".preinit_array"), used)) static void (*first)(void) = before_all;
__attribute__((constructor(101))) static void early_constructor(void) { allocate_early(1); }
__attribute__((constructor)) static void constructor(void) { allocate_early(2); }

// The last code of the program to run.
static void *late;
__attribute__((destructor(101))) static void destructor(void)
{
    CHECK(late == nullptr || holds(late, 5000, 1), "contents at the end");
    free(late);
    for (size_t size = 1; size < 4 * MIB; size *= 3) free(malloc(size));
}
}

static void before_main()
{
    for (int i = 0; i < 3; i++) {
        CHECK(early[i] && holds(early[i], static_cast<size_t>(1000 << i), static_cast<unsigned>(i)), "%d", i);
        early[i] = realloc(early[i], 100000);
        CHECK(early[i] && holds(early[i], static_cast<size_t>(1000 << i), static_cast<unsigned>(i)), "%d", i);
        free(early[i]);
    }
    CHECK(of_the_start.size() == 1, "static object");
}

static void at_exit()
{
    char *text = strdup("allocated in a handler");
    CHECK(text && late && holds(late, 5000, 1), "at exit");
    free(text);
    late = realloc(late, 6000);
    // Registered while handlers run.
    if (!of_the_start.empty()) {
        of_the_start.clear();
        CHECK(atexit(at_exit) == 0, "atexit");
    }
}

static void after_main()
{
    late = malloc(5000);
    fill(late, 5000, 1);
    for (int i = 0; i < 40; i++) CHECK(atexit(at_exit) == 0, "atexit");
}

static void quickly()
{
    late = malloc(5000);
    fill(late, 5000, 1);
    CHECK(at_quick_exit(at_exit) == 0, "at_quick_exit");
    quick_exit(0);
}

struct late_object {
    std::string text = std::string(1000, 'x');
    std::vector<void *> blocks;
    void touch()
    {
        for (size_t size = 1; size < 200000; size *= 3) blocks.push_back(malloc(size));
    }
    ~late_object()
    {
        for (void *block : blocks) free(block);
        std::string another(5000, 'y');
        CHECK(text[999] == 'x' && another[4999] == 'y', "contents");
        for (size_t size = 1; size < 2 * MIB; size *= 3) free(malloc(size));
    }
};

static thread_local late_object of_the_thread;

static void thread_locals()
{
    for (int round = 0; round < 300; round++) {
        std::thread threads[4];
        for (auto &thread : threads) thread = std::thread([] { of_the_thread.touch(); });
        for (auto &thread : threads) thread.join();
    }
    of_the_thread.touch();
    CHECK(peak_resident_kib() < 96 * KIB, "%zu KiB", peak_resident_kib());
}

// Values that come back in each round of destructors: an allocator that takes its heap down in
// one of the rounds is called again after it.
enum { KEYS = 16 };
static pthread_key_t keys[KEYS];

struct key_value {
    pthread_key_t key;
    int rounds;
    void *block;
};

static void key_destructor(void *pointer)
{
    key_value *value = static_cast<key_value *>(pointer);
    CHECK(holds(value->block, 3000, 5), "contents");
    free(value->block);
    for (size_t size = 1; size < 2 * MIB; size *= 3) free(malloc(size));
    if (--value->rounds > 0) {
        value->block = malloc(3000);
        fill(value->block, 3000, 5);
        pthread_setspecific(value->key, value);
    } else {
        free(value);
    }
}

static void *with_keys(void *)
{
    for (int i = 0; i < KEYS; i++) {
        key_value *value = static_cast<key_value *>(malloc(sizeof *value));
        *value = {keys[i], i % 4 + 1, malloc(3000)};
        fill(value->block, 3000, 5);
        CHECK(pthread_setspecific(keys[i], value) == 0, "key");
    }
    return nullptr;
}

// Its first allocation is in a destructor.
static void *with_one_key(void *)
{
    static char not_null;
    CHECK(pthread_setspecific(keys[0], &not_null) == 0, "key");
    return nullptr;
}

static void thread_keys()
{
    for (auto &key : keys) CHECK(pthread_key_create(&key, key_destructor) == 0, "key");
    for (int round = 0; round < 1000; round++) {
        void *threads[4];
        for (auto &thread : threads) thread = started(with_keys, nullptr);
        for (auto &thread : threads) joined(thread);
    }
    CHECK(peak_resident_kib() < 96 * KIB, "%zu KiB", peak_resident_kib());
}

static void first_allocation_in_a_destructor()
{
    CHECK(pthread_key_create(&keys[0], [](void *) { free(malloc(1000)); free(malloc(3 * MIB)); }) == 0, "key");
    for (int round = 0; round < 2000; round++) joined(started(with_one_key, nullptr));
    CHECK(peak_resident_kib() < 96 * KIB, "%zu KiB", peak_resident_kib());
}

static void *forever(void *seed)
{
    uint64_t random = 88172645463325252u + reinterpret_cast<uintptr_t>(seed);
    for (;;) free(malloc(random_size(&random, 16)));
}

// main ends while threads are in the allocator.
static void exit_while_busy()
{
    for (size_t i = 0; i < 4; i++) started(forever, reinterpret_cast<void *>(i));
    late = malloc(5000);
    fill(late, 5000, 1);
    usleep(2000);
}

static void *last_thread(void *)
{
    usleep(20000);
    for (size_t size = 1; size < 4 * MIB; size *= 3) free(malloc(size));
    exit(0);
}

// The first thread ends before the others.
static void main_ends_first()
{
    started(last_thread, nullptr);
    late = malloc(5000);
    fill(late, 5000, 1);
    pthread_exit(nullptr);
}

static const struct test_case cases[] = {
    {"before_main", before_main},
    {"after_main", after_main},
    {"quickly", quickly},
    {"thread_locals", thread_locals},
    {"thread_keys", thread_keys},
    {"first_allocation_in_a_destructor", first_allocation_in_a_destructor},
    {"exit_while_busy", exit_while_busy},
    {"main_ends_first", main_ends_first},
};
MAIN(cases)
