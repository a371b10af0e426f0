/*
 * A library that stands before the C library, as tracers, sandboxes and libfaketime do: it defines every function that
 * libcairn.so calls, and goes on to the C library. With -DALLOCATES each of them allocates first, and has no guard
 * against coming in again; but those on memory and strings do not, which an allocator cannot do without.
 *
 * `interposed_calls` says how often a function has been called.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* All of them take numbers and pointers, at most six. */
typedef long function(long, long, long, long, long, long);

#define INTERPOSED(X)                                                                              \
    X(__errno_location) X(__register_atfork) X(abort) X(dl_iterate_phdr) X(dladdr) X(dlsym)        \
    X(explicit_bzero) X(fwrite) X(getauxval) X(getenv) X(pthread_attr_destroy)                     \
    X(pthread_attr_init) X(pthread_attr_setstacksize) X(pthread_create) X(pthread_getspecific)     \
    X(pthread_join) X(pthread_key_create) X(pthread_key_delete) X(pthread_setspecific)             \
    X(pthread_sigmask) X(raise) X(setenv) X(sigaction) X(sigaddset) X(sigemptyset) X(sigfillset)   \
    X(sysconf) X(unsetenv)

enum {
#define NUMBER(name) NUMBER_##name,
    INTERPOSED(NUMBER) COUNT
};
static const char *const names[] = {
#define NAME(name) #name,
    INTERPOSED(NAME)
};
static function *found[COUNT];
static long calls[COUNT];

static function *next(int number)
{
    static void *(*find)(void *, const char *);
    function *already = __atomic_load_n(&found[number], __ATOMIC_RELAXED);
    if (already) return already;
    const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
    for (int i = 0; i < 3 && find == NULL; i++) find = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    function *real = (function *)find(RTLD_NEXT, names[number]);
    __atomic_store_n(&found[number], real, __ATOMIC_RELAXED);
    return real;
}

static void allocate(int number)
{
    __atomic_add_fetch(&calls[number], 1, __ATOMIC_RELAXED);
#ifdef ALLOCATES
    static const size_t sizes[] = {512, 24, 100000, 5000};
    for (int i = 0; i < 4; i++) {
        char *block = malloc(sizes[i]);
        if (block == NULL) continue;
        block[0] = block[sizes[i] - 1] = 1;
        block = realloc(block, 2 * sizes[i]);
        free(block);
    }
#endif
}

#define DEFINE(name)                                                                               \
    long our_##name(long, long, long, long, long, long) __asm__(#name);                            \
    long our_##name(long a, long b, long c, long d, long e, long f)                                \
    {                                                                                              \
        allocate(NUMBER_##name);                                                                   \
        return next(NUMBER_##name)(a, b, c, d, e, f);                                              \
    }
INTERPOSED(DEFINE)

long interposed_calls(const char *name)
{
    for (int i = 0; i < COUNT; i++)
        if (strcmp(names[i], name) == 0) return calls[i];
    return -1;
}

/* Memory and strings. */

void *our_memmove(char *, const char *, size_t) __asm__("memmove");
void *our_memmove(char *to, const char *from, size_t size)
{
    if (to <= from)
        for (size_t i = 0; i < size; i++) to[i] = from[i];
    else
        while (size-- > 0) to[size] = from[size];
    return to;
}
void *our_memcpy(char *, const char *, size_t) __asm__("memcpy");
void *our_memcpy(char *to, const char *from, size_t size) { return our_memmove(to, from, size); }

void *our_memset(char *, int, size_t) __asm__("memset");
void *our_memset(char *at, int value, size_t size)
{
    for (size_t i = 0; i < size; i++) at[i] = (char)value;
    return at;
}

int our_memcmp(const unsigned char *, const unsigned char *, size_t) __asm__("memcmp");
int our_memcmp(const unsigned char *one, const unsigned char *other, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (one[i] != other[i]) return one[i] - other[i];
    return 0;
}
int our_bcmp(const unsigned char *, const unsigned char *, size_t) __asm__("bcmp");
int our_bcmp(const unsigned char *one, const unsigned char *other, size_t size) { return our_memcmp(one, other, size); }

size_t our_strlen(const char *) __asm__("strlen");
size_t our_strlen(const char *text)
{
    size_t length = 0;
    while (text[length]) length++;
    return length;
}
