/*
 * A plugin that gives and takes memory. As it is, it uses the allocator of the program; with the
 * archive linked into it and kept to itself, it has one of its own.
 */
#include "check.h"

#include <signal.h>

static void *of_the_constructor;

__attribute__((constructor)) static void constructor(void)
{
    of_the_constructor = malloc(2000);
    CHECK(of_the_constructor != NULL, "constructor");
    fill(of_the_constructor, 2000, 7);
}

__attribute__((destructor)) static void destructor(void)
{
    CHECK(holds(of_the_constructor, 2000, 7), "destructor");
    free(of_the_constructor);
    free(malloc(200000));
}

/* A filled block. */
void *plugin_give(size_t size)
{
    void *block = malloc(size);
    CHECK(block != NULL, "%zu", size);
    fill_ends(block, size, 2);
    if (size <= 4096) fill(block, size, 2);
    return block;
}

void plugin_take(void *block) { free(block); }
void *plugin_resize(void *block, size_t size) { return realloc(block, size); }
size_t plugin_size(void *block) { return malloc_usable_size(block); }

/* The functions it calls, to tell whose they are. */
void *plugin_malloc(void) { return (void *)malloc; }
