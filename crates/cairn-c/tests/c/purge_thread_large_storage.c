/* The same in a program with more thread storage than the library's thread has stack for. */
#include <stddef.h>

__thread char large_thread_storage[256 << 10];

#include "purge_thread.c"
