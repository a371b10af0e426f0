/* What the C standard, POSIX and glibc 2.36 say of the malloc family. */
#include "check.h"

#define SENTINEL 12345

/* Entry points the system headers may not declare. A linked program names them; a preloaded one
 * asks the loader and leaves out what a stand-in does not have. */
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
ENTRY(void *, __libc_malloc, (size_t))
ENTRY(void, __libc_free, (void *))
ENTRY(void *, __libc_calloc, (size_t, size_t))
ENTRY(void *, __libc_realloc, (void *, size_t))
ENTRY(void *, __libc_memalign, (size_t, size_t))
ENTRY(void *, __libc_valloc, (size_t))
ENTRY(void *, __libc_pvalloc, (size_t))
ENTRY(void *, __libc_reallocarray, (void *, size_t, size_t))
ENTRY(struct mallinfo, __libc_mallinfo, (void))
ENTRY(int, __libc_mallopt, (int, int))
ENTRY(void, cfree, (void *))
ENTRY(void, free_sized, (void *, size_t))
ENTRY(void, free_aligned_sized, (void *, size_t, size_t))

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static void *posix_block(size_t alignment, size_t size)
{
    void *block = NULL;
    int error = posix_memalign(&block, alignment, size);
    CHECK(error == 0, "posix_memalign(%zu, %zu) returns %d", alignment, size, error);
    return block;
}

static void zero_size(void)
{
    enum { ROUNDS = 200, KINDS = 11 };
    static void *blocks[ROUNDS * KINDS];
    size_t zero = hide_size(0), count = 0;
    for (int round = 0; round < ROUNDS; round++) {
        blocks[count++] = malloc(zero);
        blocks[count++] = calloc(zero, 8);
        blocks[count++] = calloc(8, zero);
        blocks[count++] = realloc(NULL, zero);
        blocks[count++] = reallocarray(NULL, zero, 8);
        blocks[count++] = reallocarray(NULL, 8, zero);
        blocks[count++] = posix_block(64, zero);
        blocks[count++] = aligned_alloc(32, zero);
        blocks[count++] = memalign(64, zero);
        blocks[count++] = valloc(zero);
        blocks[count++] = pvalloc(zero);
    }
    CHECK(count == COUNT_OF(blocks), "%zu", count);
    for (size_t i = 0; i < count; i++) {
        CHECK(blocks[i] != NULL, "kind %zu", i % KINDS);
        for (size_t j = 0; j < i; j++) CHECK(blocks[i] != blocks[j], "%zu and %zu are one", i, j);
    }
    for (size_t i = 0; i < count; i++) free(blocks[i]);
}

#define FAILS(call, expected)                                                                      \
    do {                                                                                           \
        errno = SENTINEL;                                                                          \
        void *result = (call);                                                                     \
        CHECK(result == NULL, #call ", size %zx", size);                                           \
        CHECK(errno == (expected), #call ", size %zx", size);                                      \
    } while (0)

static void too_large(void)
{
    static const size_t sizes[] = {
        SIZE_MAX,           SIZE_MAX - 1,           SIZE_MAX - 7,           SIZE_MAX - 15,
        SIZE_MAX - 63,      SIZE_MAX - 4095,        SIZE_MAX - 4096,        SIZE_MAX - 65536,
        SIZE_MAX / 2 + 1,   SIZE_MAX / 2 + 2,       SIZE_MAX / 2 + 4097,    SIZE_MAX / 4 * 3,
        (size_t)PTRDIFF_MAX, (size_t)PTRDIFF_MAX - 4096, (size_t)1 << 62,   (size_t)1 << 50,
    };
    char *kept = malloc(1000);
    fill(kept, 1000, 1);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t size = hide_size(sizes[i]);
        FAILS(malloc(size), ENOMEM);
        FAILS(calloc(size, 1), ENOMEM);
        FAILS(calloc(1, size), ENOMEM);
        FAILS(realloc(NULL, size), ENOMEM);
        FAILS(realloc(kept, size), ENOMEM);
        FAILS(reallocarray(NULL, size, 1), ENOMEM);
        FAILS(reallocarray(kept, 1, size), ENOMEM);
        FAILS(aligned_alloc(64, size), ENOMEM);
        FAILS(aligned_alloc(MIB, size), ENOMEM);
        FAILS(memalign(64, size), ENOMEM);
        FAILS(memalign(GIB, size), ENOMEM);
        FAILS(valloc(size), ENOMEM);
        FAILS(pvalloc(size), ENOMEM);
        void *untouched = &untouched;
        CHECK(posix_memalign(&untouched, 64, size) == ENOMEM, "size %zx", size);
        CHECK(posix_memalign(&untouched, MIB, size) == ENOMEM, "size %zx", size);
        CHECK(untouched == &untouched, "posix_memalign writes when it fails");
        CHECK(holds(kept, 1000, 1), "a failed realloc changes the block");
    }
    free(kept);
}

static void too_aligned(void)
{
    size_t size = 100;
    void *untouched = &untouched;
    FAILS(aligned_alloc(hide_size((size_t)1 << 62), size), ENOMEM);
    FAILS(memalign(hide_size((size_t)1 << 62), size), ENOMEM);
    FAILS(aligned_alloc(hide_size((size_t)1 << 63), size), ENOMEM);
    FAILS(memalign(hide_size(((size_t)1 << 63) + 1), size), EINVAL);
    CHECK(posix_memalign(&untouched, hide_size((size_t)1 << 62), size) == ENOMEM, "2^62");
    CHECK(untouched == &untouched, "posix_memalign writes when it fails");
}

static void overflow(void)
{
    static const size_t factors[][2] = {
        {SIZE_MAX, 2},
        {2, SIZE_MAX},
        {SIZE_MAX, SIZE_MAX},
        {(size_t)1 << 32, (size_t)1 << 32},
        {((size_t)1 << 32) + 1, (size_t)1 << 32},
        {SIZE_MAX / 3, 4},
        {SIZE_MAX / 16 + 1, 16},
        {SIZE_MAX / 8 + 2, 8},
    };
    char *kept = malloc(100);
    fill(kept, 100, 2);
    for (size_t i = 0; i < COUNT_OF(factors); i++) {
        size_t size = hide_size(factors[i][0]), other = hide_size(factors[i][1]);
        FAILS(calloc(size, other), ENOMEM);
        FAILS(reallocarray(NULL, size, other), ENOMEM);
        FAILS(reallocarray(kept, size, other), ENOMEM);
        CHECK(holds(kept, 100, 2), "a failed reallocarray changes the block");
    }
    free(kept);
}

static void posix_memalign_alignment(void)
{
    static const size_t bad[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 24, 40, 48, 100, 4095, 4097,
                                 SIZE_MAX, SIZE_MAX - 7, ((size_t)1 << 63) + 8};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        void *untouched = &untouched;
        errno = SENTINEL;
        CHECK(posix_memalign(&untouched, hide_size(bad[i]), 100) == EINVAL, "%zu", bad[i]);
        CHECK(untouched == &untouched && errno == SENTINEL, "alignment %zu", bad[i]);
    }
    for (size_t good = 8; good <= 64 * KIB; good *= 2) {
        errno = SENTINEL;
        void *block = posix_block(good, 100);
        CHECK(is_aligned(block, good) && errno == SENTINEL, "alignment %zu", good);
        free(block);
    }
}

/* glibc 2.36 rounds any alignment up to a power of two. */
static void odd_alignment_is_rounded_up(void)
{
    static const size_t odd[][2] = {{0, 1},   {1, 1},    {3, 4},       {5, 8},       {7, 8},
                                    {9, 16},  {12, 16},  {24, 32},     {48, 64},     {65, 128},
                                    {100, 128}, {1000, 1024}, {4095, 4096}, {4097, 8192}, {70000, 131072}};
    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        for (size_t size = 1; size < 100000; size = size * 3 + 1) {
            void *a = memalign(hide_size(odd[i][0]), size);
            CHECK(a != NULL && is_aligned(a, odd[i][1]), "memalign(%zu, %zu)", odd[i][0], size);
            fill(a, size, 3);
            CHECK(holds(a, size, 3), "%zu %zu", odd[i][0], size);
            free(a);
            /* C23: an error. glibc rounds up, or fails, by its version. */
            int is_power = odd[i][0] == odd[i][1];
            errno = SENTINEL;
            void *b = aligned_alloc(hide_size(odd[i][0]), size);
            if (getenv("TEST_EXPECTS_CAIRN") && !is_power) CHECK(b == NULL && errno == EINVAL, "%zu", odd[i][0]);
            if (is_power) CHECK(b != NULL, "%zu", odd[i][0]);
            free(b);
        }
    }
}

static void realloc_to_zero_frees(void)
{
    static const size_t sizes[] = {1, 64, 1000, 40000, MIB, 16 * MIB};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t rounds = 2 * GIB / (sizes[i] + 4096);
        if (rounds > 500000) rounds = 500000;
        for (size_t round = 0; round < rounds; round++) {
            void *block = malloc(sizes[i]);
            CHECK(block != NULL, "%zu", sizes[i]);
            fill_ends(block, sizes[i], 5);
            errno = SENTINEL;
            void *nothing = round % 2 ? realloc(block, hide_size(0)) : reallocarray(block, hide_size(0), 8);
            CHECK(nothing == NULL && errno == SENTINEL, "%zu", sizes[i]);
        }
    }
    CHECK(peak_resident_kib() < 64 * KIB, "%zu KiB: the blocks were not freed", peak_resident_kib());
}

static void errno_is_kept(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(40 * MIB, sizes);
    errno = SENTINEL;
    free(NULL);
    malloc_usable_size(NULL);
    for (size_t i = 0; i < count; i++) {
        void *a = malloc(sizes[i]);
        void *b = calloc(sizes[i], 1);
        void *c = memalign(256, sizes[i]);
        void *d = posix_block(16, sizes[i]);
        void *e = realloc(NULL, sizes[i]);
        void *f = aligned_alloc(8192, sizes[i]);
        CHECK(a && b && c && d && e && f, "%zu", sizes[i]);
        e = realloc(e, sizes[i] * 2 + 1);
        e = realloc(e, sizes[i] / 2 + 1);
        malloc_usable_size(e);
        CHECK(errno == SENTINEL, "allocating %zu bytes", sizes[i]);
        free(a), free(b), free(c), free(d), free(e), free(f);
        CHECK(errno == SENTINEL, "freeing %zu bytes", sizes[i]);
    }
    malloc_trim(0);
    CHECK(errno == SENTINEL, "malloc_trim");
}

/* At least what was asked for, and all of it ours to write. */
static void usable_size(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(2 * MIB, sizes);
    CHECK(malloc_usable_size(NULL) == 0, "NULL has no size");
    sizes[count++] = 9 * MIB;
    sizes[count++] = 33 * MIB + 1;
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[i];
        void *blocks[] = {malloc(size),          calloc(1, size),       realloc(NULL, size),
                          memalign(64, size),    posix_block(16, size), aligned_alloc(4096, size),
                          valloc(size),          pvalloc(size),         reallocarray(NULL, 1, size)};
        size_t usable[COUNT_OF(blocks)];
        for (size_t kind = 0; kind < COUNT_OF(blocks); kind++) {
            CHECK(blocks[kind] != NULL, "kind %zu, size %zu", kind, size);
            usable[kind] = malloc_usable_size(blocks[kind]);
            CHECK(usable[kind] >= size, "kind %zu, size %zu", kind, size);
            fill(blocks[kind], usable[kind], (unsigned)kind);
        }
        for (size_t kind = 0; kind < COUNT_OF(blocks); kind++) {
            CHECK(malloc_usable_size(blocks[kind]) == usable[kind], "kind %zu, %zu", kind, size);
            CHECK(holds(blocks[kind], usable[kind], (unsigned)kind), "kind %zu, %zu", kind, size);
            free(blocks[kind]);
        }
    }
}

static void every_small_size(void)
{
    enum { LIMIT = 40000, LIVE = 64 };
    static void *blocks[LIVE];
    static size_t sizes[LIVE];
    for (size_t size = 0; size < LIMIT; size++) {
        size_t slot = size % LIVE;
        CHECK(blocks[slot] == NULL || holds(blocks[slot], sizes[slot], (unsigned)sizes[slot]), "%zu",
              sizes[slot]);
        free(blocks[slot]);
        blocks[slot] = malloc(size);
        sizes[slot] = malloc_usable_size(blocks[slot]);
        CHECK(blocks[slot] != NULL && sizes[slot] >= size, "%zu", size);
        fill(blocks[slot], sizes[slot], (unsigned)sizes[slot]);
    }
    for (size_t slot = 0; slot < LIVE; slot++) free(blocks[slot]);
}

static void realloc_keeps_contents(void)
{
    static const size_t sizes[] = {1,      7,     16,    17,     100,   1000,    1024,    4096,
                                   5000,   32768, 40000, 131072, 200000, MIB,    MIB + 1, 3 * MIB,
                                   9 * MIB, 20 * MIB, 33 * MIB};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t j = 0; j < COUNT_OF(sizes); j++) {
            size_t from = sizes[i], to = sizes[j], common = from < to ? from : to;
            size_t kind = (i + j) % 3;
            char *block = kind == 0 ? malloc(from) : kind == 1 ? calloc(from, 1) : memalign(512, from);
            CHECK(block != NULL, "%zu", from);
            fill(block, from, 6);
            block = realloc(block, to);
            CHECK(block != NULL && holds(block, common, 6), "%zu to %zu", from, to);
            CHECK(malloc_usable_size(block) >= to && is_aligned(block, to > 8 ? 16 : 8), "%zu to %zu", from, to);
            fill(block, to, 7);
            block = reallocarray(block, from, 1);
            CHECK(block != NULL && holds(block, common, 7), "%zu to %zu", to, from);
            free(block);
        }
    }
}

/* Buffers that grow by small steps, many at once, as text and network buffers do. */
static void realloc_in_steps(void)
{
    enum { BUFFERS = 20 };
    static char *buffers[BUFFERS];
    static size_t sizes[BUFFERS];
    uint64_t random = 88172645463325252u;
    for (int step = 0; step < 20000; step++) {
        size_t which = random_next(&random) % BUFFERS;
        size_t size = sizes[which] + random_size(&random, 14) + 1;
        if (size > 3 * MIB) size = 1 + size / 1000;
        size_t common = size < sizes[which] ? size : sizes[which];
        buffers[which] = realloc(buffers[which], size);
        CHECK(buffers[which] != NULL, "%zu", size);
        CHECK(ends_hold(buffers[which], common < 64 ? common : 64, (unsigned)which), "step %d", step);
        if (step % 50 == 0) CHECK(holds(buffers[which], common, (unsigned)which), "step %d", step);
        for (size_t i = sizes[which]; i < size; i++) buffers[which][i] = (char)pattern_at(i, (unsigned)which);
        sizes[which] = size;
    }
    for (size_t which = 0; which < BUFFERS; which++) {
        CHECK(holds(buffers[which], sizes[which], (unsigned)which), "buffer %zu", which);
        free(buffers[which]);
    }
}

static void calloc_is_zero(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(20 * MIB, sizes);
    sizes[count++] = 33 * MIB;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < count; i++) {
            size_t size = sizes[i], dirty = size < 4096 ? 20 : 3;
            void *blocks[20];
            for (size_t j = 0; j < dirty; j++) {
                blocks[j] = malloc(size);
                CHECK(blocks[j] != NULL, "%zu", size);
                memset(blocks[j], 0xa5, malloc_usable_size(blocks[j]));
            }
            for (size_t j = 0; j < dirty; j++) free(blocks[j]);
            if (round == 1) malloc_trim(0);
            for (size_t j = 0; j < dirty; j++) {
                blocks[j] = j % 2 ? calloc(1, size) : calloc(size, 1);
                CHECK(blocks[j] != NULL && all_zero(blocks[j], size), "%zu, round %d", size, round);
                memset(blocks[j], 0x5a, size);
            }
            for (size_t j = 0; j < dirty; j++) free(blocks[j]);
        }
    }
}

/* Blocks dirtied as one size, zeroed as another: runs of pages change their use. */
static void calloc_is_zero_across_sizes(void)
{
    enum { LIVE = 64 };
    static void *blocks[LIVE];
    uint64_t random = 362436069;
    for (int step = 0; step < 20000; step++) {
        size_t slot = random_next(&random) % LIVE;
        size_t size = random_size(&random, step % 100 ? 18 : 23);
        free(blocks[slot]);
        if (step % 2) {
            blocks[slot] = calloc(size, 1);
            CHECK(blocks[slot] != NULL && all_zero(blocks[slot], size), "%zu, step %d", size, step);
        } else {
            blocks[slot] = malloc(size);
        }
        memset(blocks[slot], 0xff, size);
    }
    for (size_t slot = 0; slot < LIVE; slot++) free(blocks[slot]);
}

static void random_mix(void)
{
    enum { LIVE = 3000 };
    static struct { unsigned char *block; size_t size; } live[LIVE];
    uint64_t random = 521288629;
    for (int step = 0; step < 300000; step++) {
        size_t slot = random_next(&random) % LIVE;
        unsigned seed = (unsigned)slot;
        if (live[slot].block)
            CHECK(holds(live[slot].block, live[slot].size, seed), "%zu, step %d", live[slot].size, step);
        size_t size = random_size(&random, step % 1000 ? 13 : 22);
        switch (random_next(&random) % 8) {
        case 0:
            live[slot].block = realloc(live[slot].block, size + 1);
            size++;
            break;
        case 1:
            free(live[slot].block);
            live[slot].block = memalign((size_t)1 << random_next(&random) % 14, size);
            break;
        case 2:
            free(live[slot].block);
            live[slot].block = calloc(size, 1);
            break;
        default:
            free(live[slot].block);
            live[slot].block = malloc(size);
        }
        CHECK(live[slot].block != NULL, "%zu", size);
        live[slot].size = size;
        fill(live[slot].block, size, seed);
    }
    for (size_t slot = 0; slot < LIVE; slot++) free(live[slot].block);
}

static void pages(void)
{
    for (size_t size = 1; size < 4 * MIB; size = size * 3 + 1) {
        size_t whole = (size + page_size() - 1) / page_size() * page_size();
        void *a = valloc(size), *b = pvalloc(size);
        CHECK(a != NULL && is_aligned(a, page_size()), "valloc(%zu)", size);
        CHECK(b != NULL && is_aligned(b, page_size()), "pvalloc(%zu)", size);
        CHECK(malloc_usable_size(b) >= whole, "pvalloc(%zu)", size);
        fill(a, size, 8);
        fill(b, whole, 9);
        CHECK(holds(a, size, 8) && holds(b, whole, 9), "%zu", size);
        free(a), free(b);
    }
}

/* The names glibc has for itself lead to the same heap: each allocates what the other frees. */
static void internal_names(void)
{
    void *(*libc_malloc)(size_t) = find___libc_malloc();
    void (*libc_free)(void *) = find___libc_free();
    void *(*libc_calloc)(size_t, size_t) = find___libc_calloc();
    void *(*libc_realloc)(void *, size_t) = find___libc_realloc();
    void *(*libc_memalign)(size_t, size_t) = find___libc_memalign();
    void *(*libc_valloc)(size_t) = find___libc_valloc();
    void *(*libc_pvalloc)(size_t) = find___libc_pvalloc();
    void *(*libc_reallocarray)(void *, size_t, size_t) = find___libc_reallocarray();
    if (!libc_malloc || !libc_free || !libc_calloc || !libc_realloc || !libc_memalign) {
        CHECK(getenv("TEST_EXPECTS_CAIRN") == NULL, "missing");
        return;
    }
    for (size_t size = 1; size < 4 * MIB; size = size * 3 + 1) {
        void *block = libc_malloc(size);
        fill(block, size, 1);
        block = realloc(block, size + 100);
        CHECK(block && holds(block, size, 1), "__libc_malloc(%zu)", size);
        libc_free(block);
        block = malloc(size);
        fill(block, size, 2);
        block = libc_realloc(block, size * 2);
        CHECK(block && holds(block, size, 2), "__libc_realloc(%zu)", size);
        free(block);
        block = libc_calloc(size, 1);
        CHECK(block && all_zero(block, size), "__libc_calloc(%zu)", size);
        free(block);
        block = libc_memalign(4096, size);
        CHECK(block && is_aligned(block, 4096), "__libc_memalign(%zu)", size);
        free(block);
        if (libc_valloc && libc_pvalloc) {
            block = libc_valloc(size);
            CHECK(block && is_aligned(block, page_size()), "__libc_valloc(%zu)", size);
            free(block);
            block = libc_pvalloc(size);
            CHECK(block && is_aligned(block, page_size()), "__libc_pvalloc(%zu)", size);
            libc_free(block);
        }
        if (libc_reallocarray) {
            block = libc_reallocarray(NULL, size, 2);
            CHECK(block && malloc_usable_size(block) >= 2 * size, "__libc_reallocarray(%zu)", size);
            CHECK(libc_reallocarray(block, SIZE_MAX, 2) == NULL, "overflow");
            free(block);
        }
    }
    if (find___libc_mallinfo()) find___libc_mallinfo()();
    if (find___libc_mallopt()) find___libc_mallopt()(M_TRIM_THRESHOLD, 1 << 20);
    if (find_cfree()) find_cfree()(malloc(100));
}

static void sized_frees(void)
{
    void (*sized)(void *, size_t) = find_free_sized();
    void (*aligned_sized)(void *, size_t, size_t) = find_free_aligned_sized();
    if (!sized || !aligned_sized) {
        CHECK(getenv("TEST_EXPECTS_CAIRN") == NULL, "missing");
        return;
    }
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(20 * MIB, sizes);
    errno = SENTINEL;
    sized(NULL, 0);
    sized(NULL, 100);
    aligned_sized(NULL, 64, 100);
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < count; i++) {
            sized(malloc(sizes[i]), sizes[i]);
            sized(calloc(sizes[i], 1), sizes[i]);
            sized(realloc(malloc(1), sizes[i] + 1), sizes[i] + 1);
            for (size_t alignment = 1; alignment <= 64 * KIB; alignment *= 4)
                aligned_sized(aligned_alloc(alignment, sizes[i]), alignment, sizes[i]);
        }
    }
    CHECK(errno == SENTINEL, "sized frees change errno");
    CHECK(peak_resident_kib() < 96 * KIB, "%zu KiB: not freed", peak_resident_kib());
}

/* What the C library allocates for us comes from the same heap. */
static void blocks_of_the_c_library(void)
{
    for (int round = 0; round < 1000; round++) {
        char *copy = strdup("a string"), *part = strndup("a string", 3), *text = NULL;
        CHECK(copy && part && strcmp(copy, "a string") == 0 && strcmp(part, "a s") == 0, "strdup");
        CHECK(asprintf(&text, "%s %d", copy, 42) == 11, "asprintf");
        CHECK(malloc_usable_size(copy) >= 9 && malloc_usable_size(text) >= 12, "of another heap");
        free(copy), free(part), free(text);
        char *here = getcwd(NULL, 0), *real = realpath("/proc/self/..", NULL);
        CHECK(here && real, "getcwd, realpath");
        free(here), free(real);
        FILE *file = fopen("/proc/self/maps", "r");
        char *line = NULL;
        size_t capacity = 0;
        CHECK(file && getline(&line, &capacity, file) > 0, "getline");
        fclose(file);
        CHECK(malloc_usable_size(line) >= capacity, "getline");
        free(line);
        char *memory = NULL;
        size_t length = 0;
        FILE *stream = open_memstream(&memory, &length);
        for (int i = 0; i < 200; i++) fprintf(stream, "line %d\n", i);
        fclose(stream);
        CHECK(memory && length > 1000, "open_memstream");
        free(memory);
        setenv("A_VARIABLE", round % 2 ? "value" : "a longer value than before", 1);
    }
}

/* Prints the document for the test to parse. */
static void print_malloc_info(void)
{
    void *some[1000];
    for (size_t i = 0; i < COUNT_OF(some); i++) some[i] = malloc(i * 100);
    char *document = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&document, &length);
    CHECK(malloc_info(1, stream) == EINVAL || malloc_info(1, stream) == -1, "only option 0 is known");
    fflush(stream);
    CHECK(length == 0, "a refused malloc_info writes");
    CHECK(malloc_info(0, stream) == 0, "malloc_info");
    fclose(stream);
    fputs(document, stdout);
    free(document);
    for (size_t i = 0; i < COUNT_OF(some); i++) free(some[i]);
}

static void mallinfo_counts(void)
{
    enum { COUNT = 1000, SIZE = 5000 };
    static void *some[COUNT];
    struct mallinfo2 before = mallinfo2();
    for (size_t i = 0; i < COUNT; i++) {
        some[i] = malloc(SIZE);
        fill(some[i], SIZE, 0);
    }
    struct mallinfo2 during = mallinfo2();
    size_t in_use_before = before.uordblks + before.hblkhd, in_use = during.uordblks + during.hblkhd;
    CHECK(in_use >= in_use_before + COUNT * (size_t)SIZE * 9 / 10, "%zu, then %zu", in_use_before, in_use);
    CHECK(in_use <= in_use_before + COUNT * (size_t)SIZE * 2, "%zu, then %zu", in_use_before, in_use);
    CHECK(during.arena + during.hblkhd >= in_use, "in use %zu, mapped %zu", in_use, during.arena + during.hblkhd);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo old = mallinfo();
#pragma GCC diagnostic pop
    CHECK(old.uordblks >= 0 && old.arena > 0, "mallinfo");
    for (size_t i = 0; i < COUNT; i++) free(some[i]);
    struct mallinfo2 after = mallinfo2();
    CHECK(after.uordblks + after.hblkhd < in_use - COUNT * (size_t)SIZE / 2, "%zu after the frees",
          after.uordblks + after.hblkhd);
}

static void tuning_is_accepted(void)
{
    static const int parameters[] = {M_MXFAST,        M_TRIM_THRESHOLD, M_TOP_PAD,   M_MMAP_THRESHOLD,
                                     M_MMAP_MAX,      M_CHECK_ACTION,   M_PERTURB,   M_ARENA_TEST,
                                     M_ARENA_MAX};
    void *kept = malloc(1000);
    fill(kept, 1000, 1);
    for (size_t i = 0; i < COUNT_OF(parameters); i++) {
        int accepted = mallopt(parameters[i], parameters[i] == M_MXFAST || parameters[i] == M_PERTURB ? 0 : 65536);
        CHECK(accepted == 0 || accepted == 1, "mallopt(%d)", parameters[i]);
    }
    for (size_t size = 1; size < 4 * MIB; size = size * 3 + 1) free(malloc(size));
    CHECK(holds(kept, 1000, 1), "contents");
    free(kept);
}

static void print_malloc_stats(void) { malloc_stats(); }

/* malloc_trim gives back what was freed, in small and in large blocks. */
static void trim_gives_back(void)
{
    enum { COUNT = 400000 };
    static void *blocks[COUNT];
    size_t before = resident_kib();
    for (size_t size = 64; size <= 64 * KIB; size *= 32) {
        size_t count = 100 * MIB / size < COUNT ? 100 * MIB / size : COUNT;
        for (size_t i = 0; i < count; i++) {
            blocks[i] = malloc(size);
            memset(blocks[i], 1, size);
        }
        size_t full = resident_kib();
        CHECK(full > before + count * size / KIB / 2, "%zu", full);
        for (size_t i = 0; i < count; i++) free(blocks[i]);
        int released = malloc_trim(0);
        CHECK(released == 0 || released == 1, "%d", released);
        size_t after = resident_kib();
        CHECK(after < before + 16 * KIB, "size %zu: %zu KiB, then %zu, then %zu", size, before, full, after);
    }
}

static const struct test_case cases[] = {
    {"zero_size", zero_size},
    {"too_large", too_large},
    {"too_aligned", too_aligned},
    {"overflow", overflow},
    {"posix_memalign_alignment", posix_memalign_alignment},
    {"odd_alignment_is_rounded_up", odd_alignment_is_rounded_up},
    {"realloc_to_zero_frees", realloc_to_zero_frees},
    {"errno_is_kept", errno_is_kept},
    {"usable_size", usable_size},
    {"every_small_size", every_small_size},
    {"realloc_keeps_contents", realloc_keeps_contents},
    {"realloc_in_steps", realloc_in_steps},
    {"calloc_is_zero", calloc_is_zero},
    {"calloc_is_zero_across_sizes", calloc_is_zero_across_sizes},
    {"random_mix", random_mix},
    {"pages", pages},
    {"internal_names", internal_names},
    {"sized_frees", sized_frees},
    {"blocks_of_the_c_library", blocks_of_the_c_library},
    {"print_malloc_info", print_malloc_info},
    {"mallinfo_counts", mallinfo_counts},
    {"tuning_is_accepted", tuning_is_accepted},
    {"print_malloc_stats", print_malloc_stats},
    {"trim_gives_back", trim_gives_back},
};
MAIN(cases)
