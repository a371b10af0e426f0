/*
 * cairn: a general-purpose memory allocator.
 *
 * malloc, free and their family are declared by <stdlib.h> and <malloc.h>, operator new and
 * delete by <new>; a program that is linked with cairn, or runs with it preloaded, needs no
 * change. This header declares what cairn offers beyond them.
 *
 * All sizes are in bytes. All functions may be called by any thread at any time, also by many at
 * once, but not by a signal handler that has interrupted the allocator. Only those that allocate
 * change errno, when they fail.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>

/* What compilers are told about the functions, as far as they want to know. */
#if defined(__GNUC__)
#define CAIRN_NODISCARD __attribute__((warn_unused_result))
#define CAIRN_ALLOCATES __attribute__((malloc, warn_unused_result))
#define CAIRN_SIZE(n) __attribute__((alloc_size(n)))
#define CAIRN_SIZES(n, m) __attribute__((alloc_size(n, m)))
#define CAIRN_ALIGN(n) __attribute__((alloc_align(n)))
#else
#define CAIRN_NODISCARD
#define CAIRN_ALLOCATES
#define CAIRN_SIZE(n)
#define CAIRN_SIZES(n, m)
#define CAIRN_ALIGN(n)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Returns 1. A program that may run with or without cairn asks in two ways, and runs on cairn if
 * one of them finds the function:
 *
 *     #pragma weak cairn_is_active
 *     if (cairn_is_active || dlsym(RTLD_DEFAULT, "cairn_is_active")) ...
 *
 * The weak reference finds it where cairn is linked, also from the archive, whose names dlsym does
 * not see; dlsym finds it where cairn is preloaded.
 */
int cairn_is_active(void);

/*
 * Returns the version of the library as "major.minor.patch". The text is constant and is never
 * to be freed.
 */
const char *cairn_version(void);

/*
 * Returns how many bytes of the block may be used: at least what was asked for. This is
 * malloc_usable_size for a pointer to const.
 *
 * `block` is what an allocation returned and nobody has freed; NULL gives 0. For any other
 * pointer the process ends with a message, as free would end it.
 */
size_t cairn_usable_size(const void *block);

/*
 * Returns the start of the block that `pointer` points to or into, or NULL if that is no memory
 * of cairn. Every pointer may be asked about.
 *
 * The answer for a block that was freed is NULL or what would be the start of a block there; do
 * not use it to find out whether a block is in use.
 */
void *cairn_base(const void *pointer);

/*
 * Gives back to the system all memory that is free, as malloc_trim(0) does. The program runs on
 * meanwhile; it costs a few system calls and later page faults.
 */
void cairn_purge(void);

/*
 * From now on places one allocation in every so many bytes against an inaccessible page, and keeps
 * it inaccessible for a while when it is freed: docs/guide/guards.md. An access that must not be is
 * reported on standard error; then it does what it would have done. 0 bytes end that; what is
 * guarded stays so until it is freed. Returns 1, or 0 if there is no memory for it.
 */
int cairn_guard_every(size_t bytes);

/*
 * Writes to standard error where the process's memory is: what the program holds, what cairn adds
 * and why, and what is resident; docs/guide/statistics.md explains it. Other threads run on meanwhile, so
 * that the figures need not be of one moment. Nothing is allocated.
 */
void cairn_stats_print(void);

/*
 * malloc, calloc, aligned_alloc and realloc from a partition of the heap, 0 to 15; other numbers count
 * modulo 16, and what is allocated without a partition comes from 0. In the hardened build blocks of
 * different partitions shall not take each other's places, so that a mistake with one kind of data does not reach
 * another; in the default build all partitions are one. free and realloc take the blocks;
 * cairn_realloc_in moves a small block to the partition when it has to move it.
 *
 * clang chooses a partition by type under -fsanitize=alloc-token; give it -falloc-token-max=16 then,
 * and link the library.
 */
void *cairn_malloc_in(unsigned int partition, size_t size);
void *cairn_calloc_in(unsigned int partition, size_t count, size_t size);
void *cairn_aligned_alloc_in(unsigned int partition, size_t align, size_t size);
void *cairn_realloc_in(unsigned int partition, void *block, size_t size);

/*
 * Heaps. A block of a heap shares no memory with blocks of threads or of other heaps. It is freed by
 * free, on any thread, like all others; or goes with its heap. There are two kinds:
 *
 * - An owned heap is used by one thread at a time, without locks or atomic steps: the one that has made
 *   or attached it. Another thread may attach it after that one has detached it, or has ended.
 * - A shared heap is used by any thread. Each has a part of it, and needs no lock for it.
 *
 * A call with a heap that has ended, or that another thread has attached, ends the process with a message
 * where that can be seen, which is not in each call. In a forked child an owned heap that another thread had
 * attached must not be used; a shared heap goes on, and what other threads had of it are blocks of no heap.
 *
 * A heap takes 4 KiB (32 KiB in the hardened build, of which it touches what it uses), each part of a shared heap as
 * much, and a page at least for each size of block that is in use.
 */
typedef struct cairn_heap cairn_heap;

/*
 * Make a heap; an owned one is attached to the calling thread. NULL and ENOMEM if there is no memory for it.
 * There may be 65,536 heaps, parts, and threads with a heap of their own at once.
 */
cairn_heap *cairn_heap_new(void) CAIRN_NODISCARD;
cairn_heap *cairn_heap_new_shared(void) CAIRN_NODISCARD;

/*
 * Give an owned heap to the calling thread, and take it from it. The program sees to it that what one thread has done
 * with the heap happens before the other attaches it. With a shared heap they do nothing.
 */
void cairn_heap_attach(cairn_heap *heap);
void cairn_heap_detach(cairn_heap *heap);

/*
 * malloc, calloc, aligned_alloc and realloc from a heap: aligned to 16 or more; NULL and ENOMEM if there is no memory,
 * or if the heap may not have more; EINVAL if an alignment is no power of two. An owned heap must be
 * attached to the calling thread.
 *
 * cairn_heap_realloc takes any block of cairn's. One that can stay where it is does so and keeps its heap; if it must move,
 * it moves to this heap. A size of 0 does not free it. Plain realloc of a heap's block moves it out of the heap when it has
 * to copy it.
 */
void *cairn_heap_malloc(cairn_heap *heap, size_t size) CAIRN_ALLOCATES CAIRN_SIZE(2);
void *cairn_heap_calloc(cairn_heap *heap, size_t count, size_t size) CAIRN_ALLOCATES CAIRN_SIZES(2, 3);
void *cairn_heap_aligned_alloc(cairn_heap *heap, size_t align, size_t size)
    CAIRN_ALLOCATES CAIRN_SIZE(3) CAIRN_ALIGN(2);
void *cairn_heap_realloc(cairn_heap *heap, void *block, size_t size) CAIRN_NODISCARD CAIRN_SIZE(3);

/*
 * Allocates `count` blocks of `size` bytes and writes them to `blocks`. Returns how many: fewer, and ENOMEM, only if there
 * is no memory for more, or the heap may not have them.
 */
size_t cairn_heap_malloc_batch(cairn_heap *heap, size_t size, size_t count, void **blocks) CAIRN_NODISCARD;

/*
 * End a heap; NULL is fine. Nobody may use the heap any more. After cairn_heap_delete its blocks live on, as if any thread
 * had allocated them. cairn_heap_destroy frees them all, in a step for each span of up to 512 KiB and each
 * block over 64 KiB; then nobody may use one, and no thread may be about to free one.
 */
void cairn_heap_delete(cairn_heap *heap);
void cairn_heap_destroy(cairn_heap *heap);

/*
 * The heap of the block that `pointer` points to or into, or NULL: it is a thread's, or no block of cairn's. Every
 * pointer may be asked about; for a block that has been freed the answer is NULL or some heap.
 */
cairn_heap *cairn_heap_of(const void *pointer);
int cairn_heap_contains(const cairn_heap *heap, const void *pointer);

/* A number of the program's choice, 0 at first. */
size_t cairn_heap_tag(const cairn_heap *heap);
void cairn_heap_set_tag(cairn_heap *heap, size_t tag);

/* What a heap holds, in bytes where it does not say otherwise. */
struct cairn_heap_stats {
    size_t spans;        /* of spans, whatever of them is in use */
    size_t large;        /* of blocks over 64 KiB, or aligned to more */
    size_t large_blocks; /* their number */
    size_t peak;         /* the most that spans and large have been together */
    size_t soft_limit;   /* 0: none */
    size_t hard_limit;   /* 0: none */
};

/*
 * Writes what the heap holds to `stats`, which has `bytes` bytes: sizeof *stats. It takes a few loads. Fields are only ever
 * added at the end; what the library does not know is 0.
 */
void cairn_heap_get_stats(const cairn_heap *heap, struct cairn_heap_stats *stats, size_t bytes);

/*
 * Limits what the heap may hold, spans and large blocks together, in bytes; 0 is no limit. Returns 1, or 0 and EINVAL if
 * the heap holds more than `hard`, or `soft` is more than `hard`. No other thread may use the heap meanwhile.
 *
 * An allocation that would take the heap beyond `hard` first gives back what is free in it, and then fails.
 * One that takes it beyond `soft` gives back what is free, in the process too. If the heap still holds more, it
 * calls `on_soft` with `argument`, unless that is NULL: once, until the heap has held less again. `on_soft` runs inside
 * the allocation. It may allocate and free, also in the heap; it must not end the heap, longjmp or throw.
 */
int cairn_heap_set_limits(cairn_heap *heap, size_t soft, size_t hard,
                          void (*on_soft)(cairn_heap *heap, void *argument), void *argument);

/*
 * Gives what is free in the heap back to the system, and what else is free in the process. Parts of a shared heap
 * that other threads use follow when these threads next need memory.
 */
void cairn_heap_purge(cairn_heap *heap);

/* Memory with blocks of one size: a span, or a large block. */
struct cairn_area {
    void *start;       /* the first block */
    size_t bytes;      /* of all blocks */
    size_t block_size; /* bytes */
    size_t blocks;     /* there are */
    size_t used;       /* that the program has */
    cairn_heap *heap;  /* NULL: threads' */
    size_t thread;     /* the number of the thread that owns it, or 0 */
};

/*
 * Calls `visitor` with every area of `heap`, or of the whole process if that is NULL, areas that no thread owns any more
 * included; `block` is NULL then. If `blocks` is not 0, it is called after each area with every block in it that the
 * program has. It goes on while `visitor` returns other than 0. Returns 1 at the end, else 0; 0 too if there is no
 * memory for its notes. Blocks between guards are left out.
 *
 * No other thread may allocate or free meanwhile: stop them before. `visitor` must not either.
 */
int cairn_visit(cairn_heap *heap, int blocks,
                int (*visitor)(const struct cairn_area *area, void *block, void *argument), void *argument);

/*
 * The number of the thread that owns the memory of a block, and so frees it fastest; 0 if none does. The calling
 * thread's own number; 0 if it can have none. No two threads of a process have the same, ever.
 */
size_t cairn_owner_thread(const void *pointer);
size_t cairn_thread_number(void);

/*
 * Where everything is, for tools that read a heap from outside, in a live process or a core
 * file. docs/design/outside-view.md describes how. Constant; fields are only ever added at the end, and
 * `version` changes when the meaning of one does.
 */
struct cairn_header {
    char magic[8]; /* "CAIRNHDR" */
    unsigned int version;
    unsigned int header_bytes;
    const struct cairn_map *map;
    const void *classes; /* the first field of each is the block size, an unsigned int */
    unsigned int class_count;
    unsigned int class_bytes;
    unsigned int slice_shift;
    unsigned int descriptor_bytes; /* owner, class: unsigned int; slot at 8 */
    unsigned int section_slices; /* metadata but descriptors stands in sections */
    unsigned int section_bytes;
    unsigned int slot_bytes;
    unsigned int words_offset; /* 8 bytes each; that of slice i of a section stands at
                                  i / 64 * chunk_bytes + (i % 8 * 8 + i % 64 / 8) * 8 behind it */
    unsigned int heap_bytes;
    unsigned int span_until_event_offset;      /* unsigned int; blocks in use = */
    unsigned int span_used_after_event_offset; /* + this one, a short */
    unsigned int span_carved_offset; /* unsigned short */
    unsigned int span_start_offset;  /* pointer */
    unsigned int slots_offset;       /* slot_bytes each */
    unsigned int chunk_bytes;
    const size_t *lists; /* the end of lists; [2] is the key: a link is word 1 of a block, xor the key */
    size_t *guards; /* what cairn_guard_every is to be called with, a tool may write that; and what was done */
};

/* The reservation of address space that spans and large blocks come from. */
struct cairn_map {
    /* The descriptor of the slice around an address p stands at
       (p >> slice_shift) * descriptor_bytes & mask. */
    const unsigned char *descriptors;
    size_t mask;
    unsigned char *base;
    size_t slices;
    size_t first; /* index of the first slice: 0 */
    const unsigned char *sections;
    const unsigned char *heaps;
    size_t heap_limit;
    size_t committed; /* index of the first slice without memory behind it */
};

extern const struct cairn_header cairn_header;

#ifdef __cplusplus
}
#endif

#endif
