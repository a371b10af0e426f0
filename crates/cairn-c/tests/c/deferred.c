/* What a program frees later, through the header. */
#include "check.h"
#include "cairn.h"

#include <malloc.h>

/* Volatile: compilers believe that malloc changes no variable of the program. */
static volatile size_t last;
static volatile int forced;
static void *volatile put_off[1000];
static volatile size_t waiting;

static void reclaim(int force, size_t heartbeat, void *argument)
{
    CHECK(argument == &waiting, "%p", argument);
    CHECK(heartbeat == last + 1, "%zu after %zu", heartbeat, last);
    last = heartbeat;
    forced += force;
    void *volatile more = malloc(100);
    free(more);
    CHECK(last == heartbeat, "it is not called inside itself");
    for (size_t most = force ? waiting : 10; most && waiting; most--) free(put_off[--waiting]);
}

/* Pairs that the compiler does not leave out. */
static void pairs(int count)
{
    for (int i = 0; i < count; i++) {
        void *volatile block = malloc(64);
        free(block);
    }
}

static void calls(void)
{
    cairn_on_deferred_free(reclaim, (void *)&waiting);
    for (int i = 0; i < 100000; i++) {
        void *block = malloc((size_t)(i % 50) * 40);
        if (waiting < COUNT_OF(put_off)) put_off[waiting++] = block;
        else free(block);
    }
    CHECK(last > 300 && forced == 0, "%zu calls", last);
    size_t before = last;
    pairs(60000);
    CHECK(last > before, "a loop over one block");
    before = last;
    void *volatile zeroed = calloc(1, 1 << 20), *volatile other = realloc(NULL, 1 << 20);
    free(zeroed);
    free(other);
    CHECK(last == before + 2, "large blocks");
    cairn_on_deferred_free(NULL, NULL);
    before = last;
    pairs(60000);
    CHECK(last == before, "nobody is called");
}

static void force(void)
{
    cairn_on_deferred_free(reclaim, (void *)&waiting);
    for (size_t i = 0; i < 500; i++) {
        void *block = malloc(5000);
        put_off[waiting++] = block;
    }
    malloc_trim(0);
    CHECK(forced == 1 && waiting == 0, "%d, %zu", forced, waiting);
    volatile size_t much = SIZE_MAX / 4;
    CHECK(malloc(much) == NULL && forced == 2, "%d", forced);
    cairn_heap *heap = cairn_heap_new();
    CHECK(cairn_heap_set_limits(heap, 0, MIB, NULL, NULL), "a limit");
    for (int i = 0; i < 1000; i++) {
        void *block = cairn_heap_malloc(heap, 20000);
        CHECK(block, "block %d: what was put off made room", i);
        put_off[waiting++] = block;
    }
    cairn_heap_purge(heap);
    CHECK(waiting == 0, "%zu", waiting);
    cairn_heap_destroy(heap);
}

static const struct test_case cases[] = {
    {"calls", calls},
    {"force", force},
};
MAIN(cases)
