// What LLVM and tcmalloc declare for size feedback. Weak: the library may be preloaded.
#ifndef CXX_SIZED_H
#define CXX_SIZED_H

#include "check.h"

#include <new>

struct sized_ptr {
    void *p;
    size_t n;
};

#pragma weak __size_returning_new
#pragma weak __size_returning_new_aligned
#pragma weak __size_returning_new_hot_cold
#pragma weak __size_returning_new_aligned_hot_cold
extern "C" {
sized_ptr __size_returning_new(size_t size);
sized_ptr __size_returning_new_aligned(size_t size, std::align_val_t alignment);
sized_ptr __size_returning_new_hot_cold(size_t size, unsigned char hot_cold);
sized_ptr __size_returning_new_aligned_hot_cold(size_t size, std::align_val_t alignment, unsigned char hot_cold);
}

#endif
