/*
 * What the MallocExtension of tcmalloc and of gperftools have in common. Nothing here is for programs.
 */
#ifndef CAIRN_TCMALLOC_FIGURES_H
#define CAIRN_TCMALLOC_FIGURES_H

#include "../common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A property's name, and cairn's; a second figure is added. */
struct cairn_tc_property {
    const char *name;
    const char *figure, *also;
};

/* NULL beyond the last. */
static inline const struct cairn_tc_property *cairn_tc_nth(size_t index) {
    static const struct cairn_tc_property all[] = {
        {"generic.bytes_in_use_by_app", "allocated", NULL},
        {"generic.current_allocated_bytes", "allocated", NULL},
        {"generic.heap_size", "mapped", NULL},
        {"generic.physical_memory_used", "resident", NULL},
        {"generic.total_physical_bytes", "resident", NULL},
        {"generic.virtual_memory_used", "mapped", "retained"},
        {"tcmalloc.metadata_bytes", "metadata", NULL},
        {"tcmalloc.pageheap_free_bytes", "dirty", NULL},
        {"tcmalloc.pageheap_unmapped_bytes", "retained", NULL},
    };
    return index < sizeof all / sizeof *all ? &all[index] : NULL;
}

static inline size_t cairn_tc_figure(const struct cairn_tc_property *property) {
    size_t figure = 0, also = 0;
    cairn_stats_get(property->figure, &figure);
    if (property->also) cairn_stats_get(property->also, &also);
    return figure + also;
}

/* False for a name that is not in the table. */
static inline bool cairn_tc_value(const char *name, size_t length, size_t *value) {
    const struct cairn_tc_property *property;
    size_t index;
    for (index = 0; (property = cairn_tc_nth(index)) != NULL; index++) {
        if (strlen(property->name) != length || memcmp(property->name, name, length) != 0) continue;
        *value = cairn_tc_figure(property);
        return true;
    }
    return false;
}

#ifdef __cplusplus
}
#endif

#endif
