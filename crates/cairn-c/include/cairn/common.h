/*
 * What the headers in compat/ have in common. Nothing here is for programs.
 *
 * Those headers give the names of other allocators to what cairn has. They are static functions, so that the library
 * exports nothing for them; the program is linked with cairn.
 */
#ifndef CAIRN_COMMON_H
#define CAIRN_COMMON_H

#include "../cairn.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * What nothing serves: it does not compile where it is used, and the compiler says why. gcc before 12 can say so of
 * functions; of other things it warns.
 */
#if defined(__has_attribute)
#if __has_attribute(unavailable)
#define CAIRN_UNAVAILABLE(reason) __attribute__((unavailable(reason)))
#define CAIRN_NO_FUNCTION(reason) __attribute__((unavailable(reason)))
#endif
#endif
#ifndef CAIRN_UNAVAILABLE
#define CAIRN_UNAVAILABLE(reason) __attribute__((deprecated(reason)))
#define CAIRN_NO_FUNCTION(reason) __attribute__((error(reason)))
#endif

/* Such a function. It takes any arguments, so that the reason is all that is said. */
#ifdef __cplusplus
#define CAIRN_NONE(name, reason) CAIRN_NO_FUNCTION(reason) int name(...)
#else
#define CAIRN_NONE(name, reason) CAIRN_NO_FUNCTION(reason) int name()
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* By other names: whether <stdlib.h> declares them depends on the C library and on what the program asks of it. */
void *cairn_libc_aligned_alloc(size_t align, size_t size) __asm__("aligned_alloc");
char *cairn_libc_realpath(const char *path, char *resolved) __asm__("realpath");

/* An alignment that cairn takes. */
static inline bool cairn_is_alignment(size_t align) { return align != 0 && (align & (align - 1)) == 0; }

/* The product, or what no request can have. */
static inline size_t cairn_product(size_t count, size_t size) {
    return size != 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size;
}

/* A block that compilers know nothing of: they hold one of malloc for no larger than what was asked for. */
static inline void *cairn_of_any_size(void *block) {
    __asm__("" : "+r"(block));
    return block;
}

/*
 * Zeroes the bytes of a block from `from` up to `to`, which is at most its usable size. Compilers believe that it ends
 * where its request did; they are not to know whose block it is.
 */
static inline void cairn_zero(void *block, size_t from, size_t to) {
    if (to > from) memset((char *)cairn_of_any_size(block) + from, 0, to - from);
}

/* realloc for which 0 bytes are a size like others. */
static inline void *cairn_resize(void *block, size_t size) { return realloc(block, size ? size : 1); }

/* calloc that zeroes all of the block, so that what grows later without moving grows into zeroes. */
static inline void *cairn_zalloc(size_t size) {
    void *block = calloc(1, size);
    if (block) cairn_zero(block, size, cairn_usable_size(block));
    return block;
}

/* The same, aligned. NULL and EINVAL if the alignment is no power of two. */
static inline void *cairn_zalloc_aligned(size_t align, size_t size) {
    size_t usable;
    void *block;
    if (cairn_is_alignment(align) && align <= 16) return cairn_zalloc(size);
    block = cairn_aligned_alloc_at_least(align, size, &usable);
    if (block) cairn_zero(block, 0, usable);
    return block;
}

/* The statistics as text, cut off where they have no room. */
struct cairn_text {
    size_t length;
    char bytes[16384];
};

static inline void cairn_text_add(void *text, const char *piece, size_t n) {
    struct cairn_text *to = (struct cairn_text *)text;
    size_t room = sizeof to->bytes - 1 - to->length;
    if (n > room) n = room;
    memcpy(to->bytes + to->length, piece, n);
    to->length += n;
    to->bytes[to->length] = 0;
}

static inline void cairn_take_stats(struct cairn_text *text) {
    text->length = 0;
    text->bytes[0] = 0;
    cairn_stats_json(cairn_text_add, text);
}

/* Who gets text that ends with a zero, and with what. */
struct cairn_reader {
    void (*read)(const char *text, void *argument);
    void *argument;
};

static inline void cairn_reader_add(void *reader, const char *piece, size_t n) {
    const struct cairn_reader *to = (const struct cairn_reader *)reader;
    char text[256];
    while (n > 0) {
        size_t part = n < sizeof text ? n : sizeof text - 1;
        memcpy(text, piece, part);
        text[part] = 0;
        to->read(text, to->argument);
        piece += part;
        n -= part;
    }
}

#ifdef __cplusplus
}
#endif

#endif
