// The C++ allocation functions, and the library under a C++ program.
#include "check.h"

#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unordered_map>
#include <vector>

static std::align_val_t at(size_t alignment) { return static_cast<std::align_val_t>(alignment); }

// Each form of new with each form of delete that the standard lets follow it.
static void every_form()
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(3 * MIB, sizes);
    errno = 12345;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < count; i++) {
            size_t size = sizes[i];
            void *plain[3], *array[3];
            plain[0] = ::operator new(size);
            plain[1] = ::operator new(size, std::nothrow);
            plain[2] = ::operator new(size);
            array[0] = ::operator new[](size);
            array[1] = ::operator new[](size, std::nothrow);
            array[2] = ::operator new[](size);
            for (int j = 0; j < 3; j++) {
                CHECK(plain[j] && array[j] && plain[j] != array[j], "form %d, size %zu", j, size);
                size_t natural = size > 8 ? __STDCPP_DEFAULT_NEW_ALIGNMENT__ : 8;
                CHECK(is_aligned(plain[j], natural) && is_aligned(array[j], natural), "%d %zu", j, size);
                fill_ends(plain[j], size, 1);
                fill_ends(array[j], size, 2);
            }
            for (int j = 0; j < 3; j++)
                CHECK(ends_hold(plain[j], size, 1) && ends_hold(array[j], size, 2), "%d %zu", j, size);
            ::operator delete(plain[0]);
            ::operator delete(plain[1], std::nothrow);
            ::operator delete(plain[2], size);
            ::operator delete[](array[0]);
            ::operator delete[](array[1], std::nothrow);
            ::operator delete[](array[2], size);
            for (size_t alignment = 1; alignment <= MIB; alignment *= 8) {
                plain[0] = ::operator new(size, at(alignment));
                plain[1] = ::operator new(size, at(alignment), std::nothrow);
                plain[2] = ::operator new(size, at(alignment));
                array[0] = ::operator new[](size, at(alignment));
                array[1] = ::operator new[](size, at(alignment), std::nothrow);
                array[2] = ::operator new[](size, at(alignment));
                for (int j = 0; j < 3; j++) {
                    CHECK(plain[j] && array[j] && plain[j] != array[j], "%d %zu", j, size);
                    CHECK(is_aligned(plain[j], alignment), "form %d, %zu at %zu", j, size, alignment);
                    CHECK(is_aligned(array[j], alignment), "form %d, %zu at %zu", j, size, alignment);
                    fill_ends(plain[j], size, 3);
                    fill_ends(array[j], size, 4);
                }
                for (int j = 0; j < 3; j++)
                    CHECK(ends_hold(plain[j], size, 3) && ends_hold(array[j], size, 4), "%d %zu", j, size);
                ::operator delete(plain[0], at(alignment));
                ::operator delete(plain[1], at(alignment), std::nothrow);
                ::operator delete(plain[2], size, at(alignment));
                ::operator delete[](array[0], at(alignment));
                ::operator delete[](array[1], at(alignment), std::nothrow);
                ::operator delete[](array[2], size, at(alignment));
            }
        }
    }
    ::operator delete(nullptr);
    ::operator delete(nullptr, 8);
    ::operator delete(nullptr, std::nothrow);
    ::operator delete(nullptr, at(64));
    ::operator delete(nullptr, 64, at(64));
    ::operator delete(nullptr, at(64), std::nothrow);
    ::operator delete[](nullptr);
    ::operator delete[](nullptr, 8);
    ::operator delete[](nullptr, std::nothrow);
    ::operator delete[](nullptr, at(64));
    ::operator delete[](nullptr, 64, at(64));
    ::operator delete[](nullptr, at(64), std::nothrow);
    CHECK(errno == 12345, "errno is touched");
    CHECK(peak_resident_kib() < 128 * KIB, "%zu KiB: not freed", peak_resident_kib());
}

static void one_heap_with_malloc()
{
    // Not portable, but programs do it, and with glibc it works.
    void *block = ::operator new(100);
    CHECK(malloc_usable_size(block) >= 100, "of another heap");
    free(block);
    block = malloc(100);
    ::operator delete(block);
    block = realloc(::operator new[](100), 1000);
    CHECK(malloc_usable_size(block) >= 1000, "of another heap");
    ::operator delete[](block);
}

// The request that no memory can serve.
static size_t impossible() { return hide_size(static_cast<size_t>(PTRDIFF_MAX) - 65536); }

template <typename Request> static bool throws_bad_alloc(Request request)
{
    try {
        request();
    } catch (const std::bad_alloc &error) {
        return error.what() != nullptr;
    }
    return false;
}

static void without_handler()
{
    for (int round = 0; round < 100; round++) {
        CHECK(throws_bad_alloc([] { return ::operator new(impossible()); }), "plain");
        CHECK(throws_bad_alloc([] { return ::operator new[](impossible()); }), "array");
        CHECK(throws_bad_alloc([] { return ::operator new(impossible(), at(64)); }), "aligned");
        CHECK(throws_bad_alloc([] { return ::operator new[](impossible(), at(MIB)); }), "aligned array");
        CHECK(throws_bad_alloc([] { return ::operator new(SIZE_MAX); }), "largest");
        // The C++ library of gcc 12 rounds this size up to zero.
        if (getenv("TEST_EXPECTS_CAIRN"))
            CHECK(throws_bad_alloc([] { return ::operator new(SIZE_MAX, at(64)); }), "largest aligned");
        CHECK(!::operator new(impossible(), std::nothrow), "nothrow");
        CHECK(!::operator new[](impossible(), std::nothrow), "nothrow array");
        CHECK(!::operator new(impossible(), at(64), std::nothrow), "nothrow aligned");
        CHECK(!::operator new[](impossible(), at(MIB), std::nothrow), "nothrow aligned array");
    }
    // No block may be lost by the throw.
    std::vector<int> numbers(1000, 7);
    CHECK(throws_bad_alloc([&] { numbers.reserve(impossible() / sizeof(int)); }), "vector");
    CHECK(numbers.size() == 1000 && numbers[999] == 7, "the vector is intact");
}

static int handler_calls;

// Called three times, then gives up by taking itself away.
static void patient_handler()
{
    if (++handler_calls == 3) std::set_new_handler(nullptr);
}

template <typename Request> static void calls_the_handler(const char *form, Request request)
{
    handler_calls = 0;
    std::set_new_handler(patient_handler);
    bool threw = throws_bad_alloc([&] { CHECK(request() == nullptr, "%s", form); });
    CHECK(handler_calls == 3, "%s: the handler is called %d times", form, handler_calls);
    CHECK(threw == (strstr(form, "nothrow") == nullptr), "%s", form);
}

static void handler_is_called_until_it_gives_up()
{
    calls_the_handler("plain", [] { return ::operator new(impossible()); });
    calls_the_handler("array", [] { return ::operator new[](impossible()); });
    calls_the_handler("nothrow", [] { return ::operator new(impossible(), std::nothrow); });
    calls_the_handler("nothrow array", [] { return ::operator new[](impossible(), std::nothrow); });
    calls_the_handler("aligned", [] { return ::operator new(impossible(), at(64)); });
    calls_the_handler("aligned array", [] { return ::operator new[](impossible(), at(4096)); });
    calls_the_handler("aligned nothrow", [] { return ::operator new(impossible(), at(64), std::nothrow); });
    calls_the_handler("aligned nothrow array",
                      [] { return ::operator new[](impossible(), at(4096), std::nothrow); });
}

struct of_the_handler : std::bad_alloc {
    const char *what() const noexcept override { return "of the handler"; }
};

static void throwing_handler() { throw of_the_handler(); }

template <typename Request> static bool throws_of_the_handler(Request request)
{
    struct witness {
        int &destroyed;
        ~witness() { destroyed++; }
    };
    int destroyed = 0;
    try {
        witness unwound{destroyed};
        request();
    } catch (const of_the_handler &) {
        return destroyed == 1;
    }
    return false;
}

static void handler_may_throw()
{
    std::set_new_handler(throwing_handler);
    for (int round = 0; round < 100; round++) {
        CHECK(throws_of_the_handler([] { return ::operator new(impossible()); }), "plain");
        CHECK(throws_of_the_handler([] { return ::operator new[](impossible()); }), "array");
        CHECK(throws_of_the_handler([] { return ::operator new(impossible(), at(64)); }), "aligned");
        CHECK(throws_of_the_handler([] { return ::operator new[](impossible(), at(64)); }), "aligned array");
    }
}

// In static executables the runtime's own definition, which catches, is not linked in beside another.
static void handler_may_throw_in_nothrow_forms()
{
    std::set_new_handler(throwing_handler);
    for (int round = 0; round < 100; round++) {
        CHECK(!::operator new(impossible(), std::nothrow), "nothrow");
        CHECK(!::operator new[](impossible(), std::nothrow), "nothrow array");
        CHECK(!::operator new(impossible(), at(64), std::nothrow), "nothrow aligned");
        CHECK(!::operator new[](impossible(), at(64), std::nothrow), "nothrow aligned array");
    }
}

// A real shortage: the handler gives a reserve back, and the request succeeds.
enum { RESERVES = 64 };
static void *reserves[RESERVES];
static int reserves_left;

static void giving_handler()
{
    if (reserves_left == 0) throw std::bad_alloc();
    ::operator delete(reserves[--reserves_left]);
}

static void take_everything(size_t size)
{
    struct rlimit limits = {};
    limits.rlim_cur = limits.rlim_max = (virtual_kib() + 512 * KIB) * KIB;
    // One limits mappings, the other what is writable in them: together they stop an allocator
    // that reserves address space ahead.
    CHECK(setrlimit(RLIMIT_AS, &limits) == 0, "RLIMIT_AS");
    limits.rlim_cur = limits.rlim_max = 512 * MIB;
    CHECK(setrlimit(RLIMIT_DATA, &limits) == 0, "RLIMIT_DATA");
    std::set_new_handler(nullptr);
    while (reserves_left < RESERVES) {
        void *block = ::operator new(size, std::nothrow);
        if (!block) break;
        memset(block, 1, 1);
        reserves[reserves_left++] = block;
    }
    CHECK(reserves_left > 2 && reserves_left < RESERVES, "%d blocks of %zu", reserves_left, size);
}

static void handler_frees_memory()
{
    static const size_t size = 32 * MIB;
    take_everything(size);
    CHECK(throws_bad_alloc([] { return ::operator new(size); }), "no handler yet");
    std::set_new_handler(giving_handler);
    int left = reserves_left;
    void *a = ::operator new(size);
    CHECK(a && reserves_left < left, "plain: the handler freed nothing");
    left = reserves_left;
    void *b = ::operator new(size / 4, at(4096));
    CHECK(b && is_aligned(b, 4096) && reserves_left >= left - 1, "aligned");
    fill_ends(a, size, 1);
    fill_ends(b, size / 4, 2);
    CHECK(ends_hold(a, size, 1) && ends_hold(b, size / 4, 2), "contents");
    while (reserves_left > 0) giving_handler();
    ::operator delete(a);
    ::operator delete(b, at(4096));
    std::set_new_handler(nullptr);
    void *again = ::operator new(size);
    CHECK(again, "after all was freed");
    ::operator delete(again);
}

static void shortage_of_small_blocks()
{
    static const size_t size = 32 * MIB;
    take_everything(size);
    std::vector<std::unique_ptr<std::string>> strings;
    bool threw = false;
    try {
        for (;;) strings.push_back(std::make_unique<std::string>(500, 'x'));
    } catch (const std::bad_alloc &) {
        threw = true;
    }
    CHECK(threw && !strings.empty(), "%zu strings", strings.size());
    for (const auto &text : strings) CHECK(text->size() == 500 && (*text)[499] == 'x', "contents");
    strings.clear();
    strings.shrink_to_fit();
    std::string text(1000, 'y');
    CHECK(text.size() == 1000, "a small string after the shortage");
}

struct alignas(256) wide {
    char bytes[256];
    wide() { fill(bytes, sizeof bytes, 9); }
    ~wide() { CHECK(holds(bytes, sizeof bytes, 9), "contents of an aligned object"); }
};

static void containers()
{
    std::map<std::string, std::vector<int>> sorted;
    std::unordered_map<int, std::shared_ptr<std::string>> hashed;
    for (int i = 0; i < 20000; i++) {
        sorted["a key that is too long to be kept in place " + std::to_string(i % 997)].push_back(i);
        hashed[i % 4999] = std::make_shared<std::string>(static_cast<size_t>(i % 300), 'x');
    }
    size_t total = 0;
    for (const auto &entry : sorted) total += entry.second.size();
    CHECK(total == 20000 && hashed.size() == 4999, "%zu", total);
    for (int i = 0; i < 200; i++) {
        std::unique_ptr<wide> one(new wide);
        std::unique_ptr<wide[]> several(new wide[static_cast<size_t>(i % 20 + 1)]);
        CHECK(is_aligned(one.get(), 256) && is_aligned(several.get(), 256), "over-aligned type");
        std::vector<wide> vector(3);
        CHECK(is_aligned(vector.data(), 256), "over-aligned type in a vector");
    }
    std::ostringstream stream;
    for (int i = 0; i < 10000; i++) stream << i << ' ';
    CHECK(stream.str().size() > 40000, "stream");
}

static void memory_resources()
{
    std::pmr::monotonic_buffer_resource arena(std::pmr::new_delete_resource());
    std::pmr::synchronized_pool_resource pool;
    std::pmr::vector<std::pmr::string> in_arena(&arena), in_pool(&pool);
    for (int i = 0; i < 10000; i++) {
        in_arena.emplace_back("a text that is too long to be kept in place");
        in_pool.emplace_back("a text that is too long to be kept in place");
    }
    CHECK(in_arena.back() == in_pool.back(), "contents");
}

static void exceptions_in_threads()
{
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) {
        threads.emplace_back([i] {
            for (int j = 0; j < 2000; j++) {
                try {
                    throw std::runtime_error(std::string(static_cast<size_t>(i * 50), 'x'));
                } catch (const std::exception &error) {
                    CHECK(strlen(error.what()) == static_cast<size_t>(i * 50), "what");
                }
            }
        });
    }
    for (auto &thread : threads) thread.join();
}

/* By the size of a base without a virtual destructor. Hardened, that is a misuse. */
static void smaller_sizes()
{
    if (getenv("TEST_IS_HARDENED")) return;
    const size_t sizes[][2] = {{28, 16}, {1100, 1016}, {70 * KIB, 8}, {200 * KIB, 100 * KIB}, {40 * MIB, 1}};
    for (auto [size, named] : sizes)
        for (int i = 0; i < 3; i++) ::operator delete(::operator new(size), named);
}

static const struct test_case cases[] = {
    {"smaller_sizes", smaller_sizes},
    {"every_form", every_form},
    {"one_heap_with_malloc", one_heap_with_malloc},
    {"without_handler", without_handler},
    {"handler_is_called_until_it_gives_up", handler_is_called_until_it_gives_up},
    {"handler_may_throw", handler_may_throw},
    {"handler_may_throw_in_nothrow_forms", handler_may_throw_in_nothrow_forms},
    {"handler_frees_memory", handler_frees_memory},
    {"shortage_of_small_blocks", shortage_of_small_blocks},
    {"containers", containers},
    {"memory_resources", memory_resources},
    {"exceptions_in_threads", exceptions_in_threads},
};
MAIN(cases)
