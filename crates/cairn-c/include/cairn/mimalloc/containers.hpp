/* mimalloc's allocators for containers. C++11 and later. Part of compat/mimalloc.h. */

#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#define MI_HAS_HEAP_STL_ALLOCATOR 1

namespace cairn_mi {

/* What all three have. Memory comes aligned as T asks. */
template <class T>
struct allocator_types {
    typedef T value_type;
    typedef T *pointer;
    typedef const T *const_pointer;
    typedef T &reference;
    typedef const T &const_reference;
    typedef std::size_t size_type;
    typedef std::ptrdiff_t difference_type;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;

    size_type max_size() const noexcept { return static_cast<size_type>(PTRDIFF_MAX) / sizeof(T); }
    pointer address(reference object) const { return std::addressof(object); }
    const_pointer address(const_reference object) const { return std::addressof(object); }
    template <class U, class... Arguments>
    void construct(U *place, Arguments &&...arguments) {
        ::new (static_cast<void *>(place)) U(std::forward<Arguments>(arguments)...);
    }
    template <class U>
    void destroy(U *object) noexcept {
        object->~U();
    }

  protected:
    static T *from(mi_heap_t *heap, size_type count) {
        return static_cast<T *>(cairn_mi_new(heap, alignof(T) > 16 ? alignof(T) : 0, cairn_product(count, sizeof(T))));
    }
};

/*
 * Containers share the heap, which ends with the last, unless it was given to them. What is moved from keeps its heap:
 * with copies declared, there are no moves.
 */
template <class T, bool Destroys>
struct heap_allocator : allocator_types<T> {
    using is_always_equal = std::false_type;

    heap_allocator() : heap(made(), Destroys ? mi_heap_destroy : mi_heap_delete) {}
    heap_allocator(mi_heap_t *given) : heap(given, [](mi_heap_t *) {}) {}
    heap_allocator(const heap_allocator &other) noexcept = default;
    heap_allocator &operator=(const heap_allocator &other) noexcept = default;
    template <class U>
    heap_allocator(const heap_allocator<U, Destroys> &other) noexcept : heap(other.heap) {}

    T *allocate(std::size_t count, const void * = nullptr) { return this->from(heap.get(), count); }
    void collect(bool force) { mi_heap_collect(heap.get(), force); }
    template <class U>
    bool is_equal(const heap_allocator<U, Destroys> &other) const {
        return heap == other.heap;
    }

  protected:
    std::shared_ptr<mi_heap_t> heap;
    template <class U, bool D>
    friend struct heap_allocator;

  private:
    static mi_heap_t *made() {
        mi_heap_t *heap = mi_heap_new();
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        if (!heap) throw std::bad_alloc();
#else
        if (!heap) abort();
#endif
        return heap;
    }
};

} // namespace cairn_mi

/* From the main heap. */
template <class T>
struct mi_stl_allocator : cairn_mi::allocator_types<T> {
    using is_always_equal = std::true_type;
    template <class U>
    struct rebind {
        typedef mi_stl_allocator<U> other;
    };

    mi_stl_allocator() noexcept = default;
    template <class U>
    mi_stl_allocator(const mi_stl_allocator<U> &) noexcept {}
    mi_stl_allocator select_on_container_copy_construction() const { return *this; }

    T *allocate(std::size_t count, const void * = nullptr) { return this->from(CAIRN_MI_MAIN, count); }
    void deallocate(T *block, std::size_t) { free(block); }
};

/* From a heap of its own, or one that it is given. Its blocks live on when it is deleted. */
template <class T>
struct mi_heap_stl_allocator : cairn_mi::heap_allocator<T, false> {
    template <class U>
    struct rebind {
        typedef mi_heap_stl_allocator<U> other;
    };

    mi_heap_stl_allocator() = default;
    mi_heap_stl_allocator(mi_heap_t *given) : cairn_mi::heap_allocator<T, false>(given) {}
    template <class U>
    mi_heap_stl_allocator(const mi_heap_stl_allocator<U> &other) noexcept : cairn_mi::heap_allocator<T, false>(other) {}
    mi_heap_stl_allocator select_on_container_copy_construction() const { return *this; }
    void deallocate(T *block, std::size_t) { free(block); }
};

/* The same without frees: all blocks go with the heap. */
template <class T>
struct mi_heap_destroy_stl_allocator : cairn_mi::heap_allocator<T, true> {
    template <class U>
    struct rebind {
        typedef mi_heap_destroy_stl_allocator<U> other;
    };

    mi_heap_destroy_stl_allocator() = default;
    mi_heap_destroy_stl_allocator(mi_heap_t *given) : cairn_mi::heap_allocator<T, true>(given) {}
    template <class U>
    mi_heap_destroy_stl_allocator(const mi_heap_destroy_stl_allocator<U> &other) noexcept
        : cairn_mi::heap_allocator<T, true>(other) {}
    mi_heap_destroy_stl_allocator select_on_container_copy_construction() const { return *this; }
    void deallocate(T *, std::size_t) {}
};

template <class T, class U>
bool operator==(const mi_stl_allocator<T> &, const mi_stl_allocator<U> &) noexcept {
    return true;
}
template <class T, class U>
bool operator!=(const mi_stl_allocator<T> &, const mi_stl_allocator<U> &) noexcept {
    return false;
}
template <class T, class U>
bool operator==(const mi_heap_stl_allocator<T> &one, const mi_heap_stl_allocator<U> &other) noexcept {
    return one.is_equal(other);
}
template <class T, class U>
bool operator!=(const mi_heap_stl_allocator<T> &one, const mi_heap_stl_allocator<U> &other) noexcept {
    return !one.is_equal(other);
}
template <class T, class U>
bool operator==(const mi_heap_destroy_stl_allocator<T> &one, const mi_heap_destroy_stl_allocator<U> &other) noexcept {
    return one.is_equal(other);
}
template <class T, class U>
bool operator!=(const mi_heap_destroy_stl_allocator<T> &one, const mi_heap_destroy_stl_allocator<U> &other) noexcept {
    return !one.is_equal(other);
}
