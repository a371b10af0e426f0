/*
 * cairn: a general-purpose memory allocator.
 *
 * malloc, free and their family are declared by <stdlib.h> and <malloc.h>, operator new and
 * delete by <new>; a program that is linked with cairn, or runs with it preloaded, needs no
 * change. This header declares what cairn offers beyond them, and the sized frees of C23.
 *
 * All sizes are in bytes. All functions may be called by any thread at any time, also by many at
 * once, but not by a signal handler that has interrupted the allocator. Only those that allocate,
 * and those that say so, change errno, when they fail.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>

/* What compilers can make use of, and nothing for those that cannot. */
#if defined(__GNUC__) || defined(__clang__)
#define CAIRN_ALLOCATES __attribute__((malloc, warn_unused_result))
#define CAIRN_NODISCARD __attribute__((warn_unused_result))
#define CAIRN_SIZE_IS(argument) __attribute__((alloc_size(argument)))
#define CAIRN_SIZES_ARE(one, other) __attribute__((alloc_size(one, other)))
#else
#define CAIRN_ALLOCATES
#define CAIRN_NODISCARD
#define CAIRN_SIZE_IS(argument)
#define CAIRN_SIZES_ARE(one, other)
#endif
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 5)
#define CAIRN_ALIGN_IS(argument) __attribute__((alloc_align(argument)))
#else
#define CAIRN_ALIGN_IS(argument)
#endif

/* As C libraries declare their functions to C++. */
#if !defined(__cplusplus)
#define CAIRN_NOTHROW
#elif __cplusplus >= 201103L
#define CAIRN_NOTHROW noexcept
#else
#define CAIRN_NOTHROW throw()
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
 * pointer the process ends with a message, as free would end it. But a freed block that is small,
 * or waits for readers of its heap, may be answered as if it were in use; hardened, it ends the
 * process, too.
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
 * Returns the most bytes that a request can name and take no more memory than one of `size`; 0 if no request of
 * `size` can succeed. Ask for that much if you can use it. A block of `size` bytes may have less: see
 * cairn_malloc_at_least.
 */
size_t cairn_good_size(size_t size);

/*
 * The size classes: how many there are, and the bytes in a block of class 0, 1, ...; 0 beyond the last. Larger
 * blocks own whole slices of 16 KiB.
 */
unsigned int cairn_class_count(void);
size_t cairn_class_size(unsigned int index);

/*
 * Makes a block at least `size` bytes long without moving it. Returns 1, or 0 if that cannot be; then nothing has
 * changed, errno neither. A small block has the room of its class. A large one grows into free memory behind it, one
 * of 32 MiB or more by a system call where the addresses behind it are free. A smaller size gives 1; what realloc
 * gives back of a large block in place goes back. After a 1 `size` is what free_sized is to be told. Compilers hold what
 * malloc returned for no larger than what it was asked for: use a pointer that they know nothing of beyond that.
 *
 * `block` is what an allocation returned and nobody has freed, or NULL, which gives 0. Other pointers end the process
 * with a message, as in free. No other thread may use the block meanwhile.
 */
CAIRN_NODISCARD
int cairn_try_expand(void *block, size_t size);

/*
 * malloc and aligned_alloc that tell in `*usable` how many bytes the block has, all of which may be used; 0 if they
 * fail. They fail as malloc (ENOMEM) and aligned_alloc (also EINVAL: the alignment is no power of two) do. The block
 * may be freed as one of any size from `size` to `*usable`. C++ has __size_returning_new and its forms.
 */
CAIRN_ALLOCATES
void *cairn_malloc_at_least(size_t size, size_t *usable);
CAIRN_ALLOCATES CAIRN_ALIGN_IS(1)
void *cairn_aligned_alloc_at_least(size_t align, size_t size, size_t *usable);

/*
 * Allocates `size` bytes so that the byte at `offset`, which may lie behind them, is at a multiple of `align`, a power
 * of two. NULL and EINVAL if it is none, NULL and ENOMEM without memory. free and realloc take the block; realloc
 * keeps the place only if it need not move the block; free_sized and sized delete do not know such blocks.
 *
 * An offset that is a multiple of `align` costs nothing. With any other the block takes slices of 16 KiB for itself,
 * however small it is, and two locks; one of 32 MiB or more, or aligned to more than 16 MiB, up to `align` bytes of
 * address space. It need not be aligned to 16.
 */
CAIRN_ALLOCATES CAIRN_SIZE_IS(3)
void *cairn_aligned_alloc_at(size_t align, size_t offset, size_t size);

/*
 * free of C23, by one who knows the size, and the alignment, that the block was asked for with: here for C libraries
 * that do not declare them. After realloc, cairn_try_expand and the like the size is what they were asked for. What
 * cannot be the block's ends the process with a message. NULL does nothing.
 */
void free_sized(void *block, size_t size) CAIRN_NOTHROW;
void free_aligned_sized(void *block, size_t align, size_t size) CAIRN_NOTHROW;

/*
 * As `count` calls of malloc(size), and as free on each of `count` blocks, which may be NULL, of any sizes, and of any
 * threads. cairn_malloc_batch stores the blocks from blocks[0] on and returns how many there are. If these are fewer
 * than `count`, errno is ENOMEM, and the other places are as they were. A pair takes a fifth to a quarter fewer
 * instructions than malloc and free. What ends the process in free does so here.
 */
CAIRN_NODISCARD
size_t cairn_malloc_batch(size_t size, size_t count, void **blocks);
void cairn_free_batch(void *const *blocks, size_t count);

/*
 * recallocarray of OpenBSD: resizes an array of `old_count` elements to `count`. New elements are zero. Elements that
 * go are wiped, and so is the old block if the array moves: no copy of a secret stays behind. NULL allocates. A count
 * of 0 gives a block of 0 bytes.
 *
 * NULL and ENOMEM if there is no memory or the product of `count` and `size` overflows, NULL and EINVAL if that of
 * `old_count` does: the old block stays as it is. If it cannot have `old_count` elements, the process ends with a
 * message. A block that has to move is copied, however large it is.
 */
CAIRN_NODISCARD CAIRN_SIZES_ARE(3, 4)
void *cairn_recallocarray(void *block, size_t old_count, size_t count, size_t size);

/*
 * Gives back to the system all memory that is free, as malloc_trim(0) does. The program runs on
 * meanwhile; it costs a few system calls and later page faults.
 *
 * It reaches what no thread holds and what the calling thread holds. Other threads are asked: at their next visit of
 * a slow path they give up empty spans and what they are about to free to others. Their caches stay; a thread that is
 * going to wait calls cairn_thread_idle.
 */
void cairn_purge(void);

/*
 * To be called by a thread that is going to wait, as those of a pool do: its cached blocks, frees under way to other
 * threads, spans and the large block that it keeps go to where other threads find them. What is empty of them goes
 * back to the system by time, or with the next cairn_purge. It may allocate and free at once again; that begins as in
 * a new thread. It costs a step for each span of the thread, some microseconds in all: not for waits shorter than a
 * millisecond.
 */
void cairn_thread_idle(void);

/*
 * Returns 1 if moving the block would help memory: malloc a new one, copy, free this one. 0 if not, and for all that is
 * no block of up to 64 KiB. It is so for blocks in spans that are not nearly full, are no fuller than the average of
 * such spans of their class, and are not the one from which the next blocks come. Any pointer may be asked about.
 *
 * Call it right before the move, on the thread that moves: when it returns 1, it has emptied the thread's cache of that
 * size, so that the old block's place is not the next one's. It is asked of all blocks, again and again, until it
 * returns 0 for each; that comes, for each block moves about once. A question takes some 40 ns, and a move as long as
 * a malloc and a free without a cache. examples/c/defrag.c shows a store that does this. The hardened build returns 0.
 */
int cairn_should_move(const void *block);

/*
 * From now on places one allocation in every so many bytes against an inaccessible page, and keeps
 * it inaccessible for a while when it is freed: docs/guide/guards.md. An access that must not be is
 * reported on standard error; then it does what it would have done. 0 bytes end that; what is
 * guarded stays so until it is freed. Returns 1, or 0 if there is no memory for it.
 */
int cairn_guard_every(size_t bytes);

/*
 * From now on takes a sample of every so many bytes that are allocated, on average, for the heap profile: which code has
 * allocated what is live, and what has been allocated since the start (docs/guide/profile.md). 512 KiB serve well. 0 bytes
 * end that; what has been sampled stays known. Who calls this or cairn_guard_every last draws samples. Returns 1, or 0 if
 * there is no memory for it.
 */
int cairn_profile_every(size_t bytes);

/*
 * Writes the heap profile to a descriptor. Returns 1, or 0 if not all of it can be written. `cairn profile` reads it. Nothing is
 * allocated, and no lock is held. Other threads run on meanwhile.
 */
int cairn_profile_write(int descriptor);

/*
 * Calls `write` with `arg` and pieces of text, which together are the same. `write` may do what it likes, also allocate. It must
 * not throw.
 */
void cairn_profile_text(void (*write)(void *arg, const char *text, size_t n), void *arg);

/*
 * Writes to standard error where the process's memory is: what the program holds, what cairn adds
 * and why, and what is resident; docs/guide/statistics.md explains it. Other threads run on meanwhile, so
 * that the figures need not be of one moment. Nothing is allocated.
 */
void cairn_stats_print(void);

/*
 * Calls `write` with `arg` and pieces of text, which together are the statistics as one JSON object, in ASCII and without
 * a zero at the end. The fields are those of docs/guide/statistics.md; more may be added. All are whole numbers but
 * `version`, those of bytes up to 2^63. Nothing is allocated, and no lock is held: `write` may do what it likes, also
 * allocate. It must not throw.
 */
void cairn_stats_json(void (*write)(void *arg, const char *text, size_t n), void *arg);

/*
 * Calls `write` with `arg` and pieces of text, which together are single figures in the text format of Prometheus:
 * cairn_allocated_bytes, cairn_resident_bytes and so on. Otherwise as cairn_stats_json.
 */
void cairn_stats_prometheus(void (*write)(void *arg, const char *text, size_t n), void *arg);

/*
 * Writes a single figure to `value`, as it is now, by the names of docs/guide/statistics.md: "allocated", "active",
 * "resident", "retained" and so on. Returns 1, or 0 if there is none of that name. Cheap enough for each second, by a walk
 * over the metadata; nothing is allocated.
 */
int cairn_stats_get(const char *name, size_t *value);

/*
 * cairn_count(1) begins to count the bytes that the calling thread allocates and frees, cairn_count(0) ends it. Returns
 * 1, or 0 if there is no memory for it. The other two return what the thread has counted; 0 in a new one. What it frees
 * counts for it, whoever has allocated that.
 *
 * The counts are exact: each block by its usable size; one that realloc resizes in place as if it were freed and
 * allocated, if it is large, and not at all if it is small. Blocks of closed heaps do not count, and in the hardened
 * build none of partitions. While it is on, a malloc or free of the thread takes some 120 instructions more, and
 * cairn_guard_every does not guard its blocks. Other threads pay nothing.
 */
int cairn_count(int on);
size_t cairn_thread_allocated(void);
size_t cairn_thread_freed(void);

/*
 * Where the calling thread counts: the bytes that it has allocated, and freed, as the functions above return them. They
 * may be read until the thread ends or calls cairn_count(0). NULL if it does not count.
 */
const size_t *cairn_thread_counts(void);

/*
 * How many milliseconds free memory lies idle before it goes back to the system, and sets that, as CAIRN_PURGE_DELAY does.
 * What a large burst of frees leaves goes back at once, whatever is set.
 */
size_t cairn_purge_delay_ms(void);
void cairn_set_purge_delay_ms(size_t ms);

/*
 * Limits the memory of the process, in bytes. `hard` is what it may have, 0: whatever there is; an allocation that would go
 * beyond first gives back what is free, and then fails with ENOMEM. `soft` is what it shall stay within: from 7/8 of it on
 * less and less free memory stays, nothing at 95 %. 0 is what the process's memory cgroup may have (memory.max and
 * memory.high, 64 MiB at least), SIZE_MAX no soft limit, and nobody asks the group. Returns 1, or 0 and EINVAL if `soft` is
 * more than `hard`. docs/guide/memory.md says what counts.
 */
int cairn_set_memory_limits(size_t soft, size_t hard);

/* The memory of the process and its limits, in bytes. */
struct cairn_memory {
    size_t counted;     /* what counts for the hard limit */
    size_t soft_limit;  /* as it has been set */
    size_t hard_limit;  /* 0: none */
    size_t group_used;  /* what the memory cgroup has, files in memory included; 0: there is none with a limit */
    size_t group_limit; /* the lower of its limits */
};

/* Writes that to `memory`, which has `bytes` bytes: sizeof *memory. As cairn_heap_get_stats. It reads files of the group. */
void cairn_get_memory(struct cairn_memory *memory, size_t bytes);

/*
 * Has `call` told when memory runs short; NULL ends that. There is one such function for the process; `argument` is handed to
 * it. With `size` 0 a limit, set or of the memory cgroup, is near: more than 7/8 of it are in use. It is told so
 * once, until less than some 13/16 have been. Else an allocation of `size` bytes, or somewhat less, is about to fail at the
 * hard limit; it is tried again after the call.
 *
 * It runs inside an allocation, and may allocate and free whatever it likes. That may be wherever the thread allocates, with
 * the locks that the interrupted code holds: it must not wait for one of those (try a lock instead), nor print through what
 * locks or allocates. It is not called inside itself, nor by two threads at once: before an allocation fails, one waits for
 * the other, up to 0.2 s. It must not longjmp, throw, or end a heap from which the interrupted call allocates.
 * cairn_on_low_memory waits until no other thread is in the function before, so the caller must hold no lock that this
 * takes.
 */
void cairn_on_low_memory(void (*call)(size_t size, void *argument), void *argument);

/*
 * Starts the purge thread, as CAIRN_PURGE_THREAD=1 does: docs/guide/memory.md says what that changes for a program. It
 * ends with the thread that calls this. Returns 1, also where it has been started before; 0 if it cannot be. The
 * other call returns 1 if the process has such a thread.
 */
int cairn_start_purge_thread(void);
int cairn_has_purge_thread(void);

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
CAIRN_ALLOCATES CAIRN_SIZE_IS(2)
void *cairn_malloc_in(unsigned int partition, size_t size);
CAIRN_ALLOCATES CAIRN_SIZES_ARE(2, 3)
void *cairn_calloc_in(unsigned int partition, size_t count, size_t size);
CAIRN_ALLOCATES CAIRN_ALIGN_IS(2) CAIRN_SIZE_IS(3)
void *cairn_aligned_alloc_in(unsigned int partition, size_t align, size_t size);
CAIRN_NODISCARD CAIRN_SIZE_IS(3)
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
 * where that can be seen, which is not in each call.
 *
 * A heap that is NULL is fine where it is said: to delete and destroy, in cairn_heap_contains and in cairn_visit. It does not
 * mean the calling thread's own heap. Any other call with it is a mistake, which ends the process where the call comes to
 * the heap: most by SIGSEGV, cairn_heap_attach, cairn_heap_detach and cairn_heap_purge with a message.
 *
 * A forked child has all heaps, with all their blocks, and may do with each what its parent may. The thread that has
 * forked has its owned heaps attached still. An owned heap that another thread had attached is attached to no thread: the
 * child attaches it before it allocates from it, and may delete or destroy it at once. What other threads were just
 * allocating or freeing, or had ready for their next allocations, counts as in use there until the heap is destroyed.
 * A heap that another thread was just making or ending is none that the child may use.
 *
 * The first 16 KiB of an owned heap's small blocks lie side by side, in pieces of 2 KiB. After that a heap takes 4 KiB
 * (32 KiB in the hardened build, of which it touches what it uses), each part of a shared heap as much, and a page at
 * least for each size of block that is in use.
 */
typedef struct cairn_heap cairn_heap;

/*
 * Make a heap; an owned one is attached to the calling thread. NULL and ENOMEM if there is no memory for it.
 * There may be 65,536 heaps, parts, and threads with a heap of their own at once.
 */
cairn_heap *cairn_heap_new(void) CAIRN_NODISCARD;
cairn_heap *cairn_heap_new_shared(void) CAIRN_NODISCARD;

/*
 * Make a shared heap whose blocks threads may read without a lock while others free them. NULL and EINVAL if `head` is
 * more than 256, ENOTSUP in the hardened build, ENOMEM if there is no memory.
 *
 * The first `head` bytes of a free block, rounded up to a multiple of 16, stay as the program has left them. It is handed
 * out again as a block of the same size class of this heap, at the same place, or not at all until memory in which nothing
 * is in use has waited: for the epoch in which it became so.
 *
 * cairn_heap_set_epoch says which epoch it is, and that nobody reads any more what became free in an epoch before `safe`.
 * That counts as at most the epoch that it was before the call: readers may have begun in it. One thread at a time calls
 * it, before a reader enters epoch `now`. It is 0 at first, and nothing is safe. Large blocks of safe epochs go at once,
 * other memory with upkeep, or with cairn_heap_purge. Until then large blocks count as in use. Who ends the heap says
 * that nobody reads what is free in it.
 */
cairn_heap *cairn_heap_new_concurrent(size_t head) CAIRN_NODISCARD;
void cairn_heap_set_epoch(cairn_heap *heap, size_t now, size_t safe);

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
void *cairn_heap_malloc(cairn_heap *heap, size_t size) CAIRN_ALLOCATES CAIRN_SIZE_IS(2);
void *cairn_heap_calloc(cairn_heap *heap, size_t count, size_t size) CAIRN_ALLOCATES CAIRN_SIZES_ARE(2, 3);
void *cairn_heap_aligned_alloc(cairn_heap *heap, size_t align, size_t size)
    CAIRN_ALLOCATES CAIRN_SIZE_IS(3) CAIRN_ALIGN_IS(2);
void *cairn_heap_realloc(cairn_heap *heap, void *block, size_t size) CAIRN_NODISCARD CAIRN_SIZE_IS(3);

/*
 * cairn_heap_malloc without a call, for blocks that the heap has room for: for code that fills a heap of its own. The first
 * words of a heap say where the room is. They say that there is none where the function is to decide: so does a
 * shared heap, and any library that has no such words.
 */
#if defined(__GNUC__) || defined(__clang__)
struct cairn_heap_room {
    size_t bytes;
    char *base;
    unsigned char *in_use; /* one for each 16 bytes: 1 where a block begins */
};
CAIRN_ALLOCATES CAIRN_SIZE_IS(2) static __inline__ void *cairn_heap_malloc_inline(cairn_heap *heap, size_t size)
{
#ifdef __cplusplus
    struct cairn_heap_room *room = reinterpret_cast<struct cairn_heap_room *>(heap);
    const size_t mask = ~size_t(15);
#else
    struct cairn_heap_room *room = (struct cairn_heap_room *)heap;
    const size_t mask = ~(size_t)15;
#endif
    size_t left;
    if (size >= room->bytes) return cairn_heap_malloc(heap, size);
    left = (room->bytes - (size ? size : 1)) & mask;
    room->bytes = left;
    __atomic_store_n(&room->in_use[left / 16], 1, __ATOMIC_RELAXED);
    return room->base + left;
}
#else
#define cairn_heap_malloc_inline cairn_heap_malloc
#endif

/*
 * Allocates `count` blocks of `size` bytes and writes them to `blocks`. Returns how many: fewer, and ENOMEM, only if there
 * is no memory for more, or the heap may not have them.
 */
size_t cairn_heap_malloc_batch(cairn_heap *heap, size_t size, size_t count, void **blocks) CAIRN_NODISCARD;

/*
 * End a heap; NULL is fine. Nobody may use the heap any more: an owned one is attached to the calling thread or to none, or
 * its thread has ended. After cairn_heap_delete its blocks live on, as if any thread had allocated them, and may be freed
 * meanwhile. cairn_heap_destroy frees them all, in a step for each span of up to 512 KiB and each
 * block over 64 KiB; then nobody may use one, and no thread may be about to free one.
 */
void cairn_heap_delete(cairn_heap *heap);
void cairn_heap_destroy(cairn_heap *heap);

/*
 * The heap of the block that `pointer` points to or into, or NULL: it is a thread's, or no block of cairn's. Every
 * pointer may be asked about; for a block that has been freed the answer is NULL or some heap. A heap that is NULL
 * contains nothing.
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
 * An allocation that would take the heap beyond `hard` first gives back what is free in it, but for the parts of a
 * shared heap that other threads use, and then fails. One that takes it beyond `soft` gives back what is free, in the
 * process too. If the heap still holds more, it calls `on_soft` with `argument`, unless that is NULL: once, until the heap
 * has held less again. `on_soft` runs inside the allocation. It may allocate and free, also in the heap; it must not end
 * the heap, longjmp or throw. It runs wherever the thread allocates, with the locks that the interrupted code holds: it must
 * not wait for one of those (try a lock instead), nor print through what locks or allocates.
 */
int cairn_heap_set_limits(cairn_heap *heap, size_t soft, size_t hard,
                          void (*on_soft)(cairn_heap *heap, void *argument), void *argument);

/*
 * Gives what is free in the heap back to the system, and what else is free in the process. Parts of a shared heap
 * that other threads use follow when these threads next need memory of it.
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
 * The heap must be there, and no other thread may allocate from it or free into it meanwhile. If it is NULL, none at all may
 * allocate or free, and no region may end: stop them before. `visitor` must not either.
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
 * Has `call` called now and then on each thread that allocates, so that a program frees what it has put off: objects
 * whose last reference has gone, say, some at each call instead of all at once. NULL ends that. There is one such function
 * for the process; `argument` is handed to it.
 *
 * It runs inside an allocation, and may allocate and free whatever it likes. That may be wherever the thread allocates, with
 * the locks that the interrupted code holds: it must not wait for one of those (try a lock instead), nor print through what
 * locks or allocates. It is not called inside itself. It must not longjmp, throw, or end a heap from which the interrupted
 * call allocates. `heartbeat` counts the calls on the thread, from 1 on. If `force` is not 0, all should be freed that can
 * be: an allocation would fail else, or memory is to go back to the system (malloc_trim, cairn_heap_purge).
 *
 * It is called when a thread needs new blocks of a size, as a rule after some 64 allocations, and for each block over
 * 64 KiB. Whatever the pattern of frees, it is called after at most 51,200 allocations of one size class. The clock has
 * no say in that: a program with one thread that does the same again has its calls at the same allocations again, from
 * the registration on (not in the hardened build). The calling thread follows at once, others when they next
 * need memory: until then they may call the function that was there before.
 *
 * Compilers believe that malloc and free change no variable of the program. What `call` changes must be volatile or
 * atomic where the program reads it, or the program is compiled with -fno-builtin-malloc, -fno-builtin-calloc and so on.
 */
void cairn_on_deferred_free(void (*call)(int force, size_t heartbeat, void *argument), void *argument);

/*
 * A region: memory that the program supplies, in which it can make heaps. It may be of any kind that can be read and
 * written: a mapped file, shared memory, huge pages, memory that a device sees, an array. What its heaps allocate lies in
 * it, from the smallest block to the largest, and nothing else does: what cairn notes down is elsewhere. Cairn never
 * unmaps it or gives it back to the system. It is used in slices of 16 KiB; what stands in front of the first whole one,
 * or behind the last, stays unused.
 *
 * Heaps in a region are like others. A region that is full means NULL and ENOMEM. Blocks may be aligned to as
 * much as the region has room for. realloc moves a block out of the region if it must move it, cairn_heap_realloc to
 * the heap that it names. A deleted heap leaves its blocks where they are. The hardened build has no regions.
 * A region that is NULL, other than for cairn_region_end, or that has ended, ends the process with a message.
 */
typedef struct cairn_region cairn_region;

/*
 * What a program does for memory of its own kind; each function may be NULL. They run on the thread that allocates, frees
 * or purges, with no lock held, get `argument`, and must not allocate from the region, free into it, longjmp or throw.
 */
struct cairn_region_calls {
    /*
     * Supplies more memory when the region is full: at least *bytes; it writes there how many. NULL: there is no more, or less:
     * it is asked for an eighth of what the region has, then for as much as the allocation needs, in whole pages.
     * One thread at a time asks for a region; others of a shared heap wait. All regions together have at most 64 pieces
     * of memory.
     */
    void *(*reserve)(size_t *bytes, void *argument);
    /*
     * Makes memory usable, maybe a second time: where pages are larger than 16 KiB, another thread may have made it usable
     * just before, and what is there stays. Not 0 if it cannot: the allocation fails. If NULL, all is usable.
     */
    int (*commit)(void *start, size_t bytes, void *argument);
    /* Takes memory that is in no use, at a purge. Not 0 if it has not. */
    int (*decommit)(void *start, size_t bytes, void *argument);
    /* Takes back at the end what `reserve` has supplied. */
    void (*release)(void *start, size_t bytes, void *argument);
    void *argument;
};

/*
 * Makes a region of `bytes` bytes at `start`; with 0 bytes and `reserve` it begins with no memory. `calls`, which is
 * copied, may be NULL. Nobody else uses the memory until the region ends. NULL and errno if that cannot be: EINVAL
 * if it has no whole slice, or is cairn's, or another region's; EADDRINUSE if its addresses have the metadata of memory in
 * use, other addresses will do (docs/design/regions.md); ENOMEM if there is no memory for its metadata, or
 * there are 64 regions; ENOTSUP in the hardened build.
 */
cairn_region *cairn_region_new(void *start, size_t bytes, const struct cairn_region_calls *calls) CAIRN_NODISCARD;

/* Make a heap in a region, as cairn_heap_new and cairn_heap_new_shared do elsewhere. */
cairn_heap *cairn_heap_new_in(cairn_region *region) CAIRN_NODISCARD;
cairn_heap *cairn_heap_new_shared_in(cairn_region *region) CAIRN_NODISCARD;

/* What a region has, in bytes. */
struct cairn_region_stats {
    size_t bytes; /* of all whole slices */
    size_t used;  /* of those that spans and large blocks have, whatever of them is in use */
};

/* Writes that to `stats`, which has `bytes` bytes: sizeof *stats. As cairn_heap_get_stats. */
void cairn_region_get_stats(const cairn_region *region, struct cairn_region_stats *stats, size_t bytes);

/*
 * Has `decommit` take all memory of the region that is in no use: how many bytes it has taken. While it runs nobody finds
 * what it takes: an allocation may fail for that. cairn_heap_purge of a heap in the region does the same.
 */
size_t cairn_region_purge(cairn_region *region);

/*
 * Ends a region: its memory is the program's again. Returns 1, or 0 and EBUSY if a heap is in it still, or a block
 * of a deleted one is in use. No other thread may use the region meanwhile. NULL is fine: 1.
 */
int cairn_region_end(cairn_region *region);

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
    const void *classes; /* each begins with struct cairn_class */
    unsigned int class_count;
    unsigned int class_bytes;
    unsigned int slice_shift;
    unsigned int descriptor_bytes; /* owner, class: unsigned int; slot at 8. That of a large block begins with
                                      its start, NULL in a slice of nurseries, and the number of its slices */
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
    const struct cairn_mappings *mappings;
    unsigned int mapping_bytes;      /* each begins with struct cairn_mapping */
    unsigned int span_free_offset;   /* pointer: the list of free blocks */
    unsigned int span_hidden_offset; /* unsigned short: free blocks in no list. Which ones: */
    unsigned int aside_offset;       /* behind a section's start, aside_bytes for each slice: the first word of each, then
                                        the second ones; a bit for each block of a span, whose slices' words come one
                                        after the other; 0 in the hardened build */
    unsigned int aside_bytes;
    unsigned int reserved;
    const void *profile;             /* the heap profile: docs/design/outside-view.md */
    unsigned int large_owner_offset;   /* pointers in a large block's slot and in a mapping's entry: */
    unsigned int mapping_owner_offset; /* not NULL if the block belongs to a cairn_heap */
};

/* A size class. */
struct cairn_class {
    unsigned int size;     /* bytes in a block */
    unsigned short blocks; /* blocks in a span */
    unsigned short slices; /* slices in a span, a power of two; it is aligned to them */
    unsigned int slack;    /* bytes of a span before the first block */
};

/* Blocks with a mapping each, by address. */
struct cairn_mappings {
    const void *tables[2];
    size_t room;  /* entries for which each has memory */
    size_t state; /* twice the number of entries, and which table is in use */
};

struct cairn_mapping {
    unsigned char *address;
    size_t bytes;
    unsigned char *start; /* the block, from there to the end */
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
