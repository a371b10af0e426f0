/* Every call that takes a block, with none; every call that makes one, with every odd size and alignment. */
#include "check.h"

#ifdef CAIRN_IS_LINKED
#define ENTRY(result, name, parameters)                                                            \
    extern result name parameters;                                                                 \
    static result(*find_##name(void)) parameters { return name; }
#else
#define ENTRY(result, name, parameters)                                                            \
    static result(*find_##name(void)) parameters                                                   \
    {                                                                                              \
        return (result(*) parameters)dlsym(RTLD_DEFAULT, #name);                                   \
    }
#endif

typedef size_t Sz;
typedef const char *Tag;
static const char nothrow;

/* What frees a block: by itself, with its size, its alignment, both, or a tag. */
#define PLAIN(name) ENTRY(void, name, (void *)) static void call_##name(void *p, Sz s, Sz a) { (void)s, (void)a; if (find_##name()) find_##name()(p); }
#define SIZED(name) ENTRY(void, name, (void *, Sz)) static void call_##name(void *p, Sz s, Sz a) { (void)a; if (find_##name()) find_##name()(p, s); }
#define ALIGNED(name) ENTRY(void, name, (void *, Sz)) static void call_##name(void *p, Sz s, Sz a) { (void)s; if (find_##name()) find_##name()(p, a); }
#define SIZED_ALIGNED(name) ENTRY(void, name, (void *, Sz, Sz)) static void call_##name(void *p, Sz s, Sz a) { if (find_##name()) find_##name()(p, s, a); }
#define ALIGNED_SIZED(name) ENTRY(void, name, (void *, Sz, Sz)) static void call_##name(void *p, Sz s, Sz a) { if (find_##name()) find_##name()(p, a, s); }
#define TAGGED(name) ENTRY(void, name, (void *, Tag)) static void call_##name(void *p, Sz s, Sz a) { (void)s, (void)a; if (find_##name()) find_##name()(p, &nothrow); }
#define ALIGNED_TAGGED(name) ENTRY(void, name, (void *, Sz, Tag)) static void call_##name(void *p, Sz s, Sz a) { (void)s; if (find_##name()) find_##name()(p, a, &nothrow); }

PLAIN(cfree) PLAIN(__libc_free) SIZED(free_sized) ALIGNED_SIZED(free_aligned_sized)
PLAIN(_ZdlPv) PLAIN(_ZdaPv) SIZED(_ZdlPvm) SIZED(_ZdaPvm) TAGGED(_ZdlPvRKSt9nothrow_t) TAGGED(_ZdaPvRKSt9nothrow_t)
ALIGNED(_ZdlPvSt11align_val_t) ALIGNED(_ZdaPvSt11align_val_t)
SIZED_ALIGNED(_ZdlPvmSt11align_val_t) SIZED_ALIGNED(_ZdaPvmSt11align_val_t)
ALIGNED_TAGGED(_ZdlPvSt11align_val_tRKSt9nothrow_t) ALIGNED_TAGGED(_ZdaPvSt11align_val_tRKSt9nothrow_t)

static void call_free(void *p, Sz s, Sz a) { (void)s, (void)a; free(p); }

static const struct { const char *name; void (*call)(void *, Sz, Sz); } frees[] = {
#define FREE(name) {#name, call_##name}
    FREE(free), FREE(cfree), FREE(__libc_free), FREE(free_sized), FREE(free_aligned_sized),
    FREE(_ZdlPv), FREE(_ZdaPv), FREE(_ZdlPvm), FREE(_ZdaPvm), FREE(_ZdlPvRKSt9nothrow_t), FREE(_ZdaPvRKSt9nothrow_t),
    FREE(_ZdlPvSt11align_val_t), FREE(_ZdaPvSt11align_val_t), FREE(_ZdlPvmSt11align_val_t), FREE(_ZdaPvmSt11align_val_t),
    FREE(_ZdlPvSt11align_val_tRKSt9nothrow_t), FREE(_ZdaPvSt11align_val_tRKSt9nothrow_t),
};

static const Sz sizes[] = {
    0, 1, 7, 8, 15, 16, 17, 31, 100, 1023, 1024, 1025, 4095, 4097, 16383, 16385, 65535, 65536, 65537, 131071, 1 << 20,
    (33 << 20) + 1, (Sz)1 << 47, PTRDIFF_MAX - 4096, PTRDIFF_MAX, (Sz)PTRDIFF_MAX + 1, SIZE_MAX - 4096, SIZE_MAX - 1, SIZE_MAX,
};
static const Sz aligns[] = {
    0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 32, 48, 100, 4095, 4096, 4097, 8192, 16384, 16385, 49152, 50000, 65536, 1 << 20,
    (1 << 20) + 16, 32 << 20, (Sz)1 << 40, (Sz)1 << 62, (Sz)1 << 63, ((Sz)1 << 63) + 1, SIZE_MAX - 1, SIZE_MAX,
};

static int is_power(Sz n) { return n != 0 && (n & (n - 1)) == 0; }

/* A block that a call with this size and alignment has given, or none; takes it back. */
static void try(const char *name, void *p, Sz size, Sz align)
{
    if (p == NULL) {
        CHECK(size > 1024 * GIB || align > GIB || !is_power(align), "%s(%zu at %zu) fails", name, size, align);
        return;
    }
    CHECK(size <= PTRDIFF_MAX, "%s(%zu at %zu)", name, size, align);
    CHECK(!is_power(align) || is_aligned(p, align), "%s(%zu at %zu): %p", name, size, align, p);
    CHECK(malloc_usable_size(p) >= size, "%s(%zu at %zu): %zu", name, size, align, malloc_usable_size(p));
    if (size > 0 && size <= (1 << 20)) {
        fill(p, size, 1);
        CHECK(holds(p, size, 1), "%s(%zu at %zu)", name, size, align);
    }
    free(p);
}

static void none_is_nothing(void)
{
    for (Sz i = 0; i < COUNT_OF(sizes); i++)
        for (Sz j = 0; j < COUNT_OF(aligns); j++)
            for (Sz f = 0; f < COUNT_OF(frees); f++) {
                errno = 77;
                frees[f].call(hide(NULL), sizes[i], aligns[j]);
                CHECK(errno == 77, "%s(NULL, %zu, %zu)", frees[f].name, sizes[i], aligns[j]);
            }
    CHECK(malloc_usable_size(hide(NULL)) == 0, "malloc_usable_size(NULL)");
    for (Sz i = 0; i < COUNT_OF(sizes); i++) {
        Sz size = hide_size(sizes[i]);
        try("realloc", realloc(hide(NULL), size), size, 1);
        try("reallocarray", reallocarray(hide(NULL), size, 1), size, 1);
        CHECK(reallocarray(hide(NULL), SIZE_MAX / 2, hide_size(3)) == NULL, "overflow");
    }
}

ENTRY(void *, _ZnwmRKSt9nothrow_t, (Sz, Tag))
ENTRY(void *, _ZnamRKSt9nothrow_t, (Sz, Tag))
ENTRY(void *, _ZnwmSt11align_val_tRKSt9nothrow_t, (Sz, Sz, Tag))
ENTRY(void *, _ZnamSt11align_val_tRKSt9nothrow_t, (Sz, Sz, Tag))

static void any_size_and_alignment(void)
{
    for (Sz i = 0; i < COUNT_OF(sizes); i++) {
        Sz size = hide_size(sizes[i]);
        try("malloc", malloc(size), size, 16);
        try("calloc", calloc(1, size), size, 16);
        try("calloc", calloc(size, 1), size, 16);
        try("valloc", valloc(size), size, 4096);
        try("pvalloc", pvalloc(size), size, 4096);
        if (find__ZnwmRKSt9nothrow_t()) try("new", find__ZnwmRKSt9nothrow_t()(size, &nothrow), size, 16);
        if (find__ZnamRKSt9nothrow_t()) try("new[]", find__ZnamRKSt9nothrow_t()(size, &nothrow), size, 16);
        for (Sz j = 0; j < COUNT_OF(aligns); j++) {
            Sz align = hide_size(aligns[j]);
            void *p = hide(&p);
            int error = posix_memalign(&p, align, size);
            CHECK(error == 0 || p == hide(&p), "posix_memalign(%zu, %zu) writes", align, size);
            CHECK((error == EINVAL) == (!is_power(align) || align < sizeof p), "posix_memalign(%zu, %zu): %d", align, size, error);
            if (error != EINVAL) try("posix_memalign", error ? NULL : p, size, align);
            errno = 0;
            p = aligned_alloc(align, size);
            CHECK(p || errno == (is_power(align) ? ENOMEM : EINVAL), "aligned_alloc(%zu, %zu)", align, size);
            CHECK(!p || is_power(align) || getenv("TEST_EXPECTS_CAIRN") == NULL, "aligned_alloc(%zu, %zu)", align, size);
            try("aligned_alloc", p, size, align);
            try("memalign", memalign(align, size), size, align);
            if (find__ZnwmSt11align_val_tRKSt9nothrow_t())
                try("new", find__ZnwmSt11align_val_tRKSt9nothrow_t()(size, align, &nothrow), size, align);
            if (find__ZnamSt11align_val_tRKSt9nothrow_t())
                try("new[]", find__ZnamSt11align_val_tRKSt9nothrow_t()(size, align, &nothrow), size, align);
        }
    }
}

#ifdef CAIRN_IS_LINKED
static void own_calls(void)
{
    void *none = hide(NULL);
    cairn_heap *heaps[] = {cairn_heap_new(), cairn_heap_new_shared()};
    CHECK(heaps[0] && heaps[1], "heaps");
    CHECK(cairn_usable_size(none) == 0 && cairn_base(none) == NULL && cairn_should_move(none) == 0, "NULL");
    CHECK(cairn_heap_of(none) == NULL && cairn_owner_thread(none) == 0, "NULL");
    cairn_free_batch(&none, 1);
    cairn_free_batch(NULL, 0);
    errno = 77;
    cairn_heap_delete(none);
    cairn_heap_destroy(none);
    CHECK(cairn_region_end(none) == 1 && errno == 77, "the ends of NULL");
    CHECK(cairn_heap_contains(none, none) == 0 && cairn_heap_contains(none, heaps) == 0, "NULL contains");
    for (Sz i = 0; i < COUNT_OF(sizes); i++) {
        Sz size = hide_size(sizes[i]), usable = 0;
        CHECK(cairn_try_expand(none, size) == 0, "cairn_try_expand(NULL, %zu)", size);
        try("cairn_recallocarray", cairn_recallocarray(none, 0, size, 1), size, 1);
        try("cairn_recallocarray", cairn_recallocarray(none, size, 1, size), size, 1);
        try("cairn_malloc_at_least", cairn_malloc_at_least(size, &usable), size, 16);
        for (unsigned partition = 0; partition < 20; partition += 7) {
            try("cairn_malloc_in", cairn_malloc_in(partition, size), size, 16);
            try("cairn_calloc_in", cairn_calloc_in(partition, size, 1), size, 16);
            try("cairn_realloc_in", cairn_realloc_in(partition, none, size), size, 16);
        }
        for (Sz h = 0; h < COUNT_OF(heaps); h++) {
            CHECK(cairn_heap_contains(heaps[h], none) == 0, "cairn_heap_contains(NULL)");
            try("cairn_heap_malloc", cairn_heap_malloc(heaps[h], size), size, 16);
            try("cairn_heap_calloc", cairn_heap_calloc(heaps[h], size, 1), size, 16);
            try("cairn_heap_realloc", cairn_heap_realloc(heaps[h], none, size), size, 16);
        }
        for (Sz j = 0; j < COUNT_OF(aligns); j++) {
            Sz align = hide_size(aligns[j]);
            void *made[] = {cairn_aligned_alloc_at_least(align, size, &usable), cairn_aligned_alloc_in(3, align, size),
                            cairn_heap_aligned_alloc(heaps[0], align, size), cairn_heap_aligned_alloc(heaps[1], align, size),
                            cairn_aligned_alloc_at(align, 0, size)};
            for (Sz k = 0; k < COUNT_OF(made); k++) {
                CHECK(!made[k] || is_power(align), "%zu at %zu", size, align);
                try("an aligned call of cairn's", made[k], size, align);
            }
            for (Sz k = 0; k < COUNT_OF(aligns); k++) {
                void *p = cairn_aligned_alloc_at(align, aligns[k], size);
                CHECK(!p || (is_power(align) && is_aligned((char *)p + aligns[k], align)), "%zu at %zu, %zu", size, align, aligns[k]);
                free(p);
            }
        }
    }
    cairn_heap_destroy(heaps[0]);
    cairn_heap_destroy(heaps[1]);
}
#else
static void own_calls(void) {}
#endif

static const struct test_case cases[] = {
    {"none_is_nothing", none_is_nothing},
    {"any_size_and_alignment", any_size_and_alignment},
    {"own_calls", own_calls},
};
MAIN(cases)
