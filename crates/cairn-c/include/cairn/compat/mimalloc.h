/*
 * mimalloc's interface, served by cairn. A program that includes <mimalloc.h> compiles unchanged with the folder of
 * this file in front of its include path, and is linked with cairn in place of mimalloc. docs/guide/coming-from.md
 * says what differs. What cairn cannot serve does not compile, and the compiler says why.
 *
 * CAIRN_MIMALLOC_VERSION is 3, or 2 for the interface of mimalloc 2: the order of the arguments of mi_heap_malloc_tp
 * and its kind is another.
 */
#ifndef MIMALLOC_H
#define MIMALLOC_H

#ifndef CAIRN_MIMALLOC_VERSION
#define CAIRN_MIMALLOC_VERSION 3
#endif

#if CAIRN_MIMALLOC_VERSION == 3
#define MI_MALLOC_VERSION 30302
#elif CAIRN_MIMALLOC_VERSION == 2
#define MI_MALLOC_VERSION 20302
#else
#error "CAIRN_MIMALLOC_VERSION is 2 or 3"
#endif

#include "../common.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <stdio.h>
#include <unistd.h>
#include <wchar.h>

#ifdef __cplusplus
#include <new>
extern "C" {
#endif

#include "../mimalloc/plain.h"
#include "../mimalloc/heaps.h"
#include "../mimalloc/told.h"
#include "../mimalloc/absent.h"

#ifdef __cplusplus
}
#include "../mimalloc/containers.hpp"
#endif

#endif
