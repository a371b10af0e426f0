/* Allocates by each of the forms that do not throw. */
#include <cstddef>
#include <cstdint>
#include <new>

template <class T> static int frees(T *block) { return block ? (operator delete(block), 1) : 0; }

extern "C" int allocates()
{
    const auto wide = std::align_val_t(64);
    void *aligned = operator new(100, wide, std::nothrow), *array = operator new[](100, wide, std::nothrow);
    int count = frees(operator new(100, std::nothrow)) + (aligned != nullptr) + (array != nullptr);
    void *plain = operator new[](100, std::nothrow);
    count += plain != nullptr;
    operator delete(aligned, wide);
    operator delete[](array, wide);
    operator delete[](plain);
    return count;
}

/* How many of them answer null where there is no memory and the plugin's handler throws. */
extern "C" int gives_up()
{
    const auto wide = std::align_val_t(64);
    const std::size_t size = PTRDIFF_MAX - 65536;
    std::set_new_handler([] { throw std::bad_alloc(); });
    int count = operator new(size, std::nothrow) == nullptr;
    count += operator new[](size, std::nothrow) == nullptr;
    count += operator new(size, wide, std::nothrow) == nullptr;
    count += operator new[](size, wide, std::nothrow) == nullptr;
    std::set_new_handler(nullptr);
    return count;
}
