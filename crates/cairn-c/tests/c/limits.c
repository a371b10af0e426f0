/* Under limits of the system: address space, data, locked memory, number of mappings. */
#include "check.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>

static void lower(int resource, size_t bytes)
{
    struct rlimit limits = {bytes, bytes};
    CHECK(setrlimit(resource, &limits) == 0, "setrlimit(%d, %zu)", resource, bytes);
}

/* About 20 MiB live at most, all sizes, contents checked. */
static void *workload(void *seed)
{
    enum { LIVE = 1000 };
    struct { void *block; size_t size; } *live = calloc(LIVE, sizeof *live);
    uint64_t random = 88172645463325252u + (uintptr_t)seed;
    CHECK(live != NULL, "the table");
    for (int step = 0; step < 50000; step++) {
        size_t slot = random_next(&random) % LIVE;
        CHECK(live[slot].block == NULL || holds(live[slot].block, live[slot].size, (unsigned)slot), "step %d", step);
        free(live[slot].block);
        live[slot].size = random_size(&random, step % 500 ? 13 : 20);
        live[slot].block = malloc(live[slot].size);
        CHECK(live[slot].block != NULL, "%zu bytes, step %d", live[slot].size, step);
        fill(live[slot].block, live[slot].size, (unsigned)slot);
    }
    for (size_t slot = 0; slot < LIVE; slot++) free(live[slot].block);
    free(live);
    return NULL;
}

/* For limits set before the start. */
static void works(void)
{
    void *threads[4];
    workload(NULL);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(workload, (void *)(i + 1));
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    void *large = malloc(20 * MIB);
    CHECK(large != NULL, "20 MiB");
    memset(large, 1, 20 * MIB);
    free(large);
}

/* The limit comes later, and is less than what is reserved otherwise: vsftpd does so. */
static void limited_later(void)
{
    workload(NULL);
    lower(RLIMIT_AS, 200 * MIB);
    CHECK(mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED, "no MiB");
    workload(NULL);
    void *large = malloc(20 * MIB);
    CHECK(large != NULL, "20 MiB");
    free(large);
}

/* The same with stacks small enough for a limit on data. */
static void data_works(void)
{
    pthread_attr_t attributes;
    pthread_t threads[4];
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * KIB);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        CHECK(pthread_create(&threads[i], &attributes, workload, (void *)i) == 0, "a thread");
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined((void *)threads[i]);
    void *large = malloc(20 * MIB);
    CHECK(large != NULL, "20 MiB");
    memset(large, 1, 20 * MIB);
    free(large);
}

/* There may be no memory at all: then each request says so. */
static void little_room(void)
{
    for (int round = 0; round < 20; round++) {
        void *blocks[200];
        for (size_t i = 0; i < COUNT_OF(blocks); i++) {
            size_t size = (i + 1) * 500;
            errno = 0;
            blocks[i] = malloc(size);
            CHECK(blocks[i] != NULL || errno == ENOMEM, "%zu", size);
            if (blocks[i]) memset(blocks[i], 1, size);
        }
        for (size_t i = 0; i < COUNT_OF(blocks); i++) free(blocks[i]);
    }
}

/* Takes blocks of a size until there are no more, writing on each. Linked through themselves. */
static size_t take_all(size_t size, size_t count_max, void **head)
{
    size_t count = 0;
    for (;;) {
        errno = 0;
        void **block = malloc(size);
        if (block == NULL) {
            CHECK(errno == ENOMEM, "%zu blocks of %zu", count, size);
            return count;
        }
        CHECK(count < count_max, "no limit is felt by %zu blocks of %zu", count, size);
        fill_ends(block + 1, size - sizeof *block, (unsigned)size);
        *block = *head;
        *head = block;
        count++;
    }
}

static void give_all(size_t size, void *head)
{
    while (head != NULL) {
        void **block = head;
        head = *block;
        CHECK(ends_hold(block + 1, size - sizeof *block, (unsigned)size), "%zu", size);
        free(block);
    }
}

#define FAILS(call)                                                                                \
    do {                                                                                           \
        errno = 0;                                                                                 \
        void *result = (call);                                                                     \
        CHECK(result == NULL, #call " succeeds");                              \
        CHECK(errno == ENOMEM, #call);                                                             \
    } while (0)

/* Every entry point fails alike, smaller requests go on, what is live stays whole, frees work,
 * and afterwards there is as much as before. */
static void shortage(void)
{
    static const size_t sizes[] = {64 * MIB, 3 * MIB, 200 * KIB, 20 * KIB, 1000, 64};
    enum { KINDS = COUNT_OF(sizes) };
    size_t first_counts[KINDS] = {0};
    for (int round = 0; round < 3; round++) {
        void *heads[KINDS] = {NULL};
        for (size_t i = 0; i < KINDS; i++) {
            size_t count = take_all(sizes[i], 4 * GIB / sizes[i], &heads[i]);
            if (i == 0 && round == 0) first_counts[i] = count;
            if (i == 0) {
                CHECK(count > 0, "not one of %zu", sizes[i]);
                /* Where 64 MiB fail, 64 bytes do not. */
                void *small = malloc(64);
                CHECK(small != NULL, "a small request after a large one failed");
                free(small);
                CHECK(count + 2 >= first_counts[i], "%zu blocks at first, now %zu", first_counts[i], count);
            }
        }
        void *untouched = &untouched;
        size_t size = GIB; /* beyond any limit set here */
        char *kept = heads[KINDS - 1];
        FAILS(calloc(1, size));
        FAILS(memalign(4096, size));
        FAILS(aligned_alloc(MIB, size));
        if (kept != NULL) FAILS(realloc(kept, size));
        FAILS(valloc(size));
        CHECK(posix_memalign(&untouched, MIB, size) == ENOMEM, "posix_memalign");
        CHECK(untouched == &untouched, "posix_memalign writes when it fails");
        for (size_t i = KINDS; i-- > 0;) give_all(sizes[i], heads[i]);
        malloc_trim(0);
    }
    workload(NULL);
}

static void address_space_shortage(void)
{
    lower(RLIMIT_AS, virtual_kib() * KIB + 256 * MIB);
    /* An allocator may have reserved ahead; what it makes writable there counts as data. */
    lower(RLIMIT_DATA, 512 * MIB);
    shortage();
}

static void data_shortage(void)
{
    lower(RLIMIT_DATA, 256 * MIB);
    shortage();
}

static void *until_short(void *unused)
{
    (void)unused;
    for (int round = 0; round < 20; round++) {
        void *head = NULL;
        static const size_t sizes[] = {500, 5000, 100 * KIB, 5 * MIB};
        size_t size = sizes[round % COUNT_OF(sizes)];
        take_all(size, 4 * GIB / size, &head);
        give_all(size, head);
    }
    return NULL;
}

/* Several threads run into the limit at once. */
static void shortage_in_threads(void)
{
    void *threads[4];
    lower(RLIMIT_DATA, 192 * MIB);
    for (size_t i = 0; i < COUNT_OF(threads); i++) threads[i] = started(until_short, NULL);
    for (size_t i = 0; i < COUNT_OF(threads); i++) joined(threads[i]);
    workload(NULL);
}

/* A thread that finds no memory for its own heap must fail its request, not the process. */
static void *first_request(void *unused)
{
    (void)unused;
    errno = 0;
    void *block = malloc(100);
    CHECK(block != NULL || errno == ENOMEM, "first request of a thread");
    free(block);
    return NULL;
}

static void threads_start_in_a_shortage(void)
{
    void *head = NULL;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 * KIB);
    lower(RLIMIT_DATA, 128 * MIB);
    take_all(MIB, 1000, &head);
    /* Room for stacks. */
    void **block = head;
    head = *block;
    free(block);
    for (int i = 0; i < 200; i++) {
        if (pthread_create(&thread, &attributes, first_request, NULL) == 0) pthread_join(thread, NULL);
    }
    give_all(MIB, head);
    workload(NULL);
}

/* Where small blocks have taken all there was, what is free of it serves large ones. */
static void freed_serves(void)
{
    void *head = NULL;
    size_t count = take_all(MIB, 1000, &head);
    CHECK(count > 150 && count < 1000, "%zu MiB", count);
    give_all(MIB, head);
    malloc_trim(0);
    for (size_t i = 0; i < 3; i++) {
        char *block = malloc(count / 2 * MIB);
        CHECK(block != NULL, "no %zu of %zu MiB", count / 2, count);
        block[0] = block[count / 2 * MIB - 1] = 1;
        free(block);
        block = malloc(40 * MIB);
        CHECK(block != NULL, "no 40 MiB");
        fill(block, 40 * MIB, 7);
        block = realloc(block, count / 2 * MIB);
        CHECK(block != NULL && holds(block, 40 * MIB, 7), "40 MiB do not grow to %zu of %zu", count / 2, count);
        /* There is no such room beside it. */
        block = realloc(block, count * 7 / 10 * MIB);
        CHECK(block != NULL && holds(block, 40 * MIB, 7), "%zu MiB do not grow to 7/10 of %zu", count / 2, count);
        free(block);
    }
}

/* Uses up the address space. */
static void use_all(void)
{
    for (size_t size = 64 * MIB; size >= 4 * KIB; size /= 2)
        while (mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) continue;
}

/* Aligned blocks that are not written to have a place of their own, but go where others have been before there is none. */
static void aligned_serves(void)
{
    static void *blocks[100];
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        CHECK(posix_memalign(&blocks[i], 2 * MIB, 2 * MIB) == 0, "%zu blocks", i);
        memset(blocks[i], 1, 2 * MIB);
    }
    for (size_t i = 0; i < COUNT_OF(blocks); i += 2) free(blocks[i]);
    use_all();
    for (size_t i = 0; i < COUNT_OF(blocks); i += 2)
        CHECK(posix_memalign(&blocks[i], 2 * MIB, 2 * MIB) == 0, "of 50 places %zu", i / 2);
}

/* However many runs are long enough, and lie wrongly. */
static void aligned_serves_far_away(void)
{
    enum { COUNT = 80 };
    const size_t long_enough = MIB + 256 * KIB;
    static char *runs[COUNT], *between[COUNT];
    void *place, *again;
    size_t wrong = 0;
    for (size_t i = 0; i < COUNT; i++) {
        runs[i] = malloc(long_enough - 16 * KIB);
        between[i] = malloc(128 * KIB + i % 7 * 64 * KIB);
        CHECK(runs[i] && between[i], "%zu runs", i);
        memset(runs[i], 1, long_enough - 16 * KIB);
    }
    CHECK(posix_memalign(&place, MIB, MIB) == 0, "the place");
    memset(place, 1, MIB);
    CHECK(malloc(128 * KIB) != NULL, "what keeps it apart");
    for (size_t i = 0; i < COUNT; i++) {
        uintptr_t start = (uintptr_t)runs[i] & ~(uintptr_t)(64 * KIB - 1), aligned = (start + MIB - 1) & ~(uintptr_t)(MIB - 1);
        if (aligned + MIB <= start + long_enough + 64 * KIB) continue;
        free(runs[i]);
        wrong++;
    }
    CHECK(wrong > 20, "%zu of %d lie wrongly", wrong, COUNT);
    free(place);
    use_all();
    /* Of what is free, the longer runs go to blocks without such an alignment. */
    while (malloc(2 * MIB) != NULL) continue;
    CHECK(posix_memalign(&again, MIB, MIB) == 0, "behind %zu others", wrong);
}

/* What is reserved but not used must not be brought in. */
static void locked(void)
{
    size_t before = resident_kib();
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall");
    CHECK(resident_kib() < before + 64 * KIB, "%zu KiB, then %zu", before, resident_kib());
    works();
    CHECK(peak_resident_kib() < 256 * KIB, "%zu KiB", peak_resident_kib());
    /* Giving back locked memory may be refused; the heap must live with it. */
    malloc_trim(0);
    works();
    munlockall();
    works();
}

/* All that is mapped counts as locked, the allocator's address space too: before its first block, or after it. */
static void locks_what_comes(void)
{
    enum { BLOCKS = 4000 };
    static char *blocks[BLOCKS];
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && mlockall(MCL_FUTURE) == 0, "mlockall");
    /* Three eighths of the limit. */
    for (int round = 0; round < 3; round++) {
        size_t total = 0;
        int count = 0;
        for (; count < BLOCKS && total < limit.rlim_cur / 8 * 3; count++) {
            size_t size = 100 + (size_t)count * 7 % 3000;
            blocks[count] = malloc(size);
            CHECK(blocks[count] != NULL, "%zu bytes after %zu", size, total);
            fill(blocks[count], size, (unsigned)count);
            total += size;
        }
        for (int i = 0; i < count; i++) {
            CHECK(holds(blocks[i], 100 + (size_t)i * 7 % 3000, (unsigned)i), "block %d", i);
            free(blocks[i]);
        }
    }
    char *large = calloc(1, 500 * KIB);
    CHECK(large != NULL && large[500 * KIB - 1] == 0, "a large one");
    free(large);
    /* What is beyond the limit fails cleanly. In a static program, which has allocated before, nothing need fail. */
    int count = 0;
    while (count < BLOCKS && (blocks[count] = malloc(50000)) != NULL) count++;
    CHECK(count == BLOCKS || errno == ENOMEM, "%d blocks", count);
    while (count > 0) free(blocks[--count]);
    CHECK(munlockall() == 0, "munlockall");
    works();
}

static size_t mappings(void)
{
    static char text[65536];
    size_t count = 0;
    ssize_t length;
    int fd = open("/proc/self/maps", O_RDONLY);
    CHECK(fd >= 0, "/proc is needed");
    while ((length = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < length; i++) count += text[i] == '\n';
    close(fd);
    return count;
}

/* The kernel allows 65,530 mappings; a heap full of holes must stay far from it. */
static void few_mappings(void)
{
    enum { COUNT = 8000 };
    static void *blocks[COUNT];
    static const size_t sizes[] = {600 * KIB, 100 * KIB, 20 * KIB};
    size_t before = mappings();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t j = 0; j < COUNT; j++) {
            blocks[j] = malloc(sizes[i]);
            CHECK(blocks[j] != NULL, "%zu", j);
            memset(blocks[j], 1, 1);
        }
        CHECK(mappings() < before + 1000, "%zu mappings, then %zu", before, mappings());
        for (size_t j = 0; j < COUNT; j += 2) free(blocks[j]);
        malloc_trim(0);
        CHECK(mappings() < before + 1000, "%zu mappings, then %zu with holes", before, mappings());
        for (size_t j = 1; j < COUNT; j += 2) free(blocks[j]);
    }
}

enum { STACK = 1 << 20, SMALL_STACK = 4 << 10 };

static struct { ucontext_t program, coroutine; } contexts;

/* All ways to allocate, with so much in use that the process's group is looked for. */
static void on_a_stack(void)
{
    enum { LIVE = 4000 };
    static void *live[LIVE];
    uint64_t random = 88172645463325252u;
    for (int step = 0; step < 40000; step++) {
        void **slot = &live[random_next(&random) % LIVE];
        size_t size = 1 + random_size(&random, step % 300 ? 17 : 23);
        if (step % 3 == 0) {
            *slot = realloc(*slot, size);
        } else {
            free(*slot);
            *slot = step % 3 == 1 ? malloc(size) : aligned_alloc(64 << step % 8, size);
        }
        CHECK(*slot != NULL, "%zu bytes, step %d", size, step);
        *(char *)*slot = 1;
        if (step % 5000 == 0) malloc_trim(0);
    }
    for (size_t slot = 0; slot < LIVE; slot++) free(live[slot]);
    swapcontext(&contexts.coroutine, &contexts.program);
}

/* A coroutine's, or a thread's of the least size. */
static void small_stack(void)
{
    unsigned char *stack =
        mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED, "a stack");
    memset(stack, 0xee, STACK);
    getcontext(&contexts.coroutine);
    contexts.coroutine.uc_stack.ss_sp = stack;
    contexts.coroutine.uc_stack.ss_size = STACK;
    contexts.coroutine.uc_link = &contexts.program;
    makecontext(&contexts.coroutine, on_a_stack, 0);
    swapcontext(&contexts.program, &contexts.coroutine);
    size_t untouched = 0;
    while (stack[untouched] == 0xee) untouched++;
    CHECK(STACK - untouched <= SMALL_STACK, "%zu bytes of stack", STACK - untouched);
}

static const struct test_case cases[] = {
    {"works", works},
    {"limited_later", limited_later},
    {"data_works", data_works},
    {"little_room", little_room},
    {"address_space_shortage", address_space_shortage},
    {"data_shortage", data_shortage},
    {"shortage_in_threads", shortage_in_threads},
    {"threads_start_in_a_shortage", threads_start_in_a_shortage},
    {"freed_serves", freed_serves},
    {"aligned_serves", aligned_serves},
    {"aligned_serves_far_away", aligned_serves_far_away},
    {"locked", locked},
    {"locks_what_comes", locks_what_comes},
    {"few_mappings", few_mappings},
    {"small_stack", small_stack},
};
MAIN(cases)
