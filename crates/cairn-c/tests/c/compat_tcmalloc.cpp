/* Programs in the terms of tcmalloc's and of gperftools' MallocExtension. */
#include <gperftools/malloc_extension.h>
#include <tcmalloc/malloc_extension.h>

#include "check.h"

#include <cstring>
#include <new>

using Google = tcmalloc::MallocExtension;

static void sizes()
{
    int local;
    auto *old = ::MallocExtension::instance();
    for (size_t size = 1; size < 300000; size += size / 3 + 1) {
        void *p = hide(malloc(size));
        size_t real = *Google::GetAllocatedSize(p);
        CHECK(real == malloc_usable_size(p) && real == old->GetAllocatedSize(p), "%zu: %zu", size, real);
        CHECK(Google::GetEstimatedAllocatedSize(size) >= size, "%zu", size);
        CHECK((Google::GetEstimatedAllocatedSize(size, std::align_val_t(64)) + 16 - cairn_good_size(0)) % 64 == 0 || size > 65000, "%zu", size);
        CHECK(old->GetEstimatedAllocatedSize(size) == Google::GetEstimatedAllocatedSize(size), "%zu", size);
        CHECK(Google::GetOwnership(p) == Google::Ownership::kOwned, "ours");
        CHECK(old->GetOwnership(p) == ::MallocExtension::kOwned, "ours");
        free(p);
    }
    CHECK(Google::GetOwnership(&local) == Google::Ownership::kNotOwned && !Google::GetAllocatedSize(&local), "not ours");
    CHECK(old->GetOwnership(&local) == ::MallocExtension::kNotOwned, "not ours");
    CHECK(MallocExtension_GetOwnership(&local) == MallocExtension_kNotOwned, "not ours");
}

static void figures()
{
    auto *old = ::MallocExtension::instance();
    size_t before = 0, after = 0;
    CHECK(old->GetNumericProperty("generic.current_allocated_bytes", &before), "known");
    void *held = hide(malloc(32 * MIB));
    memset(held, 1, 32 * MIB);
    CHECK(MallocExtension_GetNumericProperty("generic.current_allocated_bytes", &after) == 1, "known");
    CHECK(after >= before + 32 * MIB && after < before + 40 * MIB, "%zu, %zu", before, after);
    auto all = Google::GetProperties();
    size_t resident = *Google::GetNumericProperty("generic.physical_memory_used");
    CHECK(resident >= 32 * MIB && all.at("generic.heap_size").value >= resident, "%zu", resident);
    CHECK(all.at("generic.virtual_memory_used").value >= all.at("generic.heap_size").value, "%zu", all.size());
    CHECK(all.at("tcmalloc.metadata_bytes").value > 0, "metadata");
    CHECK(!Google::GetNumericProperty("generic.nothing") && !old->GetNumericProperty("generic.heap_siz", &after), "none");
    CHECK(!old->SetNumericProperty("tcmalloc.max_total_thread_cache_bytes", 1), "none");
    char few[10];
    old->GetStats(few, sizeof few);
    CHECK(few[0] == '{' && strlen(few) == 9 && Google::GetStats().size() > 1000, "%s", few);

    void *blocks[1000];
    for (void *&block : blocks) block = hide(malloc(10000));
    for (void *block : blocks) memset(block, 1, 10000);
    for (void *block : blocks) free(block);
    free(held);
    Google::MarkThreadIdle(), Google::MarkThreadBusy();
    Google::ReleaseMemoryToSystem(0);
    CHECK(*Google::GetNumericProperty("generic.physical_memory_used") < resident - 30 * MIB, "it goes back");
    old->MarkThreadIdle(), old->MarkThreadBusy(), old->ReleaseFreeMemory(), old->ReleaseToSystem(1);
    CHECK(Google::ReleaseCpuMemory(0) == 0, "none");
}

static void background()
{
    CHECK(Google::NeedsProcessBackgroundActions(), "nobody does it yet");
    Google::ProcessBackgroundActions();
    CHECK(!Google::NeedsProcessBackgroundActions() && cairn_has_purge_thread(), "a thread does");
    Google::SetGuardedSamplingInterval(10 << 20), Google::ActivateGuardedSampling(), Google::SetGuardedSamplingInterval(-1);
}

static const struct test_case cases[] = {{"sizes", sizes}, {"figures", figures}, {"background", background}};
MAIN(cases)
