/* The same program with the interface of mimalloc 2. */
#define CAIRN_MIMALLOC_VERSION 2
#include "compat_mimalloc.c"
