/*
 * What mistakes of programs are made into: one case for each known primitive. Each prints what it has come
 * to, "succeeds" or "harmless", unless the allocator ends the process before. tests/attacks.rs knows what is
 * to happen; docs/guide/misuse.md tells it.
 */
#include "check.h"

#include <sys/mman.h>
#include <sys/wait.h>

enum { SMALL = 48, MANY = 400 };

static void ends(int succeeds)
{
    const char *word = succeeds ? "succeeds" : "harmless";
    if (write(1, word, strlen(word)) < 0) _exit(2);
    _exit(0);
}

/* Memory that is none of the allocator's, in the likeness of a block with a header in front of it. */
static struct {
    size_t before, size, first[30];
} fake __attribute__((aligned(64))) = {0, 0x41, {0}};

static void *some[MANY];

/* Blocks that lie among others, every second of which is free. */
static void fill_with(size_t size)
{
    for (size_t i = 0; i < MANY; i++) some[i] = malloc(size);
    for (size_t i = 0; i < MANY; i += 2) free(some[i]);
}

/* The same, and used again: what is freed next is the next to be allocated, if that is how it is. */
static void warm_up(size_t size)
{
    fill_with(size);
    for (size_t i = 0; i < MANY; i += 2) some[i] = malloc(size);
}

/* Whether malloc gives a block at `place`, or any block twice. */
static int is_given(size_t size, void *place)
{
    static char *got[2 * MANY];
    for (size_t i = 0; i < COUNT_OF(got); i++) {
        got[i] = malloc(size);
        if (got[i] == place) return 1;
        for (size_t j = 0; j < i; j++)
            if (got[i] == got[j]) return 1;
        memset(got[i], 0x55, size);
    }
    return 0;
}

static void link_to_a_place(void)
{
    fill_with(SMALL);
    void **block = hide(some[200]);
    for (size_t i = 0; i < 4; i++) block[i] = fake.first;
    ends(is_given(SMALL, fake.first));
}

static void link_of_another_block(void)
{
    fill_with(SMALL);
    memcpy(hide(some[100]), hide(some[200]), SMALL);
    ends(is_given(SMALL, NULL));
}

static void link_in_part(void)
{
    fill_with(SMALL);
    char *block = hide(some[200]);
    /* Another byte than the one that is there by chance. */
    block[0] = block[8] = block[8] == 0x40 ? 0x50 : 0x40;
    ends(is_given(SMALL, NULL));
}

static void link_to_null(void)
{
    fill_with(SMALL);
    memset(hide(some[200]), 0, SMALL);
    ends(is_given(SMALL, NULL));
}

static void double_free_at_once(void)
{
    void *block = malloc(SMALL);
    free(block);
    free(hide(block));
    ends(is_given(SMALL, NULL));
}

static void double_free_around_another(void)
{
    void *block = malloc(SMALL), *other = malloc(SMALL);
    free(block);
    free(other);
    free(hide(block));
    ends(is_given(SMALL, NULL));
}

static void double_free_of_many(void)
{
    fill_with(SMALL);
    for (size_t i = 0; i < MANY; i += 2) free(hide(some[i]));
    ends(is_given(SMALL, NULL));
}

static void *freeing(void *block)
{
    free(block);
    return NULL;
}

static void in_a_thread(void *block)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, freeing, block) == 0, "no thread");
    pthread_join(thread, NULL);
}

static void double_free_by_two_threads(void)
{
    void *block = malloc(SMALL);
    in_a_thread(block);
    free(hide(block));
    ends(is_given(SMALL, NULL));
}

static void double_free_large(void)
{
    void *block = malloc(MIB);
    free(block);
    free(hide(block));
    ends(malloc(MIB) == malloc(MIB));
}

static void double_free_by_realloc(void)
{
    void *block = malloc(SMALL);
    free(block);
    void *again = realloc(hide(block), SMALL);
    ends(again == malloc(SMALL) || is_given(SMALL, again));
}

/* The first free's block is somebody else's by now. */
static void double_free_of_a_new_owners_block(void)
{
    warm_up(SMALL);
    void *block = malloc(SMALL);
    free(block);
    void *others = malloc(SMALL);
    free(hide(block));
    ends(malloc(SMALL) == others);
}

static void fake_block_on_the_stack(void)
{
    size_t block[16] __attribute__((aligned(64))) = {0, 0x41, 0};
    free(hide(&block[2]));
    ends(malloc(SMALL) == hide(&block[2]));
}

static void fake_block_in_a_block(void)
{
    size_t *block = malloc(256);
    block[8] = 0;
    block[9] = 0x41;
    free(hide(&block[10]));
    ends(malloc(SMALL) == &block[10]);
}

/* As large and as aligned as any span might be. */
static void fake_span(void)
{
    char *memory = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    char *span = memory + (32 * MIB - (uintptr_t)memory % (32 * MIB));
    memcpy(span, malloc(SMALL), SMALL);
    free(span + 4096);
    ends(malloc(SMALL) == span + 4096);
}

static void never_allocated(void)
{
    char *block = malloc(SMALL), *next = malloc(SMALL);
    free(hide(next + (next - block)));
    ends(is_given(SMALL, NULL));
}

/* Another one if that stood there by chance, once in 64 times: nobody can see that it has been written. */
static void write_byte(char *at, char byte)
{
    *at = *at == byte ? (char)~byte : byte;
}

static void one_byte_beyond(void)
{
    for (size_t i = 0; i < MANY; i++) some[i] = memset(malloc(SMALL), 0x33, SMALL);
    char *block = hide(some[100]);
    block[malloc_usable_size(block)] = 0;
    int changed = 0;
    for (size_t i = 0; i < MANY; i++)
        for (size_t j = 0; j < SMALL; j++) changed |= ((char *)some[i])[j] != 0x33;
    for (size_t i = 0; i < MANY; i++) free(some[i]);
    ends(changed);
}

/* As much behind a block's end as a loop that goes too far writes; then all is freed. The first byte is another one than
 * stands there: of all that are written in front of a block's last word it alone is looked at. */
static void write_beyond(size_t size, size_t bytes)
{
    enum { FEW = 64 };
    for (size_t i = 0; i < FEW; i++) some[i] = memset(malloc(size), 0x33, size);
    char *end = hide((char *)some[FEW / 2] + size);
    write_byte(end, 0x41);
    memset(end + 1, 0x41, bytes - 1);
    int changed = 0;
    for (size_t i = 0; i < FEW; i++)
        for (size_t j = 0; j < size; j++) changed |= ((char *)some[i])[j] != 0x33;
    for (size_t i = 0; i < FEW; i++) free(some[i]);
    ends(changed);
}

static void small_block_by_a_byte(void) { write_beyond(SMALL, 1); }
static void small_block_by_32_bytes(void) { write_beyond(SMALL, 32); }
static void small_block_by_a_mib(void) { write_beyond(SMALL, KIB * KIB); }
static void medium_block_by_a_byte(void) { write_beyond(5 * KIB, 1); }
static void medium_block_by_32_bytes(void) { write_beyond(5 * KIB, 32); }
static void medium_block_by_a_mib(void) { write_beyond(5 * KIB, KIB * KIB); }
static void large_block_by_a_byte(void) { write_beyond(96 * KIB, 1); }
static void large_block_by_32_bytes(void) { write_beyond(96 * KIB, 32); }
static void large_block_by_a_mib(void) { write_beyond(96 * KIB, KIB * KIB); }

/* Where others keep the next block's size: blocks overlap then. */
static void size_of_the_next_block(void)
{
    char *block = malloc(24);
    char *next = malloc(24), *behind = malloc(24);
    size_t size = 0x101;
    memcpy(hide(block + 24), &size, sizeof size);
    free(next);
    char *larger = malloc(0xe8);
    ends(larger <= behind && behind < larger + 0xe8);
}

static void read_after_free(void)
{
    char *block = memset(malloc(200), 0x77, 200);
    free(block);
    ends(((char *)hide(block))[100] == 0x77);
}

static void write_after_free(void)
{
    warm_up(200);
    char *block = malloc(200);
    free(block);
    ((char *)hide(block))[100] = 0x77;
    ends(((char *)malloc(200))[100] == 0x77);
}

static void read_before_write(void)
{
    for (size_t i = 0; i < MANY; i++) some[i] = memset(malloc(200), 0x77, 200);
    for (size_t i = 0; i < MANY; i++) free(some[i]);
    int found = 0;
    for (size_t i = 0; i < MANY; i++) found |= ((char *)malloc(200))[100] == 0x77;
    ends(found);
}

static void address_in_a_new_block(void)
{
    fill_with(SMALL);
    int found = 0;
    for (size_t i = 0; i < MANY; i++) {
        size_t *block = malloc(SMALL);
        for (size_t j = 0; j < 2; j++) found |= block[j] != 0 && block[j] - (size_t)some[0] + GIB < 2 * GIB;
    }
    ends(found);
}

/* Another type's object in the place of a freed one. */
static void type_by_reuse(void)
{
    warm_up(SMALL);
    void *block = malloc(SMALL);
    free(block);
    ends(malloc(SMALL - 8) == block);
}

void free_sized(void *, size_t) __attribute__((weak));
void *_Znwm(size_t) __attribute__((weak));
void _ZdlPvm(void *, size_t) __attribute__((weak));

static void free_of_another_size(void)
{
    if (!free_sized) ends(1);
    free_sized(malloc(64), 300);
    ends(1);
}

static void delete_of_another_size(void)
{
    if (!_Znwm || !_ZdlPvm) ends(1);
    _ZdlPvm(_Znwm(64), 300);
    ends(1);
}

static void guess_of_the_next_block(void)
{
    char *blocks[100];
    size_t guessed = 0;
    for (size_t i = 0; i < COUNT_OF(blocks); i++) blocks[i] = malloc(SMALL);
    for (size_t i = 2; i < COUNT_OF(blocks); i++)
        guessed += blocks[i] - blocks[i - 1] == blocks[i - 1] - blocks[i - 2];
    ends(guessed > COUNT_OF(blocks) / 2);
}

/* From a block on to whatever is writable behind it, as far as 64 KiB. */
static void overflow_into_metadata(void)
{
    for (size_t i = 0; i < MANY; i++) some[i] = malloc(SMALL);
    memset(hide(some[MANY - 1]), 0x41, 64 * KIB);
    for (size_t i = 0; i < MANY / 2; i++) free(some[i]);
    ends(is_given(SMALL, NULL));
}

static void *freeing_many(void *unused)
{
    for (size_t i = 0; i < MANY; i++) free(some[i]);
    return unused;
}

/* A thread frees while another one forks: the child frees what it finds in use. */
static void free_in_a_forked_child(void)
{
    for (size_t i = 0; i < MANY; i++) some[i] = malloc(SMALL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, freeing_many, NULL) == 0, "no thread");
    pid_t child = fork();
    if (child == 0) {
        free(malloc(SMALL));
        _exit(is_given(SMALL, NULL));
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    pthread_join(thread, NULL);
    ends(status != 0);
}

/* What a free block carries is gone by the second free. */
static void double_free_of_a_wiped_block(void)
{
    warm_up(SMALL);
    void *block = malloc(SMALL);
    free(block);
    memset(hide(block), 0x33, SMALL);
    free(hide(block));
    ends(is_given(SMALL, NULL));
}

static void double_free_of_a_wiped_block_by_two_threads(void)
{
    warm_up(SMALL);
    void *block = malloc(SMALL);
    in_a_thread(block);
    memset(hide(block), 0x33, SMALL);
    free(hide(block));
    ends(is_given(SMALL, NULL));
}

/* An object's table of functions stands there. */
static void write_to_the_head_of_a_free_block(void)
{
    warm_up(200);
    char *block = malloc(200);
    free(block);
    ((char *)hide(block))[0] = 0x77;
    int found = 0;
    for (size_t i = 0; i < 2 * MANY; i++) {
        char *other = malloc(200);
        found |= other[0] == 0x77;
        if (i % 2) free(other);
    }
    ends(found);
}

/* From a block of some KiB to those of other sizes. */
static void overflow_among_larger_blocks(void)
{
    for (size_t i = 0; i < MANY; i++) some[i] = malloc(3000);
    memset(hide(some[MANY / 2]), 0x41, 128 * KIB);
    ends(1);
}

static void order_of_reuse(void)
{
    warm_up(SMALL);
    size_t guessed = 0;
    for (size_t i = 0; i + 1 < MANY; i += 2) {
        free(some[i]);
        free(some[i + 1]);
        char *last = malloc(SMALL), *first = malloc(SMALL);
        guessed += last == some[i + 1] && first == some[i];
        some[i] = first;
        some[i + 1] = last;
    }
    ends(guessed > MANY / 8);
}

void *__alloc_token_malloc(size_t, size_t) __attribute__((weak));

/* The same for types that the compiler tells apart. */
static void type_by_reuse_among_tokens(void)
{
    if (!__alloc_token_malloc) ends(1);
    for (size_t i = 0; i < MANY; i++) some[i] = __alloc_token_malloc(SMALL, 1);
    for (size_t i = 0; i < MANY; i++) free(some[i]);
    int found = 0;
    for (size_t i = 0; i < MANY; i++) {
        void *other = __alloc_token_malloc(SMALL, 2);
        for (size_t j = 0; j < MANY; j++) found |= other == hide(some[j]);
    }
    ends(found);
}

/* C++'s operators and C's functions mixed: one heap serves both. */
static void free_of_new(void)
{
    if (!_Znwm) ends(0);
    for (size_t i = 0; i < MANY; i++) free(_Znwm(SMALL));
    ends(is_given(SMALL, NULL));
}

static const struct test_case cases[] = {
    {"link_to_a_place", link_to_a_place},
    {"link_of_another_block", link_of_another_block},
    {"link_in_part", link_in_part},
    {"link_to_null", link_to_null},
    {"double_free_at_once", double_free_at_once},
    {"double_free_around_another", double_free_around_another},
    {"double_free_of_many", double_free_of_many},
    {"double_free_by_two_threads", double_free_by_two_threads},
    {"double_free_large", double_free_large},
    {"double_free_by_realloc", double_free_by_realloc},
    {"double_free_of_a_new_owners_block", double_free_of_a_new_owners_block},
    {"fake_block_on_the_stack", fake_block_on_the_stack},
    {"fake_block_in_a_block", fake_block_in_a_block},
    {"fake_span", fake_span},
    {"never_allocated", never_allocated},
    {"one_byte_beyond", one_byte_beyond},
    {"small_block_by_a_byte", small_block_by_a_byte},
    {"small_block_by_32_bytes", small_block_by_32_bytes},
    {"small_block_by_a_mib", small_block_by_a_mib},
    {"medium_block_by_a_byte", medium_block_by_a_byte},
    {"medium_block_by_32_bytes", medium_block_by_32_bytes},
    {"medium_block_by_a_mib", medium_block_by_a_mib},
    {"large_block_by_a_byte", large_block_by_a_byte},
    {"large_block_by_32_bytes", large_block_by_32_bytes},
    {"large_block_by_a_mib", large_block_by_a_mib},
    {"size_of_the_next_block", size_of_the_next_block},
    {"read_after_free", read_after_free},
    {"write_after_free", write_after_free},
    {"read_before_write", read_before_write},
    {"address_in_a_new_block", address_in_a_new_block},
    {"type_by_reuse", type_by_reuse},
    {"free_of_another_size", free_of_another_size},
    {"delete_of_another_size", delete_of_another_size},
    {"guess_of_the_next_block", guess_of_the_next_block},
    {"overflow_into_metadata", overflow_into_metadata},
    {"free_in_a_forked_child", free_in_a_forked_child},
    {"double_free_of_a_wiped_block", double_free_of_a_wiped_block},
    {"double_free_of_a_wiped_block_by_two_threads", double_free_of_a_wiped_block_by_two_threads},
    {"write_to_the_head_of_a_free_block", write_to_the_head_of_a_free_block},
    {"overflow_among_larger_blocks", overflow_among_larger_blocks},
    {"order_of_reuse", order_of_reuse},
    {"type_by_reuse_among_tokens", type_by_reuse_among_tokens},
    {"free_of_new", free_of_new},
};
MAIN(cases)
