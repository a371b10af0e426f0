/* mimalloc's statistics for programs, served by cairn: its JSON. The fields are cairn's, docs/guide/statistics.md. */
#ifndef MIMALLOC_STATS_H
#define MIMALLOC_STATS_H

#include <mimalloc.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In `buffer`, cut off where that is full; if it is NULL, in a block that mi_free takes, or NULL without memory. */
static inline char *mi_stats_get_json(size_t size, char *buffer) {
    struct cairn_text text;
    size_t n;
    cairn_take_stats(&text);
    if (!buffer || size == 0) return mi_strdup(text.bytes);
    n = text.length < size ? text.length : size - 1;
    memcpy(buffer, text.bytes, n);
    buffer[n] = 0;
    return buffer;
}

#ifndef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#endif

typedef struct mi_stats_s mi_stats_t CAIRN_UNAVAILABLE("cairn's figures are others: mi_stats_get_json");
CAIRN_NONE(mi_stats_get, "cairn's figures are others: mi_stats_get_json");
CAIRN_NONE(mi_stats_as_json, "cairn's figures are others: mi_stats_get_json");
CAIRN_NONE(mi_stats_get_bin_size, "cairn_class_size has the sizes of blocks");
CAIRN_NONE(mi_heap_stats_get, "cairn_heap_get_stats has the figures of a heap");
CAIRN_NONE(mi_heap_stats_get_json, "cairn_heap_get_stats has the figures of a heap");
CAIRN_NONE(mi_heap_stats_print_out, "cairn_heap_get_stats has the figures of a heap");
CAIRN_NONE(mi_heap_stats_merge_to_subproc, "cairn_heap_get_stats has the figures of a heap");
CAIRN_NONE(mi_subproc_stats_get, "there are no subprocesses: mi_stats_get_json");
CAIRN_NONE(mi_subproc_stats_get_exclusive, "there are no subprocesses: mi_stats_get_json");
CAIRN_NONE(mi_subproc_stats_get_json, "there are no subprocesses: mi_stats_get_json");
CAIRN_NONE(mi_subproc_stats_print_out, "there are no subprocesses: mi_stats_print_out");
CAIRN_NONE(mi_subproc_heap_stats_print_out, "there are no subprocesses: mi_stats_print_out");

#ifndef __cplusplus
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif

#endif
