/*
 * cairn for C++: heaps that end with their scope, allocators for containers, memory resources, deleters. C++11 and later;
 * what a standard does not have is left out: memory resources before C++17, allocate_at_least before C++23.
 *
 * All of it is inline and stands on cairn.h, which has the limits, the errors and who may call what on which thread. What
 * allocates here throws std::bad_alloc where that returns NULL; without exceptions it ends the program.
 */
#ifndef CAIRN_HPP
#define CAIRN_HPP

#include "cairn.h"

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#if defined(__has_include) && __cplusplus >= 201703L
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif
#endif

#if defined(__has_cpp_attribute) && __cplusplus >= 201703L
#define CAIRN_HPP_NODISCARD [[nodiscard]]
#else
#define CAIRN_HPP_NODISCARD
#endif

namespace cairn {

namespace detail {

[[noreturn]] inline void no_memory() {
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    throw std::bad_alloc();
#else
    std::abort();
#endif
}

/* The bytes of `count` objects of `size` bytes. */
inline std::size_t bytes_of(std::size_t count, std::size_t size) {
    if (count > std::numeric_limits<std::size_t>::max() / 2 / size) {
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        throw std::bad_array_new_length();
#else
        std::abort();
#endif
    }
    return count * size;
}

inline void *allocate(std::size_t bytes, std::size_t align) {
    void *block = align <= 16 ? std::malloc(bytes) : ::aligned_alloc(align, bytes);
    if (!block) no_memory();
    return block;
}

inline void *allocate(cairn_heap *from, std::size_t bytes, std::size_t align) {
    void *block = align <= 16 ? cairn_heap_malloc_inline(from, bytes) : cairn_heap_aligned_alloc(from, align, bytes);
    if (!block) no_memory();
    return block;
}

} // namespace detail

/* Bytes at the head of each free block that stay for late readers, at most 256. */
struct readers {
    std::size_t head;
};

/*
 * A heap. When it goes, its blocks go with it, all at once: so must whatever is in them before, or be of no more use.
 * A `heap` is for one thread at a time, a `shared_heap` for all. Moved, not copied. An empty one has been moved from.
 */
template <bool Shared>
class basic_heap {
  public:
    basic_heap() : handle_(Shared ? cairn_heap_new_shared() : cairn_heap_new()) {
        if (!handle_) detail::no_memory();
    }

    /* A heap in a region. */
    explicit basic_heap(cairn_region *region)
        : handle_(Shared ? cairn_heap_new_shared_in(region) : cairn_heap_new_in(region)) {
        if (!handle_) detail::no_memory();
    }

    /* A heap whose free blocks may still be read: cairn_heap_new_concurrent. std::bad_alloc in the hardened build, too. */
    explicit basic_heap(readers kept) : handle_(cairn_heap_new_concurrent(kept.head)) {
        static_assert(Shared, "only a shared heap has readers besides its user");
        if (!handle_) detail::no_memory();
    }
    void set_epoch(std::size_t now, std::size_t safe) noexcept { cairn_heap_set_epoch(handle_, now, safe); }

    basic_heap(basic_heap &&other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }

    basic_heap &operator=(basic_heap &&other) noexcept {
        if (this != &other) {
            cairn_heap_destroy(handle_);
            handle_ = other.handle_;
            other.handle_ = nullptr;
        }
        return *this;
    }

    basic_heap(const basic_heap &) = delete;
    basic_heap &operator=(const basic_heap &) = delete;

    ~basic_heap() { cairn_heap_destroy(handle_); }

    /* The heap as C has it. */
    cairn_heap *get() const noexcept { return handle_; }

    /* The heap ends, its blocks live on. This one is empty then. */
    void leave() noexcept {
        cairn_heap_delete(handle_);
        handle_ = nullptr;
    }

    /* Gives the heap to the calling thread, and takes it from it; nothing is done to a shared one. */
    void attach() noexcept { cairn_heap_attach(handle_); }
    void detach() noexcept { cairn_heap_detach(handle_); }

    CAIRN_HPP_NODISCARD void *allocate(std::size_t bytes, std::size_t align = alignof(std::max_align_t)) {
        return detail::allocate(handle_, bytes, align);
    }

    CAIRN_HPP_NODISCARD void *allocate_zeroed(std::size_t bytes) {
        void *block = cairn_heap_calloc(handle_, 1, bytes);
        if (!block) detail::no_memory();
        return block;
    }

    /* Allocates `count` blocks of `bytes` bytes: how many; fewer only if there is no room for more. */
    CAIRN_HPP_NODISCARD std::size_t allocate_batch(std::size_t bytes, std::size_t count, void **blocks) noexcept {
        return cairn_heap_malloc_batch(handle_, bytes, count, blocks);
    }

    /* Resizes a block of any heap, which comes here if it must move. If this throws, it stays as it is. */
    CAIRN_HPP_NODISCARD void *reallocate(void *block, std::size_t bytes) {
        void *resized = cairn_heap_realloc(handle_, block, bytes);
        if (!resized) detail::no_memory();
        return resized;
    }

    bool contains(const void *pointer) const noexcept { return cairn_heap_contains(handle_, pointer) != 0; }

    cairn_heap_stats stats() const noexcept {
        cairn_heap_stats figures;
        cairn_heap_get_stats(handle_, &figures, sizeof figures);
        return figures;
    }

    /*
     * Limits what it may hold, in bytes; 0: no limit. False, and nothing is done, if it holds more. What on_soft may do, see
     * cairn_heap_set_limits.
     */
    bool set_limits(std::size_t soft, std::size_t hard, void (*on_soft)(cairn_heap *, void *) = nullptr,
                    void *argument = nullptr) noexcept {
        return cairn_heap_set_limits(handle_, soft, hard, on_soft, argument) != 0;
    }

    std::size_t tag() const noexcept { return cairn_heap_tag(handle_); }
    void set_tag(std::size_t number) noexcept { cairn_heap_set_tag(handle_, number); }
    void purge() noexcept { cairn_heap_purge(handle_); }

  private:
    cairn_heap *handle_;
};

using heap = basic_heap<false>;
using shared_heap = basic_heap<true>;

#if __cpp_lib_allocate_at_least >= 202302L
template <class T>
using at_least = std::allocation_result<T *, std::size_t>;
#endif

/* Allocates from the heaps of threads, as malloc does. All are equal. */
template <class T>
class allocator {
  public:
    using value_type = T;
    using is_always_equal = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;

    allocator() noexcept = default;
    template <class U>
    allocator(const allocator<U> &) noexcept {}

    CAIRN_HPP_NODISCARD T *allocate(std::size_t count) {
        return static_cast<T *>(detail::allocate(detail::bytes_of(count, sizeof(T)), alignof(T)));
    }

#if __cpp_lib_allocate_at_least >= 202302L
    [[nodiscard]] at_least<T> allocate_at_least(std::size_t count) {
        /* Not malloc and the size after it: compilers would hold the block for no larger than what was asked. */
        std::size_t bytes = detail::bytes_of(count, sizeof(T)), usable = 0;
        void *block = cairn_aligned_alloc_at_least(alignof(T) > 16 ? alignof(T) : 16, bytes, &usable);
        if (!block) detail::no_memory();
        return {static_cast<T *>(block), usable / sizeof(T)};
    }
#endif

    void deallocate(T *block, std::size_t) noexcept { std::free(block); }
};

template <class T, class U>
bool operator==(const allocator<T> &, const allocator<U> &) noexcept {
    return true;
}
template <class T, class U>
bool operator!=(const allocator<T> &, const allocator<U> &) noexcept {
    return false;
}

/*
 * Allocates from a heap, which is there as long as a container has the allocator. It goes where a container is copied,
 * moved or swapped to, so that these take no copies of elements. Equal are those of one heap.
 *
 * `Free` says whether a container gives each block back, or leaves that to the end of the heap: then a container that
 * goes costs nothing, and one that grows keeps what it had.
 */
template <class T, bool Free = true>
class heap_allocator {
  public:
    using value_type = T;
    using is_always_equal = std::false_type;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    template <class U>
    struct rebind {
        using other = heap_allocator<U, Free>;
    };

    heap_allocator(cairn_heap *from) noexcept : heap_(from) {}
    template <bool Shared>
    heap_allocator(basic_heap<Shared> &from) noexcept : heap_(from.get()) {}
    template <class U>
    heap_allocator(const heap_allocator<U, Free> &other) noexcept : heap_(other.get()) {}

    CAIRN_HPP_NODISCARD T *allocate(std::size_t count) {
        return static_cast<T *>(detail::allocate(heap_, detail::bytes_of(count, sizeof(T)), alignof(T)));
    }

#if __cpp_lib_allocate_at_least >= 202302L
    [[nodiscard]] at_least<T> allocate_at_least(std::size_t count) {
        /* As many as asked: compilers hold a block for no larger than what its function was told. */
        return {allocate(count), count};
    }
#endif

    void deallocate(T *block, std::size_t) noexcept {
        if (Free) std::free(block);
    }

    cairn_heap *get() const noexcept { return heap_; }

  private:
    cairn_heap *heap_;
};

/* What it allocates goes with the heap, and not before. */
template <class T>
using monotonic_allocator = heap_allocator<T, false>;

template <class T, class U, bool Free>
bool operator==(const heap_allocator<T, Free> &one, const heap_allocator<U, Free> &other) noexcept {
    return one.get() == other.get();
}
template <class T, class U, bool Free>
bool operator!=(const heap_allocator<T, Free> &one, const heap_allocator<U, Free> &other) noexcept {
    return !(one == other);
}

/* For smart pointers to what `make` has made: ends the object and frees its block. */
template <class T>
struct deleter {
    static_assert(!std::is_array<T>::value, "single objects");

    deleter() noexcept = default;
    template <class U, class = typename std::enable_if<std::is_convertible<U *, T *>::value>::type>
    deleter(const deleter<U> &) noexcept {}

    void operator()(T *object) const noexcept {
        /* Of an object that begins before this part of it, the block does, too. */
        void *block = start(object, std::is_polymorphic<T>());
        object->~T();
        std::free(block);
    }

  private:
    static void *start(T *object, std::true_type) noexcept { return dynamic_cast<void *>(object); }
    static void *start(T *object, std::false_type) noexcept { return object; }
};

/* For smart pointers to blocks that C has allocated. */
struct free_deleter {
    void operator()(void *block) const noexcept { std::free(block); }
};

template <class T>
using unique_ptr = std::unique_ptr<T, deleter<T>>;

/* Makes an object in a heap. It must go before the heap does. */
template <class T, bool Shared, class... Arguments>
CAIRN_HPP_NODISCARD unique_ptr<T> make_unique(basic_heap<Shared> &from, Arguments &&...arguments) {
    std::unique_ptr<void, free_deleter> block(detail::allocate(from.get(), sizeof(T), alignof(T)));
    T *object = ::new (block.get()) T(std::forward<Arguments>(arguments)...);
    block.release();
    return unique_ptr<T>(object);
}

#if defined(__cpp_lib_memory_resource)
namespace detail {

class default_resource final : public std::pmr::memory_resource {
    void *do_allocate(std::size_t bytes, std::size_t align) override { return detail::allocate(bytes, align); }
    void do_deallocate(void *block, std::size_t, std::size_t) override { std::free(block); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }
};

} // namespace detail

/* The memory resource of the heaps of threads: malloc. It is there until the program ends. */
inline std::pmr::memory_resource *memory_resource() noexcept {
    static detail::default_resource resource;
    return &resource;
}

/* The memory resource of a heap, which is there longer. Equal are those of one heap, if both give back or none does. */
class heap_resource final : public std::pmr::memory_resource {
  public:
    /* With `frees` false, what is allocated goes with the heap, and not before. */
    explicit heap_resource(cairn_heap *from, bool frees = true) noexcept : heap_(from), frees_(frees) {}
    template <bool Shared>
    explicit heap_resource(basic_heap<Shared> &from, bool frees = true) noexcept : heap_resource(from.get(), frees) {}

    cairn_heap *get() const noexcept { return heap_; }

  private:
    void *do_allocate(std::size_t bytes, std::size_t align) override { return detail::allocate(heap_, bytes, align); }
    void do_deallocate(void *block, std::size_t, std::size_t) override {
        if (frees_) std::free(block);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        if (this == &other) return true;
        auto same = same_kind(other);
        return same && same->heap_ == heap_ && same->frees_ == frees_;
    }
    static const heap_resource *same_kind(const std::pmr::memory_resource &other) noexcept {
#if defined(__cpp_rtti) || defined(__GXX_RTTI)
        return dynamic_cast<const heap_resource *>(&other);
#else
        (void)other;
        return nullptr;
#endif
    }

    cairn_heap *heap_;
    bool frees_;
};
#endif

} // namespace cairn

#undef CAIRN_HPP_NODISCARD

#endif
