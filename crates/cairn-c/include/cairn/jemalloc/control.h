/*
 * jemalloc's mallctl, as far as cairn has what a name stands for. Part of compat/jemalloc/jemalloc.h.
 *
 * A name is known only when the program runs, so that it cannot fail to compile. Names that are not below give ENOENT,
 * as jemalloc's do that it was not built with. EPERM: a write to what is only read. EINVAL: another size than the
 * value's; as much is read as has room.
 */

enum cairn_je_node {
    CAIRN_JE_VERSION,
    CAIRN_JE_EPOCH,
    CAIRN_JE_FLUSH,
    CAIRN_JE_IDLE,
    CAIRN_JE_PURGE,
    CAIRN_JE_DECAY,
    CAIRN_JE_QUANTUM,
    CAIRN_JE_PAGE,
    CAIRN_JE_ARENAS,
    CAIRN_JE_BINS,
    CAIRN_JE_BIN_SIZE,
    CAIRN_JE_ALLOCATED,
    CAIRN_JE_ACTIVE,
    CAIRN_JE_METADATA,
    CAIRN_JE_RESIDENT,
    CAIRN_JE_MAPPED,
    CAIRN_JE_RETAINED,
    CAIRN_JE_THREAD_ALLOCATED,
    CAIRN_JE_THREAD_FREED,
    CAIRN_JE_THREAD_ALLOCATED_AT,
    CAIRN_JE_THREAD_FREED_AT,
    CAIRN_JE_BACKGROUND,
    CAIRN_JE_BACKGROUND_MOST,
    CAIRN_JE_DIRTY_MS,
    CAIRN_JE_ARENA_DIRTY_MS,
    CAIRN_JE_OPT_DIRTY_MS,
    CAIRN_JE_MUZZY_MS,
    CAIRN_JE_ARENA_MUZZY_MS,
    CAIRN_JE_OPT_MUZZY_MS,
    CAIRN_JE_OPT_BACKGROUND,
    CAIRN_JE_OPT_ARENAS,
    CAIRN_JE_CONF,
    CAIRN_JE_CREATE,
    CAIRN_JE_LOOKUP,
    CAIRN_JE_DESTROY,
    CAIRN_JE_RESET,
    CAIRN_JE_INITIALIZED,
    /* What is so: */
    CAIRN_JE_STATS,
    CAIRN_JE_CHECKS,
    CAIRN_JE_CACHE,
    CAIRN_JE_KEEPS,
    /* What is not so: */
    CAIRN_JE_DEBUG,
    CAIRN_JE_FILL,
    CAIRN_JE_LAZY_LOCK,
    CAIRN_JE_CACHE_OBLIVIOUS,
    CAIRN_JE_PROF,
    CAIRN_JE_PROF_LIBGCC,
    CAIRN_JE_PROF_LIBUNWIND,
    CAIRN_JE_UTRACE,
    CAIRN_JE_XMALLOC,
    CAIRN_JE_OPT_ABORT_CONF,
    CAIRN_JE_OPT_PROF,
    CAIRN_JE_OPT_UTRACE,
    CAIRN_JE_OPT_XMALLOC,
    CAIRN_JE_OPT_ZERO,
    CAIRN_JE_NODES
};

/* The name of a node; a star stands for a number. */
static inline const char *cairn_je_name(size_t node) {
    static const char *const names[] = {
        "version",           "epoch",           "thread.tcache.flush", "thread.idle",    "arena.*.purge",
        "arena.*.decay",     "arenas.quantum",  "arenas.page",         "arenas.narenas", "arenas.nbins",
        "arenas.bin.*.size", "stats.allocated", "stats.active",        "stats.metadata", "stats.resident",
        "stats.mapped",      "stats.retained",
        "thread.allocated", "thread.deallocated", "thread.allocatedp", "thread.deallocatedp",
        "background_thread", "max_background_threads",
        "arenas.dirty_decay_ms", "arena.*.dirty_decay_ms", "opt.dirty_decay_ms",
        "arenas.muzzy_decay_ms", "arena.*.muzzy_decay_ms", "opt.muzzy_decay_ms",
        "opt.background_thread", "opt.narenas", "config.malloc_conf",
        "arenas.create", "arenas.lookup", "arena.*.destroy", "arena.*.reset", "arena.*.initialized",
        "config.stats", "config.opt_safety_checks", "opt.tcache", "opt.retain",
        "config.debug", "config.fill", "config.lazy_lock", "config.cache_oblivious",
        "config.prof", "config.prof_libgcc", "config.prof_libunwind", "config.utrace", "config.xmalloc",
        "opt.abort_conf", "opt.prof", "opt.utrace", "opt.xmalloc", "opt.zero",
    };
    return names[node];
}

/* How many parts a name has, and which of them is a number: none is SIZE_MAX. */
static inline size_t cairn_je_parts(size_t node, size_t *star) {
    const char *name = cairn_je_name(node);
    size_t parts = 1;
    *star = SIZE_MAX;
    for (; *name; name++) {
        if (*name == '*') *star = parts - 1;
        if (*name == '.') parts++;
    }
    return parts;
}

/* Whether a name is that of the node, and with which number. */
static inline bool cairn_je_matches(const char *name, size_t node, size_t *number) {
    const char *pattern = cairn_je_name(node);
    *number = 0;
    for (; *pattern; pattern++) {
        if (*pattern != '*') {
            if (*name++ != *pattern) return false;
        } else {
            if (*name < '0' || *name > '9') return false;
            for (; *name >= '0' && *name <= '9'; name++) *number = *number * 10 + (size_t)(*name - '0');
        }
    }
    return *name == 0;
}

static inline int cairn_je_read(void *place, size_t *size, const void *value, size_t bytes) {
    size_t part;
    if (!place || !size) return 0;
    part = *size < bytes ? *size : bytes;
    memcpy(place, value, part);
    if (*size == bytes) return 0;
    *size = part;
    return EINVAL;
}

static inline size_t cairn_je_figure(size_t node, size_t number) {
    size_t figure = 0;
    if (node == CAIRN_JE_QUANTUM) return 16;
    if (node == CAIRN_JE_PAGE) return (size_t)sysconf(_SC_PAGESIZE);
    if (node == CAIRN_JE_BIN_SIZE) return cairn_class_size((unsigned int)number);
    /* Behind "stats." the name is cairn's, too. */
    cairn_stats_get(cairn_je_name(node) + sizeof "stats." - 1, &figure);
    return figure;
}

/* A thread counts from its first question on, and each of its calls takes longer then: cairn_count. */
static inline int cairn_je_counts(size_t node, void *old, size_t *old_size) {
    bool first = !cairn_thread_counts();
    const size_t *counts = first && !cairn_count(1) ? NULL : cairn_thread_counts();
    uint64_t count, *at;
    if (!counts) return EAGAIN;
    if (node == CAIRN_JE_THREAD_FREED || node == CAIRN_JE_THREAD_FREED_AT) counts++;
    count = *counts;
    at = (uint64_t *)(uintptr_t)counts;
    if (node == CAIRN_JE_THREAD_ALLOCATED || node == CAIRN_JE_THREAD_FREED)
        return cairn_je_read(old, old_size, &count, sizeof count);
    return cairn_je_read(old, old_size, &at, sizeof at);
}

/* The purge delay, of all arenas; -1 is never. It is read before it is set. */
static inline int cairn_je_delay(void *old, size_t *old_size, const void *new_value, size_t new_size) {
    size_t ms = cairn_purge_delay_ms();
    ssize_t shown = ms > PTRDIFF_MAX ? -1 : (ssize_t)ms, wanted;
    int error;
    if (new_value && new_size != sizeof wanted) return EINVAL;
    if ((error = cairn_je_read(old, old_size, &shown, sizeof shown)) != 0 || !new_value) return error;
    memcpy(&wanted, new_value, sizeof wanted);
    if (wanted < -1) return EFAULT;
    return cairn_set_purge_delay_ms(wanted < 0 ? SIZE_MAX : (size_t)wanted), 0;
}

/* The purge thread begins, once; there is no call that ends it. */
static inline int cairn_je_background(void *old, size_t *old_size, const void *new_value, size_t new_size) {
    bool runs = cairn_has_purge_thread() != 0, wanted;
    int error;
    if (new_value && new_size != sizeof wanted) return EINVAL;
    if ((error = cairn_je_read(old, old_size, &runs, sizeof runs)) != 0 || !new_value) return error;
    memcpy(&wanted, new_value, sizeof wanted);
    if (wanted == runs) return 0;
    if (!wanted) return EPERM;
    return cairn_start_purge_thread() ? 0 : EAGAIN;
}

/* One more than the highest number of an arena. */
static inline unsigned int cairn_je_arenas(void) {
    unsigned int arena = CAIRN_JE_HEAPS;
    while (arena > 1 && !cairn_je_heap(arena - 1)) arena--;
    return arena;
}

/* A new arena: its number. */
static inline int cairn_je_create(void *old, size_t *old_size) {
    cairn_heap *heap = cairn_heap_new_shared(), *none;
    unsigned int arena;
    if (!heap) return EAGAIN;
    for (arena = 1; arena < CAIRN_JE_HEAPS; arena++) {
        none = NULL;
        if (__atomic_compare_exchange_n(&cairn_je_heaps[arena], &none, heap, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            return cairn_je_read(old, old_size, &arena, sizeof arena);
    }
    return cairn_heap_destroy(heap), EAGAIN;
}

/* The arena of the block that a pointer leads to or into. */
static inline int cairn_je_lookup(void *old, size_t *old_size, const void *new_value, size_t new_size) {
    const void *pointer;
    const cairn_heap *heap;
    unsigned int arena;
    if (!new_value || new_size != sizeof pointer) return EINVAL;
    memcpy(&pointer, new_value, sizeof pointer);
    if (!cairn_base(pointer)) return EINVAL;
    heap = cairn_heap_of(pointer);
    for (arena = heap ? 1 : 0; heap && arena < CAIRN_JE_HEAPS && cairn_je_heap(arena) != heap; arena++) {}
    if (arena == CAIRN_JE_HEAPS) return EINVAL;
    return cairn_je_read(old, old_size, &arena, sizeof arena);
}

/* By another name: in strict modes of the compiler nobody declares it. */
int cairn_libc_gettid(void) __asm__("gettid");

static inline uint64_t cairn_je_me(void) { return (uint64_t)getpid() << 32 | (uint32_t)cairn_libc_gettid(); }

/* Takes the turn if nobody has it. One of another process stands there in a forked child, in which that thread is not. */
static inline bool cairn_je_takes_turn(void) {
    uint64_t me = cairn_je_me(), held = __atomic_load_n(&cairn_je_turn, __ATOMIC_RELAXED);
    if (held != 0 && held >> 32 == me >> 32) return false;
    return __atomic_compare_exchange_n(&cairn_je_turn, &held, me, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void cairn_je_gives_turn(void) { __atomic_store_n(&cairn_je_turn, 0, __ATOMIC_RELEASE); }

/* Frees all blocks of an arena, which ends, or goes on with none. */
static inline int cairn_je_empty(size_t arena, bool ends) {
    cairn_heap *heap = cairn_je_heap(arena), *next = NULL;
    bool takes;
    if (!heap) return EFAULT;
    if (!ends && !(next = cairn_heap_new_shared())) return EAGAIN;
    /* Unless this thread has it: a function of the program's that a purge has called. */
    while (!(takes = cairn_je_takes_turn()) && __atomic_load_n(&cairn_je_turn, __ATOMIC_RELAXED) != cairn_je_me()) {}
    __atomic_store_n(&cairn_je_heaps[arena], next, __ATOMIC_RELEASE);
    if (takes) cairn_je_gives_turn();
    return cairn_heap_destroy(heap), 0;
}

static inline int cairn_je_is(bool so, void *old, size_t *old_size) {
    return cairn_je_read(old, old_size, &so, sizeof so);
}

static inline bool cairn_je_takes(size_t node) {
    return node == CAIRN_JE_EPOCH || node == CAIRN_JE_BACKGROUND || node == CAIRN_JE_DIRTY_MS ||
           node == CAIRN_JE_LOOKUP || node == CAIRN_JE_ARENA_DIRTY_MS || node == CAIRN_JE_MUZZY_MS || node == CAIRN_JE_ARENA_MUZZY_MS;
}

static inline int cairn_je_control(size_t node, size_t number, void *old, size_t *old_size, const void *new_value,
                                   size_t new_size) {
    bool writes = new_value != NULL || new_size != 0;
    bool does = (node >= CAIRN_JE_FLUSH && node <= CAIRN_JE_DECAY) || node == CAIRN_JE_DESTROY || node == CAIRN_JE_RESET;
    const char *version = cairn_version(), *conf = "";
    /* One arena is all that threads allocate from; the others are those that the program has made. */
    unsigned int bins = cairn_class_count(), arenas = node == CAIRN_JE_ARENAS ? cairn_je_arenas() : 1;
    uint64_t epoch = 1;
    ssize_t muzzy = 0;
    size_t figure;
    if (does && (writes || old || old_size)) return EPERM;
    if (writes && !cairn_je_takes(node)) return EPERM;
    if (node >= CAIRN_JE_STATS) return cairn_je_is(node < CAIRN_JE_DEBUG, old, old_size);
    switch (node) {
    case CAIRN_JE_VERSION: return cairn_je_read(old, old_size, &version, sizeof version);
    case CAIRN_JE_CONF: return cairn_je_read(old, old_size, &conf, sizeof conf);
    case CAIRN_JE_ARENAS:
    case CAIRN_JE_OPT_ARENAS: return cairn_je_read(old, old_size, &arenas, sizeof arenas);
    case CAIRN_JE_BINS: return cairn_je_read(old, old_size, &bins, sizeof bins);
    case CAIRN_JE_EPOCH:
        /* The figures are always of now. */
        if (writes && new_size != sizeof epoch) return EINVAL;
        return cairn_je_read(old, old_size, &epoch, sizeof epoch);
    case CAIRN_JE_FLUSH:
    case CAIRN_JE_IDLE: return cairn_thread_idle(), 0;
    /* What threads have is one: it is done for all of them. */
    case CAIRN_JE_PURGE:
    case CAIRN_JE_DECAY:
        if (cairn_je_heap(number)) return cairn_heap_purge(cairn_je_heap(number)), 0;
        for (arenas = 1; number == MALLCTL_ARENAS_ALL && arenas < CAIRN_JE_HEAPS; arenas++) {
            /* Who ends one meanwhile leaves nothing of it. */
            if (!cairn_je_takes_turn()) continue;
            if (cairn_je_heap(arenas)) cairn_heap_purge(cairn_je_heap(arenas));
            cairn_je_gives_turn();
        }
        return cairn_purge(), 0;
    case CAIRN_JE_CREATE: return cairn_je_create(old, old_size);
    case CAIRN_JE_LOOKUP: return cairn_je_lookup(old, old_size, new_value, new_size);
    case CAIRN_JE_DESTROY: return cairn_je_empty(number, true);
    case CAIRN_JE_RESET: return cairn_je_empty(number, false);
    case CAIRN_JE_INITIALIZED: return cairn_je_is(number == 0 || cairn_je_heap(number), old, old_size);
    case CAIRN_JE_THREAD_ALLOCATED:
    case CAIRN_JE_THREAD_FREED:
    case CAIRN_JE_THREAD_ALLOCATED_AT:
    case CAIRN_JE_THREAD_FREED_AT: return cairn_je_counts(node, old, old_size);
    case CAIRN_JE_BACKGROUND:
    case CAIRN_JE_OPT_BACKGROUND: return cairn_je_background(old, old_size, new_value, new_size);
    case CAIRN_JE_DIRTY_MS:
    case CAIRN_JE_ARENA_DIRTY_MS:
    case CAIRN_JE_OPT_DIRTY_MS: return cairn_je_delay(old, old_size, new_value, new_size);
    /* Memory goes back in one step: none is muzzy, whatever is set. */
    case CAIRN_JE_MUZZY_MS:
    case CAIRN_JE_ARENA_MUZZY_MS:
    case CAIRN_JE_OPT_MUZZY_MS:
        if (writes && new_size != sizeof muzzy) return EINVAL;
        return cairn_je_read(old, old_size, &muzzy, sizeof muzzy);
    case CAIRN_JE_BIN_SIZE:
        if (number >= bins) return ENOENT;
        break;
    }
    figure = node == CAIRN_JE_BACKGROUND_MOST ? 1 : cairn_je_figure(node, number);
    return cairn_je_read(old, old_size, &figure, sizeof figure);
}

static inline int mallctl(const char *name, void *old, size_t *old_size, void *new_value, size_t new_size) {
    size_t node, number;
    for (node = 0; node < CAIRN_JE_NODES; node++) {
        if (cairn_je_matches(name, node, &number))
            return cairn_je_control(node, number, old, old_size, new_value, new_size);
    }
    return ENOENT;
}

/* The first word of a mib is the node, the one where its name has a number is that number, others are 0. */
static inline int mallctlnametomib(const char *name, size_t *mib, size_t *length) {
    size_t node, number, star, parts, i;
    for (node = 0; node < CAIRN_JE_NODES; node++) {
        if (!cairn_je_matches(name, node, &number)) continue;
        parts = cairn_je_parts(node, &star);
        if (*length > parts) *length = parts;
        for (i = 0; i < *length; i++) mib[i] = i == 0 ? node : i == star ? number : 0;
        return 0;
    }
    return ENOENT;
}

static inline int mallctlbymib(const size_t *mib, size_t length, void *old, size_t *old_size, void *new_value,
                               size_t new_size) {
    size_t star;
    if (length == 0 || mib[0] >= CAIRN_JE_NODES || cairn_je_parts(mib[0], &star) != length) return ENOENT;
    return cairn_je_control(mib[0], star < length ? mib[star] : 0, old, old_size, new_value, new_size);
}

struct cairn_je_writer {
    void (*write)(void *, const char *);
    void *argument;
};

static inline void cairn_je_write(const char *text, void *writer) {
    const struct cairn_je_writer *to = (const struct cairn_je_writer *)writer;
    if (to->write) to->write(to->argument, text);
    else fputs(text, stderr);
}

/* To standard error cairn's account, and to a function, or with J among the options, its JSON. */
static inline void malloc_stats_print(void (*write)(void *, const char *), void *argument, const char *options) {
    struct cairn_je_writer writer;
    struct cairn_reader reader;
    writer.write = write;
    writer.argument = argument;
    reader.read = cairn_je_write;
    reader.argument = &writer;
    if (write || (options && strchr(options, 'J'))) cairn_stats_json(cairn_reader_add, &reader);
    else cairn_stats_print();
}
