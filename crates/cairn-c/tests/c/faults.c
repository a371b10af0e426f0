/*
 * What a program sees when calls of the allocator to the system fail. faults.h fails them.
 *
 * In every scenario: null comes with ENOMEM and only after a call has failed; success and free
 * leave errno alone; what is live keeps its contents; what was refused is to be had once calls
 * succeed again; and when all is freed nothing is left behind.
 */
#include "faults.h"
#include "outside.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { HELD_MAX = 8192, REFUSED_MAX = 256, LOOKS_MAX = 4, HUNG_AFTER_SECONDS = 300 };

/* --- requests --- */

enum how { MALLOC, CALLOC, ALIGNED, POSIX_ALIGNED, PAGES, REALLOC };

struct request {
    enum how how;
    size_t size, alignment;
    size_t at; /* of what is held, for REALLOC */
};

static struct held {
    unsigned char *block;
    size_t size;
    size_t step; /* between marks: large where a block is not to become resident */
    unsigned seed;
} held[HELD_MAX];
static size_t held_count;

static struct request refused[REFUSED_MAX];
static size_t refused_count, refusals;
static unsigned seeds;

/* Closer than a page up to 1 MiB; beyond, on every fourth page, which is enough to notice a page
 * that is lost or comes from elsewhere. */
static size_t step_for(size_t size) { return size <= MIB ? 509 : 16381; }

static unsigned char mark(const struct held *one, size_t at)
{
    return (unsigned char)(one->seed ^ at ^ at >> 8 ^ at >> 16);
}

static void write_marks(const struct held *one, size_t from)
{
    for (size_t at = (from + one->step - 1) / one->step * one->step; at < one->size; at += one->step)
        one->block[at] = mark(one, at);
}

static void expect_marks(const struct held *one, size_t size)
{
    for (size_t at = 0; at < size; at += one->step)
        CHECK(one->block[at] == mark(one, at), "%p, %zu bytes, is changed at %zu", (void *)one->block, one->size, at);
}

static void expect_all_marks(void)
{
    for (size_t i = 0; i < held_count; i++) expect_marks(&held[i], held[i].size);
}

/* Of a large block its ends and a word of each fourth page: the rest is not to become resident. */
static int is_zero(const unsigned char *block, size_t size)
{
    if (size <= MIB) return all_zero(block, size);
    for (size_t at = 64 * KIB; at < size - 8; at += 16381)
        if (!all_zero(block + at, 8)) return 0;
    return all_zero(block, 64 * KIB) && all_zero(block + size - 4096, 4096);
}

static void *perform(const struct request *request)
{
    void *block = NULL;
    size_t size = request->size;
    int error;
    switch (request->how) {
    case MALLOC: return malloc(size);
    case CALLOC: return calloc(1, size);
    case ALIGNED: return aligned_alloc(request->alignment, size);
    case PAGES: return pvalloc(size);
    case REALLOC: return realloc(held[request->at].block, size);
    case POSIX_ALIGNED:
        error = posix_memalign(&block, request->alignment, size);
        CHECK(errno == ANY_ERRNO, "posix_memalign touches errno");
        CHECK(error == 0 || error == ENOMEM, "posix_memalign answers %d", error);
        CHECK(error == 0 || block == NULL, "posix_memalign writes when it fails");
        if (error) errno = error;
        return block;
    }
    return NULL;
}

/* One request and what must hold after it. */
static void *ask(const struct request *request)
{
    errno = ANY_ERRNO;
    unsigned char *block = perform(request);
    int error = errno;
    if (block == NULL) {
        CHECK(error == ENOMEM, "kind %d, %zu bytes: null with errno %d", request->how, request->size, error);
        CHECK(is_fired(), "kind %d, %zu bytes: refused without a reason", request->how, request->size);
        if (refusals++ < LOOKS_MAX) expect_all_marks();
        return NULL;
    }
    CHECK(error == ANY_ERRNO, "kind %d, %zu bytes: success with errno %d", request->how, request->size, error);
    CHECK(malloc_usable_size(block) >= request->size, "%zu bytes are %zu", request->size, malloc_usable_size(block));
    CHECK(is_aligned(block, request->alignment > 16 ? request->alignment : 16), "%p", (void *)block);
    CHECK(request->how != CALLOC || is_zero(block, request->size), "%zu bytes are not zero", request->size);
    return block;
}

/* A request that is refused is refused once if one call fails. Refusals are remembered. */
static void *ask_again(const struct request *request)
{
    void *block = ask(request);
    if (block == NULL && !faults.from) {
        block = ask(request);
        CHECK(block != NULL, "kind %d, %zu bytes: refused twice", request->how, request->size);
    }
    if (block == NULL && refused_count < REFUSED_MAX) refused[refused_count++] = *request;
    return block;
}

/* Makes a request and keeps the block, marked at every `step`; whether there is one. */
static int take(struct request request, size_t step)
{
    CHECK(held_count < HELD_MAX, "too much is held");
    unsigned char *block = ask_again(&request);
    if (block == NULL) return 0;
    held[held_count] = (struct held){block, request.size, step, seeds += 37};
    write_marks(&held[held_count++], 0);
    return 1;
}

static int allocate(size_t size) { return take((struct request){MALLOC, size, 0, 0}, step_for(size)); }
/* A mapping of its own, marked at few places: it is not to become resident. */
static int allocate_mapping(size_t size) { return take((struct request){MALLOC, size, 0, 0}, size / 4); }
static int allocate_zeroed(size_t size) { return take((struct request){CALLOC, size, 0, 0}, step_for(size)); }

static int reallocate(size_t at, size_t size)
{
    struct request request = {REALLOC, size, 0, at};
    size_t kept = held[at].size < size ? held[at].size : size;
    unsigned char *block = ask_again(&request), *before = held[at].block;
    if (block == NULL) {
        expect_marks(&held[at], held[at].size);
        return 0;
    }
    held[at].block = block;
    held[at].size = size;
    if (block != before) expect_marks(&held[at], kept);
    write_marks(&held[at], kept);
    return 1;
}

static void release(size_t at)
{
    expect_marks(&held[at], held[at].size);
    errno = ANY_ERRNO;
    free(held[at].block);
    CHECK(errno == ANY_ERRNO, "free leaves errno %d", errno);
    held[at] = held[--held_count];
}

/* Neither the order of allocation nor its reverse. */
static void release_all(void)
{
    while (held_count > 0) release(held_count * 5 / 8);
}

static void trim(void)
{
    errno = ANY_ERRNO;
    malloc_trim(0);
    CHECK(errno == ANY_ERRNO, "malloc_trim leaves errno %d", errno);
}

/* --- scenarios --- */

static void startup(void) { allocate(24); }
static void startup_large(void) { allocate(200 * KIB); }
static void startup_mapping(void) { allocate_mapping(33 * MIB); }
static void startup_zeroed(void) { allocate_zeroed(3000); }
static void startup_aligned(void) { take((struct request){ALIGNED, 100, 2 * MIB, 0}, 509); }

/* Of the smaller sizes several spans. */
static void classes(void)
{
    for (size_t power = 16; power < 64 * KIB; power *= 2) {
        for (size_t part = 0; part < 4; part++) {
            size_t size = power + part * (power / 4);
            size_t count = size < 512 ? 17 * KIB / size : 3;
            while (count-- > 0 && allocate(size)) {}
        }
    }
}

static void large(void)
{
    for (int i = 0; i < 12; i++) allocate(MIB);
    for (size_t at = 7; at < held_count; at /= 2) {
        release(at);
        if (at == 0) break;
    }
    allocate(3 * MIB);
    allocate(7 * MIB);
    allocate(100 * KIB);
}

static void mappings(void)
{
    allocate_mapping(40 * MIB);
    allocate_mapping(33 * MIB);
    allocate_mapping(40 * MIB);
    if (held_count > 0) release(0);
    allocate_mapping(35 * MIB);
    allocate_mapping(64 * MIB);
}

/* As many as make their table grow twice. The marks stand where the allocator looks whether blocks are
 * filled, and so it asks for huge pages. The kernel is told to give none: it would clear 3 GiB. */
static void many_mappings(void)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    for (int i = 0; i < 400; i++)
        if (!allocate_mapping(33 * MIB)) break;
}

/* Two blocks that grow by turns, so that neither always finds room behind itself. */
static void growth(void)
{
    if (!allocate(16) || !allocate(16)) return;
    held[0].step = held[1].step = 16381;
    for (size_t size = 32; size <= 32 * MIB; size *= 2)
        if (!(reallocate(0, size) & reallocate(1, size))) break;
}

static void growth_by_steps(void)
{
    if (!allocate(16)) return;
    held[0].step = 16381;
    for (size_t size = 16; size < 24 * MIB; size += size / 16 + 8 * KIB)
        if (!reallocate(0, size)) break;
}

/* Blocks of all kinds grow to all kinds, with a neighbour in the way. */
static void movers(void)
{
    static const size_t moves[][2] = {
        {100, 9 * MIB},   {50 * KIB, 300 * KIB}, {200 * KIB, 5 * MIB}, {MIB, 20 * MIB},
        {7 * MIB, 15 * MIB}, {7 * MIB, 60 * MIB}, {9 * MIB, 11 * MIB}, {34 * MIB, 90 * MIB},
    };
    for (size_t i = 0; i < COUNT_OF(moves); i++) {
        size_t at = held_count;
        if (allocate(moves[i][0]) && allocate(100 * KIB)) reallocate(at, moves[i][1]);
    }
}

static void shrinking(void)
{
    static const size_t sizes[] = {64 * MIB, 6 * MIB, 40 * KIB};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t at = held_count;
        if (!allocate(sizes[i])) continue;
        for (size_t size = sizes[i]; size > 16; size = size * 2 / 3) reallocate(at, size);
    }
}

/* Memory that was not zero before, given back to the system or not. */
static void zeroed(void)
{
    static const size_t sizes[] = {48, 1000, 5000, 60 * KIB, 150 * KIB, 2 * MIB, 12 * MIB};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++) allocate(sizes[i]);
        release_all();
        if (round > 0) trim();
        for (size_t i = 0; i < COUNT_OF(sizes); i++) allocate_zeroed(sizes[i]);
        release_all();
    }
}

static void aligned(void)
{
    static const struct request requests[] = {
        {ALIGNED, 100, 64, 0},          {POSIX_ALIGNED, 100, 8 * KIB, 0}, {ALIGNED, 100, 64 * KIB, 0},
        {POSIX_ALIGNED, 100 * KIB, MIB, 0}, {ALIGNED, 100, 4 * MIB, 0},   {POSIX_ALIGNED, MIB, 4 * MIB, 0},
        {ALIGNED, 20 * MIB, 4 * MIB, 0}, {ALIGNED, 33 * MIB, 64 * KIB, 0}, {PAGES, 70 * KIB, 4 * KIB, 0},
        {POSIX_ALIGNED, 12 * MIB, 64 * MIB, 0},
    };
    for (size_t i = 0; i < COUNT_OF(requests); i++) take(requests[i], step_for(requests[i].size));
}

/* Frees and gives back, in parts and all. */
static void purge(void)
{
    static const size_t sizes[] = {40, 700, 3000, 30 * KIB, 100 * KIB, MIB, 10 * MIB};
    for (size_t round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            for (int count = sizes[i] < MIB ? 40 : 3; count > 0; count--) allocate(sizes[i]);
        for (size_t at = round; at < held_count; at++) release(at);
        trim();
        expect_all_marks();
        release_all();
        trim();
    }
    /* More than may lie dirty: the release itself gives back. */
    for (int i = 0; i < 12; i++) allocate(7 * MIB);
    release_all();
}

/* Threads that come and go: what one leaves is freed by main. */
static void *comes_and_goes(void *round)
{
    static const size_t sizes[] = {16, 64, 700, 5000, 60 * KIB, 200 * KIB, 10 * MIB};
    if (round != NULL) free(NULL);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (size_t count = sizes[i] < MIB ? 20 : 4; count > 0; count--) allocate(sizes[i]);
    for (size_t at = held_count / 2; at-- > 0;) release(at);
    return NULL;
}

static void threads(void)
{
    for (size_t round = 0; round < 8; round++) {
        pthread_t thread;
        int error = pthread_create(&thread, NULL, comes_and_goes, (void *)round);
        CHECK(error == 0 || is_fired(), "pthread_create answers %d", error);
        if (error != 0) continue;
        pthread_join(thread, NULL);
        release_all();
    }
}

/* The same where the C library has to allocate for the allocator's own key: it has room for 32
 * in each thread, and these come first. */
static void threads_with_many_keys(void)
{
    pthread_key_t keys[40];
    for (size_t i = 0; i < COUNT_OF(keys); i++) CHECK(pthread_key_create(&keys[i], NULL) == 0, "key %zu", i);
    threads();
}

enum { CROWD = 4 };

/* Large blocks are under locks; four threads on few processors find them taken. */
static void *contends(void *argument)
{
    uint64_t random = 88172645463325252u + (uintptr_t)argument;
    for (int round = 0; round < 400; round++) {
        struct request request = {MALLOC, 70 * KIB + random_next(&random) % MIB, 0, 0};
        void *blocks[2] = {ask(&request), ask(&request)};
        for (int i = 0; i < 2; i++) {
            if (blocks[i] != NULL) fill_ends(blocks[i], request.size, (unsigned)round);
            free(blocks[i]);
        }
    }
    return NULL;
}

static void contention(void)
{
    pthread_t crowd[CROWD];
    size_t count = 0;
    while (count < CROWD && pthread_create(&crowd[count], NULL, contends, (void *)count) == 0) count++;
    CHECK(count == CROWD || is_fired(), "%zu threads", count);
    while (count-- > 0) pthread_join(crowd[count], NULL);
}

static pthread_barrier_t turn;

static void *stays(void *unused)
{
    allocate(100);
    allocate(3000);
    allocate(300 * KIB);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    return unused;
}

static void use_in_child(void)
{
    alarm(HUNG_AFTER_SECONDS / 2);
    expect_all_marks();
    for (size_t size = 20; size < 20 * MIB; size *= 3) allocate(size);
    if (held_count > 0) reallocate(0, 10 * MIB);
    release_all();
    trim();
    allocate(MIB);
    _exit(0);
}

/* Another thread has a heap of its own, and is at rest. */
static void forks(void)
{
    pthread_t thread;
    int status = -1;
    pthread_barrier_init(&turn, NULL, 2);
    for (size_t size = 16; size < 20 * MIB; size *= 5) allocate(size);
    int error = pthread_create(&thread, NULL, stays, NULL);
    CHECK(error == 0 || is_fired(), "pthread_create answers %d", error);
    if (error == 0) pthread_barrier_wait(&turn);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) use_in_child();
        CHECK(waitpid(child, &status, 0) == child && status == 0, "child: wait status %#x (0xe: it hangs)", status);
        for (size_t size = 30; size < 9 * MIB; size *= 7) allocate(size);
    }
    if (error != 0) return;
    pthread_barrier_wait(&turn);
    pthread_join(thread, NULL);
}

/* What it says goes nowhere; what says that it is wrong goes where it belongs. */
static int silenced(void)
{
    int kept = dup(2), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    CHECK(kept >= 0 && nowhere >= 0 && dup2(nowhere, 2) == 2, "/dev/null is needed");
    close(nowhere);
    return kept;
}

static void reports(void)
{
    static char text[64 * KIB];
    for (size_t size = 16; size < 20 * MIB; size *= 5) allocate(size);
    int kept = silenced();
    errno = ANY_ERRNO;
    malloc_stats();
    struct mallinfo2 info = mallinfo2();
    int error = errno;
    dup2(kept, 2);
    CHECK(error == ANY_ERRNO, "reports leave errno %d", error);
    CHECK(info.uordblks > 0 || is_fired(), "nothing is in use");
    FILE *stream = fmemopen(text, sizeof text, "w");
    CHECK(stream != NULL || is_fired(), "a stream");
    if (stream == NULL) return;
    malloc_info(0, stream);
    fclose(stream);
}

/* A message that cannot be written is no reason to go on. */
static void last_words(void)
{
    int status = -1;
    char *block = malloc(100);
    CHECK(block != NULL || is_fired(), "a block");
    if (block == NULL) return;
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        silenced();
        alarm(HUNG_AFTER_SECONDS / 2);
        free(hide(block + 16));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child, "wait");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "wait status %#x", status);
    free(block);
}

/* --- before and after --- */

struct account { size_t in_use, window, dirty, mappings, resident_kib, data_kib; };

/* Nothing is allocated here. */
static struct account account(void)
{
    struct mallinfo2 info = mallinfo2();
    return (struct account){info.uordblks, info.arena, info.keepcost, info.hblks, resident_kib(), status_kib("VmData:")};
}

/* Room for what the C library keeps of threads: their table of thread-local storage, which holds
 * a span for each of a few sizes. */
enum { THREADS_IN_USE = 8 * 1024, THREADS_SPANS = 256 * 1024, SPANS = 48 * 1024 };
/* Pages of the program, of libraries and of metadata that were touched only now. */
enum { RESIDENT_KIB = 3 * 1024, DATA_KIB = 1024 };

static void expect_nothing_left(const struct account *before, int has_threads)
{
    struct account after = account();
    const struct cairn_map *map = own_header()->map;
    size_t committed_kib = (map->committed - map->first) << own_header()->slice_shift >> 10;
    CHECK(after.in_use <= before->in_use + (has_threads ? THREADS_IN_USE : 0), "%zu bytes, then %zu, are in use", before->in_use, after.in_use);
    CHECK(after.mappings == before->mappings, "%zu mappings, then %zu", before->mappings, after.mappings);
    CHECK(after.dirty == 0, "%zu bytes are dirty", after.dirty);
    CHECK(after.window <= before->window + (has_threads ? THREADS_SPANS : SPANS), "%zu bytes of spans, then %zu", before->window, after.window);
    /* Where unmapping fails, addresses are lost; their pages only if giving back fails as well. Hardened, where guard
     * pages cannot be taken away, so are the slices between them. */
    size_t resident_most = before->resident_kib + RESIDENT_KIB;
    int keeps_guards = faults.call == CALL_MADVISE && getenv("TEST_IS_HARDENED") != NULL;
    int loses_pages = (faults.call == CALL_MEMORY || keeps_guards) && faults.from;
    CHECK(after.resident_kib <= resident_most || loses_pages, "%zu KiB, then %zu, are resident", before->resident_kib, after.resident_kib);
    /* The C library keeps the stacks of threads. */
    if (has_threads || faults.call == CALL_MUNMAP || faults.call == CALL_MEMORY) return;
    /* Metadata is less than three slots for each slice; hardened, two more say which blocks the program has. It may be
     * there for a growth that had no memory, which is by as much as there is, up to 64 MiB. */
    size_t slots = getenv("TEST_IS_HARDENED") != NULL ? 5 : 3;
    size_t refused_kib = !faults.from ? 0 : committed_kib < 64 * KIB ? committed_kib : 64 * KIB;
    size_t metadata_kib = (committed_kib + refused_kib) * slots * own_header()->slot_bytes >> own_header()->slice_shift;
    CHECK(after.data_kib <= before->data_kib + committed_kib + metadata_kib + DATA_KIB, "%zu KiB are mapped, before %zu, the window has %zu", after.data_kib, before->data_kib, committed_kib);
}

/* With nothing failing any more all is well. */
static void recover(void)
{
    static const size_t sizes[] = {1, 100, 3000, 40 * KIB, 300 * KIB, 5 * MIB, 20 * MIB};
    int fired = is_fired();
    expect_all_marks();
    for (size_t i = 0; i < refused_count && held_count < HELD_MAX; i++) {
        struct request request = refused[i];
        if (request.how == REALLOC) request.how = MALLOC;
        /* Nobody may be refused from here on. */
        faults.tally->fired = 0;
        CHECK(take(request, request.size), "%zu bytes", request.size);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) CHECK(allocate_zeroed(sizes[i]), "%zu bytes", sizes[i]);
    faults.tally->fired = fired;
    expect_all_marks();
    release_all();
    trim();
}

static const struct scenario {
    const char *name;
    void (*run)(void);
    int has_threads;
} scenarios[] = {
    {"startup", startup, 0},
    {"startup_large", startup_large, 0},
    {"startup_mapping", startup_mapping, 0},
    {"startup_zeroed", startup_zeroed, 0},
    {"startup_aligned", startup_aligned, 0},
    {"classes", classes, 0},
    {"large", large, 0},
    {"mappings", mappings, 0},
    {"many_mappings", many_mappings, 0},
    {"growth", growth, 0},
    {"growth_by_steps", growth_by_steps, 0},
    {"movers", movers, 0},
    {"shrinking", shrinking, 0},
    {"zeroed", zeroed, 0},
    {"aligned", aligned, 0},
    {"purge", purge, 0},
    {"threads", threads, 1},
    {"threads_with_many_keys", threads_with_many_keys, 1},
    {"contention", contention, 1},
    {"forks", forks, 1},
    {"reports", reports, 0},
    {"last_words", last_words, 0},
};

int main(int argc, char **argv)
{
    CHECK(argc >= 2, "the first argument names the scenario");
    alarm(HUNG_AFTER_SECONDS);
    pause_faults(1);
    expect_the_library();
    memset(held, 1, sizeof held);
    memset(refused, 1, sizeof refused);
    struct account before = account();
    pause_faults(0);
    for (size_t i = 0; i < COUNT_OF(scenarios); i++) {
        if (strcmp(scenarios[i].name, argv[1]) != 0) continue;
        scenarios[i].run();
        pause_faults(1);
        recover();
        expect_nothing_left(&before, scenarios[i].has_threads);
        return exit_code();
    }
    check_failed(__FILE__, __LINE__, "no such scenario", "%s", argv[1]);
}
