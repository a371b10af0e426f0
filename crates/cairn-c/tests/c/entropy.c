/*
 * One process of many: tells where a heap lies and in which order it gives blocks. A line for each quantity,
 * its name and a number; those that only cairn's header tells are left out under others.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "cairn.h"

enum { BLOCKS = 16, SIZE = 64 };

static void tell(const char *name, uint64_t value) { printf("%s %llx\n", name, (unsigned long long)value); }

int main(void)
{
    uintptr_t blocks[BLOCKS], first, second;
    first = (uintptr_t)malloc(SIZE);
    second = (uintptr_t)malloc(SIZE);
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = (uintptr_t)malloc(SIZE);
    for (size_t i = 0; i < BLOCKS; i++) free((void *)blocks[i]);
    /* Which of them comes back first; how many others come before it. */
    uint64_t place = BLOCKS, before = 0;
    while (place == BLOCKS && before < 4096) {
        uintptr_t again = (uintptr_t)malloc(SIZE);
        for (size_t i = 0; i < BLOCKS; i++)
            if (blocks[i] == again) place = i;
        before += place == BLOCKS;
    }

    const struct cairn_header *header = dlsym(RTLD_DEFAULT, "cairn_header");
    if (header != NULL) {
        tell("window", (uintptr_t)header->map->base);
        tell("metadata", (uintptr_t)header->map->descriptors);
        tell("metadata-low-half", (uint32_t)(uintptr_t)header->map->descriptors);
        tell("metadata-from-window", (uintptr_t)header->map->base - (uintptr_t)header->map->descriptors);
        tell("key", header->lists[2]);
        tell("block-from-window", first - (uintptr_t)header->map->base);
    }
    tell("block", first);
    tell("next-block-from-block", second - first);
    tell("freed-block-back-first", place);
    tell("others-before-it", before);
    return 0;
}
