/* mimalloc's malloc family. Part of compat/mimalloc.h. */

#define MI_SMALL_WSIZE_MAX (128)
#define MI_SMALL_SIZE_MAX (MI_SMALL_WSIZE_MAX * sizeof(void *))

/* How functions are called, on Windows. */
#define mi_cdecl

/* A heap, and a thread's part of one, which cairn finds by itself. */
struct mi_heap_s;
typedef struct mi_heap_s mi_heap_t;
typedef struct mi_heap_s mi_theap_t;

/* The main heap: those of threads, from which malloc allocates. Like all handles it is only compared. */
#define CAIRN_MI_MAIN ((mi_heap_t *)(uintptr_t)1)

static inline bool cairn_mi_is_main(const mi_heap_t *heap) { return heap == CAIRN_MI_MAIN; }
static inline cairn_heap *cairn_mi_heap(const mi_heap_t *heap) { return (cairn_heap *)(uintptr_t)heap; }

/* All that allocates from a heap comes through these three. The alignment of malloc is 0. */
static inline void *cairn_mi_alloc(mi_heap_t *heap, size_t align, size_t size) {
    if (cairn_mi_is_main(heap)) return align ? cairn_libc_aligned_alloc(align, size) : malloc(size);
    if (align) return cairn_heap_aligned_alloc(cairn_mi_heap(heap), align, size);
    return cairn_heap_malloc(cairn_mi_heap(heap), size);
}

/* The whole block is zero: mi_rezalloc needs that. */
static inline void *cairn_mi_zalloc(mi_heap_t *heap, size_t align, size_t size) {
    void *block;
    if (cairn_mi_is_main(heap)) return align ? cairn_zalloc_aligned(align, size) : cairn_zalloc(size);
    if (align) {
        block = cairn_heap_aligned_alloc(cairn_mi_heap(heap), align, size);
        if (block) cairn_zero(block, 0, cairn_usable_size(block));
    } else {
        block = cairn_heap_calloc(cairn_mi_heap(heap), 1, size);
        if (block) cairn_zero(block, size, cairn_usable_size(block));
    }
    return block;
}

/* A size of 0 does not free. With `zero` what the block gains is zero, and what it leaves behind. */
static inline void *cairn_mi_resize(mi_heap_t *heap, void *block, size_t size, bool zero) {
    size_t old;
    void *resized;
    if (zero && !block) return cairn_mi_zalloc(heap, 0, size);
    old = zero ? cairn_usable_size(block) : 0;
    resized = cairn_mi_is_main(heap) ? cairn_resize(block, size)
                                     : cairn_heap_realloc(cairn_mi_heap(heap), block, size);
    if (resized && zero) cairn_zero(resized, old < size ? old : size, cairn_usable_size(resized));
    return resized;
}

/* The same, so that the byte at `offset`, which is 0 in heaps but the main one, is aligned. */
static inline void *cairn_mi_resize_at(mi_heap_t *heap, void *block, size_t size, size_t align, size_t offset,
                                       bool zero) {
    size_t old = cairn_usable_size(block), kept = old < size ? old : size;
    void *moved;
    if (!cairn_is_alignment(align)) {
        errno = EINVAL;
        return NULL;
    }
    if (align <= 16 && offset % align == 0) return cairn_mi_resize(heap, block, size, zero);
    if (block && ((uintptr_t)block + offset) % align == 0 && size >= old - old / 2 && cairn_try_expand(block, size)) {
        if (zero) cairn_zero(block, kept, cairn_usable_size(block));
        return cairn_of_any_size(block);
    }
    moved = offset % align ? cairn_aligned_alloc_at(align, offset, size) : cairn_mi_alloc(heap, align, size);
    if (!moved) return NULL;
    if (block) memcpy(moved, block, kept);
    if (zero) cairn_zero(moved, kept, cairn_usable_size(moved));
    free(block);
    return moved;
}

static inline char *cairn_mi_copy(mi_heap_t *heap, const char *text, size_t length) {
    char *copy;
    if (!text) return NULL;
    copy = (char *)cairn_mi_alloc(heap, 0, length + 1);
    if (!copy) return NULL;
    memcpy(copy, text, length);
    copy[length] = 0;
    return copy;
}

static inline size_t cairn_mi_length(const char *text, size_t most) {
    const void *end = text ? memchr(text, 0, most) : NULL;
    return end ? (size_t)((const char *)end - text) : most;
}

/* malloc and its kind. */
static inline void *mi_malloc(size_t size) { return malloc(size); }
static inline void *mi_malloc_small(size_t size) { return malloc(size); }
static inline void *mi_zalloc(size_t size) { return cairn_zalloc(size); }
static inline void *mi_zalloc_small(size_t size) { return cairn_zalloc(size); }
static inline void *mi_calloc(size_t count, size_t size) { return cairn_zalloc(cairn_product(count, size)); }
static inline void *mi_mallocn(size_t count, size_t size) { return malloc(cairn_product(count, size)); }
static inline void mi_free(void *block) { free(block); }
static inline void mi_free_small(void *block) { free(block); }
static inline void mi_cfree(void *block) {
    if (cairn_base(block)) free(block);
}

/* Neither size nor alignment is looked at, as in a release build of mimalloc. */
static inline void mi_free_size(void *block, size_t size) { (void)size, free(block); }
static inline void mi_free_aligned(void *block, size_t align) { (void)align, free(block); }
static inline void mi_free_size_aligned(void *block, size_t size, size_t align) {
    (void)size, (void)align, free(block);
}

static inline void *mi_realloc(void *block, size_t size) { return cairn_resize(block, size); }
static inline void *mi_rezalloc(void *block, size_t size) {
    return cairn_mi_resize(CAIRN_MI_MAIN, block, size, true);
}
static inline void *mi_reallocn(void *block, size_t count, size_t size) {
    return cairn_resize(block, cairn_product(count, size));
}
static inline void *mi_recalloc(void *block, size_t count, size_t size) {
    return mi_rezalloc(block, cairn_product(count, size));
}
static inline void *mi_reallocf(void *block, size_t size) {
    void *resized = cairn_resize(block, size);
    if (!resized) free(block);
    return resized;
}
static inline void *mi_reallocarray(void *block, size_t count, size_t size) {
    size_t bytes = cairn_product(count, size);
    if (bytes == SIZE_MAX) {
        errno = EOVERFLOW;
        return NULL;
    }
    return cairn_resize(block, bytes);
}
static inline int mi_reallocarr(void *place, size_t count, size_t size) {
    void *block, *resized;
    size_t bytes = cairn_product(count, size);
    if (!place || size == 0) return errno = EINVAL;
    if (bytes == SIZE_MAX) return errno = EOVERFLOW;
    memcpy(&block, place, sizeof block);
    if (bytes == 0) {
        free(block);
        resized = NULL;
    } else if (!(resized = realloc(block, bytes))) {
        return errno = ENOMEM;
    }
    memcpy(place, &resized, sizeof resized);
    return 0;
}

/* In place, or not at all. */
static inline void *mi_expand(void *block, size_t size) {
    return cairn_try_expand(block, size) ? cairn_of_any_size(block) : NULL;
}
static inline void *mi__expand(void *block, size_t size) {
    void *expanded = mi_expand(block, size);
    if (!expanded) errno = ENOMEM;
    return expanded;
}

/* Sizes. */
static inline size_t mi_usable_size(const void *block) { return cairn_usable_size(block); }
static inline size_t mi_malloc_size(const void *block) { return cairn_usable_size(block); }
static inline size_t mi_malloc_usable_size(const void *block) { return cairn_usable_size(block); }
static inline size_t mi_good_size(size_t size) {
    size_t good = cairn_good_size(size);
    return good ? good : size;
}
static inline size_t mi_malloc_good_size(size_t size) { return mi_good_size(size); }

static inline void cairn_mi_tell_size(const void *block, size_t *place) {
    if (place) *place = cairn_usable_size(block);
}
static inline void *mi_umalloc(size_t size, size_t *usable) {
    void *block = malloc(size);
    cairn_mi_tell_size(block, usable);
    return block;
}
static inline void *mi_umalloc_small(size_t size, size_t *usable) { return mi_umalloc(size, usable); }
static inline void *mi_ucalloc(size_t count, size_t size, size_t *usable) {
    void *block = mi_calloc(count, size);
    cairn_mi_tell_size(block, usable);
    return block;
}
static inline void *mi_uzalloc_small(size_t size, size_t *usable) { return mi_ucalloc(1, size, usable); }
static inline void *mi_urealloc(void *block, size_t size, size_t *before, size_t *after) {
    void *resized;
    cairn_mi_tell_size(block, before);
    resized = cairn_resize(block, size);
    cairn_mi_tell_size(resized, after);
    return resized;
}
static inline void mi_ufree(void *block, size_t *usable) {
    cairn_mi_tell_size(block, usable);
    free(block);
}

/* Aligned. An alignment that is no power of two gives NULL. */
static inline void *mi_malloc_aligned(size_t size, size_t align) { return cairn_libc_aligned_alloc(align, size); }
static inline void *mi_zalloc_aligned(size_t size, size_t align) { return cairn_zalloc_aligned(align, size); }
static inline void *mi_calloc_aligned(size_t count, size_t size, size_t align) {
    return cairn_zalloc_aligned(align, cairn_product(count, size));
}
static inline void *mi_umalloc_aligned(size_t size, size_t align, size_t *usable) {
    void *block = mi_malloc_aligned(size, align);
    cairn_mi_tell_size(block, usable);
    return block;
}
static inline void *mi_uzalloc_aligned(size_t size, size_t align, size_t *usable) {
    void *block = mi_zalloc_aligned(size, align);
    cairn_mi_tell_size(block, usable);
    return block;
}
static inline void *mi_realloc_aligned(void *block, size_t size, size_t align) {
    return cairn_mi_resize_at(CAIRN_MI_MAIN, block, size, align, 0, false);
}
static inline void *mi_rezalloc_aligned(void *block, size_t size, size_t align) {
    return cairn_mi_resize_at(CAIRN_MI_MAIN, block, size, align, 0, true);
}
static inline void *mi_recalloc_aligned(void *block, size_t count, size_t size, size_t align) {
    return mi_rezalloc_aligned(block, cairn_product(count, size), align);
}
static inline void *mi_aligned_recalloc(void *block, size_t count, size_t size, size_t align) {
    return mi_recalloc_aligned(block, count, size, align);
}

/* With an offset that is no multiple of the alignment such a block takes 16 KiB. */
static inline void *mi_malloc_aligned_at(size_t size, size_t align, size_t offset) {
    return cairn_aligned_alloc_at(align, offset, size);
}
static inline void *mi_zalloc_aligned_at(size_t size, size_t align, size_t offset) {
    void *block = cairn_aligned_alloc_at(align, offset, size);
    if (block) cairn_zero(block, 0, cairn_usable_size(block));
    return block;
}
static inline void *mi_calloc_aligned_at(size_t count, size_t size, size_t align, size_t offset) {
    return mi_zalloc_aligned_at(cairn_product(count, size), align, offset);
}
static inline void *mi_realloc_aligned_at(void *block, size_t size, size_t align, size_t offset) {
    return cairn_mi_resize_at(CAIRN_MI_MAIN, block, size, align, offset, false);
}
static inline void *mi_rezalloc_aligned_at(void *block, size_t size, size_t align, size_t offset) {
    return cairn_mi_resize_at(CAIRN_MI_MAIN, block, size, align, offset, true);
}
static inline void *mi_recalloc_aligned_at(void *block, size_t count, size_t size, size_t align, size_t offset) {
    return mi_rezalloc_aligned_at(block, cairn_product(count, size), align, offset);
}
static inline void *mi_aligned_offset_recalloc(void *block, size_t count, size_t size, size_t align, size_t offset) {
    return mi_recalloc_aligned_at(block, count, size, align, offset);
}

/* POSIX's, and older ones. The alignment comes first. */
static inline void *mi_memalign(size_t align, size_t size) { return mi_malloc_aligned(size, align); }
static inline void *mi_aligned_alloc(size_t align, size_t size) { return mi_malloc_aligned(size, align); }
static inline int mi_posix_memalign(void **place, size_t align, size_t size) {
    int before = errno;
    void *block;
    if (!place || align % sizeof(void *) != 0 || !cairn_is_alignment(align)) return EINVAL;
    block = mi_malloc_aligned(size, align);
    errno = before;
    if (!block) return ENOMEM;
    *place = block;
    return 0;
}
static inline void *mi_valloc(size_t size) { return mi_malloc_aligned(size, (size_t)sysconf(_SC_PAGESIZE)); }
static inline void *mi_pvalloc(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = size > SIZE_MAX - page ? SIZE_MAX : (size + page - 1) / page * page;
    return mi_malloc_aligned(bytes, page);
}

/* Text. NULL gives NULL. */
static inline char *mi_strdup(const char *text) { return cairn_mi_copy(CAIRN_MI_MAIN, text, text ? strlen(text) : 0); }
static inline char *mi_strndup(const char *text, size_t n) {
    return cairn_mi_copy(CAIRN_MI_MAIN, text, cairn_mi_length(text, n));
}
static inline char *mi_realpath(const char *path, char *resolved) { return cairn_libc_realpath(path, resolved); }
static inline unsigned char *mi_mbsdup(const unsigned char *text) {
    return (unsigned char *)mi_strdup((const char *)text);
}
static inline wchar_t *mi_wcsdup(const wchar_t *text) {
    size_t bytes = text ? (wcslen(text) + 1) * sizeof(wchar_t) : 0;
    wchar_t *copy = text ? (wchar_t *)malloc(bytes) : NULL;
    if (copy) memcpy(copy, text, bytes);
    return copy;
}
static inline int mi_dupenv_s(char **place, size_t *size, const char *name) {
    const char *value;
    if (size) *size = 0;
    if (!place || !name) return EINVAL;
    value = getenv(name);
    *place = mi_strdup(value);
    if (value && !*place) return ENOMEM;
    if (value && size) *size = strlen(value) + 1;
    return 0;
}
/* As everywhere but on Windows. */
static inline int mi_wdupenv_s(wchar_t **place, size_t *size, const wchar_t *name) {
    if (size) *size = 0;
    if (place && name) *place = NULL;
    return EINVAL;
}

/* operator new: asks the new-handler for memory, and throws std::bad_alloc. C, and C++ without exceptions, abort. */
#ifndef __cplusplus
void (*cairn_new_handler(void))(void) __asm__("_ZSt15get_new_handlerv") __attribute__((weak));
#endif

static inline bool cairn_mi_handled(void) {
#ifdef __cplusplus
    void (*handler)(void) = std::get_new_handler();
#else
    void (*handler)(void) = cairn_new_handler ? cairn_new_handler() : NULL;
#endif
    if (handler) handler();
    return handler != NULL;
}

static inline void *cairn_mi_new(mi_heap_t *heap, size_t align, size_t size) {
    void *block;
    while (!(block = cairn_mi_alloc(heap, align, size))) {
        if (cairn_mi_handled()) continue;
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        throw std::bad_alloc();
#else
        abort();
#endif
    }
    return block;
}

static inline void *cairn_mi_new_nothrow(size_t align, size_t size) {
    void *block;
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    try {
        while (!(block = cairn_mi_alloc(CAIRN_MI_MAIN, align, size)) && cairn_mi_handled()) {
        }
    } catch (...) {
        return NULL;
    }
#else
    while (!(block = cairn_mi_alloc(CAIRN_MI_MAIN, align, size)) && cairn_mi_handled()) {
    }
#endif
    return block;
}

static inline void *mi_new(size_t size) { return cairn_mi_new(CAIRN_MI_MAIN, 0, size); }
static inline void *mi_new_aligned(size_t size, size_t align) { return cairn_mi_new(CAIRN_MI_MAIN, align, size); }
static inline void *mi_new_nothrow(size_t size) { return cairn_mi_new_nothrow(0, size); }
static inline void *mi_new_aligned_nothrow(size_t size, size_t align) { return cairn_mi_new_nothrow(align, size); }
static inline void *mi_new_n(size_t count, size_t size) { return mi_new(cairn_product(count, size)); }
static inline void *mi_new_realloc(void *block, size_t size) {
    void *resized = cairn_resize(block, size);
    if (!resized) {
        size_t old = cairn_usable_size(block);
        resized = mi_new(size);
        if (block) memcpy(resized, block, old < size ? old : size);
        free(block);
    }
    return resized;
}
static inline void *mi_new_reallocn(void *block, size_t count, size_t size) {
    return mi_new_realloc(block, cairn_product(count, size));
}

/* For a type. */
#define mi_malloc_tp(tp) ((tp *)mi_malloc(sizeof(tp)))
#define mi_zalloc_tp(tp) ((tp *)mi_zalloc(sizeof(tp)))
#define mi_calloc_tp(tp, n) ((tp *)mi_calloc(n, sizeof(tp)))
#define mi_mallocn_tp(tp, n) ((tp *)mi_mallocn(n, sizeof(tp)))
#if CAIRN_MIMALLOC_VERSION == 3
#define mi_reallocn_tp(tp, p, n) ((tp *)mi_reallocn(p, n, sizeof(tp)))
#define mi_recalloc_tp(tp, p, n) ((tp *)mi_recalloc(p, n, sizeof(tp)))
#else
#define mi_reallocn_tp(p, tp, n) ((tp *)mi_reallocn(p, n, sizeof(tp)))
#define mi_recalloc_tp(p, tp, n) ((tp *)mi_recalloc(p, n, sizeof(tp)))
#endif
