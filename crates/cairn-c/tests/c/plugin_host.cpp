/* A host with a C++ library of its own inside, which opens a plugin that came with another. */
#include "check.h"
#include <dlfcn.h>
#include <new>

/* From the archive: the throwing forms that it refers to are in the program, the others are not. */
void *(*volatile host_new)(size_t) = operator new;

static void nothrow_in_a_plugin(const char *path)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin, "%s", dlerror());
    auto allocates = reinterpret_cast<int (*)()>(dlsym(plugin, "allocates"));
    CHECK(allocates && allocates() == 4, "%d", allocates ? allocates() : -1);
}

int main(int argc, char **argv)
{
    operator delete(host_new(10));
    for (int nth = 1; nth < argc; nth++) nothrow_in_a_plugin(argv[nth]);
}
