/* A C++ program in mimalloc's terms: operators and containers. */
#include <mimalloc-new-delete.h>
#include <mimalloc.h>

#include "check.h"

#include <deque>
#include <map>
#include <string>
#include <vector>

struct alignas(64) wide {
    char bytes[64];
};

static void containers()
{
    std::vector<int, mi_stl_allocator<int>> plain(1000, 1);
    CHECK(mi_heap_contains(mi_heap_main(), plain.data()) && plain[999] == 1, "%p", (void *)plain.data());
    std::vector<wide, mi_stl_allocator<wide>> aligned(3);
    CHECK(is_aligned(aligned.data(), 64), "%p", (void *)aligned.data());

    mi_heap_t *heap = mi_heap_new();
    {
        mi_heap_stl_allocator<int> of_heap(heap);
        std::vector<int, mi_heap_stl_allocator<int>> numbers(of_heap), copy(of_heap);
        for (int i = 0; i < 1000; i++) numbers.push_back(i);
        copy = numbers;
        CHECK(mi_heap_contains(heap, numbers.data()) && mi_heap_contains(heap, copy.data()), "in the heap");
        CHECK(copy[999] == 999 && of_heap == numbers.get_allocator(), "%d", copy[999]);
        typedef std::pair<const int, int> pair;
        std::map<int, int, std::less<int>, mi_heap_destroy_stl_allocator<pair>> tree{
            mi_heap_destroy_stl_allocator<pair>(heap)};
        for (int i = 0; i < 100; i++) tree[i] = i;
        CHECK(mi_heap_contains(heap, &tree[5]) && tree.size() == 100, "%zu", tree.size());
    }
    int *kept = mi_heap_malloc_tp(int, heap);
    mi_heap_delete(heap);
    mi_free(kept);

    std::vector<int, mi_heap_stl_allocator<int>> own(10, 3), others(10, 3);
    CHECK(mi_heap_of(own.data()) != mi_heap_main() && own.get_allocator() != others.get_allocator(), "its own heap");
    std::vector<int, mi_heap_destroy_stl_allocator<int>> goes(1000, 3);
    CHECK(goes[999] == 3, "%d", goes[999]);
}

/* Moving a container, or from it, leaves it its allocator. */
template <class Container>
static void move_from(const Container &filled)
{
    Container first(filled), target(filled.get_allocator());
    Container *made = new Container(std::move(first));
    CHECK(first.get_allocator() == made->get_allocator() && *made == filled, "moved at the making");
    first.push_back(1);
    target = std::move(*made);
    CHECK(made->get_allocator() == target.get_allocator() && target == filled, "moved later");
    delete made;
    target.push_back(2);
    CHECK(target.size() == filled.size() + 1 && first.back() == 1, "%zu", target.size());

    Container *moved = new Container(std::move(target));
    delete moved;
    target.push_back(3);
    CHECK(target.back() == 3, "outlives what it was moved to");
}

template <template <class> class Allocator>
static void move_all(mi_heap_t *heap)
{
    typedef std::vector<int, Allocator<int>> numbers;
    typedef std::basic_string<char, std::char_traits<char>, Allocator<char>> text;
    typedef std::deque<int, Allocator<int>> queue;
    move_from(heap ? numbers(1000, 5, Allocator<int>(heap)) : numbers(1000, 5));
    move_from(heap ? text(1000, 'a', Allocator<char>(heap)) : text(1000, 'a', Allocator<char>()));
    move_from(heap ? queue(1000, 5, Allocator<int>(heap)) : queue(1000, 5));
}

static void moves()
{
    mi_heap_t *heap = mi_heap_new();
    for (mi_heap_t *given : {heap, static_cast<mi_heap_t *>(nullptr)}) {
        move_all<mi_heap_stl_allocator>(given);
        move_all<mi_heap_destroy_stl_allocator>(given);
    }
    mi_heap_destroy(heap);
}

static int asked;

static void handler()
{
    if (++asked == 3) std::set_new_handler(nullptr);
}

template <class F>
static bool throws(F call)
{
    try {
        call();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static void operators()
{
    size_t much = hide_size(SIZE_MAX / 2 + 2);
    int *number = new int(3);
    CHECK(mi_heap_contains(mi_heap_main(), number), "new is cairn's");
    mi_free_size(number, sizeof(int));
    mi_free(mi_new(100)), mi_free(mi_new_n(10, 10)), mi_free(mi_new_aligned(100, 64)), mi_free(mi_new_nothrow(100));
    std::set_new_handler(handler);
    CHECK(throws([=] { (void)mi_new(much); }) && asked == 3, "%d", asked);
    CHECK(throws([=] { (void)mi_new_n(much, 8); }) && throws([=] { (void)mi_new_aligned(much, 64); }), "throws");
    CHECK(mi_new_nothrow(much) == nullptr && mi_new_aligned_nothrow(much, 64) == nullptr, "NULL");
    char *text = static_cast<char *>(mi_new_realloc(nullptr, 10));
    strcpy(text, "kept");
    CHECK(throws([=] { (void)mi_new_realloc(text, much); }) && !strcmp(text, "kept"), "%s", text);
    text = static_cast<char *>(mi_new_reallocn(text, 1000, 1000));
    CHECK(!strcmp(text, "kept"), "%s", text);
    mi_free(text);
    mi_heap_t *heap = mi_heap_new();
    CHECK(throws([=] { (void)mi_heap_alloc_new_n(heap, much, 8); }), "throws");
    CHECK(mi_heap_contains(heap, mi_heap_alloc_new(heap, 10)), "from the heap");
    mi_heap_destroy(heap);
}

static const struct test_case cases[] = {{"containers", containers}, {"moves", moves}, {"operators", operators}};
MAIN(cases)
