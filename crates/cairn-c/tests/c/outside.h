/*
 * Reads a heap from outside, by `cairn_header` alone: of this process or of another one.
 *
 * Nothing here allocates, and all memory of the heap is read by way of the kernel, so that a
 * wrong address is a failed check and not a crash.
 */
#ifndef OUTSIDE_H
#define OUTSIDE_H

#include "check.h"

#include "cairn.h"
#include <sys/uio.h>

enum { CLASSES_MAX = 256, LIST_MAX = 1 << 16 };

/* What owners in descriptors mean; larger ones are heaps. */
enum { OWNER_NONE = 0, OWNER_LARGE = 2 };

struct view {
    pid_t process;
    struct cairn_header header;
    struct cairn_map map;
    size_t sizes[CLASSES_MAX];
};

/* Blocks by size class; the number of large blocks. */
struct census {
    size_t in_use[CLASSES_MAX];
    size_t cached[CLASSES_MAX];
    size_t spans;
    size_t large;
};

struct slice {
    unsigned owner;
    unsigned class;
    uintptr_t slot;
};

static inline const struct cairn_header *own_header(void)
{
#ifdef CAIRN_IS_LINKED
    return &cairn_header;
#else
    const struct cairn_header *header = dlsym(RTLD_DEFAULT, "cairn_header");
    CHECK(header != NULL, "no symbol cairn_header");
    return header;
#endif
}

static inline int can_read(const struct view *view, uintptr_t from, void *to, size_t bytes)
{
    struct iovec here = {to, bytes}, there = {(void *)from, bytes};
    return process_vm_readv(view->process, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

static inline void read_from(const struct view *view, uintptr_t from, void *to, size_t bytes)
{
    CHECK(can_read(view, from, to, bytes), "%zu bytes at %#zx", bytes, (size_t)from);
}

/* Once there is a window it stays; what has been committed of it grows. */
static inline void look(struct view *view, pid_t process, uintptr_t header)
{
    view->process = process;
    read_from(view, header, &view->header, sizeof view->header);
    CHECK(memcmp(view->header.magic, "CAIRNHDR", 8) == 0, "%.8s", view->header.magic);
    CHECK(view->header.version == 8, "version %u", view->header.version);
    CHECK(view->header.header_bytes >= sizeof view->header, "%u", view->header.header_bytes);
    CHECK(view->header.class_count <= CLASSES_MAX, "%u classes", view->header.class_count);
    read_from(view, (uintptr_t)view->header.map, &view->map, sizeof view->map);
    CHECK(view->map.committed > view->map.first, "nothing is committed");
    CHECK(view->map.committed <= view->map.slices, "more than there is");
    for (unsigned class = 0; class < view->header.class_count; class++) {
        unsigned size;
        uintptr_t at = (uintptr_t)view->header.classes + class * view->header.class_bytes;
        read_from(view, at, &size, sizeof size);
        CHECK(size > (class ? view->sizes[class - 1] : 0), "class %u has blocks of %u", class, size);
        view->sizes[class] = size;
    }
}

static inline struct slice slice_at(const struct view *view, size_t index)
{
    struct slice slice;
    unsigned char bytes[16];
    /* The bits of any address in the slice say where. */
    uintptr_t at = (uintptr_t)view->map.base + (index << view->header.slice_shift);
    size_t place = (at >> view->header.slice_shift) * view->header.descriptor_bytes & view->map.mask;
    read_from(view, (uintptr_t)view->map.descriptors + place, bytes, sizeof bytes);
    memcpy(&slice.owner, bytes, 4);
    memcpy(&slice.class, bytes + 4, 4);
    memcpy(&slice.slot, bytes + 8, 8);
    return slice;
}

static inline uintptr_t section_of(const struct view *view, size_t index)
{
    return (uintptr_t)view->map.sections + index / view->header.section_slices * view->header.section_bytes;
}

static inline uintptr_t slot_of(const struct view *view, size_t index)
{
    size_t slice = index % view->header.section_slices;
    return section_of(view, index) + view->header.slots_offset + slice * view->header.slot_bytes;
}

/* Frees by other threads that the holder has not seen yet: they count as used. */
static inline size_t pending_of(const struct view *view, size_t index)
{
    uint64_t word;
    uintptr_t at = section_of(view, index) + view->header.words_offset;
    size_t slice = index % view->header.section_slices;
    size_t place = slice / 64 * view->header.chunk_bytes + (slice % 8 * 8 + slice % 64 / 8) * sizeof word;
    read_from(view, at + place, &word, sizeof word);
    return word >> 16 & 0x7ff;
}

static inline void count_span(const struct view *view, size_t index, unsigned class, struct census *census)
{
    unsigned until;
    unsigned short carved;
    short rest;
    uintptr_t slot = slot_of(view, index);
    read_from(view, slot + view->header.span_until_event_offset, &until, sizeof until);
    read_from(view, slot + view->header.span_used_after_event_offset, &rest, sizeof rest);
    read_from(view, slot + view->header.span_carved_offset, &carved, sizeof carved);
    size_t pending = pending_of(view, index), used = until + rest;
    CHECK(class < view->header.class_count, "class %u", class);
    CHECK(pending <= used && used <= carved, "slice %zu: %zu, %zu, %u", index, pending, used, carved);
    census->in_use[class] += used - pending;
    census->spans++;
}

/* Blocks in the threads' lists count as used in their spans. A heap begins with its lists. */
static inline void count_lists(const struct view *view, struct census *census)
{
    uintptr_t lists[CLASSES_MAX], link[2], key[3];
    read_from(view, (uintptr_t)view->header.lists, key, sizeof key);
    size_t bytes = view->header.class_count * sizeof *lists;
    for (size_t heap = 0; heap < view->map.heap_limit; heap++) {
        if (!can_read(view, (uintptr_t)view->map.heaps + heap * view->header.heap_bytes, lists, bytes)) break;
        for (unsigned class = 0; class < view->header.class_count; class++) {
            size_t count = 0;
            for (uintptr_t block = lists[class]; block != (uintptr_t)view->header.lists; count++) {
                if (block == 0) break; /* of a heap that is not made */
                CHECK(count < LIST_MAX, "the list of class %u does not end", class);
                read_from(view, block, link, sizeof link);
                block = link[1] ^ key[2];
            }
            CHECK(count <= census->in_use[class], "class %u: %zu", class, count);
            census->cached[class] += count;
            census->in_use[class] -= count;
        }
    }
}

static inline struct census take_census(const struct view *view)
{
    struct census census = {0};
    for (size_t index = view->map.first; index < view->map.committed; index++) {
        struct slice slice = slice_at(view, index);
        if (slice.owner == OWNER_LARGE) census.large++;
        else if (slice.owner != OWNER_NONE && slice.slot == slot_of(view, index))
            count_span(view, index, slice.class, &census);
    }
    count_lists(view, &census);
    return census;
}

#endif
