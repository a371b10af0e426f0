/* A program in jemalloc's terms: what its manual promises. It names nothing of cairn's. */
#include <jemalloc/jemalloc.h>

#include "check.h"

#include <sys/wait.h>

static void sizes(void)
{
    for (int lg = 0; lg <= 22; lg++) {
        size_t align = (size_t)1 << lg, more = align > 4096 ? align : 61;
        int flags = lg % 2 ? MALLOCX_LG_ALIGN(lg) : MALLOCX_ALIGN(align);
        for (size_t size = 1; size < 3 * align + 3000; size += more) {
            size_t expected = nallocx(size, flags);
            char *p = mallocx(size, flags | MALLOCX_ZERO | MALLOCX_TCACHE_NONE);
            size_t real = sallocx(p, flags);
            CHECK(p && is_aligned(p, align), "%zu to %zu", size, align);
            CHECK(expected >= size && real >= expected, "%zu to %zu: %zu, %zu", size, align, expected, real);
            int is_exact = expected <= 64 * KIB;
            CHECK(real == expected || !is_exact, "%zu to %zu: %zu, %zu", size, align, expected, real);
            if (size < 100000) CHECK(all_zero(p, real), "%zu to %zu", size, align);
            fill_ends(p, expected, 9);
            sdallocx(p, lg % 3 ? size : expected, flags);
        }
    }
    size_t half = hide_size((size_t)1 << 63);
    CHECK(nallocx(half, 0) == 0 && nallocx(1, MALLOCX_ALIGN(half)) == 0 && nallocx(SIZE_MAX, 0) == 0, "too much");
    errno = 0;
    CHECK(mallocx(half, 0) == NULL && errno == ENOMEM && mallocx(1, MALLOCX_ALIGN(half)) == NULL, "too much");
    CHECK(mallocx(half, MALLOCX_ALIGN(0x80000000)) == NULL && mallocx(SIZE_MAX, MALLOCX_ZERO) == NULL, "too much");
}

static void resizing(void)
{
    for (size_t size = 1; size < 3 * MIB; size += size / 2 + 13) {
        for (int flags = 0; flags <= MALLOCX_LG_ALIGN(13); flags++) {
            unsigned char *p = mallocx(size, flags | MALLOCX_ZERO);
            size_t old = sallocx(p, flags);
            memset(p, 0xaa, old);
            p = rallocx(p, size * 3, flags | MALLOCX_ZERO);
            CHECK(p && is_aligned(p, (size_t)1 << flags), "%zu, %d", size, flags);
            for (size_t i = 0; i < old; i += 1 + i / 4) CHECK(p[i] == 0xaa, "%zu: %zu", size, i);
            CHECK(all_zero(p + old, sallocx(p, 0) - old), "%zu, %d", size, flags);
            p = rallocx(p, size, flags);
            CHECK(p && is_aligned(p, (size_t)1 << flags) && sallocx(p, 0) >= size && p[size - 1] == 0xaa, "%zu", size);
            sdallocx(p, size, flags);
        }
    }
    char *p = mallocx(112, 0);
    p = rallocx(p, 52, 0);
    sdallocx(p, 52, 0);
    p = mallocx(100000, MALLOCX_ALIGN(64));
    p = rallocx(p, 60000, MALLOCX_ALIGN(64));
    sdallocx(p, 60000, MALLOCX_ALIGN(64));
    p = mallocx(100, 0);
    fill(p, 100, 3);
    CHECK(!rallocx(p, hide_size(SIZE_MAX), 0) && !rallocx(p, 1, MALLOCX_LG_ALIGN(62)) && holds(p, 100, 3), "it stays");
    dallocx(p, 0);
}

static void in_place(void)
{
    char *p = mallocx(42, 0);
    size_t size = sallocx(p, 0);
    CHECK(xallocx(p, size, 0, 0) == size && xallocx(p, 1, 0, 0) == size, "%zu", size);
    CHECK(xallocx(p, size + 5, 0, 0) == size && xallocx(p, size, SIZE_MAX, 0) == size, "a small block has its class");
    CHECK(xallocx(p, hide_size(SIZE_MAX), SIZE_MAX, 0) == size, "too much");
    dallocx(p, 0);
    p = mallocx(1 * MIB, 0);
    memset(p, 0xaa, size = sallocx(p, 0));
    size_t grown = xallocx(p, 2 * MIB, MIB, MALLOCX_ZERO);
    CHECK(grown == sallocx(p, 0) && (grown == size || grown >= 2 * MIB), "%zu", grown);
    CHECK(all_zero(p + size, grown - size), "what it gains is zero");
    size_t least = xallocx(p, 100 * KIB, 0, 0);
    CHECK(least == sallocx(p, 0) && least < MIB, "%zu", least);
    dallocx(p, 0);
    p = mallocx(100, MALLOCX_ALIGN(64));
    CHECK(xallocx(p + 0, 90, 0, MALLOCX_LG_ALIGN(40)) == sallocx(p, 0), "an alignment that it has not");
    dallocx(p, 0);
}

static size_t figure(const char *name)
{
    size_t value = 0, size = sizeof value;
    CHECK(mallctl(name, &value, &size, NULL, 0) == 0 && size == sizeof value, "%s", name);
    return value;
}

static size_t written;
static void writes(void *count, const char *text)
{
    *(size_t *)count += strlen(text);
}

static void control(void)
{
    uint64_t epoch = 1;
    size_t size = sizeof epoch;
    CHECK(mallctl("epoch", &epoch, &size, &epoch, size) == 0, "epoch");
    void *small = mallocx(10, 0);
    size_t before = figure("stats.allocated");
    void *held = mallocx(32 * MIB, MALLOCX_ZERO);
    memset(held, 1, 32 * MIB);
    size_t allocated = figure("stats.allocated"), active = figure("stats.active"), mapped = figure("stats.mapped");
    size_t resident = figure("stats.resident"), metadata = figure("stats.metadata");
    CHECK(allocated >= before + 32 * MIB && allocated < before + 40 * MIB, "%zu %zu", before, allocated);
    CHECK(active >= allocated && mapped >= active && mapped >= metadata, "%zu %zu %zu", active, mapped, metadata);
    CHECK(resident >= 32 * MIB && resident <= mapped && metadata > 0, "%zu", resident);
    dallocx(held, 0), dallocx(small, 0);
    CHECK(figure("stats.retained") <= (size_t)1 << 40, "retained");
    CHECK(mallctl("arena.4096.purge", NULL, NULL, NULL, 0) == 0 && figure("stats.resident") < resident - 30 * MIB, "purge");
    CHECK(mallctl("thread.tcache.flush", NULL, NULL, NULL, 0) == 0, "flush");
    const char *version;
    size = sizeof version;
    CHECK(mallctl("version", &version, &size, NULL, 0) == 0 && version[0] >= '0', "%s", version);

    unsigned bins;
    size_t mib[4], length = 4, bin, last = 0;
    size = sizeof bins;
    CHECK(mallctl("arenas.narenas", &bins, &size, NULL, 0) == 0 && bins == 1, "%u", bins);
    CHECK(mallctl("arenas.nbins", &bins, &size, NULL, 0) == 0 && bins > 10, "%u", bins);
    CHECK(mallctlnametomib("arenas.bin.0.size", mib, &length) == 0 && length == 4, "%zu", length);
    for (mib[2] = 0; mib[2] < bins; mib[2]++, last = bin) {
        size = sizeof bin;
        CHECK(mallctlbymib(mib, length, &bin, &size, NULL, 0) == 0 && bin > last, "%zu: %zu", mib[2], bin);
        CHECK(nallocx(bin, 0) == bin, "%zu", bin);
    }
    size = sizeof bin;
    CHECK(mallctlbymib(mib, length, &bin, &size, NULL, 0) == ENOENT, "beyond the last");
    CHECK(figure("arenas.quantum") == 16 && figure("arenas.page") == (size_t)sysconf(_SC_PAGESIZE), "units");

    char few[2];
    size = sizeof few;
    CHECK(mallctl("stats.active", few, &size, NULL, 0) == EINVAL && size == 2, "a wrong size");
    CHECK(mallctl("stats.active", NULL, NULL, &bin, sizeof bin) == EPERM, "only read");
    CHECK(mallctl("epoch", NULL, NULL, few, sizeof few) == EINVAL, "a wrong size");
    for (const char *const *name = (const char *const[]){"", "stats", "stats.activex", "arena.x.purge", "opt.lg_tcache_max",
                                                         "prof.active", "arenas.bin.1", NULL};
         *name; name++) {
        length = 4;
        CHECK(mallctl(*name, NULL, NULL, NULL, 0) == ENOENT, "%s", *name);
        CHECK(mallctlnametomib(*name, mib, &length) == ENOENT, "%s", *name);
    }
    je_malloc_stats_print(writes, &written, "J");
    CHECK(written > 1000, "%zu", written);
}

static ssize_t delay(const char *name)
{
    ssize_t ms = -2;
    size_t size = sizeof ms;
    CHECK(mallctl(name, &ms, &size, NULL, 0) == 0 && size == sizeof ms, "%s", name);
    return ms;
}

static bool flag(const char *name)
{
    bool so;
    size_t size = sizeof so;
    CHECK(mallctl(name, &so, &size, NULL, 0) == 0 && size == sizeof so, "%s", name);
    return so;
}

/* What is set is what happens. */
static void options(void)
{
    ssize_t ms = 1000000, before = 0;
    size_t size = sizeof before;
    CHECK(delay("arenas.dirty_decay_ms") == 250 && delay("opt.dirty_decay_ms") == 250, "the default");
    CHECK(mallctl("arenas.dirty_decay_ms", &before, &size, &ms, sizeof ms) == 0 && before == 250, "%zd", before);
    CHECK(delay("arena.3.dirty_decay_ms") == ms && delay("arenas.dirty_decay_ms") == ms, "for all");
    ms = -1;
    CHECK(mallctl("arena.0.dirty_decay_ms", NULL, NULL, &ms, sizeof ms) == 0 && delay("opt.dirty_decay_ms") == -1, "never");
    ms = -2;
    CHECK(mallctl("arena.0.dirty_decay_ms", NULL, NULL, &ms, sizeof ms) == EFAULT, "no delay");
    CHECK(mallctl("arenas.dirty_decay_ms", NULL, NULL, &ms, 4) == EINVAL && delay("opt.dirty_decay_ms") == -1, "size");
    CHECK(mallctl("arenas.muzzy_decay_ms", NULL, NULL, &ms, sizeof ms) == 0 && delay("arena.1.muzzy_decay_ms") == 0, "none");

    uint64_t *allocated, *freed, one;
    size = sizeof allocated;
    CHECK(mallctl("thread.allocatedp", &allocated, &size, NULL, 0) == 0, "allocatedp");
    CHECK(mallctl("thread.deallocatedp", &freed, &size, NULL, 0) == 0, "deallocatedp");
    uint64_t had = *(volatile uint64_t *)allocated, gone = *(volatile uint64_t *)freed;
    void *p = hide(malloc(1000));
    size_t usable = sallocx(p, 0);
    free(p);
    CHECK(*(volatile uint64_t *)allocated == had + usable, "%zu", usable);
    CHECK(*(volatile uint64_t *)freed == gone + usable, "%zu", usable);
    size = sizeof one;
    CHECK(mallctl("thread.allocated", &one, &size, NULL, 0) == 0 && one == had + usable, "%zu", usable);
    CHECK(mallctl("thread.deallocated", &one, &size, NULL, 0) == 0 && one == gone + usable, "%zu", usable);

    bool on = true, off = false;
    CHECK(!flag("background_thread") && !flag("opt.background_thread"), "none");
    CHECK(mallctl("background_thread", NULL, NULL, &off, sizeof off) == 0, "none");
    CHECK(mallctl("background_thread", NULL, NULL, &on, sizeof on) == 0 && flag("background_thread"), "it runs");
    CHECK(mallctl("background_thread", NULL, NULL, &on, sizeof on) == 0, "it runs");
    CHECK(mallctl("background_thread", NULL, NULL, &off, sizeof off) == EPERM && flag("background_thread"), "it stays");
    CHECK(figure("max_background_threads") == 1, "one");

    CHECK(flag("config.stats") && flag("opt.tcache") && flag("opt.retain") && flag("config.opt_safety_checks"), "so");
    CHECK(!flag("config.prof") && !flag("config.debug") && !flag("opt.zero") && !flag("opt.prof"), "not so");
    CHECK(mallctl("config.stats", NULL, NULL, &off, sizeof off) == EPERM, "only read");
    const char *conf = NULL;
    size = sizeof conf;
    CHECK(mallctl("config.malloc_conf", &conf, &size, NULL, 0) == 0 && *conf == 0, "none");
    unsigned arenas_;
    size = sizeof arenas_;
    CHECK(mallctl("opt.narenas", &arenas_, &size, NULL, 0) == 0 && arenas_ == 1, "%u", arenas_);
}

static unsigned created(void)
{
    unsigned arena = 0;
    size_t size = sizeof arena;
    CHECK(mallctl("arenas.create", &arena, &size, NULL, 0) == 0 && arena > 0, "%u", arena);
    return arena;
}

static unsigned arena_of(const void *pointer)
{
    unsigned arena = 77;
    size_t size = sizeof arena;
    CHECK(mallctl("arenas.lookup", &arena, &size, &pointer, sizeof pointer) == 0, "%p", pointer);
    return arena;
}

static void *allocates(void *arena) { return mallocx(100, MALLOCX_ARENA(*(unsigned *)arena)); }

static int asks(const char *what, unsigned arena)
{
    char name[40];
    snprintf(name, sizeof name, "arena.%u.%s", arena, what);
    return mallctl(name, NULL, NULL, NULL, 0);
}

/* Blocks of an arena that another thread frees. */
static void *fills(void *arena)
{
    static void *held[5000];
    for (size_t i = 0; i < COUNT_OF(held); i++) {
        held[i] = mallocx(4000, MALLOCX_ARENA(*(unsigned *)arena));
        memset(held[i], 1, 4000);
    }
    return held;
}

static void purges_all(void)
{
    unsigned one = created();
    pthread_t thread;
    void *held;
    pthread_create(&thread, NULL, fills, &one), pthread_join(thread, &held);
    size_t resident = figure("stats.resident");
    for (int i = 0; i < 5000; i++) dallocx(((void **)held)[i], 0);
    CHECK(mallctl("arena.4096.purge", NULL, NULL, NULL, 0) == 0, "purge");
    CHECK(figure("stats.resident") < resident - 15 * MIB, "%zu of %zu", figure("stats.resident"), resident);
    CHECK(asks("destroy", one) == 0, "it ends");
}

/* One thread purges all arenas while another one empties its own, and forks children that do. */
static int is_over;

static void *purges(void *nothing)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE))
        CHECK(mallctl("arena.4096.purge", NULL, NULL, NULL, 0) == 0, "purge");
    return nothing;
}

static void purges_beside(void)
{
    unsigned one = created();
    pthread_t thread;
    alarm(60);
    pthread_create(&thread, NULL, purges, NULL);
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 20; i++) CHECK(mallocx(3000, MALLOCX_ARENA(one)), "%d", round);
        CHECK(asks("reset", one) == 0, "%d", round);
        if (round % 3) continue;
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(asks("reset", one) != 0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "%d: %x", round, status);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
}

static void arenas(void)
{
    unsigned one = created(), other = created(), count;
    size_t size = sizeof count;
    CHECK(one != other && mallctl("arenas.narenas", &count, &size, NULL, 0) == 0 && count == 3, "%u", count);
    char *plain = malloc(100), *p = mallocx(100, MALLOCX_ARENA(one) | MALLOCX_TCACHE_NONE);
    char *q = mallocx(70000, MALLOCX_ARENA(other) | MALLOCX_ALIGN(4096) | MALLOCX_ZERO);
    CHECK(arena_of(plain) == 0 && arena_of(p) == one && arena_of(q + 5) == other, "each has its own");
    CHECK(arena_of(mallocx(100, MALLOCX_ARENA(0))) == 0, "the threads'");
    CHECK(is_aligned(q, 4096) && all_zero(q, 70000), "%p", q);
    pthread_t thread;
    void *of_thread;
    pthread_create(&thread, NULL, allocates, &one), pthread_join(thread, &of_thread);
    CHECK(arena_of(of_thread) == one, "any thread allocates");
    fill(p, 100, 3);
    p = rallocx(p, 5000, MALLOCX_ARENA(other));
    CHECK(holds(p, 100, 3) && arena_of(p) == other, "it moves there");
    p = rallocx(p, 100000, MALLOCX_ARENA(one) | MALLOCX_ALIGN(4096) | MALLOCX_ZERO);
    CHECK(holds(p, 100, 3) && arena_of(p) == one && is_aligned(p, 4096) && all_zero(p + 9000, 90000), "%p", p);
    dallocx(q, MALLOCX_ARENA(other));
    CHECK(asks("purge", one) == 0 && asks("reset", one) == 0 && asks("destroy", other) == 0, "they end");
    CHECK(asks("destroy", other) == EFAULT && asks("reset", 0) == EFAULT, "there is none");
    bool is_there = true;
    size = sizeof is_there;
    CHECK(mallctl("arena.2.initialized", &is_there, &size, NULL, 0) == 0 && !is_there, "gone");
    CHECK(mallctl("arena.1.initialized", &is_there, &size, NULL, 0) == 0 && is_there, "here");
    CHECK(arena_of(mallocx(10, MALLOCX_ARENA(one))) == one, "it goes on");
    CHECK(!mallocx(10, MALLOCX_ARENA(other)) && !mallocx(10, MALLOCX_ARENA(2000)), "no arena");
    CHECK(created() == other && asks("destroy", one) == 0 && asks("destroy", other) == 0, "numbers come again");
    int local;
    const void *foreign = &local;
    size = sizeof count;
    CHECK(mallctl("arenas.lookup", &count, &size, &foreign, sizeof foreign) == EINVAL, "nobody's");
    free(plain);
}

static const struct test_case cases[] = {
    {"sizes", sizes}, {"resizing", resizing}, {"in_place", in_place}, {"control", control}, {"options", options},
    {"arenas", arenas}, {"purges_all", purges_all}, {"purges_beside", purges_beside},
};
MAIN(cases)
