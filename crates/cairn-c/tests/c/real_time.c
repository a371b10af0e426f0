/* Real-time programs: what they touch before their work begins stays, and nothing comes from the system anew. */
#include "check.h"

#include <sys/mman.h>
#include <sys/resource.h>

enum { BLOCKS = 3000, POOL = 64, ROUNDS = 10 };
static void *blocks[BLOCKS];

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Allocates, touches and frees as much as the work will need. */
static void prepare(void)
{
    char *pool = malloc(POOL * MIB);
    CHECK(pool != NULL, "the pool");
    for (size_t i = 0; i < POOL * MIB; i += 4096) pool[i] = 1;
    free(pool);
    memset(blocks, 0, sizeof blocks);
}

/* Small and large blocks, a third of the pool at a time; how many page faults. */
static long work(void)
{
    long before = faults();
    for (int round = 0; round < ROUNDS; round++) {
        size_t total = 0;
        int count = 0;
        for (; count < BLOCKS && total < POOL * MIB / 3; count++) {
            size_t size = (size_t)count * 7919 % 20000 + 16;
            if (count % 100 == 99) size += MIB;
            blocks[count] = malloc(size);
            CHECK(blocks[count] != NULL, "%zu bytes", size);
            memset(blocks[count], 1, size);
            total += size;
        }
        for (int i = 0; i < count; i++) free(blocks[i]);
        char *large = malloc(POOL * MIB / 2);
        CHECK(large != NULL, "a large one");
        for (size_t i = 0; i < POOL * MIB / 2; i += 4096) large[i] = 1;
        free(large);
        usleep(5000);
    }
    return faults() - before;
}

static void works_without_faults(int flags)
{
    CHECK(flags == 0 || mlockall(flags) == 0, "mlockall");
    prepare();
    usleep(600000);
    long count = work();
    const char *most = getenv("TEST_FAULTS_MAX");
    CHECK(count <= (most ? atol(most) : 20), "%ld page faults", count);
}

static void say(void)
{
    CHECK(mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_MMAP_MAX, 0) == 1, "mallopt");
}

static void by_mallopt(void)
{
    say();
    works_without_faults(0);
}

static void locked(void)
{
    say();
    works_without_faults(MCL_CURRENT | MCL_FUTURE);
}

static void locked_on_fault(void)
{
    say();
    works_without_faults(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
}

/* CAIRN_PURGE_DELAY=never. */
static void by_setting(void)
{
    /* A program's own wish does not undo it. */
    mallopt(M_TRIM_THRESHOLD, 128 * 1024);
    free(malloc(100));
    works_without_faults(0);
}

static void ends(void)
{
    say();
    prepare();
    size_t kept = resident_kib();
    CHECK(kept >= POOL * KIB, "%zu KiB", kept);
    /* Who asks gets it. */
    CHECK(malloc_trim(0) == 1, "something goes");
    CHECK(resident_kib() < kept - POOL * KIB / 2, "%zu KiB, then %zu", kept, resident_kib());
    /* As before. */
    mallopt(M_TRIM_THRESHOLD, 128 * 1024);
    mallopt(M_MMAP_MAX, 65536);
    prepare();
    CHECK(resident_kib() < kept - POOL * KIB / 2, "%zu KiB, then %zu", kept, resident_kib());
}

static void nothing(void) { free(malloc(1)); }

static const struct test_case cases[] = {
    {"by_mallopt", by_mallopt}, {"locked", locked},   {"locked_on_fault", locked_on_fault},
    {"by_setting", by_setting}, {"ends", ends},
    {"nothing", nothing},
};
MAIN(cases)
