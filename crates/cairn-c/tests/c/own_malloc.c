/* A program with a malloc, calloc, realloc and free of its own, over the C library's internal
 * names: a counting or a tracing one does so. The other names are not defined here. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void *__libc_reallocarray(void *block, size_t count, size_t size);
extern void __libc_free(void *block);

/* How many of our own functions run inside each other, and ever did. */
static unsigned long depth, deepest;

static void enter(void)
{
    if (++depth > deepest) deepest = depth;
    if (depth > 10) {
        static const char message[] = "a call comes back to the program\n";
        fwrite(message, 1, sizeof message - 1, stderr);
        _Exit(1);
    }
}

void *malloc(size_t size)
{
    enter();
    void *block = __libc_malloc(size);
    depth--;
    return block;
}

void *calloc(size_t count, size_t size)
{
    enter();
    void *block = __libc_calloc(count, size);
    depth--;
    return block;
}

void *realloc(void *old, size_t size)
{
    enter();
    void *block = __libc_realloc(old, size);
    depth--;
    return block;
}

void free(void *block)
{
    enter();
    __libc_free(block);
    depth--;
}

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

int main(void)
{
    char *block = malloc(10);
    CHECK(block != NULL);
    strcpy(block, "kept");
    for (size_t size = 20; size < 100u << 20; size *= 3) {
        block = realloc(block, size);
        CHECK(block != NULL && strcmp(block, "kept") == 0);
    }
    free(block);
    char *zero = calloc(100, 100);
    CHECK(zero != NULL && zero[0] == 0 && zero[9999] == 0);
    free(zero);
    CHECK(realloc(malloc(10), 0) == NULL);

    /* Those that the program does not define. */
    void *blocks[8] = {memalign(64, 100), aligned_alloc(64, 128), valloc(1), pvalloc(1)};
    blocks[4] = __libc_memalign(64, 100);
    blocks[5] = __libc_reallocarray(NULL, 10, 10);
    blocks[6] = reallocarray(NULL, 10, 10);
    CHECK(posix_memalign(&blocks[7], 64, 100) == 0);
    for (int i = 0; i < 8; i++) {
        CHECK(blocks[i] != NULL);
        CHECK(malloc_usable_size(blocks[i]) >= 1);
        free(blocks[i]);
    }
    CHECK(deepest == 1);
    return 0;
}
