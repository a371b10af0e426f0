/*
 * Fails calls that the library makes to the system, and nobody else's.
 *
 * The library enters the kernel in one small function. It is found by its instructions, and a jump
 * to `entered` is written over it before it runs. So nobody else's calls come here. What the library
 * asks of the C library it calls by name: the program defines those names itself, and so comes before
 * the C library when libcairn.so is bound. There a call counts if it returns into the library. All of
 * it works preloaded and linked, not in a static program.
 *
 *     TEST_FAULT=mmap:12:3:from    the third mmap and all later ones fail with error 12
 *     TEST_FAULT=mmap:12:3:once    the third alone
 *     TEST_FAULT=census            nothing fails; what was called how often goes to the output
 *
 * `memory` in place of a name stands for all calls that change memory. The variable is read from
 * the kernel's copy: the first calls come before the C library has one.
 *
 * A program ends with 0 if the call that was to fail was reached, with NOT_REACHED if all went
 * well without it.
 */
#ifndef FAULTS_H
#define FAULTS_H

#include "check.h"

#include <link.h>
#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

enum { NOT_REACHED = 77, ANY_ERRNO = 4711, ENVIRONMENT_MAX = 1 << 18 };

enum call {
    /* These change memory. */
    CALL_MMAP, CALL_MUNMAP, CALL_MPROTECT, CALL_MADVISE, CALL_MREMAP,
    CALL_MINCORE, CALL_FUTEX, CALL_WRITE, CALL_GETRLIMIT, CALL_CLOCK_GETTIME, CALL_GETAUXVAL,
    CALL_KEY_CREATE, CALL_SETSPECIFIC, CALL_ATFORK,
    CALL_COUNT, CALL_MEMORY = CALL_COUNT, CALL_NONE
};

static const char *const call_names[] = {
    "mmap", "munmap", "mprotect", "madvise", "mremap",
    "mincore", "futex", "write", "getrlimit", "clock_gettime", "getauxval",
    "pthread_key_create", "pthread_setspecific", "pthread_atfork",
    "memory",
};

/* Shared with forked children: a call that only they reach is reached. */
struct tally {
    long counts[CALL_COUNT + 1];
    int fired;
};

static struct {
    struct tally *tally;
    uintptr_t library, library_end;
    int call, error, from, census;
    long nth;
    int prepared;
} faults;

/* While paused nothing fails and nothing counts. */
#ifndef FAULTS_START_PAUSED
#define FAULTS_START_PAUSED 0
#endif
static int faults_paused = FAULTS_START_PAUSED;

static inline void pause_faults(int paused) { __atomic_store_n(&faults_paused, paused, __ATOMIC_RELAXED); }

/* --- below the C library --- */

static long raw(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
#else
#error "how is the kernel called here?"
#endif
}

static const char *word_end(const char *word)
{
    while (*word && *word != ':') word++;
    return word;
}

static long number(const char *word)
{
    long value = 0;
    for (; *word >= '0' && *word <= '9'; word++) value = value * 10 + (*word - '0');
    return value;
}

static void read_plan(const char *text)
{
    const char *end = word_end(text);
    size_t length = (size_t)(end - text);
    faults.census = length == 6 && memcmp(text, "census", 6) == 0;
    for (int call = 0; call <= CALL_MEMORY; call++)
        if (strlen(call_names[call]) == length && memcmp(text, call_names[call], length) == 0) faults.call = call;
    if (*end == 0) return;
    faults.error = (int)number(end + 1);
    end = word_end(end + 1);
    if (*end == 0) return;
    faults.nth = number(end + 1);
    end = word_end(end + 1);
    faults.from = *end && memcmp(end + 1, "from", 4) == 0;
}

static long entered(long, long, long, long, long, long, long);

#if defined(__x86_64__)
/* mov r10, rcx; mov rax, [rsp + 8]; syscall; ret; nop */
static const unsigned char entry[] = {0x49, 0x89, 0xca, 0x48, 0x8b, 0x44, 0x24, 0x08, 0x0f, 0x05, 0xc3, 0x90};
/* mov rax, `entered`; jmp rax */
static unsigned char jump[] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
enum { PLACE_IN_JUMP = 2 };
#else
/* mov x8, x6; svc 0; ret; nop */
static const unsigned entry[] = {0xaa0603e8, 0xd4000001, 0xd65f03c0, 0xd503201f};
/* ldr x16, `entered`; br x16 */
static unsigned jump[] = {0x58000050, 0xd61f0200, 0, 0};
enum { PLACE_IN_JUMP = 8 };
#endif
/* Has the library call `entered` where it would enter the kernel. */
static void divert(const struct dl_phdr_info *object)
{
    char *found = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        char *at = (char *)object->dlpi_addr + part->p_vaddr;
        for (char *end = at + part->p_memsz - sizeof entry; at <= end; at += 4) {
            if (memcmp(at, entry, sizeof entry) != 0) continue;
            CHECK(found == NULL, "the kernel is entered at two places");
            found = at;
        }
    }
    CHECK(found != NULL && sizeof jump == sizeof entry, "the kernel is entered nowhere");
    long pages = (long)found & -4096, size = (long)found + (long)sizeof entry - pages;
    long (*to)(long, long, long, long, long, long, long) = entered;
    memcpy((char *)jump + PLACE_IN_JUMP, &to, sizeof to);
    long changed = raw(SYS_mprotect, pages, size, PROT_READ | PROT_WRITE | PROT_EXEC, 0, 0, 0);
    CHECK(changed == 0, "code cannot be changed: %ld", changed);
    memcpy(found, jump, sizeof jump);
    __builtin___clear_cache(found, found + sizeof jump);
    raw(SYS_mprotect, pages, size, PROT_READ | PROT_EXEC, 0, 0, 0);
}

static int find_library(struct dl_phdr_info *object, size_t size, void *unused)
{
    uintptr_t malloc_at = (uintptr_t)hide((void *)malloc);
    uintptr_t low = UINTPTR_MAX, high = 0;
    (void)size, (void)unused;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t at = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        uintptr_t end = at + object->dlpi_phdr[i].p_memsz;
        if (at < low) low = at;
        if (end > high) high = end;
    }
    if (malloc_at < low || malloc_at >= high) return 0;
    faults.library = low;
    faults.library_end = high;
    divert(object);
    return 1;
}

/* At the first call of anybody, before the library enters the kernel: no second thread is there yet. */
static void prepare(void)
{
    static char text[ENVIRONMENT_MAX];
    long length = 0, got;
    faults.prepared = 1;
    faults.call = CALL_NONE;
    long fd = raw(SYS_openat, AT_FDCWD, (long)"/proc/self/environ", O_RDONLY, 0, 0, 0);
    while ((got = raw(SYS_read, fd, (long)(text + length), ENVIRONMENT_MAX - 1 - length, 0, 0, 0)) > 0) length += got;
    raw(SYS_close, fd, 0, 0, 0, 0, 0);
    CHECK(length > 0 && length < ENVIRONMENT_MAX - 1, "%ld bytes of environment", length);
    for (const char *entry = text; entry < text + length; entry += strlen(entry) + 1)
        if (memcmp(entry, "TEST_FAULT=", 11) == 0) read_plan(entry + 11);
    long shared = raw(SYS_mmap, 0, sizeof *faults.tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared > 0, "a shared page");
    dl_iterate_phdr(find_library, NULL);
    CHECK(faults.library != 0, "malloc is nobody's");
    __atomic_store_n(&faults.tally, (struct tally *)shared, __ATOMIC_RELEASE);
}

/* The library asks for no name before this. */
__attribute__((section(".preinit_array"), used)) static void (*prepare_first)(void) = prepare;

/* The error that a call of the library's is to fail with, or 0; counts it. */
static int failing_here(enum call call)
{
    struct tally *tally = __atomic_load_n(&faults.tally, __ATOMIC_ACQUIRE);
    if (tally == NULL || __atomic_load_n(&faults_paused, __ATOMIC_RELAXED)) return 0;
    long count = __atomic_add_fetch(&tally->counts[call], 1, __ATOMIC_RELAXED);
    if (call <= CALL_MREMAP) {
        long all = __atomic_add_fetch(&tally->counts[CALL_MEMORY], 1, __ATOMIC_RELAXED);
        if (faults.call == CALL_MEMORY) count = all, call = CALL_MEMORY;
    }
    if (faults.call != (int)call || (faults.from ? count < faults.nth : count != faults.nth)) return 0;
    __atomic_store_n(&tally->fired, 1, __ATOMIC_RELAXED);
    return faults.error;
}

/* The same of a name, which others may call. */
static int failing(enum call call, const void *caller)
{
    if (!faults.prepared) prepare();
    if ((uintptr_t)caller < faults.library || (uintptr_t)caller >= faults.library_end) return 0;
    return failing_here(call);
}

static inline int is_fired(void) { return faults.tally && __atomic_load_n(&faults.tally->fired, __ATOMIC_RELAXED); }

/* Names the next definition of a function: the C library's. */
static void *next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    CHECK(found != NULL, "no other %s", name);
    return found;
}

/* --- the kernel --- */

static enum call call_of(long number, long second)
{
    switch (number) {
    case SYS_mmap: return CALL_MMAP;
    case SYS_munmap: return CALL_MUNMAP;
    case SYS_mprotect: return CALL_MPROTECT;
    case SYS_madvise: return CALL_MADVISE;
    case SYS_mremap: return CALL_MREMAP;
    case SYS_mincore: return CALL_MINCORE;
    case SYS_write: return CALL_WRITE;
    case SYS_prlimit64: return CALL_GETRLIMIT;
    case SYS_clock_gettime: return CALL_CLOCK_GETTIME;
    case SYS_futex: break;
    default: return CALL_NONE;
    }
    /* Waking fails only where futexes are refused altogether. */
    int waits = (second & FUTEX_CMD_MASK) == FUTEX_WAIT;
    int refused = faults.error == ENOSYS && faults.from && faults.nth == 1;
    return waits || (refused && faults.call == CALL_FUTEX) ? CALL_FUTEX : CALL_NONE;
}

/* The arguments, and then the number. */
static long entered(long a, long b, long c, long d, long e, long f, long number)
{
    enum call call = call_of(number, b);
    int error = call == CALL_NONE ? 0 : failing_here(call);
    return error ? -error : raw(number, a, b, c, d, e, f);
}

/* --- the names --- */

#ifdef __cplusplus
extern "C" {
#endif

/* Defined under names of their own: the headers have declared the others. */
unsigned long our_getauxval(unsigned long) __asm__("getauxval");
int our_key_create(pthread_key_t *, void (*)(void *)) __asm__("pthread_key_create");
int our_setspecific(pthread_key_t, const void *) __asm__("pthread_setspecific");
/* pthread_atfork is a part of each library that calls it; this is what it calls. */
int our_register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __asm__("__register_atfork");

unsigned long our_getauxval(unsigned long kind)
{
    static unsigned long (*otherwise)(unsigned long);
    const void *caller = __builtin_return_address(0);
    if (otherwise == NULL) otherwise = (unsigned long (*)(unsigned long))next("getauxval");
    /* There is no kernel that does not tell its page size. */
    int error = kind == AT_PAGESZ ? 0 : failing(CALL_GETAUXVAL, caller);
    /* So that the library enters the kernel for its clock. */
    int is_librarys = (uintptr_t)caller >= faults.library && (uintptr_t)caller < faults.library_end;
    if (kind == AT_SYSINFO_EHDR && is_librarys) return 0;
    if (error == 0) return otherwise(kind);
    errno = error;
    return 0;
}

/* These answer their error. */
int our_key_create(pthread_key_t *key, void (*destructor)(void *))
{
    static int (*otherwise)(pthread_key_t *, void (*)(void *));
    int error = failing(CALL_KEY_CREATE, __builtin_return_address(0));
    if (otherwise == NULL) otherwise = (int (*)(pthread_key_t *, void (*)(void *)))next("pthread_key_create");
    return error ? error : otherwise(key, destructor);
}

int our_setspecific(pthread_key_t key, const void *value)
{
    static int (*otherwise)(pthread_key_t, const void *);
    int error = failing(CALL_SETSPECIFIC, __builtin_return_address(0));
    if (otherwise == NULL) otherwise = (int (*)(pthread_key_t, const void *))next("pthread_setspecific");
    return error ? error : otherwise(key, value);
}

int our_register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library)
{
    static int (*otherwise)(void (*)(void), void (*)(void), void (*)(void), void *);
    int error = failing(CALL_ATFORK, __builtin_return_address(0));
    if (otherwise == NULL)
        otherwise = (int (*)(void (*)(void), void (*)(void), void (*)(void), void *))next("__register_atfork");
    return error ? error : otherwise(before, parent, child, library);
}

#ifdef __cplusplus
}
#endif

/* --- the end of an attempt --- */

static inline int exit_code(void)
{
    if (faults.census) {
        char line[64];
        for (int call = 0; call <= CALL_MEMORY; call++) {
            int length = snprintf(line, sizeof line, "%s %ld\n", call_names[call], faults.tally->counts[call]);
            CHECK(raw(SYS_write, 1, (long)line, length, 0, 0, 0) == length, "the output is closed");
        }
        return 0;
    }
    return is_fired() ? 0 : NOT_REACHED;
}

#endif
