/*
 * What `cairn record` preloads in front of the library: it writes down each call of the malloc family.
 *
 * The one idea: memory that the process shares with `cairn record` is cut into chunks, and a thread fills one at a time.
 * So nothing is allocated and no system call is made for a call, and what a process has written is there however it
 * ends. `cairn record` empties chunks while they fill. If none is free, threads wait: nothing is lost, and memory is
 * bounded. Each record has a ticket, a number that says where it stands among all threads' calls: what gives a block up
 * takes it before the block is given up, what makes one after it is there. src/record/shared.rs reads this, and has the
 * same numbers.
 *
 * Behind this library stands libcairn.so, whose `__libc_` names are its malloc family. Its operators of C++ follow the
 * four below.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OFFERED __attribute__((visibility("default")))
#define SLOW __attribute__((noinline, cold))

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *block);

/* What the two processes share. */

enum { CHUNK_BYTES = 16 << 10, STATES_AT = 4096, CHUNK_HEAD_WORDS = 8, PROGRAM_BYTES = 2048 };
enum { FREE, TAKEN, FILLING, FULL };
enum kind { MALLOC, CALLOC, ALIGNED, GIVEN_UP, MOVED, FREED, BEGUN, ENDED };

#define MAGIC 0x6361697265636f72u

struct shared {
    uint64_t magic;
    uint32_t chunks;
    uint32_t writer;
    uint32_t process;
    __attribute__((aligned(64))) uint64_t ticket;
    __attribute__((aligned(64))) uint32_t threads;
    __attribute__((aligned(64))) uint32_t is_closed;
    __attribute__((aligned(64))) char program[PROGRAM_BYTES];
};

/* States stand apart, so that a search for a free chunk reads little. */
struct chunk {
    uint32_t thread;
    uint32_t tid;
    uint64_t number;
    uint64_t filled;
    uint64_t unused[CHUNK_HEAD_WORDS - 3];
    uint64_t words[CHUNK_BYTES / 8 - CHUNK_HEAD_WORDS];
};

/* This process's. */

static struct shared *shared;
static enum { NOT_YET, ON, OFF } state;

static __thread __attribute__((tls_model("initial-exec"))) struct {
    uint64_t *next, *end;
    struct chunk *chunk;
    uint64_t chunks;
    uint32_t thread;
    uint32_t tid;
    int rounds;
} self;

/* Its destructor tells that a thread ends. */
static pthread_key_t key;
static int has_key;

static uint32_t *states(void) { return (uint32_t *)((char *)shared + STATES_AT); }

static struct chunk *chunk_at(uint32_t at)
{
    size_t head = STATES_AT + (((size_t)shared->chunks * 4 + 4095) & ~(size_t)4095);
    return (struct chunk *)((char *)shared + head + (size_t)at * CHUNK_BYTES);
}

/* A variable names the file. Only the process that `cairn record` has started is recorded, whatever it becomes by exec. */

#define VARIABLE "LIBCAIRN_RECORDER="

static const char *file_name(void)
{
    for (char **entry = environ; *entry; entry++)
        if (!strncmp(*entry, VARIABLE, strlen(VARIABLE))) return *entry + strlen(VARIABLE);
    return NULL;
}

static struct shared *mapped(const char *name)
{
    int file = open(name, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    struct stat status;
    void *memory = MAP_FAILED;
    if (!fstat(file, &status)) memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? NULL : memory;
}

static SLOW int start(void)
{
    /* The loader allocates before there is an environment. */
    if (!environ) return 0;
    state = OFF;
    const char *name = file_name();
    struct shared *found = name ? mapped(name) : NULL;
    if (!found || found->magic != MAGIC || found->process != (uint32_t)getpid()) return 0;
    shared = found;
    ssize_t length = readlink("/proc/self/exe", shared->program, PROGRAM_BYTES - 1);
    shared->program[length < 0 ? 0 : length] = 0;
    state = ON;
    return 1;
}

static SLOW void stop(void)
{
    state = OFF;
    self.next = self.end = NULL;
}

/* Another chunk for this thread; none if nothing is written down. */
static SLOW struct chunk *taken(void)
{
    const struct timespec pause = {0, 200000};
    for (unsigned waited = 1;; waited++) {
        if (__atomic_load_n(&shared->is_closed, __ATOMIC_RELAXED)) return NULL;
        for (uint32_t at = 0; at < shared->chunks; at++) {
            uint32_t *of_it = &states()[at], expected = FREE;
            if (__atomic_load_n(of_it, __ATOMIC_RELAXED) != FREE) continue;
            if (!__atomic_compare_exchange_n(of_it, &expected, TAKEN, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) continue;
            struct chunk *chunk = chunk_at(at);
            chunk->thread = self.thread;
            chunk->tid = self.tid;
            chunk->number = self.chunks++;
            chunk->filled = 0;
            __atomic_store_n(of_it, FILLING, __ATOMIC_RELEASE);
            return chunk;
        }
        syscall(SYS_nanosleep, &pause, NULL);
        if (waited % 1000 == 0 && (uint32_t)getppid() != shared->writer) return NULL;
    }
}

static inline void note(enum kind kind, unsigned align, const void *block, size_t size);

static void give_chunk_up(void)
{
    size_t at = ((size_t)self.chunk - (size_t)chunk_at(0)) / CHUNK_BYTES;
    __atomic_store_n(&states()[at], FULL, __ATOMIC_RELEASE);
}

static SLOW int begin_chunk(void)
{
    if (state == OFF) return 0;
    int error = errno;
    int is_first = state == NOT_YET;
    if (is_first && !start()) {
        errno = error;
        return 0;
    }
    if (self.chunk) {
        give_chunk_up();
    } else {
        self.thread = __atomic_fetch_add(&shared->threads, 1, __ATOMIC_RELAXED);
        self.tid = (uint32_t)syscall(SYS_gettid);
        self.chunks = 0;
        if (has_key) pthread_setspecific(key, &self);
    }
    self.chunk = taken();
    errno = error;
    if (!self.chunk) {
        stop();
        return 0;
    }
    self.next = self.chunk->words;
    self.end = (uint64_t *)(self.chunk + 1);
    if (is_first) note(BEGUN, 0, NULL, 0);
    return 1;
}

/* Others' destructors come in between: the last round counts. What a thread frees after that is another one's. */
static void thread_ends(void *value)
{
    if (state != ON || !self.chunk) return;
    if (++self.rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
        pthread_setspecific(key, value);
        return;
    }
    note(ENDED, 0, NULL, 0);
    give_chunk_up();
    self.next = self.end = NULL;
    self.chunk = NULL;
}

__attribute__((constructor)) static void constructed(void)
{
    pthread_atfork(NULL, NULL, stop);
    has_key = !pthread_key_create(&key, thread_ends);
    /* A program that allocates nothing is recorded, too. */
    if (state == NOT_YET) begin_chunk();
}

/* A record: the ticket with the kind and the alignment's logarithm, the block, and the size if there is one. */
static inline void note(enum kind kind, unsigned align, const void *block, size_t size)
{
    size_t words = kind == MALLOC || kind == CALLOC || kind == ALIGNED || kind == MOVED ? 3 : 2;
    if (__builtin_expect((size_t)(self.end - self.next) < words, 0) && !begin_chunk()) return;
    uint64_t *at = self.next;
    at[1] = (uintptr_t)block;
    if (words == 3) at[2] = size;
    at[0] = __atomic_fetch_add(&shared->ticket, 1, __ATOMIC_ACQ_REL) << 16 | align << 8 | kind;
    self.next = at + words;
    __atomic_store_n(&self.chunk->filled, self.next - self.chunk->words, __ATOMIC_RELEASE);
}

static inline void *made(enum kind kind, size_t align, void *block, size_t size)
{
    if (block) note(kind, align ? (unsigned)__builtin_ctzl(align) : 0, block, size);
    return block;
}

static void *aligned(size_t align, size_t size)
{
    void *block = __libc_memalign(align, size);
    if (!block) return NULL;
    /* One that is no power of two has been rounded up. */
    size_t whole = 16;
    while (whole < align) whole *= 2;
    return made(ALIGNED, whole, block, size);
}

static void *allocated(size_t size) { return made(MALLOC, 0, __libc_malloc(size), size); }

static void given_back(void *block)
{
    if (!block) return;
    note(FREED, 0, block, 0);
    __libc_free(block);
}

static void *resized(void *block, size_t size)
{
    if (!block) return allocated(size);
    if (!size) {
        given_back(block);
        return NULL;
    }
    note(GIVEN_UP, 0, block, 0);
    void *moved = __libc_realloc(block, size);
    note(MOVED, 0, moved, size);
    return moved;
}

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* The names. None calls another: a program may have one of its own. */

OFFERED void *malloc(size_t size) { return allocated(size); }
OFFERED void free(void *block) { given_back(block); }
OFFERED void cfree(void *block) { given_back(block); }
OFFERED void *realloc(void *block, size_t size) { return resized(block, size); }
OFFERED void *memalign(size_t align, size_t size) { return aligned(align, size); }
OFFERED void *valloc(size_t size) { return aligned(page(), size); }

OFFERED void *calloc(size_t count, size_t size)
{
    /* Where there is a block, the product has not overflowed. */
    return made(CALLOC, 0, __libc_calloc(count, size), count * size);
}

OFFERED void *reallocarray(void *block, size_t count, size_t size)
{
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes)) return resized(block, bytes);
    errno = ENOMEM;
    return NULL;
}

OFFERED void *aligned_alloc(size_t align, size_t size)
{
    if (align && !(align & (align - 1))) return aligned(align, size);
    errno = EINVAL;
    return NULL;
}

OFFERED int posix_memalign(void **out, size_t align, size_t size)
{
    if (!align || align & (align - 1) || align % sizeof(void *)) return EINVAL;
    int error = errno;
    void *block = aligned(align, size);
    errno = error;
    if (!block) return ENOMEM;
    *out = block;
    return 0;
}

OFFERED void *pvalloc(size_t size)
{
    size_t bytes;
    if (!__builtin_add_overflow(size ? size : 1, page() - 1, &bytes)) return aligned(page(), bytes & ~(page() - 1));
    errno = ENOMEM;
    return NULL;
}

OFFERED void free_sized(void *block, size_t size)
{
    (void)size;
    given_back(block);
}

OFFERED void free_aligned_sized(void *block, size_t align, size_t size)
{
    (void)align, (void)size;
    given_back(block);
}

/* C++'s. What there is to do without memory, the library behind knows. */

typedef void *makes(size_t);
typedef void *makes_aligned(size_t, size_t);

OFFERED void *_Znwm(size_t size)
{
    void *block = __libc_malloc(size);
    if (!block) block = ((makes *)dlsym(RTLD_NEXT, "_Znwm"))(size);
    return made(MALLOC, 0, block, size);
}

OFFERED void *_ZnwmSt11align_val_t(size_t size, size_t align)
{
    void *block = __libc_memalign(align, size);
    if (!block) block = ((makes_aligned *)dlsym(RTLD_NEXT, "_ZnwmSt11align_val_t"))(size, align);
    return made(ALIGNED, align, block, size);
}

OFFERED void _ZdlPv(void *block) { given_back(block); }

OFFERED void _ZdlPvSt11align_val_t(void *block, size_t align)
{
    (void)align;
    given_back(block);
}
