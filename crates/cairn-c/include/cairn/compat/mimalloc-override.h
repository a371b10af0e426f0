/* malloc and its kind are cairn's anyway. These are the names that the C library does not have. */
#ifndef MIMALLOC_OVERRIDE_H
#define MIMALLOC_OVERRIDE_H

#include <mimalloc.h>

#define reallocf(p, n) mi_reallocf(p, n)
#define reallocarr(place, count, n) mi_reallocarr(place, count, n)
#define malloc_size(p) mi_usable_size(p)
#define malloc_good_size(n) mi_good_size(n)
#define cfree(p) mi_free(p)

#define _expand(p, n) mi_expand(p, n)
#define _msize(p) mi_usable_size(p)
#define _recalloc(p, count, n) mi_recalloc(p, count, n)
#define _strdup(s) mi_strdup(s)
#define _strndup(s, n) mi_strndup(s, n)
#define _wcsdup(s) mi_wcsdup(s)
#define _mbsdup(s) mi_mbsdup(s)
#define _dupenv_s(place, size, name) mi_dupenv_s(place, size, name)
#define _wdupenv_s(place, size, name) mi_wdupenv_s(place, size, name)
#define _posix_memalign(place, align, n) mi_posix_memalign(place, align, n)
#define _aligned_malloc(n, align) mi_malloc_aligned(n, align)
#define _aligned_realloc(p, n, align) mi_realloc_aligned(p, n, align)
#define _aligned_recalloc(p, count, n, align) mi_recalloc_aligned(p, count, n, align)
#define _aligned_msize(p, align, offset) mi_usable_size(p)
#define _aligned_free(p) mi_free(p)
#define _aligned_offset_malloc(n, align, offset) mi_malloc_aligned_at(n, align, offset)
#define _aligned_offset_realloc(p, n, align, offset) mi_realloc_aligned_at(p, n, align, offset)
#define _aligned_offset_recalloc(p, count, n, align, offset) mi_recalloc_aligned_at(p, count, n, align, offset)

#endif
