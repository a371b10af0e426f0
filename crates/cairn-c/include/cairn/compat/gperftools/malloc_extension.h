/*
 * gperftools' MallocExtension, served by cairn: for C++11. <gperftools/malloc_extension_c.h> beside it is the same for C.
 */
#ifndef BASE_MALLOC_EXTENSION_H_
#define BASE_MALLOC_EXTENSION_H_

#include "malloc_extension_c.h"

#include <string>

class MallocExtension {
public:
    enum Ownership { kUnknownOwnership, kOwned, kNotOwned };

    static MallocExtension *instance() {
        static MallocExtension one;
        return &one;
    }

    void GetStats(char *buffer, int length) { MallocExtension_GetStats(buffer, length); }
    bool GetNumericProperty(const char *property, size_t *value) {
        return cairn_tc_value(property, strlen(property), value);
    }
    bool SetNumericProperty(const char *, size_t) { return false; }

    void MarkThreadIdle() { cairn_thread_idle(); }
    void MarkThreadTemporarilyIdle() { cairn_thread_idle(); }
    void MarkThreadBusy() {}
    void ReleaseToSystem(size_t) { cairn_purge(); }
    void ReleaseFreeMemory() { cairn_purge(); }

    size_t GetEstimatedAllocatedSize(size_t size) { return cairn_good_size(size); }
    size_t GetAllocatedSize(const void *block) { return cairn_usable_size(block); }
    Ownership GetOwnership(const void *pointer) { return cairn_base(pointer) ? kOwned : kNotOwned; }

    CAIRN_NO_FUNCTION("cairn checks each block that is freed") bool VerifyAllMemory();
    CAIRN_NO_FUNCTION("cairn has a purge delay: cairn_set_purge_delay_ms") void SetMemoryReleaseRate(double);
    CAIRN_NO_FUNCTION("cairn has a purge delay: cairn_purge_delay_ms") double GetMemoryReleaseRate();
    CAIRN_NO_FUNCTION("the heap profile is written by cairn_profile_write") void GetHeapSample(std::string *);
    CAIRN_NO_FUNCTION("the heap profile is written by cairn_profile_write") void GetHeapGrowthStacks(std::string *);
    CAIRN_NO_FUNCTION("cairn is the allocator") static void Register(MallocExtension *);
};

#endif
