/*
 * Active defragmentation: a key-value store moves its blocks to where they need less memory, as redis and valkey do.
 *
 *     cc defrag.c -lcairn && ./a.out
 *
 * It fills itself, deletes at random, and asks cairn_should_move of each block that is left. It goes on until no block
 * is to be moved, and writes what is resident.
 */
#include "cairn.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 16, ENTRIES = 400000, KEPT_OF_100 = 20, PASSES_MAX = 100 };

struct entry {
    struct entry *next;
    char *key;
    char *value;
    size_t value_bytes;
};

static struct entry *buckets[BUCKETS];
static size_t live_bytes, moves;

static uint64_t next_random(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void *allocated(size_t size)
{
    void *block = malloc(size);
    if (block == NULL) {
        fputs("no memory\n", stderr);
        exit(1);
    }
    live_bytes += cairn_usable_size(block);
    return block;
}

static void freed(void *block)
{
    live_bytes -= cairn_usable_size(block);
    free(block);
}

static void insert(unsigned number)
{
    struct entry *entry = allocated(sizeof *entry);
    struct entry **bucket = &buckets[number * 2654435761u % BUCKETS];
    /* Mostly small values, some of a few KiB. */
    entry->value_bytes = next_random() % 10 ? 16 + next_random() % 200 : 200 + next_random() % 4000;
    entry->key = allocated(16);
    entry->value = allocated(entry->value_bytes);
    snprintf(entry->key, 16, "key:%u", number);
    memset(entry->value, (int)(number % 251), entry->value_bytes);
    entry->next = *bucket;
    *bucket = entry;
}

static void delete_some(void)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct entry **place = &buckets[i]; *place;) {
            struct entry *entry = *place;
            if (next_random() % 100 < KEPT_OF_100) {
                place = &entry->next;
                continue;
            }
            *place = entry->next;
            freed(entry->key);
            freed(entry->value);
            freed(entry);
        }
    }
}

/* Moves a block if that helps; where it is then. */
static void *defragmented(void *block, size_t size)
{
    if (!cairn_should_move(block)) return block;
    void *moved = malloc(size);
    if (moved == NULL) return block;
    memcpy(moved, block, size);
    free(block);
    moves++;
    return moved;
}

/* Goes once over all there is. A server does a bit of this at a time, between requests. */
static void defragment(void)
{
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct entry **place = &buckets[i]; *place; place = &(*place)->next) {
            *place = defragmented(*place, sizeof **place);
            (*place)->key = defragmented((*place)->key, 16);
            (*place)->value = defragmented((*place)->value, (*place)->value_bytes);
        }
    }
}

static size_t blocks_left(void)
{
    size_t blocks = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct entry *entry = buckets[i]; entry; entry = entry->next) {
            unsigned number;
            if (sscanf(entry->key, "key:%u", &number) != 1) abort();
            for (size_t at = 0; at < entry->value_bytes; at++)
                if ((unsigned char)entry->value[at] != number % 251) abort();
            blocks += 3;
        }
    }
    return blocks;
}

static size_t resident_kib(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%*u %zu", &pages) != 1) abort();
    fclose(file);
    return pages * 4;
}

int main(void)
{
    size_t start = resident_kib();
    for (unsigned i = 0; i < ENTRIES; i++) insert(i);
    size_t full = resident_kib() - start;
    delete_some();
    cairn_purge();
    size_t scattered = resident_kib() - start;
    size_t blocks = blocks_left(), passes = 0, before;
    do {
        before = moves;
        defragment();
    } while (moves > before && ++passes < PASSES_MAX);
    cairn_purge();
    if (blocks_left() != blocks) abort();
    printf("full %zu KiB, scattered %zu KiB, defragmented %zu KiB, live %zu KiB\n", full, scattered,
           resident_kib() - start, live_bytes / 1024);
    printf("%zu blocks, %zu moves, %zu passes\n", blocks, moves, passes);
    return 0;
}
