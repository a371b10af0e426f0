/* A program in mimalloc's terms: what its documentation promises. It names nothing of cairn's. */
#include <mimalloc.h>
#include <mimalloc-stats.h>

#include "check.h"

#include <sys/mman.h>

static int aligned_to(const void *p, size_t offset, size_t align) { return ((uintptr_t)p + offset) % align == 0; }

static void family(void)
{
    size_t sizes[EDGE_SIZES_MAX], count = edge_sizes(2 * MIB, sizes);
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[i], usable = 0;
        void *blocks[] = {mi_malloc(size), mi_zalloc(size), mi_calloc(1, size), mi_mallocn(1, size),
                          mi_umalloc(size, &usable), mi_malloc_aligned(size, 64), mi_zalloc_aligned(size, 256)};
        CHECK(usable == mi_usable_size(blocks[4]), "%zu", size);
        CHECK(aligned_to(blocks[5], 0, 64) && aligned_to(blocks[6], 0, 256), "%zu", size);
        CHECK(mi_good_size(size) >= size, "%zu", size);
        for (size_t kind = 0; kind < COUNT_OF(blocks); kind++) {
            CHECK(blocks[kind] && mi_usable_size(blocks[kind]) >= size, "kind %zu, %zu", kind, size);
            CHECK(mi_expand(blocks[kind], size) == blocks[kind], "kind %zu, %zu", kind, size);
        }
        CHECK(all_zero(blocks[1], mi_usable_size(blocks[1])), "%zu", size);
        CHECK(all_zero(blocks[2], mi_usable_size(blocks[2])), "%zu", size);
        CHECK(all_zero(blocks[6], mi_usable_size(blocks[6])), "%zu", size);
        mi_free_size(blocks[0], size), mi_free(blocks[1]), mi_free_size_aligned(blocks[2], size, 16);
        mi_cfree(blocks[3]), mi_ufree(blocks[4], &usable), mi_free_aligned(blocks[5], 64), mi_free(blocks[6]);
        CHECK(usable >= size, "%zu", size);
    }
    int local;
    mi_cfree(&local);
    mi_free(NULL);
    CHECK(mi_usable_size(NULL) == 0 && mi_expand(NULL, 1) == NULL, "NULL");
    CHECK(mi_version() == MI_MALLOC_VERSION && mi_is_redirected(), "%d", mi_version());
}

static void resizing(void)
{
    char *p = mi_realloc(NULL, 100), *q;
    fill(p, 100, 1);
    CHECK((p = mi_realloc(p, 100000)) && holds(p, 100, 1), "grown");
    CHECK((p = mi_realloc(p, 50)) && holds(p, 50, 1), "shrunk");
    CHECK((p = mi_realloc(p, 0)) != NULL, "0 bytes do not free");
    mi_free(p);

    /* What a zeroed block gains is zero, also in the rest of the block. */
    for (size_t size = 1; size < 300000; size += size / 3 + 7) {
        p = hide(malloc(size));
        memset(p, 0xa5, mi_usable_size(p)), free(p);
        p = mi_zalloc(size);
        memset(p, 7, size);
        q = mi_rezalloc(p, size + size / 8 + 1);
        CHECK(q[size - 1] == 7 && all_zero(q + size, size / 8 + 1), "%zu", size);
        q = mi_recalloc(q, 3, size);
        CHECK(q[size - 1] == 7 && all_zero(q + size, 2 * size), "%zu", size);
        mi_free(q);
        p = mi_zalloc_aligned(size, 128);
        memset(p, 7, size);
        q = mi_recalloc_aligned(p, 3, size, 128);
        CHECK(aligned_to(q, 0, 128) && q[size - 1] == 7 && all_zero(q + size, 2 * size), "%zu", size);
        mi_free(q);
    }

    p = mi_malloc(100);
    fill(p, 100, 3);
    errno = 0;
    CHECK(mi_reallocn(p, SIZE_MAX / 2, 4) == NULL && mi_recalloc(p, SIZE_MAX, SIZE_MAX) == NULL, "overflow");
    CHECK(mi_reallocarray(p, SIZE_MAX / 2, 4) == NULL && errno == EOVERFLOW, "overflow");
    CHECK(mi_reallocarr(&p, SIZE_MAX / 2, 4) == EOVERFLOW && mi_reallocarr(NULL, 1, 1) == EINVAL, "overflow");
    CHECK(mi_realloc(p, hide_size(SIZE_MAX / 2 + 2)) == NULL && holds(p, 100, 3), "the block stays");
    CHECK(mi_reallocarr(&p, 100, 8) == 0 && holds(p, 100, 3), "an array");
    CHECK(mi_reallocarr(&p, 0, 8) == 0 && p == NULL, "no array");
    CHECK(mi_reallocf(mi_malloc(8), hide_size(SIZE_MAX)) == NULL, "freed");
    CHECK(mi_calloc(hide_size(SIZE_MAX / 2), 4) == NULL && mi_mallocn(hide_size(SIZE_MAX / 2), 4) == NULL, "overflow");
}

static void alignments(void)
{
    for (size_t align = 1; align <= 8 * MIB; align *= 2) {
        void *p = mi_malloc_aligned(1000, align);
        CHECK(p && aligned_to(p, 0, align), "%zu", align);
        fill(p, 1000, 5);
        p = mi_realloc_aligned(p, 5000, align);
        CHECK(p && aligned_to(p, 0, align) && holds(p, 1000, 5), "%zu", align);
        mi_free(p);
        p = mi_zalloc_aligned_at(1000, align, 24);
        CHECK(p && aligned_to(p, 24, align) && all_zero(p, 1000), "%zu", align);
        fill(p, 1000, 5);
        p = mi_rezalloc_aligned_at(p, 5000, align, 24);
        CHECK(p && aligned_to(p, 24, align) && holds(p, 1000, 5), "%zu", align);
        CHECK(all_zero((char *)p + 1000, 4000), "%zu", align);
        mi_free(p);
    }
    /* What a block leaves behind is zero when it is gained again, in its place, too. */
    for (size_t size = 100; size < 300000; size = size * 3 + 7) {
        size_t less = size - size / 20 - 1, offset = size % 2 * 8;
        void *p = mi_zalloc_aligned_at(size, 64, offset);
        memset(p, 7, size);
        p = hide(mi_rezalloc_aligned_at(p, less, 64, offset));
        p = hide(mi_rezalloc_aligned_at(p, size, 64, offset));
        CHECK(p && aligned_to(p, offset, 64) && all_zero((char *)p + less, size - less), "%zu", size);
        mi_free(p);
    }
    CHECK(!mi_malloc_aligned(10, hide_size(0)) && !mi_malloc_aligned(10, hide_size(48)), "no powers of two");
    void *place = &place;
    errno = 7;
    CHECK(mi_posix_memalign(&place, 24, 8) == EINVAL && mi_posix_memalign(&place, 4, 8) == EINVAL, "no alignment");
    CHECK(mi_posix_memalign(&place, 16, hide_size(SIZE_MAX)) == ENOMEM && place == &place && errno == 7, "no memory");
    CHECK(mi_posix_memalign(&place, 4096, 0) == 0 && aligned_to(place, 0, 4096), "%p", place);
    mi_free(place);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    CHECK(aligned_to(place = mi_valloc(10), 0, page), "%p", place);
    mi_free(place);
    CHECK(mi_usable_size(place = mi_pvalloc(page + 1)) >= 2 * page && !mi_pvalloc(hide_size(SIZE_MAX)), "%p", place);
    mi_free(place);
}

static void texts(void)
{
    char *p = mi_strdup("text"), *q = mi_strndup("text", 2), *r = mi_realpath("/", NULL);
    CHECK(!strcmp(p, "text") && !strcmp(q, "te") && !strcmp(r, "/") && !mi_strdup(NULL), "%s %s %s", p, q, r);
    mi_free(p), mi_free(q), mi_free(r);
    wchar_t *wide = mi_wcsdup(L"wide");
    CHECK(wide[3] == L'e' && wide[4] == 0, "wide");
    mi_free(wide);
    size_t size;
    setenv("COMPAT", "value", 1);
    CHECK(mi_dupenv_s(&p, &size, "COMPAT") == 0 && !strcmp(p, "value") && size == 6, "%s", p);
    mi_free(p);
    CHECK(mi_dupenv_s(&p, &size, "COMPAT_NONE") == 0 && p == NULL && size == 0, "no variable");
    CHECK(mi_dupenv_s(NULL, &size, "COMPAT") == EINVAL, "no place");
}

static void *allocates(void *heap) { return mi_heap_malloc(heap, 100); }

static void heaps(void)
{
    mi_heap_t *heap = mi_heap_new(), *other = mi_heap_new(), *main_heap = mi_heap_get_default();
    int *p = mi_heap_zalloc(heap, sizeof(int)), *plain = mi_malloc(4), local;
    CHECK(*p == 0 && mi_heap_of(p) == heap && mi_heap_contains(heap, p), "a heap's");
    CHECK(!mi_heap_contains(other, p) && !mi_heap_contains(main_heap, p), "not others'");
    CHECK(mi_heap_of(plain) == main_heap && mi_heap_contains(main_heap, plain), "malloc's");
    CHECK(mi_heap_of(&local) == NULL && !mi_is_in_heap_region(&local) && mi_is_in_heap_region(plain), "nobody's");
    CHECK(mi_heap_contains(main_heap, mi_heap_malloc(main_heap, 10)), "the main heap allocates");
    pthread_t thread;
    void *of_thread;
    pthread_create(&thread, NULL, allocates, heap), pthread_join(thread, &of_thread);
    CHECK(mi_heap_contains(heap, of_thread), "any thread allocates");

    char *moved = mi_heap_strdup(other, "moves");
    CHECK((moved = mi_heap_realloc(heap, moved, 5000)) && !strcmp(moved, "moves"), "%s", moved);
    CHECK(mi_heap_contains(heap, moved), "to the heap");
    CHECK((moved = mi_heap_rezalloc(heap, moved, 90000)) && all_zero(moved + 8192, 81808), "zeroes");
    CHECK((moved = mi_heap_realloc_aligned(heap, moved, 100, 4096)) && aligned_to(moved, 0, 4096), "%p", moved);
    CHECK(mi_heap_contains(heap, moved) && !strcmp(moved, "moves"), "%s", moved);
    CHECK(!mi_heap_malloc_aligned(heap, 10, hide_size(0)) && !mi_heap_mallocn(heap, hide_size(SIZE_MAX), 9), "none");
    mi_heap_collect(heap, false), mi_heap_collect(heap, true), mi_heap_collect(main_heap, true);
    mi_heap_delete(heap);
    *p = 4;
    CHECK(mi_heap_of(p) == main_heap, "it lives on");
    mi_free(p);
    mi_heap_destroy(other);
    mi_heap_delete(main_heap), mi_heap_destroy(main_heap), mi_heap_delete(NULL), mi_heap_destroy(NULL);
    mi_free(plain);
    mi_collect(false), mi_collect(true);
}

struct seen {
    size_t areas, blocks, bytes, stop_at;
};

static bool visitor(const mi_heap_t *heap, const mi_heap_area_t *area, void *block, size_t block_size, void *arg)
{
    struct seen *seen = arg;
    CHECK(heap && area->block_size == block_size && area->committed <= area->reserved, "%zu", block_size);
    if (!block) return seen->areas++, true;
    CHECK((char *)block >= (char *)area->blocks && (char *)block < (char *)area->blocks + area->reserved, "%p", block);
    seen->bytes += block_size;
    return ++seen->blocks != seen->stop_at;
}

static void visits(void)
{
    mi_heap_t *heap = mi_heap_new();
    for (int i = 0; i < 1000; i++) {
        void *p = mi_heap_malloc(heap, i % 2 ? 100 : 100000);
        if (i % 4 < 2) mi_free(p);
    }
    struct seen seen = {0, 0, 0, 0}, few = {0, 0, 0, 10}, of_main = {0, 0, 0, 0}, areas = {0, 0, 0, 0};
    CHECK(mi_heap_visit_blocks(heap, true, visitor, &seen), "to the end");
    CHECK(seen.blocks == 500 && seen.areas >= 251 && seen.bytes >= 250 * 100100, "%zu %zu", seen.blocks, seen.areas);
    CHECK(!mi_heap_visit_blocks(heap, true, visitor, &few) && few.blocks == 10, "%zu", few.blocks);
    CHECK(mi_heap_visit_blocks(heap, false, visitor, &areas) && areas.blocks == 0, "%zu", areas.blocks);
    CHECK(areas.areas == seen.areas, "%zu", areas.areas);
    void *p = mi_malloc(10);
#if MI_MALLOC_VERSION >= 30000
    CHECK(mi_heap_visit_blocks(mi_heap_main(), true, visitor, &of_main) && of_main.blocks >= 1, "the main heap");
    CHECK(of_main.blocks < 500, "no other heap's: %zu", of_main.blocks);
    of_main.areas = of_main.blocks = 0;
    CHECK(!mi_theap_visit_blocks(mi_theap_get_default(), true, visitor, &of_main) && !of_main.areas, "no part of it");
#else
    CHECK(!mi_heap_visit_blocks(mi_heap_get_default(), true, visitor, &of_main), "it cannot be told what is a thread's");
    CHECK(!mi_heap_visit_blocks(NULL, true, visitor, &of_main) && of_main.areas == 0, "%zu", of_main.areas);
#endif
    mi_free(p);
    mi_heap_destroy(heap);
}

static volatile int is_over;

/* Takes more and more memory, and frees it on other threads' behalf. */
static void *works_elsewhere(void *unused)
{
    while (!is_over) {
        void *blocks[2000];
        for (size_t i = 0; i < COUNT_OF(blocks); i++) blocks[i] = mi_malloc(16 + i * 37 % 5000);
        for (size_t i = 0; i < COUNT_OF(blocks); i += 2) mi_free(blocks[i]);
        for (size_t i = 1; i < COUNT_OF(blocks); i += 2) mi_free(blocks[i]);
    }
    return unused;
}

/* A heap is visited while other threads have nothing to do with it, and do what they like; so is the default heap asked. */
static void visits_beside(void)
{
    pthread_t threads[3];
    for (size_t i = 0; i < COUNT_OF(threads); i++) pthread_create(&threads[i], NULL, works_elsewhere, NULL);
    mi_heap_t *heap = mi_heap_new();
    for (int round = 0; round < 200; round++) {
        void *p = mi_heap_malloc(heap, 100);
        struct seen seen = {0, 0, 0, 0};
        CHECK(mi_heap_visit_blocks(heap, true, visitor, &seen), "to the end");
        CHECK(seen.blocks == (size_t)round + 1 && mi_heap_contains(heap, p), "%zu", seen.blocks);
#if MI_MALLOC_VERSION < 30000
        CHECK(!mi_heap_visit_blocks(mi_heap_get_default(), true, visitor, &seen), "not told");
#endif
    }
    is_over = 1;
    for (size_t i = 0; i < COUNT_OF(threads); i++) pthread_join(threads[i], NULL);
    mi_heap_destroy(heap);
}

static void reserves(void)
{
    mi_arena_id_t arena = &arena;
    CHECK(mi_reserve_os_memory(64 * MIB, true, false) == 0, "reserved");
    CHECK(mi_reserve_os_memory(hide_size(SIZE_MAX / 2), false, false) == ENOMEM, "too much");
    CHECK(mi_reserve_os_memory_ex(4 * MIB, false, false, false, &arena) == 0 && !arena, "malloc's");
    int error = mi_reserve_os_memory_ex(4 * MIB + 1, false, false, true, &arena);
    if (error) {
        CHECK(error == ENOMEM && !arena, "the hardened build has no regions");
        return;
    }
    mi_heap_t *heap = mi_heap_new_in_arena(arena);
    char *p = mi_heap_malloc(heap, 3 * MIB);
    CHECK(p && !mi_heap_malloc(heap, 3 * MIB), "it is full");
    memset(p, 1, 3 * MIB);
    mi_heap_destroy(heap);
    CHECK(mi_subproc_main() && mi_subproc_main() == mi_subproc_current(), "one");
    mi_subproc_add_current_thread(mi_subproc_main());
}

static void arenas(void)
{
    size_t size = 4 * MIB;
    char *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mi_arena_id_t arena;
    CHECK(!mi_manage_os_memory_ex(memory, size, false, false, true, -1, false, &arena) && !arena, "malloc's");
    if (!mi_manage_os_memory_ex(memory, size, false, false, true, -1, true, &arena)) {
        CHECK(errno == ENOTSUP, "the hardened build has no regions");
        return;
    }
    mi_heap_t *heap = mi_heap_new_in_arena(arena);
    char *p = mi_heap_malloc(heap, 1000), *q = mi_heap_malloc(heap, MIB);
    CHECK(p >= memory && p < memory + size && q >= memory && q + MIB <= memory + size, "%p %p", p, q);
    memset(p, 1, 1000), memset(q, 1, MIB);
    CHECK(mi_heap_malloc(heap, 4 * MIB) == NULL, "full");
    CHECK(size > mi_arena_min_size() && mi_arena_min_alignment() > 0, "%zu", mi_arena_min_size());
    mi_heap_destroy(heap);
}

static volatile size_t calls, forced;

static void deferred(bool force, unsigned long long heartbeat, void *arg)
{
    calls++, forced += force;
    CHECK(heartbeat > 0 && arg == (void *)&calls, "%llu", heartbeat);
}

static void told(void)
{
    mi_register_deferred_free(deferred, (void *)&calls);
    for (int i = 0; i < 100000; i++) mi_free(hide(mi_malloc(64)));
    size_t before = calls;
    CHECK(before > 0, "called");
    mi_collect(true);
    CHECK(forced > 0, "forced");
    mi_register_deferred_free(NULL, NULL);
    before = calls;
    for (int i = 0; i < 100000; i++) mi_free(hide(mi_malloc(64)));
    CHECK(calls == before, "no more");

    void *held = mi_zalloc(64 * MIB);
    memset(held, 1, 64 * MIB);
    size_t elapsed = 0, user, system, rss, peak, commit, peak_commit, faults;
    mi_process_info(&elapsed, &user, &system, &rss, &peak, &commit, &peak_commit, &faults);
    CHECK(elapsed < 600000 && user + system < 600000, "%zu %zu %zu", elapsed, user, system);
    CHECK(rss >= 64 * MIB && rss < GIB && peak >= rss - MIB && commit >= 64 * MIB, "%zu %zu %zu", rss, peak, commit);
    mi_process_info(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    mi_free(held);

    char *json = mi_stats_get_json(0, NULL), few[10];
    CHECK(json[0] == '{' && strlen(json) > 1000 && json[strlen(json) - 1] == '}', "%s", json);
    CHECK(!strncmp(mi_stats_get_json(10, few), json, 9) && few[9] == 0, "%s", few);
    mi_free(json);
    mi_stats_reset();
    CHECK(mi_option_get(mi_option_purge_delay) == 250, "%ld", mi_option_get(mi_option_purge_delay));
    mi_option_set(mi_option_purge_delay, 70);
    CHECK(mi_option_get(mi_option_reset_delay) == 70 && mi_option_get_size(mi_option_purge_delay) == 70, "set");
    mi_option_set(mi_option_purge_delay, -1);
    CHECK(mi_option_get(mi_option_purge_delay) == -1, "never");
    mi_option_set_default(mi_option_purge_delay, 300);
    CHECK(mi_option_get_clamp(mi_option_purge_delay, 0, 200) == 200, "set");
    setenv("CAIRN_PURGE_DELAY", "1s", 1);
    mi_option_set_default(mi_option_purge_delay, 400);
    CHECK(mi_option_get(mi_option_purge_delay) == 300, "the environment's stays");
    mi_option_disable(mi_option_verbose);
    CHECK(mi_option_is_enabled(mi_option_show_errors) && !mi_option_is_enabled(mi_option_verbose), "options");
}

static const struct test_case cases[] = {
    {"family", family}, {"resizing", resizing}, {"alignments", alignments}, {"texts", texts}, {"heaps", heaps},
    {"visits", visits}, {"arenas", arenas},     {"told", told},           {"reserves", reserves},
    {"visits_beside", visits_beside},
};
MAIN(cases)
