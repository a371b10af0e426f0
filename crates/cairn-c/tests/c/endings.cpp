// Ways out of code that has allocated: jumps, exceptions, the ends of threads and processes.
#include "check.h"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// --- jumps ---

static jmp_buf out;
static std::vector<std::pair<unsigned char *, size_t>> remembered;

// Allocates on its way down and jumps from the bottom: nothing is freed on the way. Its frames
// have nothing to destroy.
static void descend(int depth, uint64_t *random)
{
    size_t size = random_size(random, depth % 10 ? 12 : 19);
    unsigned char *block = static_cast<unsigned char *>(malloc(size));
    CHECK(block != nullptr, "%zu", size);
    fill_ends(block, size, static_cast<unsigned>(depth));
    remembered.push_back({block, size});
    free(malloc(size / 2));
    if (depth == 0) longjmp(out, 1);
    descend(depth - 1, random);
    free(hide(block)); // never reached; keeps this frame
}

static void jumps()
{
    static uint64_t random = 88172645463325252u;
    remembered.reserve(64);
    for (volatile int round = 0; round < 10000; round = round + 1) {
        if (setjmp(out) == 0) descend(30, &random);
        CHECK(remembered.size() == 31, "%zu", remembered.size());
        for (int i = 0; i < 31; i++) {
            auto [block, size] = remembered[static_cast<size_t>(i)];
            CHECK(ends_hold(block, size, static_cast<unsigned>(30 - i)), "%zu", size);
            free(block);
        }
        remembered.clear();
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
}

// A handler that interrupted code outside the allocator, which it leaves by a jump.
static sigjmp_buf out_of_handler;
static void jump_out(int)
{
    free(malloc(5000));
    siglongjmp(out_of_handler, 1);
}

static void jumps_out_of_handlers()
{
    CHECK(signal(SIGUSR1, jump_out) != SIG_ERR, "signal");
    for (volatile int round = 0; round < 20000; round = round + 1) {
        void *volatile block = malloc(static_cast<size_t>(round % 3000));
        if (sigsetjmp(out_of_handler, 1) == 0) {
            raise(SIGUSR1);
            CHECK(0, "the handler returned");
        }
        free(block);
    }
    CHECK(peak_resident_kib() < 32 * KIB, "%zu KiB", peak_resident_kib());
}

// --- exceptions ---

static std::atomic<long> alive{0};

struct witness {
    std::unique_ptr<unsigned char[]> bytes;
    size_t size;
    explicit witness(size_t n) : bytes(new unsigned char[n + 1]), size(n)
    {
        fill_ends(bytes.get(), size, 3);
        alive++;
    }
    ~witness()
    {
        CHECK(ends_hold(bytes.get(), size, 3), "%zu", size);
        alive--;
    }
};

struct failure : std::runtime_error {
    // The exception owns memory as well.
    std::string text;
    explicit failure(size_t n) : std::runtime_error(std::string(n % 5000, 'r')), text(n % 70000, 't') {}
};

static void throw_from(int depth, uint64_t *random)
{
    witness here(random_size(random, 16));
    std::vector<std::string> more(static_cast<size_t>(depth), std::string(40, 'm'));
    if (depth == 0) throw failure(random_size(random, 17));
    try {
        throw_from(depth - 1, random);
    } catch (failure &) {
        // A new one half of the time; the old one goes.
        if (random_next(random) % 2) throw;
        throw failure(random_size(random, 17));
    }
}

static void throw_and_catch(uint64_t seed)
{
    uint64_t random = 521288629 + seed;
    for (int round = 0; round < 500; round++) {
        try {
            throw_from(12, &random);
            CHECK(0, "nothing was thrown");
        } catch (const failure &caught) {
            CHECK(caught.text.find_first_not_of('t') == std::string::npos, "contents");
            CHECK(std::string(caught.what()).find_first_not_of('r') == std::string::npos, "contents");
        }
        try {
            witness here(100);
            void *too_large = hide(::operator new(hide_size(PTRDIFF_MAX / 2)));
            CHECK(0, "that much, at %p?", too_large);
        } catch (const std::bad_alloc &) {
        }
    }
}

static void exceptions()
{
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 4; i++) threads.emplace_back(throw_and_catch, i);
    throw_and_catch(99);
    for (auto &thread : threads) thread.join();
    CHECK(alive == 0, "%ld", alive.load());
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB", peak_resident_kib());
}

// Thrown in one thread, caught in another, when the first has ended.
static void exceptions_outlive_their_thread()
{
    for (int round = 0; round < 1000; round++) {
        std::exception_ptr carried;
        std::thread([&] {
            uint64_t random = 123456789 + static_cast<uint64_t>(round);
            try {
                throw_from(5, &random);
            } catch (...) {
                carried = std::current_exception();
            }
        }).join();
        try {
            std::rethrow_exception(carried);
        } catch (const failure &caught) {
            CHECK(caught.text.find_first_not_of('t') == std::string::npos, "contents");
        }
    }
    CHECK(alive == 0, "%ld", alive.load());
}

// --- ends ---

static std::atomic<void *> exchanged[64];

static void *forever(void *seed)
{
    uint64_t random = 88172645463325252u + reinterpret_cast<uintptr_t>(seed);
    for (;;) {
        void *block = malloc(random_size(&random, random_next(&random) % 500 ? 15 : 22));
        free(exchanged[random_next(&random) % COUNT_OF(exchanged)].exchange(block));
    }
}

static void start_threads()
{
    for (size_t i = 0; i < 6; i++) started(forever, reinterpret_cast<void *>(i));
    usleep(3000);
}

static void late_handler()
{
    for (size_t size = 1; size < 4 * MIB; size *= 3) free(malloc(size));
}

struct late_static {
    std::vector<std::string> texts = std::vector<std::string>(200, std::string(100, 'x'));
    ~late_static() { late_handler(); }
};

static void exit_while_busy()
{
    static late_static object;
    CHECK(atexit(late_handler) == 0, "atexit");
    start_threads();
    exit(0);
}

static void quick_exit_while_busy()
{
    CHECK(at_quick_exit(late_handler) == 0, "at_quick_exit");
    start_threads();
    quick_exit(0);
}

static void underscore_exit_while_busy()
{
    start_threads();
    _exit(0);
}

static void *exit_here(void *)
{
    free(malloc(1000));
    exit(0);
}

// Not the first thread, which allocates on.
static void exit_in_thread()
{
    CHECK(atexit(late_handler) == 0, "atexit");
    start_threads();
    started(exit_here, nullptr);
    forever(reinterpret_cast<void *>(77));
}

static void *abort_here(void *)
{
    free(malloc(1000));
    abort();
}

static void abort_in_thread()
{
    start_threads();
    started(abort_here, nullptr);
    forever(reinterpret_cast<void *>(77));
}

static void after_abort(int)
{
    late_handler();
    _exit(42);
}

// The handler of the abort works with memory, as crash reporters do; abort was not called from
// inside the allocator.
static void abort_in_thread_with_handler()
{
    CHECK(signal(SIGABRT, after_abort) != SIG_ERR, "signal");
    abort_in_thread();
}

static void *of_main[3000];

static void *last_thread(void *main_thread)
{
    CHECK(pthread_join(reinterpret_cast<pthread_t>(main_thread), nullptr) == 0, "join");
    // What the first thread has left is ours now.
    for (size_t i = 0; i < COUNT_OF(of_main); i++) {
        CHECK(ends_hold(of_main[i], i * 11, 8), "%zu", i);
        free(of_main[i]);
    }
    for (int round = 0; round < 200; round++) late_handler();
    exit(0);
}

static void main_ends_while_others_go_on()
{
    for (size_t i = 0; i < COUNT_OF(of_main); i++) {
        of_main[i] = malloc(i * 11);
        fill_ends(of_main[i], i * 11, 8);
    }
    start_threads();
    started(last_thread, reinterpret_cast<void *>(pthread_self()));
    pthread_exit(nullptr);
}

// --- plugins ---

// The argument is the path of one whose constructor waits for a thread that allocates.
static void plugin_waits_for_a_thread()
{
    alarm(20);
    CHECK(dlopen(case_arguments[0], RTLD_NOW) != nullptr, "%s", dlerror());
}

// The argument is the path of one. It allocates in its constructor and destructor, takes a block
// of the program's in one thread and leaves blocks to it in two.
static void plugin_again_and_again()
{
    size_t warm = 0, warm_virtual = 0;
    for (int round = 0; round < 1000; round++) {
        void *plugin = dlopen(case_arguments[0], RTLD_NOW | (round % 2 ? RTLD_LOCAL : RTLD_GLOBAL));
        CHECK(plugin != nullptr, "%s", dlerror());
        auto give = reinterpret_cast<void *(*)(size_t)>(dlsym(plugin, "plugin_give"));
        auto take = reinterpret_cast<void (*)(void *)>(dlsym(plugin, "plugin_take"));
        CHECK(give && take, "functions of the plugin");
        void *left = give(3000), *own = malloc(3000);
        std::thread thread([&] {
            take(own);
            own = give(200);
        });
        thread.join();
        CHECK(dlclose(plugin) == 0, "%s", dlerror());
        CHECK(holds(left, 3000, 2) && holds(own, 200, 2), "contents in round %d", round);
        free(left);
        free(own);
        if (round == 200) warm = resident_kib(), warm_virtual = virtual_kib();
    }
    size_t resident = resident_kib(), address_space = virtual_kib();
    CHECK(resident < warm + 2 * KIB, "%zu KiB, after 200 rounds %zu", resident, warm);
    CHECK(address_space < warm_virtual + 128 * KIB, "%zu KiB, after 200 rounds %zu", address_space, warm_virtual);
}

static const struct test_case cases[] = {
    {"jumps", jumps},
    {"jumps_out_of_handlers", jumps_out_of_handlers},
    {"exceptions", exceptions},
    {"exceptions_outlive_their_thread", exceptions_outlive_their_thread},
    {"exit_while_busy", exit_while_busy},
    {"quick_exit_while_busy", quick_exit_while_busy},
    {"underscore_exit_while_busy", underscore_exit_while_busy},
    {"exit_in_thread", exit_in_thread},
    {"abort_in_thread", abort_in_thread},
    {"abort_in_thread_with_handler", abort_in_thread_with_handler},
    {"main_ends_while_others_go_on", main_ends_while_others_go_on},
    {"plugin_again_and_again", plugin_again_and_again},
    {"plugin_waits_for_a_thread", plugin_waits_for_a_thread},
};
MAIN(cases)
