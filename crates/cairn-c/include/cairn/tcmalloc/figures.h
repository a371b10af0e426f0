/*
 * What the MallocExtension of tcmalloc and of gperftools have in common. Nothing here is for programs.
 */
#ifndef CAIRN_TCMALLOC_FIGURES_H
#define CAIRN_TCMALLOC_FIGURES_H

#include "../common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A property's name, and where its figure is in the statistics; a second place is added. */
struct cairn_tc_property {
    const char *name;
    const char *key, *field;
    const char *also, *also_field;
};

/* NULL beyond the last. */
static inline const struct cairn_tc_property *cairn_tc_nth(size_t index) {
    static const struct cairn_tc_property all[] = {
        {"generic.bytes_in_use_by_app", "\"allocated\":", NULL, NULL, NULL},
        {"generic.current_allocated_bytes", "\"allocated\":", NULL, NULL, NULL},
        {"generic.heap_size", "\"total\":{", "\"bytes\":", NULL, NULL},
        {"generic.physical_memory_used", "\"total\":{", "\"resident\":", NULL, NULL},
        {"generic.total_physical_bytes", "\"total\":{", "\"resident\":", NULL, NULL},
        {"generic.virtual_memory_used", "\"total\":{", "\"bytes\":", "\"clean\":", NULL},
        {"tcmalloc.metadata_bytes", "\"metadata\":{", "\"bytes\":", NULL, NULL},
        {"tcmalloc.pageheap_free_bytes", "\"dirty\":{", "\"bytes\":", NULL, NULL},
        {"tcmalloc.pageheap_unmapped_bytes", "\"clean\":", NULL, NULL, NULL},
    };
    return index < sizeof all / sizeof *all ? &all[index] : NULL;
}

static inline size_t cairn_tc_figure(const struct cairn_tc_property *property) {
    struct cairn_text stats;
    cairn_take_stats(&stats);
    return cairn_figure(&stats, property->key, property->field) +
           (property->also ? cairn_figure(&stats, property->also, property->also_field) : 0);
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
