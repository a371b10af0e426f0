/*
 * Calls no program may make. Each case prints the pointer it is going to misuse on standard
 * output, then misuses it; the test expects the abort and its message.
 */
#include "check.h"

#include <signal.h>
#include <sys/mman.h>

static char a_static[64] __attribute__((aligned(64)));

/* Some life before the mistake, and the pointer announced. */
static void *announced(void *pointer)
{
    static void *some[1000];
    for (size_t i = 0; i < COUNT_OF(some); i++) some[i] = malloc(i * 37);
    for (size_t i = 0; i < COUNT_OF(some); i += 2) free(some[i]);
    printf("%#zx", (size_t)(uintptr_t)pointer);
    fflush(stdout);
    return hide(pointer);
}

static void free_stack(void)
{
    char a_local[64] __attribute__((aligned(64)));
    free(announced(a_local));
}

static void free_static(void) { free(announced(a_static)); }

static void free_mapping(void)
{
    char *mapping = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED, "mmap");
    /* As aligned as any block of an allocator might be. */
    free(announced(mapping + (32 * MIB - (uintptr_t)mapping % (32 * MIB))));
}

static void free_mapping_page(void)
{
    char *mapping = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED, "mmap");
    free(announced(mapping));
}

static void free_low(void) { free(announced((void *)(uintptr_t)16)); }
static void free_not_canonical(void) { free(announced((void *)(uintptr_t)0xdead000000000000)); }
static void free_last(void) { free(announced((void *)(UINTPTR_MAX - 15))); }
static void free_beyond_user(void) { free(announced((void *)(uintptr_t)0x800000000000)); }

static void free_by_1(void) { free(announced((char *)malloc(64) + 1)); }
static void free_by_8(void) { free(announced((char *)malloc(64) + 8)); }
static void free_inside_small(void) { free(announced((char *)malloc(64) + 16)); }
static void free_inside_medium(void) { free(announced((char *)malloc(5000) + 1024)); }
static void free_inside_large(void) { free(announced((char *)malloc(MIB) + 4096)); }
static void free_inside_large_aligned(void) { free(announced((char *)malloc(2 * MIB) + 64 * KIB)); }
static void free_inside_huge(void) { free(announced((char *)malloc(32 * MIB) + 4 * MIB)); }

static void free_deep_inside_huge(void)
{
    char *block = malloc(64 * MIB);
    free(announced(block + 48 * MIB - (uintptr_t)block % (4 * MIB)));
}

static void free_by_1_huge(void) { free(announced((char *)malloc(40 * MIB) + 1)); }

static void twice(size_t size)
{
    void *block = announced(malloc(size));
    memset(block, 1, size);
    free(block);
    free(hide(block));
}

static void double_free_large(void) { twice(MIB); }
static void double_free_huge(void) { twice(40 * MIB); }

static void double_free_small(void) { twice(64); }
static void double_free_medium(void) { twice(20000); }

/* Others are freed in between: more than a cache holds. */
static void double_free_late(void)
{
    static void *others[1000];
    for (size_t i = 0; i < COUNT_OF(others); i++) others[i] = malloc(64);
    void *block = announced(others[500]);
    for (size_t i = 0; i < COUNT_OF(others); i++) free(others[i]);
    free(hide(block));
}

static void *freeing(void *block)
{
    free(block);
    return NULL;
}

static void double_free_large_in_threads(void)
{
    void *block = announced(malloc(MIB));
    joined(started(freeing, block));
    joined(started(freeing, hide(block)));
}

static void double_free_small_in_threads(void)
{
    void *block = announced(malloc(64));
    joined(started(freeing, block));
    free(hide(block));
}

static void double_free_by_realloc(void)
{
    void *block = announced(malloc(600));
    free(block);
    exit(realloc(hide(block), 590) != NULL);
}

static void free_of_a_neighbour(void)
{
    void *block = malloc(1024);
    free(announced((char *)block + 1024));
}

/* What malloc would hand out next. */
static void write_after_free(void)
{
    static void *others[100];
    for (size_t i = 0; i < COUNT_OF(others); i++) others[i] = malloc(2048);
    void **block = announced(others[50]);
    for (size_t i = 0; i < COUNT_OF(others); i += 2) free(others[i]);
    block[0] = block[1] = a_static;
    for (size_t i = 0; i < COUNT_OF(others); i++) others[i] = malloc(2048);
    exit(0);
}

/* Not in the C library's headers, and not in every library. */
void free_sized(void *, size_t) __attribute__((weak));
void free_aligned_sized(void *, size_t, size_t) __attribute__((weak));
int cairn_guard_every(size_t) __attribute__((weak));
void *_Znwm(size_t) __attribute__((weak));
void _ZdlPvm(void *, size_t) __attribute__((weak));
void _ZdlPvmSt11align_val_t(void *, size_t, size_t) __attribute__((weak));

static void free_sized_too_large(void)
{
    free_sized(announced(malloc(64)), 100);
}

static void free_sized_too_small(void)
{
    free_sized(announced(malloc(3000)), 100);
}

static void free_sized_large(void)
{
    free_sized(announced(malloc(MIB)), 1000);
}

/* The smallest sizes, of blocks that have no size class. */
static void free_sized_large_as_small(void) { free_sized(announced(malloc(MIB)), 8); }
static void free_sized_huge_as_small(void) { free_sized(announced(malloc(40 * MIB)), 8); }
static void delete_of_large_as_small(void) { _ZdlPvm(announced(_Znwm(MIB)), 4); }
static void delete_of_huge_as_small(void) { _ZdlPvm(announced(_Znwm(40 * MIB)), 4); }

static void free_sized_guarded_as_small(void)
{
    CHECK(cairn_guard_every(1) == 1, "no memory");
    free_sized(announced(malloc(100)), 8);
}

static void free_aligned_sized_wrong(void)
{
    void *block = malloc(48);
    if ((uintptr_t)block % 32 == 0) block = malloc(48);
    free_aligned_sized(announced(block), 32, 48);
}

static void delete_of_another_size(void)
{
    _ZdlPvm(announced(_Znwm(64)), 320);
}

static void delete_of_another_alignment(void)
{
    _ZdlPvmSt11align_val_t(announced(_Znwm(100)), 100, 4096);
}

/* All blocks of the size are freed and their memory given back: nothing is left of the span. */
static void free_after_the_span(void)
{
    enum { COUNT = 100000 };
    static void *blocks[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i] = malloc(3000);
        memset(blocks[i], 1, 3000);
    }
    void *middle = announced(blocks[COUNT / 2]);
    for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
    malloc_trim(0);
    free(hide(middle));
}

static void realloc_stack(void)
{
    char a_local[64] __attribute__((aligned(64)));
    if (realloc(announced(a_local), 100) != NULL) exit(0);
}

static void realloc_inside(void) { exit(realloc(announced((char *)malloc(64) + 16), 100) != NULL); }
static void realloc_inside_huge(void) { exit(realloc(announced((char *)malloc(40 * MIB) + 4096), 100) != NULL); }

static void realloc_freed(void)
{
    void *block = announced(malloc(40 * MIB));
    free(block);
    exit(realloc(hide(block), 100) != NULL);
}

static void realloc_to_zero_static(void) { exit(realloc(announced(a_static), hide_size(0)) != NULL); }

static void usable_size_stack(void)
{
    char a_local[64] __attribute__((aligned(64)));
    exit(malloc_usable_size(announced(a_local)) != 0);
}

static void usable_size_freed(void)
{
    void *block = announced(malloc(100));
    free(block);
    exit(malloc_usable_size(hide(block)) != 0);
}

static void usable_size_inside(void) { exit(malloc_usable_size(announced((char *)malloc(MIB) + 4096)) != 0); }

/* Crash reporters allocate where the abort is caught. */
static void on_abort(int signal)
{
    (void)signal;
    void *blocks[200];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        blocks[i] = malloc(i * 100);
        memset(blocks[i], 1, i * 100);
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
    free(malloc(16 * MIB));
    raise(SIGKILL);
}

static void handler_allocates(void)
{
    signal(SIGABRT, on_abort);
    twice(MIB);
}

static void nobody_reads(void)
{
    lose_the_reader_of_standard_error();
    twice(MIB);
}

static const struct test_case cases[] = {
    {"free_stack", free_stack},
    {"free_static", free_static},
    {"free_mapping", free_mapping},
    {"free_mapping_page", free_mapping_page},
    {"free_low", free_low},
    {"free_not_canonical", free_not_canonical},
    {"free_last", free_last},
    {"free_beyond_user", free_beyond_user},
    {"free_by_1", free_by_1},
    {"free_by_8", free_by_8},
    {"free_inside_small", free_inside_small},
    {"free_inside_medium", free_inside_medium},
    {"free_inside_large", free_inside_large},
    {"free_inside_large_aligned", free_inside_large_aligned},
    {"free_inside_huge", free_inside_huge},
    {"free_deep_inside_huge", free_deep_inside_huge},
    {"free_by_1_huge", free_by_1_huge},
    {"double_free_large", double_free_large},
    {"double_free_huge", double_free_huge},
    {"double_free_large_in_threads", double_free_large_in_threads},
    {"double_free_small", double_free_small},
    {"double_free_medium", double_free_medium},
    {"double_free_late", double_free_late},
    {"double_free_small_in_threads", double_free_small_in_threads},
    {"double_free_by_realloc", double_free_by_realloc},
    {"free_of_a_neighbour", free_of_a_neighbour},
    {"write_after_free", write_after_free},
    {"free_sized_too_large", free_sized_too_large},
    {"free_sized_too_small", free_sized_too_small},
    {"free_sized_large", free_sized_large},
    {"free_sized_large_as_small", free_sized_large_as_small},
    {"free_sized_huge_as_small", free_sized_huge_as_small},
    {"free_sized_guarded_as_small", free_sized_guarded_as_small},
    {"delete_of_large_as_small", delete_of_large_as_small},
    {"delete_of_huge_as_small", delete_of_huge_as_small},
    {"free_aligned_sized_wrong", free_aligned_sized_wrong},
    {"delete_of_another_size", delete_of_another_size},
    {"delete_of_another_alignment", delete_of_another_alignment},
    {"free_after_the_span", free_after_the_span},
    {"realloc_stack", realloc_stack},
    {"realloc_inside", realloc_inside},
    {"realloc_inside_huge", realloc_inside_huge},
    {"realloc_freed", realloc_freed},
    {"realloc_to_zero_static", realloc_to_zero_static},
    {"usable_size_stack", usable_size_stack},
    {"usable_size_inside", usable_size_inside},
    {"usable_size_freed", usable_size_freed},
    {"handler_allocates", handler_allocates},
    {"nobody_reads", nobody_reads},
};
MAIN(cases)
