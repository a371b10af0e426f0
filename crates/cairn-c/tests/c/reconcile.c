/*
 * The statistics against the kernel: what cairn says is resident, what the kernel says of the same
 * memory, and whether the terms add up.
 */
#include "outside.h"

/* How far the two accounts may lie apart: the first part for what changes hands between two
 * looks, the second for what neither account can know to the page. */
#define TOLERANCE(bytes) ((bytes) / 20 + 64 * KIB)

/* --- the kernel's account --- */

static size_t window_resident(void)
{
    static char text[4 << 20];
    const struct cairn_header *header = own_header();
    /* The metadata stands in front, in an eighth of the length. */
    size_t bytes = header->map->slices << header->slice_shift;
    uintptr_t base = (uintptr_t)header->map->base - bytes / 8;
    uintptr_t end = (uintptr_t)header->map->base + bytes;
    size_t length = 0, kib = 0;
    ssize_t got;
    int inside = 0;
    int fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "/proc is needed");
    while ((got = read(fd, text + length, sizeof text - 1 - length)) > 0) length += (size_t)got;
    close(fd);
    CHECK(length > 0 && length < sizeof text - 1, "%zu bytes of smaps", length);
    text[length] = 0;
    for (char *line = text; line != NULL && *line; line = strchr(line, '\n'), line += line != NULL) {
        char *dash;
        uintptr_t from = strtoul(line, &dash, 16);
        if (dash != line && *dash == '-') inside = from >= base && from < end;
        else if (inside && strncmp(line, "Rss:", 4) == 0) kib += strtoul(line + 4, NULL, 10);
    }
    return kib * KIB;
}

/* Blocks with mappings of their own. Their neighbours may share a line of smaps with them, so
 * the page tables are asked. */
enum { HUGE_MAX = 200 };
static struct { char *block; size_t size; } huge[HUGE_MAX];
static size_t huge_count;

static void add_huge(char *block)
{
    CHECK(huge_count < HUGE_MAX, "too many mappings");
    huge[huge_count].block = block;
    huge[huge_count++].size = malloc_usable_size(block);
}

static int is_in_window(const void *block)
{
    const struct cairn_header *header = own_header();
    return ((uintptr_t)block - (uintptr_t)header->map->base) >> header->slice_shift < header->map->slices;
}

static size_t range_resident(int pagemap, uintptr_t from, uintptr_t to)
{
    static uint64_t entries[4096];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = 0;
    for (uintptr_t at = from & ~(page - 1); at < to;) {
        size_t count = (to - at + page - 1) / page;
        if (count > COUNT_OF(entries)) count = COUNT_OF(entries);
        ssize_t bytes = (ssize_t)(count * sizeof *entries);
        CHECK(pread(pagemap, entries, (size_t)bytes, (off_t)(at / page * sizeof *entries)) == bytes, "pagemap");
        for (size_t i = 0; i < count; i++) pages += entries[i] >> 63;
        at += count * page;
    }
    return pages * page;
}

static size_t huge_resident(size_t from, size_t to)
{
    size_t bytes = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "pagemap is needed");
    for (size_t i = from; i < to; i++)
        bytes += range_resident(fd, (uintptr_t)huge[i].block, (uintptr_t)huge[i].block + huge[i].size);
    close(fd);
    return bytes;
}

/* It goes at once; later its addresses may be anybody's. */
static void free_huge(size_t i)
{
    free(huge[i].block);
    CHECK(huge_resident(i, i + 1) == 0, "%zu bytes of a freed mapping are resident", huge_resident(i, i + 1));
    huge[i] = huge[--huge_count];
}

/* --- cairn's account --- */

struct amount { size_t bytes, resident; };

struct row { size_t size, spans, in_use, cached, free, untouched; };

struct stats {
    struct row rows[CLASSES_MAX];
    size_t row_count;
    struct amount spans, large, mappings, dirty, metadata, total;
    size_t allocated;
};

static size_t field(const char *line, const char *name)
{
    char text[64];
    snprintf(text, sizeof text, " %s=\"", name);
    const char *found = strstr(line, text);
    CHECK(found != NULL, "no %s in %.100s", name, line);
    return strtoul(found + strlen(text), NULL, 10);
}

static struct amount amount(const char *document, const char *name)
{
    char text[64];
    snprintf(text, sizeof text, "<amount type=\"%s\"", name);
    const char *found = strstr(document, text);
    CHECK(found != NULL, "no %s", name);
    return (struct amount){field(found, "size"), field(found, "resident")};
}

/* Both of cairn's reports, with nothing allocated between them. */
static void ask(struct stats *stats, struct mallinfo2 *info)
{
    static char document[64 * KIB], buffer[64 * KIB];
    memset(document, 0, sizeof document);
    FILE *stream = fmemopen(document, sizeof document, "w");
    CHECK(stream != NULL && setvbuf(stream, buffer, _IOFBF, sizeof buffer) == 0, "a stream");
    CHECK(malloc_info(0, stream) == 0, "malloc_info");
    *info = mallinfo2();
    fclose(stream);
    stats->row_count = 0;
    const char *row = document;
    while ((row = strstr(row, "<class ")) != NULL) {
        CHECK(stats->row_count < CLASSES_MAX, "too many classes");
        stats->rows[stats->row_count++] =
            (struct row){field(row, "size"),   field(row, "spans"), field(row, "in_use"),
                         field(row, "cached"), field(row, "free"),  field(row, "untouched")};
        row++;
    }
    stats->spans = amount(document, "spans");
    stats->large = amount(document, "large");
    stats->mappings = amount(document, "mappings");
    stats->dirty = amount(document, "dirty");
    stats->metadata = amount(document, "metadata");
    stats->total = amount(document, "total");
    const char *allocated = strstr(document, "<allocated");
    CHECK(allocated != NULL, "nothing about what is allocated");
    stats->allocated = field(allocated, "size");
}

static size_t next_power(size_t size)
{
    size_t power = 1;
    while (power < size) power *= 2;
    return power;
}

static void expect_sums(const struct stats *stats, const struct mallinfo2 *info, const char *what)
{
    size_t in_use = 0, not_used = 0, spans = 0, free_blocks = 0;
    for (size_t i = 0; i < stats->row_count; i++) {
        const struct row *row = &stats->rows[i];
        size_t all = row->in_use + row->cached + row->free + row->untouched;
        CHECK(row->spans > 0 && all % row->spans == 0, "%s: %zu blocks of %zu in %zu spans", what, all, row->size, row->spans);
        in_use += row->in_use * row->size;
        not_used += (all - row->in_use) * row->size;
        free_blocks += row->free + row->cached;
        /* A span is a power of two, and less than a block of it is cut off. */
        spans += row->spans * next_power(all / row->spans * row->size);
    }
    const struct amount parts[] = {stats->spans, stats->large, stats->mappings, stats->dirty, stats->metadata};
    struct amount total = {0, 0};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        CHECK(parts[i].resident <= parts[i].bytes, "%s: part %zu is more resident than it is long", what, i);
        total.bytes += parts[i].bytes;
        total.resident += parts[i].resident;
    }
    CHECK(total.bytes == stats->total.bytes, "%s: %zu, not %zu", what, total.bytes, stats->total.bytes);
    CHECK(total.resident == stats->total.resident, "%s: %zu, not %zu", what, total.resident, stats->total.resident);
    CHECK(spans == stats->spans.bytes, "%s: %zu, not %zu", what, spans, stats->spans.bytes);
    CHECK(in_use + stats->large.bytes + stats->mappings.bytes == stats->allocated, "%s: %zu", what, stats->allocated);

    CHECK(info->arena == stats->spans.bytes + stats->large.bytes + stats->dirty.bytes, "%s: %zu", what, info->arena);
    CHECK(info->uordblks == in_use + stats->large.bytes, "%s: %zu", what, info->uordblks);
    CHECK(info->fordblks == not_used + stats->dirty.bytes, "%s: %zu", what, info->fordblks);
    CHECK(info->keepcost == stats->dirty.bytes, "%s: %zu", what, info->keepcost);
    CHECK(info->ordblks == free_blocks, "%s: %zu", what, info->ordblks);
    CHECK(info->hblkhd == stats->mappings.bytes, "%s: %zu", what, info->hblkhd);
    CHECK(info->hblks == huge_count, "%s: %zu mappings, not %zu", what, info->hblks, huge_count);
}

/* The resident bytes. */
static size_t reconcile(const char *what)
{
    static struct stats stats;
    struct mallinfo2 info;
    size_t kernel, cairn, apart;
    /* Asking allocates and frees, so a purge may come between the two accounts; once. */
    for (int attempt = 0; attempt < 2; attempt++) {
        ask(&stats, &info);
        kernel = window_resident() + huge_resident(0, huge_count);
        cairn = stats.total.resident;
        apart = kernel > cairn ? kernel - cairn : cairn - kernel;
        if (apart <= TOLERANCE(kernel)) break;
    }
    if (getenv("TEST_SAYS_FIGURES"))
        fprintf(stderr, "%-40s kernel %8zu KiB, cairn %8zu KiB\n", what, kernel / KIB, cairn / KIB);
    CHECK(apart <= TOLERANCE(kernel), "%s: the kernel says %zu, cairn %zu", what, kernel, cairn);
    expect_sums(&stats, &info, what);
    return cairn;
}

/* --- patterns --- */

enum { SMALL_COUNT = 200000 };
static void *small[SMALL_COUNT];
static uint64_t random_state = 88172645463325252u;

static void small_half_freed(void)
{
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        size_t size = 1 + random_size(&random_state, 10);
        free(small[i]);
        small[i] = malloc(size);
        CHECK(small[i] != NULL, "%zu", size);
        memset(small[i], 1, size);
    }
    reconcile("small blocks");
    for (size_t i = 0; i < SMALL_COUNT; i++) {
        if (random_next(&random_state) % 2) continue;
        free(small[i]);
        small[i] = NULL;
    }
    reconcile("small blocks, half freed");
}

enum { MEDIUM_COUNT = 2000 };
static void *medium[MEDIUM_COUNT];

static void medium_half_freed(void)
{
    for (size_t i = 0; i < MEDIUM_COUNT; i++) {
        size_t size = KIB + random_next(&random_state) % (63 * KIB);
        medium[i] = malloc(size);
        CHECK(medium[i] != NULL, "%zu", size);
        memset(medium[i], 1, size / 2);
    }
    reconcile("medium blocks");
    for (size_t i = 0; i < MEDIUM_COUNT; i += 2) {
        free(medium[i]);
        medium[i] = NULL;
    }
    reconcile("medium blocks, half freed");
}

enum { LARGE_COUNT = 100 };
static char *large[LARGE_COUNT];

static void large_partly_touched(void)
{
    for (size_t i = 0; i < LARGE_COUNT; i++) {
        size_t size = 100 * KIB + random_next(&random_state) % (4 * MIB);
        large[i] = malloc(size);
        CHECK(large[i] != NULL, "%zu", size);
        for (size_t at = 0; at < size / 3; at += 3 * 4 * KIB) large[i][at] = 1;
    }
    reconcile("large blocks, partly touched");
    for (size_t i = 0; i < LARGE_COUNT; i += 3) {
        free(large[i]);
        large[i] = NULL;
    }
    reconcile("large blocks, partly touched, some freed");
    for (size_t i = 1; i < LARGE_COUNT; i += 3) {
        /* They may be copied, which reads what was never written: mincore counts such pages, the
           kernel's resident set does not. */
        memset(large[i], 1, malloc_usable_size(large[i]));
        large[i] = realloc(large[i], 6 * MIB);
        CHECK(large[i] != NULL, "realloc");
        /* They may be mappings now. */
        if (!is_in_window(large[i])) {
            add_huge(large[i]);
            large[i] = NULL;
        }
    }
    reconcile("large blocks, some grown");
}

static void huge_mappings(void)
{
    for (size_t i = 0; i < 20; i++) {
        size_t size = (33 + i) * MIB;
        char *block = malloc(size);
        CHECK(block != NULL, "%zu", size);
        memset(block, 1, size / 10);
        add_huge(block);
    }
    reconcile("mappings");
    for (size_t i = 0; i < huge_count; i += 2) free_huge(i);
    reconcile("mappings, some freed");
    malloc_trim(0);
    reconcile("mappings, trimmed");
}

/* Not read: the kernel's two accounts differ about pages that have been read only. */
enum { ZEROED_COUNT = 30 };
static char *zeroed[ZEROED_COUNT];

static void zeroed_and_written(void)
{
    for (size_t i = 0; i < ZEROED_COUNT; i++) {
        size_t size = (i + 1) * 30 * KIB;
        zeroed[i] = calloc(1, size);
        CHECK(zeroed[i] != NULL, "%zu", size);
        memset(zeroed[i], 1, size / 2);
    }
    reconcile("zeroed blocks, half written");
}

static pthread_barrier_t turn;
enum { THREADS = 8 };

static void *caches(void *argument)
{
    enum { COUNT = 20000 };
    static __thread void *mine[COUNT];
    uint64_t random = 521288629 + (size_t)argument;
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = 1 + random_size(&random, i % 50 ? 9 : 15);
        mine[i] = malloc(size);
        CHECK(mine[i] != NULL, "%zu", size);
        memset(mine[i], 1, size);
    }
    for (size_t i = 0; i < COUNT; i++)
        if (i % 4) free(mine[i]);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    for (size_t i = 0; i < COUNT; i += 4) free(mine[i]);
    return NULL;
}

static void threads_with_caches(void)
{
    void *threads[THREADS];
    pthread_barrier_init(&turn, NULL, THREADS + 1);
    for (size_t i = 0; i < THREADS; i++) threads[i] = started(caches, (void *)i);
    pthread_barrier_wait(&turn);
    reconcile("threads with caches");
    malloc_trim(0);
    reconcile("threads with caches, trimmed");
    pthread_barrier_wait(&turn);
    for (size_t i = 0; i < THREADS; i++) joined(threads[i]);
    reconcile("threads that are gone");
}

static void freed(void)
{
    for (size_t i = 0; i < SMALL_COUNT; i++) free(small[i]);
    for (size_t i = 0; i < MEDIUM_COUNT; i++) free(medium[i]);
    for (size_t i = 0; i < LARGE_COUNT; i++) free(large[i]);
    for (size_t i = 0; i < ZEROED_COUNT; i++) free(zeroed[i]);
    while (huge_count > 0) free_huge(0);
    reconcile("all freed");
    malloc_trim(0);
    size_t left = reconcile("all freed and trimmed");
    /* The metadata of 400 MiB: 2.1 MiB; hardened 3.2, for it says of each place whether the program has a block there. */
    size_t most = getenv("TEST_IS_HARDENED") != NULL ? 3 * MIB + MIB / 2 : 3 * MIB;
    CHECK(left < most, "%zu KiB are left", left / KIB);
}

static void all(void)
{
    reconcile("the start");
    small_half_freed();
    medium_half_freed();
    large_partly_touched();
    huge_mappings();
    zeroed_and_written();
    threads_with_caches();
    malloc_trim(0);
    reconcile("trimmed");
    small_half_freed();
    freed();
}

static const struct test_case cases[] = {
    {"small_half_freed", small_half_freed},
    {"medium_half_freed", medium_half_freed},
    {"large_partly_touched", large_partly_touched},
    {"huge_mappings", huge_mappings},
    {"zeroed_and_written", zeroed_and_written},
    {"threads_with_caches", threads_with_caches},
    {"all", all},
};
MAIN(cases)
