/*
 * What every test program shares: checks, patterns, sizes, resident memory, the table of cases.
 *
 * A failed check writes where and why to standard error and ends the process with code 1. It
 * does so without allocating, from any thread.
 */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef CAIRN_IS_LINKED
#include "cairn.h"
#endif

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* CHECK(condition, "format", values...): the values say with what input it failed. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__);               \
    } while (0)

__attribute__((noreturn, format(printf, 4, 5))) static inline void
check_failed(const char *file, int line, const char *condition, const char *format, ...)
{
    char text[512];
    int error = errno;
    int length = snprintf(text, sizeof text, "%s:%d: %s (errno %d): ", file, line, condition, error);
    va_list values;
    va_start(values, format);
    if (length > 0 && length < (int)sizeof text - 1)
        length += vsnprintf(text + length, sizeof text - (size_t)length - 1, format, values);
    va_end(values);
    if (length > (int)sizeof text - 2) length = (int)sizeof text - 2;
    text[length++] = '\n';
    if (write(2, text, (size_t)length) < 0) _exit(2);
    _exit(1);
}

/* The compiler must not know where a pointer or a size comes from: it warns about, or leaves
 * out, what is tested here on purpose. */
static inline void *hide(const void *pointer)
{
    __asm__ volatile("" : "+r"(pointer));
    return (void *)pointer;
}

static inline size_t hide_size(size_t size)
{
    __asm__ volatile("" : "+r"(size));
    return size;
}

static inline int is_aligned(const void *pointer, size_t alignment)
{
    return ((uintptr_t)pointer & (alignment - 1)) == 0;
}

/* A pattern without a short period, so that shifted contents are noticed. */
static inline unsigned char pattern_at(size_t index, unsigned seed)
{
    return (unsigned char)(seed + index + (index >> 8) * 13 + (index >> 16) * 7);
}

/* Within a row the pattern counts up by one, and so compilers take many bytes at a time. */
enum { PATTERN_ROW = 256 };
static inline size_t row_end(size_t row, size_t size)
{
    return size - row < PATTERN_ROW ? size : row + PATTERN_ROW;
}

static inline void fill(void *block, size_t size, unsigned seed)
{
    unsigned char *bytes = (unsigned char *)block;
    for (size_t row = 0; row < size; row += PATTERN_ROW) {
        unsigned char next = pattern_at(row, seed);
        for (size_t i = row, end = row_end(row, size); i < end; i++) bytes[i] = next++;
    }
}

static inline int holds(const void *block, size_t size, unsigned seed)
{
    const unsigned char *bytes = (const unsigned char *)block;
    unsigned char difference = 0;
    for (size_t row = 0; row < size; row += PATTERN_ROW) {
        unsigned char next = pattern_at(row, seed);
        for (size_t i = row, end = row_end(row, size); i < end; i++) difference |= bytes[i] ^ next++;
    }
    return difference == 0;
}

/* The same for large blocks of which only some bytes are to become resident. */
static inline void fill_ends(void *block, size_t size, unsigned seed)
{
    unsigned char *bytes = (unsigned char *)block;
    size_t end = size < 64 ? size : 64;
    for (size_t i = 0; i < end; i++) bytes[i] = pattern_at(i, seed);
    for (size_t i = size - end; i < size; i++) bytes[i] = pattern_at(i, seed);
}

static inline int ends_hold(const void *block, size_t size, unsigned seed)
{
    const unsigned char *bytes = (const unsigned char *)block;
    size_t end = size < 64 ? size : 64;
    for (size_t i = 0; i < end; i++)
        if (bytes[i] != pattern_at(i, seed)) return 0;
    for (size_t i = size - end; i < size; i++)
        if (bytes[i] != pattern_at(i, seed)) return 0;
    return 1;
}

static inline int all_zero(const void *block, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)block;
    unsigned char any = 0;
    for (size_t i = 0; i < size; i++) any |= bytes[i];
    return any == 0;
}

/* Every value is as good as any other; the same in each run. */
static inline uint64_t random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* A size up to about 2^bits, small ones as frequent as large ones. */
static inline size_t random_size(uint64_t *state, unsigned bits)
{
    unsigned width = (unsigned)(random_next(state) % bits) + 1;
    return (size_t)(random_next(state) & (((uint64_t)1 << width) - 1));
}

/* Sizes at and around the borders that size classes have; ends with a size above the limit. */
enum { EDGE_SIZES_MAX = 512 };
static inline size_t edge_sizes(size_t limit, size_t *sizes)
{
    size_t count = 0;
    for (size_t size = 0; size <= 64; size++) sizes[count++] = size;
    for (size_t power = 64; power <= limit; power *= 2) {
        size_t quarter = power / 4;
        for (size_t part = 0; part < 4; part++) {
            size_t size = power + part * quarter;
            if (size + 1 > limit || count + 3 > EDGE_SIZES_MAX) return count;
            sizes[count++] = size - 1;
            sizes[count++] = size;
            sizes[count++] = size + 1;
        }
    }
    return count;
}

/* A field of /proc/self/status in KiB, without allocating. */
static inline size_t status_kib(const char *field)
{
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "/proc is needed");
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    CHECK(length > 0, "/proc/self/status is empty");
    text[length] = 0;
    const char *found = strstr(text, field);
    CHECK(found != NULL, "no field %s", field);
    return strtoul(found + strlen(field), NULL, 10);
}

static inline size_t resident_kib(void) { return status_kib("VmRSS:"); }
static inline size_t peak_resident_kib(void) { return status_kib("VmHWM:"); }
static inline size_t virtual_kib(void) { return status_kib("VmSize:"); }

/* Standard error has no reader from now on. */
static inline void lose_the_reader_of_standard_error(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0 && close(ends[0]) == 0, "a pipe");
    CHECK(dup2(ends[1], 2) == 2 && close(ends[1]) == 0, "standard error");
}

/* The cases of a program. */
struct test_case {
    const char *name;
    void (*run)(void);
};

static char **case_arguments;

/* The number after the name of the case. */
static inline long argument_or(long otherwise)
{
    return case_arguments[0] ? strtol(case_arguments[0], NULL, 10) : otherwise;
}

/* A test that did not run on the library would prove nothing. */
static inline void expect_the_library(void)
{
    if (getenv("TEST_EXPECTS_CAIRN") == NULL) return;
#ifdef CAIRN_IS_LINKED
    CHECK(cairn_is_active() == 1, "the library is linked but not active");
#else
    int (*is_active)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "cairn_is_active");
    CHECK(is_active != NULL && is_active() == 1, "the library is not active");
#endif
}

static inline int run_case(const struct test_case *cases, size_t count, int argc, char **argv)
{
    expect_the_library();
    CHECK(argc >= 2, "the first argument names the case");
    case_arguments = argv + 2;
    int is_list = strcmp(argv[1], "--list") == 0;
    for (size_t i = 0; is_list && i < count; i++) puts(cases[i].name);
    if (is_list) return 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    }
    check_failed(__FILE__, __LINE__, "no such case", "%s", argv[1]);
}

#define MAIN(cases)                                                                                \
    int main(int argc, char **argv) { return run_case(cases, COUNT_OF(cases), argc, argv); }

static inline void *started(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0, "a thread");
    return (void *)thread;
}

static inline void joined(void *thread)
{
    CHECK(pthread_join((pthread_t)thread, NULL) == 0, "join");
}

#endif
