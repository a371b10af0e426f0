/*
 * What a process does first, and what it does after that: every entry point by a name, and a
 * small work-out. The program, its library and its plugin all include this, so that each of
 * them calls by way of its own symbols.
 *
 * The command line names the place and the operation. It is read from /proc: some places come
 * before anybody has been told of the arguments.
 */
#ifndef LIFE_H
#define LIFE_H

#include "check.h"

#include "cairn.h"

/* Functions that no other library has: bound by the linker, or looked up in a program that
 * knows nothing of cairn. */
#ifdef CAIRN_IS_LINKED
#define CALLED(name) (name)
#else
#define CALLED(name) ((__typeof__(&(name)))looked_up(#name))
static inline void *looked_up(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    CHECK(found != NULL, "%s", name);
    return found;
}
#endif

/* Not in the headers, or not in those of every C library; the first seven are in glibc. */
void *pvalloc(size_t);
int malloc_trim(size_t);
int mallopt(int, int);
int malloc_info(int, FILE *);
void malloc_stats(void);
struct wide_info { size_t counts[10]; } wide_info(void) __asm__("mallinfo2");
struct info { int counts[10]; } info(void) __asm__("mallinfo");
void cfree(void *);
void free_sized(void *, size_t);
void free_aligned_sized(void *, size_t, size_t);
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t), *__libc_valloc(size_t), *__libc_pvalloc(size_t);
void *__libc_reallocarray(void *, size_t, size_t);
void __libc_free(void *);
int __libc_mallopt(int, int);
struct info __libc_mallinfo(void);
/* operator new: plain, nothrow, aligned, aligned nothrow; the same for arrays. */
void *_Znwm(size_t), *_ZnwmRKSt9nothrow_t(size_t, const char *);
void *_ZnwmSt11align_val_t(size_t, size_t);
void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t, size_t, const char *);
void *_Znam(size_t), *_ZnamRKSt9nothrow_t(size_t, const char *);
void *_ZnamSt11align_val_t(size_t, size_t);
void *_ZnamSt11align_val_tRKSt9nothrow_t(size_t, size_t, const char *);
/* operator delete: plain, sized, nothrow, aligned, sized aligned, aligned nothrow; arrays. */
void _ZdlPv(void *), _ZdlPvm(void *, size_t), _ZdlPvRKSt9nothrow_t(void *, const char *);
void _ZdlPvSt11align_val_t(void *, size_t), _ZdlPvmSt11align_val_t(void *, size_t, size_t);
void _ZdlPvSt11align_val_tRKSt9nothrow_t(void *, size_t, const char *);
void _ZdaPv(void *), _ZdaPvm(void *, size_t), _ZdaPvRKSt9nothrow_t(void *, const char *);
void _ZdaPvSt11align_val_t(void *, size_t), _ZdaPvmSt11align_val_t(void *, size_t, size_t);
void _ZdaPvSt11align_val_tRKSt9nothrow_t(void *, size_t, const char *);

static const char tag;

/* --- operations that give a block --- */

static void *by_malloc(size_t size, size_t) { return malloc(size); }
static void *by_calloc(size_t size, size_t)
{
    void *block = calloc(1, size);
    CHECK(block == NULL || all_zero(block, size), "%zu", size);
    return block;
}
static void *by_realloc(size_t size, size_t) { return realloc(NULL, size); }
static void *by_reallocarray(size_t size, size_t) { return reallocarray(NULL, 1, size); }
static void *by_aligned_alloc(size_t size, size_t align) { return aligned_alloc(align, size); }
static void *by_memalign(size_t size, size_t align) { return memalign(align, size); }
static void *by_valloc(size_t size, size_t) { return valloc(size); }
static void *by_pvalloc(size_t size, size_t) { return pvalloc(size); }
static void *by_posix_memalign(size_t size, size_t align)
{
    void *block = NULL;
    CHECK(posix_memalign(&block, align, size) == 0, "%zu", size);
    return block;
}

static void *by_libc_malloc(size_t size, size_t) { return CALLED(__libc_malloc)(size); }
static void *by_libc_calloc(size_t size, size_t) { return CALLED(__libc_calloc)(1, size); }
static void *by_libc_realloc(size_t size, size_t) { return CALLED(__libc_realloc)(NULL, size); }
static void *by_libc_reallocarray(size_t size, size_t)
{
    return CALLED(__libc_reallocarray)(NULL, 1, size);
}
static void *by_libc_memalign(size_t size, size_t align) { return CALLED(__libc_memalign)(align, size); }
static void *by_libc_valloc(size_t size, size_t) { return CALLED(__libc_valloc)(size); }
static void *by_libc_pvalloc(size_t size, size_t) { return CALLED(__libc_pvalloc)(size); }

static void *by_new(size_t size, size_t) { return CALLED(_Znwm)(size); }
static void *by_new_nothrow(size_t size, size_t) { return CALLED(_ZnwmRKSt9nothrow_t)(size, &tag); }
static void *by_new_aligned(size_t size, size_t align) { return CALLED(_ZnwmSt11align_val_t)(size, align); }
static void *by_new_aligned_nothrow(size_t size, size_t align)
{
    return CALLED(_ZnwmSt11align_val_tRKSt9nothrow_t)(size, align, &tag);
}
static void *by_array(size_t size, size_t) { return CALLED(_Znam)(size); }
static void *by_array_nothrow(size_t size, size_t) { return CALLED(_ZnamRKSt9nothrow_t)(size, &tag); }
static void *by_array_aligned(size_t size, size_t align) { return CALLED(_ZnamSt11align_val_t)(size, align); }
static void *by_array_aligned_nothrow(size_t size, size_t align)
{
    return CALLED(_ZnamSt11align_val_tRKSt9nothrow_t)(size, align, &tag);
}

static void to_free(void *block, size_t) { free(block); }
static void to_libc_free(void *block, size_t) { CALLED(__libc_free)(block); }
static void to_delete(void *block, size_t) { CALLED(_ZdlPv)(block); }
static void to_delete_aligned(void *block, size_t align) { CALLED(_ZdlPvSt11align_val_t)(block, align); }
static void to_array_delete(void *block, size_t) { CALLED(_ZdaPv)(block); }
static void to_array_delete_aligned(void *block, size_t align)
{
    CALLED(_ZdaPvSt11align_val_t)(block, align);
}

/* --- operations that give none --- */

static void free_null(void) { free(NULL); }
static void usable_size_null(void) { CHECK(malloc_usable_size(NULL) == 0, "null"); }
static void trim(void) { malloc_trim(0); }
static void ask_info(void) { (void)info().counts; }
static void ask_wide_info(void) { (void)wide_info().counts; }
static void ask_document(void)
{
    /* The stream would allocate a buffer of its own. */
    static char buffer[1 << 16];
    CHECK(setvbuf(stdout, buffer, _IOFBF, sizeof buffer) == 0, "setvbuf");
    CHECK(malloc_info(0, stdout) == 0 && fflush(stdout) == 0, "malloc_info");
}
static void print_stats(void) { malloc_stats(); }
static void set_option(void) { CHECK(mallopt(-1, 1 << 20) == 1, "mallopt"); }
static void libc_set_option(void) { CHECK(CALLED(__libc_mallopt)(-1, 1 << 20) == 1, "mallopt"); }
static void libc_ask_info(void) { (void)CALLED(__libc_mallinfo)().counts; }
static void libc_free_null(void) { CALLED(__libc_free)(NULL); }
static void cfree_null(void) { CALLED(cfree)(NULL); }
static void free_sized_null(void) { CALLED(free_sized)(NULL, 100); }
static void free_aligned_sized_null(void) { CALLED(free_aligned_sized)(NULL, 64, 100); }

static void delete_null(void) { CALLED(_ZdlPv)(NULL); }
static void delete_sized(void) { CALLED(_ZdlPvm)(NULL, 100); }
static void delete_nothrow(void) { CALLED(_ZdlPvRKSt9nothrow_t)(NULL, &tag); }
static void delete_aligned(void) { CALLED(_ZdlPvSt11align_val_t)(NULL, 64); }
static void delete_sized_aligned(void) { CALLED(_ZdlPvmSt11align_val_t)(NULL, 100, 64); }
static void delete_aligned_nothrow(void) { CALLED(_ZdlPvSt11align_val_tRKSt9nothrow_t)(NULL, 64, &tag); }
static void array_delete_null(void) { CALLED(_ZdaPv)(NULL); }
static void array_delete_sized(void) { CALLED(_ZdaPvm)(NULL, 100); }
static void array_delete_nothrow(void) { CALLED(_ZdaPvRKSt9nothrow_t)(NULL, &tag); }
static void array_delete_aligned(void) { CALLED(_ZdaPvSt11align_val_t)(NULL, 64); }
static void array_delete_sized_aligned(void) { CALLED(_ZdaPvmSt11align_val_t)(NULL, 100, 64); }
static void array_delete_aligned_nothrow(void)
{
    CALLED(_ZdaPvSt11align_val_tRKSt9nothrow_t)(NULL, 64, &tag);
}

static void own_is_active(void) { CHECK(CALLED(cairn_is_active)() == 1, "active"); }
static void own_version(void) { CHECK(CALLED(cairn_version)()[0] != 0, "version"); }
static void own_usable_size(void) { CHECK(CALLED(cairn_usable_size)(NULL) == 0, "null"); }
static void own_base(void)
{
    int on_the_stack;
    CHECK(CALLED(cairn_base)(NULL) == NULL, "null");
    CHECK(CALLED(cairn_base)(&on_the_stack) == NULL, "the stack");
}
static void own_purge(void) { CALLED(cairn_purge)(); }
static void own_stats(void) { CALLED(cairn_stats_print)(); }

/* Not in the table: a bad pointer as the very first thing. */
static void free_foreign(void)
{
    static char none_of_ours[64] __attribute__((aligned(64)));
    free(hide(none_of_ours + 16));
}

typedef struct {
    const char *name;
    void *(*allocate)(size_t size, size_t align);
    void (*release)(void *block, size_t align);
    size_t size, align;
    void (*ask)(void);
} operation_t;

#define GIVES(name, allocate, release, size, align) {name, allocate, release, size, align, NULL}
#define ASKS(name, ask) {name, NULL, NULL, 0, 0, ask}

static const operation_t operations[] = {
    GIVES("malloc", by_malloc, to_free, 100, 16),
    GIVES("malloc-0", by_malloc, to_free, 0, 16),
    GIVES("malloc-medium", by_malloc, to_free, 5000, 16),
    GIVES("malloc-large", by_malloc, to_free, 200000, 16),
    GIVES("malloc-mapping", by_malloc, to_free, 33 * MIB, 16),
    GIVES("calloc", by_calloc, to_free, 100, 16),
    GIVES("calloc-medium", by_calloc, to_free, 5000, 16),
    GIVES("calloc-large", by_calloc, to_free, 200000, 16),
    GIVES("realloc", by_realloc, to_free, 100, 16),
    GIVES("realloc-0", by_realloc, to_free, 0, 16),
    GIVES("realloc-large", by_realloc, to_free, 200000, 16),
    GIVES("reallocarray", by_reallocarray, to_free, 100, 16),
    GIVES("aligned_alloc", by_aligned_alloc, to_free, 100, 64),
    GIVES("memalign", by_memalign, to_free, 100, 256),
    GIVES("memalign-1M", by_memalign, to_free, 100, MIB),
    GIVES("memalign-16M", by_memalign, to_free, 100, 16 * MIB),
    GIVES("posix_memalign", by_posix_memalign, to_free, 100, 64),
    GIVES("valloc", by_valloc, to_free, 100, 4096),
    GIVES("pvalloc", by_pvalloc, to_free, 100, 4096),
    GIVES("__libc_malloc", by_libc_malloc, to_libc_free, 100, 16),
    GIVES("__libc_calloc", by_libc_calloc, to_libc_free, 100, 16),
    GIVES("__libc_realloc", by_libc_realloc, to_libc_free, 100, 16),
    GIVES("__libc_reallocarray", by_libc_reallocarray, to_libc_free, 100, 16),
    GIVES("__libc_memalign", by_libc_memalign, to_libc_free, 100, 64),
    GIVES("__libc_valloc", by_libc_valloc, to_libc_free, 100, 4096),
    GIVES("__libc_pvalloc", by_libc_pvalloc, to_libc_free, 100, 4096),
    GIVES("new", by_new, to_delete, 100, 16),
    GIVES("new-nothrow", by_new_nothrow, to_delete, 100, 16),
    GIVES("new-aligned", by_new_aligned, to_delete_aligned, 100, 64),
    GIVES("new-aligned-nothrow", by_new_aligned_nothrow, to_delete_aligned, 100, 64),
    GIVES("new[]", by_array, to_array_delete, 100, 16),
    GIVES("new[]-nothrow", by_array_nothrow, to_array_delete, 100, 16),
    GIVES("new[]-aligned", by_array_aligned, to_array_delete_aligned, 100, 64),
    GIVES("new[]-aligned-nothrow", by_array_aligned_nothrow, to_array_delete_aligned, 100, 64),
    ASKS("free-null", free_null),
    ASKS("malloc_usable_size", usable_size_null),
    ASKS("malloc_trim", trim),
    ASKS("mallinfo", ask_info),
    ASKS("mallinfo2", ask_wide_info),
    ASKS("malloc_info", ask_document),
    ASKS("malloc_stats", print_stats),
    ASKS("mallopt", set_option),
    ASKS("__libc_mallopt", libc_set_option),
    ASKS("__libc_mallinfo", libc_ask_info),
    ASKS("__libc_free-null", libc_free_null),
    ASKS("cfree-null", cfree_null),
    ASKS("free_sized-null", free_sized_null),
    ASKS("free_aligned_sized-null", free_aligned_sized_null),
    ASKS("delete-null", delete_null),
    ASKS("delete-sized", delete_sized),
    ASKS("delete-nothrow", delete_nothrow),
    ASKS("delete-aligned", delete_aligned),
    ASKS("delete-sized-aligned", delete_sized_aligned),
    ASKS("delete-aligned-nothrow", delete_aligned_nothrow),
    ASKS("delete[]-null", array_delete_null),
    ASKS("delete[]-sized", array_delete_sized),
    ASKS("delete[]-nothrow", array_delete_nothrow),
    ASKS("delete[]-aligned", array_delete_aligned),
    ASKS("delete[]-sized-aligned", array_delete_sized_aligned),
    ASKS("delete[]-aligned-nothrow", array_delete_aligned_nothrow),
    ASKS("cairn_is_active", own_is_active),
    ASKS("cairn_version", own_version),
    ASKS("cairn_usable_size", own_usable_size),
    ASKS("cairn_base", own_base),
    ASKS("cairn_purge", own_purge),
    ASKS("cairn_stats_print", own_stats),
};
static const operation_t bad_operation = ASKS("free-foreign", free_foreign);

/* --- the command line --- */

/* Word number `index` of the command line: 1 is the place, 2 the operation, 3 the plugin. */
static inline const char *word(int index)
{
    static char words[8192];
    if (words[0] == 0) {
        int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0 && read(fd, words, sizeof words - 2) > 0, "/proc is needed");
        close(fd);
    }
    const char *at = words;
    while (index-- > 0) at += strlen(at) + 1;
    return at;
}

static inline int is_place(const char *place) { return strcmp(word(1), place) == 0; }

static inline const operation_t *chosen_operation(void)
{
    for (size_t i = 0; i < COUNT_OF(operations); i++)
        if (strcmp(operations[i].name, word(2)) == 0) return &operations[i];
    CHECK(strcmp(bad_operation.name, word(2)) == 0, "no operation %s", word(2));
    return &bad_operation;
}

/* --- what comes first --- */

/* Sends a stream nowhere; the result is for `restore`. */
static inline int silence(int stream)
{
    int kept = dup(stream), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    CHECK(kept >= 0 && nowhere >= 0 && dup2(nowhere, stream) == stream, "/dev/null");
    close(nowhere);
    return kept;
}

static inline void restore(int stream, int kept)
{
    CHECK(dup2(kept, stream) == stream, "dup2");
    close(kept);
}

/* Whether somebody has allocated in this process. */
static inline int has_begun(void)
{
#ifdef CAIRN_IS_LINKED
    return cairn_header.map->slices != 0;
#else
    return ((const struct cairn_header *)looked_up("cairn_header"))->map->slices != 0;
#endif
}

static inline int is_cairns(void *block) { return CALLED(cairn_base)(block) == block; }

/* Does what it is that gives a block; the block is filled. NULL for what gives none. */
static inline void *operate(const operation_t *operation)
{
    if (operation->ask) {
        int is_loud = strstr(operation->name, "stats") != NULL;
        int is_text = strcmp(operation->name, "malloc_info") == 0;
        int stream = is_text ? 1 : 2, kept = is_loud || is_text ? silence(stream) : -1;
        operation->ask();
        if (kept >= 0) restore(stream, kept);
        return NULL;
    }
    errno = 77;
    void *block = operation->allocate(operation->size, operation->align);
    CHECK(block != NULL, "%s", operation->name);
    CHECK(errno == 77, "%s touches errno", operation->name);
    CHECK(is_aligned(block, operation->align), "%s: %p", operation->name, block);
    fill_ends(block, operation->size, 9);
    return block;
}

static inline void take_back(const operation_t *operation, void *block)
{
    if (block == NULL) return;
    CHECK(ends_hold(block, operation->size, 9), "%s", operation->name);
    operation->release(block, operation->align);
}

/* One line for the test: was it the first of the process, and who answered? */
static inline void tell(const char *when, int is_ours)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%s %s %s %s\n", word(1), word(2), when,
                          is_ours ? "cairn" : "other");
    CHECK(write(1, line, (size_t)length) == length, "standard output");
}

/* --- what comes after --- */

enum { PIECES = 160 };
static struct { void *block; size_t size; } pieces[PIECES];
static size_t piece_sizes[PIECES];

/* Sizes of nearly every class, large blocks, and one that is a mapping. */
static inline size_t piece_count(void)
{
    static size_t count;
    if (count == 0) {
        for (size_t size = 0; size < MIB; size += size / 10 > 16 ? size / 10 : 16) piece_sizes[count++] = size;
        piece_sizes[count++] = 33 * MIB;
        CHECK(count < PIECES, "%zu", count);
    }
    return count;
}

static inline void get_pieces(size_t from, size_t step)
{
    for (size_t i = from; i < piece_count(); i += step) {
        size_t size = piece_sizes[i];
        pieces[i].size = size;
        pieces[i].block = i % 7 == 3 ? memalign(128, size) : malloc(size);
        CHECK(pieces[i].block != NULL && is_aligned(pieces[i].block, 16), "%zu", size);
        fill_ends(pieces[i].block, size, (unsigned)i);
    }
}

static inline void free_pieces(size_t from, size_t step)
{
    for (size_t i = from; i < piece_count(); i += step) {
        CHECK(ends_hold(pieces[i].block, pieces[i].size, (unsigned)i), "%zu", pieces[i].size);
        free(pieces[i].block);
    }
}

/* Every size, growth, zeros; in the calling thread alone. */
static inline void work_out_alone(void)
{
    get_pieces(0, 1);
    free_pieces(0, 1);
    unsigned char *grown = NULL;
    for (size_t size = 10; size < 300000; size = size * 2 + 3) {
        grown = (unsigned char *)realloc(grown, size);
        CHECK(grown != NULL, "%zu", size);
        CHECK(size == 10 || holds(grown, (size - 3) / 2, 5), "%zu", size);
        fill(grown, size, 5);
    }
    free(grown);
    for (size_t size = 1; size < 100000; size = size * 3 + 1) {
        void *zeros = calloc(size, 1);
        CHECK(zeros != NULL && all_zero(zeros, size), "%zu", size);
        free(zeros);
    }
}

static inline void *work_in_thread(void *argument)
{
    free_pieces(0, 2);
    get_pieces(1, 2);
    return argument;
}

/* Blocks that go to another thread and come from one. */
static inline void work_out(void)
{
    get_pieces(0, 2);
    joined(started(work_in_thread, NULL));
    free_pieces(1, 2);
}

/* The operation that was asked for, then the work-out as far as one thread can do it. */
static inline void first_of_all(void)
{
    const operation_t *operation = chosen_operation();
    int begun = has_begun();
    void *block = operate(operation);
    int is_ours = block == NULL || is_cairns(block);
    take_back(operation, block);
    work_out_alone();
    tell(begun ? "later" : "first", is_ours);
}

#endif
