// cairn.hpp: heaps, containers in them, memory resources, smart pointers.
#include "check.h"

#include <cairn.hpp>

#include <list>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unordered_map>
#include <vector>

template <class T>
using in_heap = cairn::heap_allocator<T>;
using text = std::basic_string<char, std::char_traits<char>, in_heap<char>>;

static size_t blocks_of(const cairn::heap &heap)
{
    size_t count = 0;
    auto count_one = [](const cairn_area *, void *block, void *argument) {
        *static_cast<size_t *>(argument) += block != nullptr;
        return 1;
    };
    CHECK(cairn_visit(heap.get(), 1, count_one, &count), "the walk");
    return count;
}

static void containers()
{
    cairn::heap heap, other;
    {
        std::vector<int, in_heap<int>> numbers{heap};
        std::map<int, text, std::less<int>, in_heap<std::pair<const int, text>>> names(heap);
        std::list<double, in_heap<double>> list{heap};
        std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, in_heap<std::pair<const int, int>>> table(
            10, std::hash<int>(), std::equal_to<int>(), heap);
        for (int i = 0; i < 10000; i++) {
            numbers.push_back(i);
            names.emplace(i, text("a name that is longer than what fits into a string", heap));
            list.push_back(i / 2.0);
            table[i] = -i;
        }
        CHECK(heap.contains(numbers.data()) && heap.contains(&names.at(7)), "where they are");
        CHECK(heap.contains(names.at(9999).data()) && heap.contains(&list.back()), "where they are");
        CHECK(heap.contains(&table.at(5)) && numbers[9999] == 9999 && table.at(5) == -5, "what they are");
        // Moved and swapped, elements stay where they are; copied, they are in the heap of the original.
        int *place = numbers.data();
        std::vector<int, in_heap<int>> moved{other};
        moved = std::move(numbers);
        CHECK(moved.data() == place && moved.get_allocator().get() == heap.get(), "moved");
        std::vector<int, in_heap<int>> swapped({1, 2, 3}, other);
        std::swap(moved, swapped);
        CHECK(swapped.data() == place && other.contains(moved.data()), "swapped");
        std::vector<int, in_heap<int>> copied{other};
        copied = swapped;
        CHECK(heap.contains(copied.data()) && copied == swapped, "copied");
    }
    CHECK(blocks_of(heap) == 0 && blocks_of(other) == 0, "%zu", blocks_of(heap));

    // What is not freed goes with the heap.
    size_t before;
    {
        std::vector<int, cairn::monotonic_allocator<int>> numbers{heap};
        for (int i = 0; i < 1000; i++) numbers.push_back(i);
        before = blocks_of(heap);
    }
    CHECK(before > 5 && blocks_of(heap) == before, "%zu", before);

    std::set<int, std::less<int>, cairn::allocator<int>> plain;
    for (int i = 0; i < 1000; i++) plain.insert(i);
    CHECK(cairn_heap_of(&*plain.begin()) == nullptr && cairn::allocator<int>() == cairn::allocator<char>(), "malloc");
}

struct alignas(256) wide {
    char bytes[256];
};

struct fragile {
    explicit fragile(bool fails) { if (fails) throw std::runtime_error("as asked"); }
    std::string name = "a name that is longer than what fits into a string";
};

static void failures()
{
    cairn::heap heap;
    {
        std::vector<wide, in_heap<wide>> wides(10, heap);
        CHECK(is_aligned(wides.data(), 256) && heap.contains(&wides[9]), "aligned");
        int thrown = 0;
        for (bool fails : {true, false, true}) {
            try {
                auto object = cairn::make_unique<fragile>(heap, fails);
                CHECK(heap.contains(object.get()), "in the heap");
            } catch (const std::runtime_error &) {
                thrown++;
            }
        }
        CHECK(thrown == 2, "%d", thrown);
    }
    CHECK(blocks_of(heap) == 0, "%zu", blocks_of(heap));

    CHECK(heap.set_limits(0, 1 << 20), "a limit");
    bool refused = false;
    std::vector<int, in_heap<int>> numbers{heap};
    try {
        for (;;) numbers.push_back(1);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused && numbers.size() > 50000 && numbers.back() == 1, "%zu", numbers.size());
    char *zeroed = static_cast<char *>(heap.allocate_zeroed(100));
    CHECK(zeroed[0] == 0 && zeroed[99] == 0, "zeroed");
    zeroed[99] = 9;
    refused = false;
    try {
        (void)heap.reallocate(zeroed, 2 << 20);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    CHECK(refused && zeroed[99] == 9, "it stays");
    zeroed = static_cast<char *>(heap.reallocate(zeroed, 3000));
    CHECK(zeroed[99] == 9 && heap.contains(zeroed), "resized");
    std::free(zeroed);
    void *blocks[10] = {};
    CHECK(heap.allocate_batch(48, 10, blocks) == 10 && heap.contains(blocks[9]), "ten at once");
    CHECK(heap.allocate_batch(1 << 19, 10, blocks) < 10, "over the limit");
    // The hardened build has none: it throws.
    try {
        cairn::shared_heap read{cairn::readers{16}};
        size_t *object = static_cast<size_t *>(read.allocate(40));
        object[0] = 5;
        std::free(object);
        // Volatile: to a compiler nothing is behind the pointer any more.
        CHECK(*static_cast<size_t *volatile>(object) == 5, "its head");
        read.set_epoch(2, 2);
    } catch (const std::bad_alloc &) {
    }
    refused = false;
    try {
        (void)in_heap<long>(heap).allocate(SIZE_MAX / 8);
    } catch (const std::bad_array_new_length &) {
        refused = true;
    }
    CHECK(refused && !heap.set_limits(0, 16), "too long");
    CHECK(heap.stats().hard_limit == 1 << 20 && heap.stats().peak <= 1 << 20, "the limit holds");
}

struct base {
    virtual ~base() = default;
    int number = 1;
};
struct second {
    virtual ~second() = default;
    int number = 2;
};
struct derived : second, base {
    std::string name = "a name that is longer than what fits into a string";
};

static void owners()
{
    cairn::heap heap;
    {
        // The base does not stand at the start of the block.
        cairn::unique_ptr<base> object = cairn::make_unique<derived>(heap);
        CHECK(object->number == 1 && static_cast<void *>(object.get()) != dynamic_cast<void *>(object.get()), "inside");
        std::unique_ptr<char, cairn::free_deleter> copy(strdup("from C"));
        std::shared_ptr<int> shared = std::allocate_shared<int>(in_heap<int>(heap), 5);
        CHECK(*shared == 5 && heap.contains(shared.get()), "shared");
    }
    CHECK(blocks_of(heap) == 0, "%zu", blocks_of(heap));

    cairn::heap moved = std::move(heap);
    CHECK(heap.get() == nullptr && moved.get() != nullptr, "moved");
    heap = cairn::heap();
    void *block = heap.allocate(100);
    heap.leave();
    CHECK(heap.get() == nullptr && cairn_heap_of(block) == nullptr, "left");
    free(block);
    moved.set_tag(7);
    CHECK(moved.tag() == 7, "a tag");
    moved.detach();
    std::thread([&] {
        moved.attach();
        CHECK(moved.contains(moved.allocate(10, 64)), "on another thread");
        moved.detach();
    }).join();
    moved.attach();
}

static void threads()
{
    cairn::shared_heap heap;
    std::vector<std::thread> all;
    for (int i = 0; i < 4; i++) {
        all.emplace_back([&] {
            std::map<int, int, std::less<int>, in_heap<std::pair<const int, int>>> mine(heap);
            for (int j = 0; j < 20000; j++) {
                mine[j % 777] += j;
                if (j % 3 == 0) mine.erase(mine.begin());
            }
            CHECK(heap.contains(&*mine.begin()), "in the heap");
        });
    }
    for (auto &thread : all) thread.join();
}

static void resources()
{
    cairn::heap heap, other;
    cairn::heap_resource resource(heap), same(heap), keeping(heap, false), another(other);
    CHECK(resource.is_equal(same) && !resource.is_equal(another) && !resource.is_equal(keeping), "equal");
    CHECK(!resource.is_equal(*cairn::memory_resource()) && cairn::memory_resource()->is_equal(*cairn::memory_resource()),
          "equal");
    {
        std::pmr::map<int, std::pmr::string> names(&resource);
        for (int i = 0; i < 1000; i++) names.emplace(i, "a name that is longer than what fits into a string");
        CHECK(heap.contains(names.at(500).data()), "in the heap");
        std::pmr::vector<wide> wides(3, &resource);
        CHECK(is_aligned(&wides[0], 256), "aligned");
        std::pmr::vector<int> numbers({1, 2, 3}, cairn::memory_resource());
        CHECK(cairn_heap_of(numbers.data()) == nullptr, "malloc");
    }
    CHECK(blocks_of(heap) == 0, "%zu", blocks_of(heap));
    {
        std::pmr::vector<int> numbers(1000, &keeping);
    }
    CHECK(blocks_of(heap) == 1, "%zu", blocks_of(heap));
}

static const struct test_case cases[] = {
    {"containers", containers}, {"failures", failures}, {"owners", owners},
    {"threads", threads},       {"resources", resources},
};
MAIN(cases)
