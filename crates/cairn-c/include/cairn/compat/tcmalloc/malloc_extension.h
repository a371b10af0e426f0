/*
 * tcmalloc's MallocExtension, served by cairn: for C++17, without Abseil. A program that includes
 * <tcmalloc/malloc_extension.h> compiles with the folder above this file's in front of its include path, and is linked
 * with cairn in place of tcmalloc. docs/parity.md says what serves each call. What cairn cannot serve does not compile,
 * and the compiler says why.
 */
#ifndef TCMALLOC_MALLOC_EXTENSION_H_
#define TCMALLOC_MALLOC_EXTENSION_H_

#include "../../tcmalloc/figures.h"

#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>

namespace tcmalloc {

class MallocExtension final {
public:
    enum class Ownership { kUnknown, kOwned, kNotOwned };
    struct Property {
        size_t value;
    };

    /* cairn's statistics as JSON. */
    static std::string GetStats() {
        cairn_text text;
        cairn_take_stats(&text);
        return std::string(text.bytes, text.length);
    }
    static std::optional<size_t> GetNumericProperty(std::string_view property) {
        size_t value;
        if (!cairn_tc_value(property.data(), property.size(), &value)) return std::nullopt;
        return value;
    }
    static std::map<std::string, Property> GetProperties() {
        std::map<std::string, Property> all;
        const cairn_tc_property *property;
        for (size_t index = 0; (property = cairn_tc_nth(index)) != nullptr; index++)
            all[property->name].value = cairn_tc_figure(property);
        return all;
    }

    static void MarkThreadIdle() { cairn_thread_idle(); }
    static void MarkThreadBusy() {}
    /* All that can go, and what it was. */
    static size_t ReleaseMemoryToSystem(size_t) {
        auto before = *GetNumericProperty("generic.physical_memory_used");
        cairn_purge();
        auto after = *GetNumericProperty("generic.physical_memory_used");
        return before > after ? before - after : 0;
    }
    /* There is no cache of a processor. */
    static size_t ReleaseCpuMemory(int) { return 0; }
    /* The purge thread, which this begins: it returns. */
    static bool NeedsProcessBackgroundActions() { return !cairn_has_purge_thread(); }
    static void ProcessBackgroundActions() { cairn_start_purge_thread(); }
    static void EnableForkSupport() {}

    static size_t GetEstimatedAllocatedSize(size_t size) { return cairn_good_size(size); }
    static size_t GetEstimatedAllocatedSize(size_t size, std::align_val_t align) {
        // Hardened, the block has a word more.
        auto unit = static_cast<size_t>(align), word = 16 - cairn_good_size(0);
        bool is_too_much = size > SIZE_MAX - unit - word;
        return cairn_good_size(is_too_much ? SIZE_MAX : (size + word + unit - 1) / unit * unit - word);
    }
    static std::optional<size_t> GetAllocatedSize(const void *block) {
        if (cairn_base(block) != block || !block) return std::nullopt;
        return cairn_usable_size(block);
    }
    static Ownership GetOwnership(const void *pointer) {
        return cairn_base(pointer) ? Ownership::kOwned : Ownership::kNotOwned;
    }
    /* Guarded samples, from one to the next in bytes: 0 and less is none. */
    static void SetGuardedSamplingInterval(int64_t bytes) { cairn_guard_every(bytes > 0 ? static_cast<size_t>(bytes) : 0); }
    /* What it activates is the interval that is set. */
    static void ActivateGuardedSampling() {}

    CAIRN_NO_FUNCTION("cairn has a purge delay: cairn_set_purge_delay_ms") static void SetBackgroundReleaseRate(size_t);
    CAIRN_NO_FUNCTION("cairn has a purge delay: cairn_purge_delay_ms") static size_t GetBackgroundReleaseRate();
    CAIRN_NO_FUNCTION("the limits are set by cairn_set_memory_limits") static void SetMemoryLimit(size_t);
    CAIRN_NO_FUNCTION("the limits are told by cairn_get_memory") static size_t GetMemoryLimit();
    CAIRN_NO_FUNCTION("caches are bounded") static void SetMaxPerCpuCacheSize(int32_t);
    CAIRN_NO_FUNCTION("caches are bounded") static void SetMaxTotalThreadCacheBytes(int64_t);
    CAIRN_NO_FUNCTION("cairn_region_new takes a program's memory") static void SetRegionFactory(void *);
    CAIRN_NO_FUNCTION("the heap profile is begun by cairn_profile_every") static void SetProfileSamplingInterval(int64_t);
    CAIRN_NO_FUNCTION("the heap profile is begun by cairn_profile_every") static void StartAllocationProfiling();
};

} // namespace tcmalloc

#endif
