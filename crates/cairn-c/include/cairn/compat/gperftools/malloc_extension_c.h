/*
 * gperftools' interface beyond malloc for C, served by cairn. A program that includes <gperftools/malloc_extension_c.h>
 * compiles unchanged with the folder above this file's in front of its include path, and is linked with cairn in place of
 * tcmalloc. docs/parity.md says what serves each call.
 */
#ifndef _MALLOC_EXTENSION_C_H_
#define _MALLOC_EXTENSION_C_H_

#include "../../tcmalloc/figures.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MallocExtension_kUnknownOwnership,
    MallocExtension_kOwned,
    MallocExtension_kNotOwned
} MallocExtension_Ownership;

/* cairn's statistics as JSON, cut off where the buffer is full. */
static inline void MallocExtension_GetStats(char *buffer, int length) {
    struct cairn_text text;
    cairn_take_stats(&text);
    if (length > 0) snprintf(buffer, (size_t)length, "%s", text.bytes);
}
static inline int MallocExtension_GetNumericProperty(const char *property, size_t *value) {
    return cairn_tc_value(property, strlen(property), value);
}
/* What there is to set has a variable of the environment. */
static inline int MallocExtension_SetNumericProperty(const char *property, size_t value) {
    return (void)property, (void)value, 0;
}

static inline void MallocExtension_MarkThreadIdle(void) { cairn_thread_idle(); }
static inline void MallocExtension_MarkThreadTemporarilyIdle(void) { cairn_thread_idle(); }
static inline void MallocExtension_MarkThreadBusy(void) {}

/* All that can go. */
static inline void MallocExtension_ReleaseToSystem(size_t bytes) { (void)bytes, cairn_purge(); }
static inline void MallocExtension_ReleaseFreeMemory(void) { cairn_purge(); }

static inline size_t MallocExtension_GetEstimatedAllocatedSize(size_t size) { return cairn_good_size(size); }
static inline size_t MallocExtension_GetAllocatedSize(const void *block) { return cairn_usable_size(block); }
static inline MallocExtension_Ownership MallocExtension_GetOwnership(const void *pointer) {
    return cairn_base(pointer) ? MallocExtension_kOwned : MallocExtension_kNotOwned;
}

#ifndef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#endif

CAIRN_NONE(MallocExtension_VerifyAllMemory, "cairn checks each block that is freed");
CAIRN_NONE(MallocExtension_VerifyNewMemory, "cairn checks each block that is freed");
CAIRN_NONE(MallocExtension_VerifyArrayNewMemory, "cairn checks each block that is freed");
CAIRN_NONE(MallocExtension_VerifyMallocMemory, "cairn checks each block that is freed");
CAIRN_NONE(MallocExtension_MallocMemoryStats, "cairn counts no calls: MallocExtension_GetStats");

#ifndef __cplusplus
#pragma GCC diagnostic pop
#endif

#ifdef __cplusplus
}
#endif

#endif
