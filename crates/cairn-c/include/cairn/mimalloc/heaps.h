/* mimalloc's heaps and arenas. Part of compat/mimalloc.h. Every heap is a shared one: any thread allocates from it. */

static inline mi_heap_t *mi_heap_new(void) { return (mi_heap_t *)cairn_heap_new_shared(); }

/* Blocks of the main heap are those of malloc on all threads. It cannot end. */
static inline mi_heap_t *mi_heap_main(void) { return CAIRN_MI_MAIN; }
static inline mi_heap_t *mi_heap_get_default(void) { return CAIRN_MI_MAIN; }
static inline mi_heap_t *mi_heap_get_backing(void) { return CAIRN_MI_MAIN; }
static inline void mi_heap_delete(mi_heap_t *heap) {
    if (!cairn_mi_is_main(heap)) cairn_heap_delete(cairn_mi_heap(heap));
}
static inline void mi_heap_destroy(mi_heap_t *heap) {
    if (!cairn_mi_is_main(heap)) cairn_heap_destroy(cairn_mi_heap(heap));
}

/* Without force nothing need be done: what is free goes back by time. */
static inline void mi_heap_collect(mi_heap_t *heap, bool force) {
    if (!force) return;
    if (cairn_mi_is_main(heap)) cairn_purge();
    else cairn_heap_purge(cairn_mi_heap(heap));
}

/* Any pointer may be asked about, also into a block. */
static inline mi_heap_t *mi_heap_of(const void *pointer) {
    mi_heap_t *heap = (mi_heap_t *)cairn_heap_of(pointer);
    if (!heap && cairn_base(pointer)) return CAIRN_MI_MAIN;
    return heap;
}
static inline bool mi_any_heap_contains(const void *pointer) { return cairn_base(pointer) != NULL; }
static inline bool mi_is_in_heap_region(const void *pointer) { return cairn_base(pointer) != NULL; }
static inline bool mi_check_owned(const void *pointer) { return cairn_base(pointer) != NULL; }
static inline bool mi_heap_contains(const mi_heap_t *heap, const void *pointer) {
    return mi_heap_of(pointer) == (heap ? heap : CAIRN_MI_MAIN);
}
static inline bool mi_heap_contains_block(mi_heap_t *heap, const void *block) { return mi_heap_contains(heap, block); }
static inline bool mi_heap_check_owned(mi_heap_t *heap, const void *pointer) {
    return mi_heap_contains(heap, pointer);
}

/* Allocating from one. */
static inline void *mi_heap_malloc(mi_heap_t *heap, size_t size) { return cairn_mi_alloc(heap, 0, size); }
static inline void *mi_heap_malloc_small(mi_heap_t *heap, size_t size) { return cairn_mi_alloc(heap, 0, size); }
static inline void *mi_heap_zalloc(mi_heap_t *heap, size_t size) { return cairn_mi_zalloc(heap, 0, size); }
static inline void *mi_heap_zalloc_small(mi_heap_t *heap, size_t size) { return cairn_mi_zalloc(heap, 0, size); }
static inline void *mi_heap_calloc(mi_heap_t *heap, size_t count, size_t size) {
    return cairn_mi_zalloc(heap, 0, cairn_product(count, size));
}
static inline void *mi_heap_mallocn(mi_heap_t *heap, size_t count, size_t size) {
    return cairn_mi_alloc(heap, 0, cairn_product(count, size));
}

/* A block that must move comes to this heap, whatever heap it was from. */
static inline void *mi_heap_realloc(mi_heap_t *heap, void *block, size_t size) {
    return cairn_mi_resize(heap, block, size, false);
}
static inline void *mi_heap_rezalloc(mi_heap_t *heap, void *block, size_t size) {
    return cairn_mi_resize(heap, block, size, true);
}
static inline void *mi_heap_reallocn(mi_heap_t *heap, void *block, size_t count, size_t size) {
    return cairn_mi_resize(heap, block, cairn_product(count, size), false);
}
static inline void *mi_heap_recalloc(mi_heap_t *heap, void *block, size_t count, size_t size) {
    return cairn_mi_resize(heap, block, cairn_product(count, size), true);
}
static inline void *mi_heap_reallocf(mi_heap_t *heap, void *block, size_t size) {
    void *resized = cairn_mi_resize(heap, block, size, false);
    if (!resized) free(block);
    return resized;
}

/* Aligned. An alignment that is no power of two gives NULL. */
static inline void *mi_heap_malloc_aligned(mi_heap_t *heap, size_t size, size_t align) {
    return cairn_is_alignment(align) ? cairn_mi_alloc(heap, align, size) : NULL;
}
static inline void *mi_heap_zalloc_aligned(mi_heap_t *heap, size_t size, size_t align) {
    return cairn_is_alignment(align) ? cairn_mi_zalloc(heap, align, size) : NULL;
}
static inline void *mi_heap_calloc_aligned(mi_heap_t *heap, size_t count, size_t size, size_t align) {
    return mi_heap_zalloc_aligned(heap, cairn_product(count, size), align);
}
static inline void *mi_heap_realloc_aligned(mi_heap_t *heap, void *block, size_t size, size_t align) {
    return cairn_mi_resize_at(heap, block, size, align, 0, false);
}
static inline void *mi_heap_rezalloc_aligned(mi_heap_t *heap, void *block, size_t size, size_t align) {
    return cairn_mi_resize_at(heap, block, size, align, 0, true);
}
static inline void *mi_heap_recalloc_aligned(mi_heap_t *heap, void *block, size_t count, size_t size, size_t align) {
    return mi_heap_rezalloc_aligned(heap, block, cairn_product(count, size), align);
}

static inline char *mi_heap_strdup(mi_heap_t *heap, const char *text) {
    return cairn_mi_copy(heap, text, text ? strlen(text) : 0);
}
static inline char *mi_heap_strndup(mi_heap_t *heap, const char *text, size_t n) {
    return cairn_mi_copy(heap, text, cairn_mi_length(text, n));
}
static inline char *mi_heap_realpath(mi_heap_t *heap, const char *path, char *resolved) {
    char *found = cairn_libc_realpath(path, resolved), *copy;
    if (resolved || !found) return found;
    copy = mi_heap_strdup(heap, found);
    free(found);
    return copy;
}

static inline void *mi_heap_alloc_new(mi_heap_t *heap, size_t size) { return cairn_mi_new(heap, 0, size); }
static inline void *mi_heap_alloc_new_n(mi_heap_t *heap, size_t count, size_t size) {
    return cairn_mi_new(heap, 0, cairn_product(count, size));
}

#if CAIRN_MIMALLOC_VERSION == 3
#define mi_heap_malloc_tp(tp, hp) ((tp *)mi_heap_malloc(hp, sizeof(tp)))
#define mi_heap_zalloc_tp(tp, hp) ((tp *)mi_heap_zalloc(hp, sizeof(tp)))
#define mi_heap_calloc_tp(tp, hp, n) ((tp *)mi_heap_calloc(hp, n, sizeof(tp)))
#define mi_heap_mallocn_tp(tp, hp, n) ((tp *)mi_heap_mallocn(hp, n, sizeof(tp)))
#define mi_heap_reallocn_tp(tp, hp, p, n) ((tp *)mi_heap_reallocn(hp, p, n, sizeof(tp)))
#define mi_heap_recalloc_tp(tp, hp, p, n) ((tp *)mi_heap_recalloc(hp, p, n, sizeof(tp)))
#else
#define mi_heap_malloc_tp(hp, tp) ((tp *)mi_heap_malloc(hp, sizeof(tp)))
#define mi_heap_zalloc_tp(hp, tp) ((tp *)mi_heap_zalloc(hp, sizeof(tp)))
#define mi_heap_calloc_tp(hp, tp, n) ((tp *)mi_heap_calloc(hp, n, sizeof(tp)))
#define mi_heap_mallocn_tp(hp, tp, n) ((tp *)mi_heap_mallocn(hp, n, sizeof(tp)))
#define mi_heap_reallocn_tp(hp, p, tp, n) ((tp *)mi_heap_reallocn(hp, p, n, sizeof(tp)))
#define mi_heap_recalloc_tp(hp, p, tp, n) ((tp *)mi_heap_recalloc(hp, p, n, sizeof(tp)))
#endif

/* A thread's part of a heap stands for the heap. */
static inline mi_theap_t *mi_heap_theap(mi_heap_t *heap) { return heap; }
static inline mi_theap_t *mi_theap_get_default(void) { return CAIRN_MI_MAIN; }
static inline void mi_theap_collect(mi_theap_t *part, bool force) { mi_heap_collect(part, force); }
static inline void *mi_theap_malloc(mi_theap_t *part, size_t size) { return cairn_mi_alloc(part, 0, size); }
static inline void *mi_theap_malloc_small(mi_theap_t *part, size_t size) { return cairn_mi_alloc(part, 0, size); }
static inline void *mi_theap_zalloc(mi_theap_t *part, size_t size) { return cairn_mi_zalloc(part, 0, size); }
static inline void *mi_theap_zalloc_small(mi_theap_t *part, size_t size) { return cairn_mi_zalloc(part, 0, size); }
static inline void *mi_theap_calloc(mi_theap_t *part, size_t count, size_t size) {
    return mi_heap_calloc(part, count, size);
}
static inline void *mi_theap_malloc_aligned(mi_theap_t *part, size_t size, size_t align) {
    return mi_heap_malloc_aligned(part, size, align);
}
static inline void *mi_theap_realloc(mi_theap_t *part, void *block, size_t size) {
    return mi_heap_realloc(part, block, size);
}

/*
 * Visiting. No other thread may allocate from the heap or free into it meanwhile. The main heap is that of all threads:
 * none may allocate or free at all. A thread's part of it cannot be told from others': what a thread allocates may lie in
 * memory of another's, and large blocks are nobody's. So what visits one visits nothing and returns false: mimalloc 3's
 * mi_theap_visit_blocks, and with the interface of mimalloc 2, where the default heap is a thread's, mi_heap_visit_blocks.
 */
typedef struct mi_heap_area_s {
    void *blocks;
    size_t reserved;
    size_t committed;
    size_t used;
    size_t block_size;
    size_t full_block_size;
#if CAIRN_MIMALLOC_VERSION == 3
    void *reserved1;
#else
    int heap_tag;
#endif
} mi_heap_area_t;

typedef bool mi_block_visit_fun(const mi_heap_t *heap, const mi_heap_area_t *area, void *block, size_t block_size,
                                void *arg);

/* A walk: of which areas, who wants to see them, and the one it is in. */
struct cairn_mi_walk {
    const mi_heap_t *heap;
    bool of_thread;
    size_t thread;
    mi_block_visit_fun *visitor;
    void *argument;
    mi_heap_area_t area;
};

static inline int cairn_mi_step(const struct cairn_area *area, void *block, void *argument) {
    struct cairn_mi_walk *walk = (struct cairn_mi_walk *)argument;
    if (cairn_mi_is_main(walk->heap) && area->heap) return 1;
    if (walk->of_thread && area->thread != walk->thread) return 1;
    if (!block) {
        memset(&walk->area, 0, sizeof walk->area);
        walk->area.blocks = area->start;
        walk->area.reserved = walk->area.committed = area->bytes;
        walk->area.used = area->used;
        walk->area.block_size = walk->area.full_block_size = area->block_size;
#if CAIRN_MIMALLOC_VERSION == 2
        walk->area.heap_tag = area->heap ? (int)cairn_heap_tag(area->heap) : 0;
#endif
    }
    return walk->visitor(walk->heap, &walk->area, block, area->block_size, walk->argument);
}

static inline bool cairn_mi_visit(const mi_heap_t *heap, bool of_thread, size_t thread, bool blocks,
                                  mi_block_visit_fun *visitor, void *argument) {
    struct cairn_mi_walk walk;
    walk.heap = heap ? heap : CAIRN_MI_MAIN;
    walk.of_thread = of_thread;
    walk.thread = thread;
    walk.visitor = visitor;
    walk.argument = argument;
    if (!visitor) return false;
    return cairn_visit(cairn_mi_is_main(walk.heap) ? NULL : cairn_mi_heap(heap), blocks, cairn_mi_step, &walk);
}

static inline bool mi_heap_visit_blocks(const mi_heap_t *heap, bool blocks, mi_block_visit_fun *visitor, void *arg) {
#if CAIRN_MIMALLOC_VERSION == 2
    if (!heap || cairn_mi_is_main(heap)) return false;
#endif
    return cairn_mi_visit(heap, false, 0, blocks, visitor, arg);
}
/* What no thread owns. */
static inline bool mi_heap_visit_abandoned_blocks(const mi_heap_t *heap, bool blocks, mi_block_visit_fun *visitor,
                                                  void *arg) {
    return cairn_mi_visit(heap, true, 0, blocks, visitor, arg);
}
/* What the calling thread owns of a heap. */
static inline bool mi_theap_visit_blocks(const mi_theap_t *part, bool blocks, mi_block_visit_fun *visitor, void *arg) {
    if (!part || cairn_mi_is_main(part)) return false;
    return cairn_mi_visit(part, true, cairn_thread_number(), blocks, visitor, arg);
}

/* A hint for programs that move blocks together. The threshold is cairn's own. */
static inline bool mi_unsafe_heap_page_is_under_utilized(mi_heap_t *heap, void *block, size_t percent) {
    (void)percent;
    return block && (!heap || mi_heap_contains(heap, block)) && cairn_should_move(block);
}

/* Arenas: memory of the program's for heaps that are made in it. malloc never allocates there. */
typedef void *mi_arena_id_t;

static inline int cairn_mi_commit(void *start, size_t bytes, void *argument) {
    (void)argument;
    return mprotect(start, bytes, PROT_READ | PROT_WRITE);
}

/* False without `exclusive` or `arena_id`, and where cairn_region_new fails. The NUMA node is where the memory is. */
static inline bool mi_manage_os_memory_ex(void *start, size_t size, bool is_committed, bool is_pinned, bool is_zero,
                                          int numa_node, bool exclusive, mi_arena_id_t *arena_id) {
    struct cairn_region_calls calls = {NULL, cairn_mi_commit, NULL, NULL, NULL};
    (void)is_pinned, (void)is_zero, (void)numa_node;
    if (!arena_id) return false;
    *arena_id = exclusive && start ? cairn_region_new(start, size, is_committed ? NULL : &calls) : NULL;
    return *arena_id != NULL;
}
static inline mi_heap_t *mi_heap_new_in_arena(mi_arena_id_t arena) {
    return (mi_heap_t *)cairn_heap_new_shared_in((cairn_region *)arena);
}
/* One whole slice must lie in it. */
static inline size_t mi_arena_min_alignment(void) { return (size_t)1 << cairn_header.slice_shift; }
static inline size_t mi_arena_min_size(void) { return (size_t)1 << cairn_header.slice_shift; }

/*
 * Address space for malloc is reserved from the start: 0 if so much is, else ENOMEM. Memory comes when it is needed, also
 * with `commit`.
 */
static inline int mi_reserve_os_memory(size_t size, bool commit, bool allow_large) {
    (void)commit, (void)allow_large;
    /* Not malloc: compilers leave out a block that nobody uses. */
    free(cairn_aligned_alloc_at(1, 0, 1));
    return size >> cairn_header.slice_shift <= cairn_header.map->slices ? 0 : ENOMEM;
}
/* With `exclusive` an arena for heaps that are made in it. Its memory stays reserved for good. */
static inline int mi_reserve_os_memory_ex(size_t size, bool commit, bool allow_large, bool exclusive,
                                          mi_arena_id_t *arena_id) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = size > PTRDIFF_MAX ? 0 : (size + page - 1) / page * page;
    int access = commit ? PROT_READ | PROT_WRITE : PROT_NONE;
    void *memory;
    int zeroes;
    if (arena_id) *arena_id = NULL;
    if (!exclusive) return mi_reserve_os_memory(size, commit, allow_large);
    if (!arena_id) return EINVAL;
    /* Strict modes of the compiler have no anonymous mappings. */
    zeroes = open("/dev/zero", O_RDWR);
    memory = zeroes < 0 ? MAP_FAILED : mmap(NULL, bytes, access, MAP_PRIVATE, zeroes, 0);
    if (zeroes >= 0) close(zeroes);
    if (memory == MAP_FAILED) return ENOMEM;
    if (mi_manage_os_memory_ex(memory, bytes, commit, false, true, -1, true, arena_id)) return 0;
    munmap(memory, bytes);
    return ENOMEM;
}
