/*
 * How much room a process has: under a limit of any height, to be compared with the C library's
 * own allocator; and in a memory cgroup.
 */
#include "check.h"

enum { NOT_LOADED = 99 };

/* Takes blocks of a size until there are no more; they are linked through themselves. */
static size_t take_all(size_t size, void **head)
{
    size_t bytes = 0;
    for (;;) {
        errno = 0;
        void **block = malloc(size);
        if (block == NULL) {
            CHECK(errno == ENOMEM, "null with errno %d after %zu bytes in blocks of %zu", errno, bytes, size);
            return bytes;
        }
        *block = *head;
        *head = block;
        bytes += size;
        CHECK(bytes < 64 * GIB, "no limit is felt");
    }
}

static size_t fill_room(void)
{
    static const size_t sizes[] = {MIB, 64 * KIB, KIB, 32};
    void *head = NULL;
    size_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) bytes += take_all(sizes[i], &head);
    while (head != NULL) {
        void **block = head;
        head = *block;
        free(block);
    }
    malloc_trim(0);
    return bytes;
}

/* Writes how many bytes can be had. Three times: the last is to be as good as the first. */
static void usable(void)
{
    char text[32];
    size_t first = fill_room(), again = fill_room(), last = fill_room();
    CHECK(again >= first - first / 16 && last >= first - first / 16, "%zu bytes at first, then %zu, %zu", first, again, last);
    int length = snprintf(text, sizeof text, "%zu\n", first);
    CHECK(write(1, text, (size_t)length) == length, "the output is closed");
}

/* --- fill, free, fill --- */

static size_t fill_with(size_t size, size_t bytes, void ***head)
{
    size_t count = 0;
    for (size_t done = 0; done + size <= bytes; done += size, count++) {
        void **block = malloc(size);
        CHECK(block != NULL, "%zu bytes", size);
        memset(block, 1, size);
        *block = *head;
        *head = block;
    }
    return count;
}

/* Frees all but every `kept`th. */
static void **thin_out(void **head, size_t kept)
{
    void **rest = NULL;
    for (size_t i = 1; head != NULL; i++) {
        void **block = head;
        head = *block;
        if (kept != 0 && i % kept == 0) {
            *block = rest;
            rest = block;
        } else {
            free(block);
        }
    }
    return rest;
}

/* The argument: MiB that are written on at a time, in blocks of one size after another. */
static void fill_free_fill(void)
{
    static const size_t sizes[] = {1000, 48, 100 * KIB, 5000, 10 * MIB, 300, 40 * KIB, MIB, 1000};
    size_t bytes = (size_t)argument_or(16) * MIB;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            void **head = NULL;
            fill_with(sizes[i], bytes, &head);
            thin_out(head, 0);
        }
    }
    /* A tenth of each generation stays, scattered over what the others have left. */
    void **old = NULL;
    for (int round = 0; round < 20; round++) {
        void **head = NULL;
        thin_out(old, 0);
        fill_with(sizes[round % 2], bytes / 2, &head);
        old = thin_out(head, 10);
    }
    thin_out(old, 0);
}

/* Rounds of blocks a little longer each time, of which one in 50 is kept for a round: when they get to the next size class,
 * what is free around those is of no use to them. */
static void thins_and_grows(void)
{
    enum { BLOCKS = 2500, KEPT = BLOCKS / 50, ROUNDS = 16 };
    char **blocks = calloc(BLOCKS + KEPT, sizeof *blocks), **kept = blocks + BLOCKS;
    CHECK(blocks != NULL, "the table");
    for (size_t round = 0; round < ROUNDS; round++) {
        const size_t size = 40001 + round * 97;
        for (size_t i = 0; i < BLOCKS; i++) {
            CHECK((blocks[i] = malloc(size)) != NULL, "round %zu", round);
            memset(blocks[i], 1, size);
        }
        for (size_t i = 0; i < BLOCKS; i++) {
            if (i % 50 != 0) free(blocks[i]);
            else free(kept[i / 50]), kept[i / 50] = blocks[i];
        }
    }
}

static const struct test_case cases[] = {
    {"usable", usable},
    {"fill_free_fill", fill_free_fill},
    {"thins_and_grows", thins_and_grows},
};

int main(int argc, char **argv)
{
    /* Where the library itself did not fit, the loader goes on without it. */
    if (getenv("TEST_EXPECTS_CAIRN") != NULL && dlsym(RTLD_DEFAULT, "cairn_is_active") == NULL) {
#ifndef CAIRN_IS_LINKED
        _exit(NOT_LOADED);
#endif
    }
    CHECK(write(1, "started\n", 8) == 8, "the output is closed");
    return run_case(cases, COUNT_OF(cases), argc, argv);
}
