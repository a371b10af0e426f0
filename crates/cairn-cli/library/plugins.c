/*
 * What `cairn run` preloads beside the library: a dlopen without RTLD_DEEPBIND.
 *
 * With that flag a plugin takes malloc from the C library, whatever is preloaded, while its host has cairn's. A block
 * that goes from one to the other then crashes the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

typedef void *opens(const char *, int);

static opens *of_libc;

static opens *found(void) { return (opens *)dlsym(RTLD_NEXT, "dlopen"); }

__attribute__((constructor)) static void start(void) { of_libc = found(); }

__attribute__((visibility("default"))) void *dlopen(const char *file, int mode)
{
    opens *open = __atomic_load_n(&of_libc, __ATOMIC_RELAXED);
    /* A constructor of another library may be earlier than ours. */
    if (!open) open = found();
    /* The compiler makes a jump of it: the C library looks at who has called, for that one's paths. */
    return open(file, mode & ~RTLD_DEEPBIND);
}
