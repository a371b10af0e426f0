/*
 * jemalloc's interface beyond malloc, served by cairn. A program that includes <jemalloc/jemalloc.h> compiles unchanged
 * with the folder above this file's in front of its include path, and is linked with cairn in place of jemalloc.
 * docs/guide/coming-from.md says what differs. What cairn cannot serve does not compile, and the compiler says why.
 */
#ifndef JEMALLOC_H_
#define JEMALLOC_H_

#include "../../common.h"

#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

/* Of the jemalloc whose interface this is. */
#define JEMALLOC_VERSION "5.3.1-cairn"
#define JEMALLOC_VERSION_MAJOR 5
#define JEMALLOC_VERSION_MINOR 3
#define JEMALLOC_VERSION_BUGFIX 1
#define JEMALLOC_VERSION_NREV 0
#define JEMALLOC_VERSION_GID ""

/* Flags. There is no cache of a thread to bypass that a program would notice. */
#define MALLOCX_LG_ALIGN(lg) ((int)(lg))
#define MALLOCX_ALIGN(align) (__builtin_ffsll((long long)(align)) - 1)
#define MALLOCX_ZERO ((int)0x40)
#define MALLOCX_TCACHE_NONE ((int)0)
#define MALLOCX_ARENA(arena) ((((int)(arena)) + 1) << 20)
#define MALLCTL_ARENAS_ALL 4096
#define MALLCTL_ARENAS_DESTROYED 4097

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Arenas that the program makes are shared heaps, by their numbers; 0 stands for what threads have. The table is one for
 * all files of a program.
 */
enum { CAIRN_JE_HEAPS = 1024 };
__attribute__((weak)) cairn_heap *cairn_je_heaps[CAIRN_JE_HEAPS];
/* Whose turn it is to end one, or to purge one of all: a process and its thread; 0: nobody's. */
__attribute__((weak)) uint64_t cairn_je_turn;

static inline cairn_heap *cairn_je_heap(size_t arena) {
    return arena < CAIRN_JE_HEAPS ? __atomic_load_n(&cairn_je_heaps[arena], __ATOMIC_ACQUIRE) : NULL;
}

/* Whether flags name an arena of the program's. */
static inline bool cairn_je_has_arena(int flags) { return (unsigned int)flags >> 20 > 1; }

static inline size_t cairn_je_align(int flags) { return (size_t)1 << (flags & 63); }

/*
 * What nallocx says of a size, and so what is asked of cairn: a block has at least that much, and exactly that up to
 * 64 KiB. 0 if it cannot be.
 */
static inline size_t nallocx(size_t size, int flags) {
    size_t align = cairn_je_align(flags);
    if (align > 16) {
        /* Hardened, the block has a word more. */
        size_t word = 16 - cairn_good_size(0);
        if (align > PTRDIFF_MAX || size > PTRDIFF_MAX - align - word) return 0;
        size = size + word ? (size + word + align - 1) / align * align - word : align;
    }
    return cairn_good_size(size);
}

/* NULL too if there is no such arena. */
static inline void *cairn_je_from_arena(size_t good, int flags) {
    cairn_heap *heap = cairn_je_heap(((unsigned int)flags >> 20) - 1);
    size_t align = cairn_je_align(flags);
    void *block = NULL;
    if (!heap) errno = ENOMEM;
    else block = align > 16 ? cairn_heap_aligned_alloc(heap, align, good) : cairn_heap_malloc(heap, good);
    if (block && (flags & MALLOCX_ZERO)) cairn_zero(block, 0, cairn_usable_size(block));
    return block;
}

static inline void *mallocx(size_t size, int flags) {
    size_t align = cairn_je_align(flags), good = nallocx(size, flags);
    if (good == 0) {
        errno = ENOMEM;
        return NULL;
    }
    if (cairn_je_has_arena(flags)) return cairn_je_from_arena(good, flags);
    if (flags & MALLOCX_ZERO) return cairn_zalloc_aligned(align, good);
    return align > 16 ? cairn_libc_aligned_alloc(align, good) : malloc(good);
}

static inline size_t sallocx(const void *block, int flags) {
    (void)flags;
    return cairn_usable_size(block);
}

static inline void dallocx(void *block, int flags) {
    (void)flags;
    free(block);
}

/* A size or alignment that cannot be the block's ends the process. */
static inline void sdallocx(void *block, size_t size, int flags) {
    /* mallocx has asked for more, and rallocx may have left the block where it was: all that it has may be freed. */
    size_t has = cairn_usable_size(block);
    if (size <= has && nallocx(size, flags) >= has / 2) size = has;
    if (cairn_je_align(flags) > 16) free_aligned_sized(block, cairn_je_align(flags), size);
    else free_sized(block, size);
}

/*
 * In place, or not at all: the size that the block has then. It tries `size` and `extra` together, then `size`. With
 * MALLOCX_ZERO what it gains is zero.
 */
static inline size_t xallocx(void *block, size_t size, size_t extra, int flags) {
    size_t old = cairn_usable_size(block), most = extra > SIZE_MAX - size ? SIZE_MAX : size + extra;
    if ((uintptr_t)block % cairn_je_align(flags) != 0) return old;
    if (!cairn_try_expand(block, most) && !cairn_try_expand(block, size)) return old;
    if (flags & MALLOCX_ZERO) cairn_zero(block, old, cairn_usable_size(block));
    return cairn_usable_size(block);
}

/* The block stays as it is if there is no memory. With MALLOCX_ZERO what it gains is zero. */
static inline void *rallocx(void *block, size_t size, int flags) {
    size_t old = cairn_usable_size(block), align = cairn_je_align(flags), good = nallocx(size, flags);
    void *moved;
    if (good == 0) {
        errno = ENOMEM;
        return NULL;
    }
    if (align > 16 || cairn_je_has_arena(flags)) {
        if ((uintptr_t)block % align == 0 && good >= old - old / 2 && xallocx(block, good, 0, flags) >= good)
            return cairn_of_any_size(block);
        moved = cairn_je_has_arena(flags) ? cairn_je_from_arena(good, flags) : cairn_libc_aligned_alloc(align, good);
        if (!moved) return NULL;
        memcpy(moved, block, old < good ? old : good);
        free(block);
    } else if (!(moved = realloc(block, good))) {
        return NULL;
    }
    if (flags & MALLOCX_ZERO) cairn_zero(moved, old, cairn_usable_size(moved));
    return moved;
}

#include "../../jemalloc/control.h"

#ifndef __cplusplus
/* <stdlib.h> and <malloc.h> have them in other modes of the compiler only. */
int posix_memalign(void **place, size_t align, size_t size);
void *aligned_alloc(size_t align, size_t size);

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#endif

CAIRN_NONE(MALLOCX_TCACHE, "a thread has one cache, which cairn finds by itself");
typedef struct extent_hooks_s extent_hooks_t CAIRN_UNAVAILABLE("cairn_region_new takes a program's functions");
extern void (*malloc_message)(void *, const char *)
    CAIRN_UNAVAILABLE("cairn writes to standard error, and only one line when it ends the process");

/* A program that sets jemalloc's options above the include: its own declaration is another one. */
extern struct cairn_reads_no_malloc_conf_set_its_environment_variables malloc_conf;
extern struct cairn_reads_no_malloc_conf_set_its_environment_variables je_malloc_conf;

#ifndef __cplusplus
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif

/* And below it. */
#define malloc_conf _Pragma("GCC error \"cairn reads no malloc_conf: set its environment variables\"") malloc_conf

/* The names of a jemalloc that was configured with the prefix je_. */
#define je_malloc malloc
#define je_calloc calloc
#define je_realloc realloc
#define je_free free
#define je_posix_memalign posix_memalign
#define je_aligned_alloc aligned_alloc
#define je_memalign memalign
#define je_valloc valloc
#define je_malloc_usable_size malloc_usable_size
#define je_mallocx mallocx
#define je_rallocx rallocx
#define je_xallocx xallocx
#define je_sallocx sallocx
#define je_dallocx dallocx
#define je_sdallocx sdallocx
#define je_nallocx nallocx
#define je_mallctl mallctl
#define je_mallctlnametomib mallctlnametomib
#define je_mallctlbymib mallctlbymib
#define je_malloc_stats_print malloc_stats_print
#define je_malloc_conf malloc_conf
#define je_malloc_message malloc_message

#endif
