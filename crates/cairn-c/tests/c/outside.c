/* The heap as tools see it: blocks in use by size class, counted by the header alone. */
#include "outside.h"

#include <sys/wait.h>

enum { BLOCKS_MAX = 20000, LARGE_BLOCKS = 9 };

static void *blocks[BLOCKS_MAX];
static void *large_blocks[LARGE_BLOCKS];
static size_t counts[CLASSES_MAX];

/* Small blocks fill several spans. */
static size_t wanted(size_t class, size_t size) { return (size <= 1024 ? 400 : 3) + class; }

static void allocate_known(const struct view *view)
{
    size_t at = 0;
    for (unsigned class = 0; class < view->header.class_count; class++) {
        counts[class] = wanted(class, view->sizes[class]);
        for (size_t i = 0; i < counts[class]; i++) {
            CHECK(at < BLOCKS_MAX, "class %u", class);
            blocks[at] = malloc(view->sizes[class]);
            CHECK(blocks[at] != NULL, "%zu bytes", view->sizes[class]);
            memset(blocks[at++], 1, 8);
        }
    }
    for (size_t i = 0; i < LARGE_BLOCKS; i++) {
        large_blocks[i] = malloc((i + 1) * 100 * KIB);
        CHECK(large_blocks[i] != NULL, "%zu", i);
    }
}

/* Of each class the second, fourth and so on. */
static void free_half(const struct view *view)
{
    size_t at = 0;
    for (unsigned class = 0; class < view->header.class_count; class++) {
        size_t count = counts[class];
        for (size_t i = 0; i < count; i++, at++) {
            if (i % 2 == 0) continue;
            free(blocks[at]);
            blocks[at] = NULL;
            counts[class]--;
        }
    }
}

static void free_the_rest(void)
{
    for (size_t i = 0; i < BLOCKS_MAX; i++) free(blocks[i]);
    for (size_t i = 0; i < LARGE_BLOCKS; i++) free(large_blocks[i]);
    memset(counts, 0, sizeof counts);
}

static void expect(const struct view *view, const struct census *before, size_t large, const char *what)
{
    struct census now = take_census(view);
    for (unsigned class = 0; class < view->header.class_count; class++)
        CHECK(now.in_use[class] == before->in_use[class] + counts[class], "%s: blocks of %zu: %zu, then %zu for %zu",
              what, view->sizes[class], before->in_use[class], now.in_use[class], counts[class]);
    CHECK(now.large == before->large + large, "%s: %zu large blocks, then %zu", what, before->large, now.large);
}

/* What a pointer alone tells. */
static void expect_pointers_lead_to_spans(const struct view *view)
{
    size_t at = 0;
    for (unsigned class = 0; class < view->header.class_count; class++) {
        for (size_t i = 0; i < counts[class]; i++, at++) {
            uintptr_t block = (uintptr_t)blocks[at], start;
            size_t index = (block - (uintptr_t)view->map.base) >> view->header.slice_shift;
            struct slice slice = slice_at(view, index);
            CHECK(index >= view->map.first && index < view->map.committed, "slice %zu", index);
            CHECK(slice.class == class && slice.owner != OWNER_LARGE, "class %u, not %u", slice.class, class);
            read_from(view, slice.slot + view->header.span_start_offset, &start, sizeof start);
            CHECK(block >= start && (block - start) % view->sizes[class] == 0, "%p from %zx", blocks[at], (size_t)start);
            CHECK(view->sizes[class] == malloc_usable_size(blocks[at]), "class %u", class);
        }
    }
}

static void blocks_are_counted(void)
{
    struct view view;
    free(malloc(1));
    look(&view, getpid(), (uintptr_t)own_header());
    struct census before = take_census(&view);
    allocate_known(&view);
    look(&view, getpid(), (uintptr_t)own_header());
    expect(&view, &before, LARGE_BLOCKS, "allocated");
    expect_pointers_lead_to_spans(&view);
    free_half(&view);
    expect(&view, &before, LARGE_BLOCKS, "half of them freed");
    free_the_rest();
    expect(&view, &before, 0, "all of them freed");
    malloc_trim(0);
    expect(&view, &before, 0, "trimmed");
}

/* --- blocks of one thread, freed by another --- */

static pthread_barrier_t turn;

static void *allocates_and_waits(void *view)
{
    allocate_known(view);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    return NULL;
}

static void blocks_freed_elsewhere_are_counted(void)
{
    struct view view;
    pthread_barrier_init(&turn, NULL, 2);
    free(malloc(1));
    look(&view, getpid(), (uintptr_t)own_header());
    void *thread = started(allocates_and_waits, &view);
    pthread_barrier_wait(&turn);
    look(&view, getpid(), (uintptr_t)own_header());
    /* Starting a thread allocates; from here on nobody else does. */
    struct census before = take_census(&view);
    for (unsigned class = 0; class < view.header.class_count; class++) before.in_use[class] -= counts[class];
    before.large -= LARGE_BLOCKS;

    /* So few that none of them are held back to go together. */
    enum { FREED = 60 };
    size_t at = 0;
    for (unsigned class = 0; class < view.header.class_count; class++) {
        size_t next = at + counts[class];
        free(blocks[at]);
        blocks[at] = NULL;
        counts[class]--;
        at = next;
    }
    CHECK(view.header.class_count <= FREED, "%u classes", view.header.class_count);
    expect(&view, &before, LARGE_BLOCKS, "one of each class freed elsewhere");
    pthread_barrier_wait(&turn);
    joined(thread);
    free_the_rest();
}

/* --- another process --- */

static void watched(void)
{
    struct view view;
    char end;
    free(malloc(1));
    look(&view, getpid(), (uintptr_t)own_header());
    struct census before = take_census(&view);
    allocate_known(&view);
    free_half(&view);
    /* Where the header is, what was in use before, and what has come to that. */
    uintptr_t address = (uintptr_t)own_header();
    CHECK(write(1, &address, sizeof address) == sizeof address, "write");
    CHECK(write(1, &before, sizeof before) == sizeof before, "write");
    CHECK(write(1, counts, sizeof counts) == sizeof counts, "write");
    CHECK(read(0, &end, 1) == 0, "the watcher is done");
}

static void read_all(int fd, void *to, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = read(fd, (char *)to + done, bytes - done);
        CHECK(got > 0, "%zu of %zu bytes", done, bytes);
        done += (size_t)got;
    }
}

static void another_process_is_counted(void)
{
    int questions[2], answers[2], status;
    CHECK(pipe(questions) == 0 && pipe(answers) == 0, "pipes");
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        dup2(questions[0], 0);
        dup2(answers[1], 1);
        for (int i = 0; i < 2; i++) {
            close(questions[i]);
            close(answers[i]);
        }
        execl("/proc/self/exe", "outside", "watched", (char *)NULL);
        _exit(3);
    }
    close(questions[0]);
    close(answers[1]);
    uintptr_t address;
    struct census before;
    struct view view;
    read_all(answers[0], &address, sizeof address);
    read_all(answers[0], &before, sizeof before);
    read_all(answers[0], counts, sizeof counts);
    look(&view, child, address);
    expect(&view, &before, LARGE_BLOCKS, "another process");
    close(questions[1]);
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    memset(counts, 0, sizeof counts);
}

static const struct test_case cases[] = {
    {"blocks_are_counted", blocks_are_counted},
    {"blocks_freed_elsewhere_are_counted", blocks_freed_elsewhere_are_counted},
    {"another_process_is_counted", another_process_is_counted},
    {"watched", watched},
};
MAIN(cases)
