// Operator new with allocation tokens, called as clang would; delete is the plain one.
#include "check.h"
#include "tokens.h"

#include <new>
#include <string>

// Most programs bring the runtime's throw of bad_alloc along; a static one that is so small has to ask for it.
void (*volatile thrower)() = std::__throw_bad_alloc;

static size_t impossible() { return hide_size(SIZE_MAX / 2); }

static const void *const quiet = &std::nothrow;

static void *(*const plain[])(size_t) = {
    [](size_t size) { return __alloc_token__Znwm(size, 12345); },
    [](size_t size) { return __alloc_token__Znam(size, SIZE_MAX); },
    __alloc_token_0__Znwm,
    __alloc_token_7__Znam,
    __alloc_token_15__Znwm,
    [](size_t size) { return __alloc_token__ZnwmSt11align_val_t(size, 64, 3); },
    [](size_t size) { return __alloc_token__ZnamSt11align_val_t(size, 64, 3); },
    [](size_t size) { return __alloc_token_0__ZnwmSt11align_val_t(size, 64); },
    [](size_t size) { return __alloc_token_15__ZnamSt11align_val_t(size, 64); },
};

static void *(*const silent[])(size_t) = {
    [](size_t size) { return __alloc_token__ZnwmRKSt9nothrow_t(size, quiet, 3); },
    [](size_t size) { return __alloc_token__ZnamRKSt9nothrow_t(size, quiet, 3); },
    [](size_t size) { return __alloc_token__ZnwmSt11align_val_tRKSt9nothrow_t(size, 64, quiet, 3); },
    [](size_t size) { return __alloc_token__ZnamSt11align_val_tRKSt9nothrow_t(size, 64, quiet, 3); },
    [](size_t size) { return __alloc_token_7__ZnwmRKSt9nothrow_t(size, quiet); },
    [](size_t size) { return __alloc_token_7__ZnamRKSt9nothrow_t(size, quiet); },
    [](size_t size) { return __alloc_token_7__ZnwmSt11align_val_tRKSt9nothrow_t(size, 64, quiet); },
    [](size_t size) { return __alloc_token_7__ZnamSt11align_val_tRKSt9nothrow_t(size, 64, quiet); },
};

static void every_form()
{
    const size_t sizes[] = {0, 1, 64, 5000, 100000};
    for (size_t size : sizes) {
        for (size_t form = 0; form < COUNT_OF(plain) + COUNT_OF(silent); form++) {
            bool throws = form < COUNT_OF(plain);
            void *block = throws ? plain[form](size) : silent[form - COUNT_OF(plain)](size);
            CHECK(block && is_aligned(block, 16), "form %zu, %zu", form, size);
            CHECK(form < 5 || malloc_usable_size(block) >= size, "form %zu, %zu", form, size);
            fill(block, size, 1);
            // Arrays and aligned forms go the same way.
            ::operator delete(block);
        }
    }
    void *aligned = __alloc_token__ZnwmSt11align_val_t(10, 4096, 1);
    CHECK(is_aligned(aligned, 4096), "%p", aligned);
    ::operator delete(aligned, std::align_val_t(4096));
}

static void without_handler()
{
    for (auto form : plain) {
        bool caught = false;
        try {
            form(impossible());
        } catch (const std::bad_alloc &) {
            caught = true;
        }
        CHECK(caught, "no bad_alloc");
    }
    for (auto form : silent) CHECK(form(impossible()) == nullptr, "a block");
}

static int calls;

static void patient()
{
    if (++calls % 3 == 0) throw std::bad_alloc();
}

static void the_handler_is_called_and_may_throw()
{
    std::set_new_handler(patient);
    for (auto form : plain) {
        int before = calls;
        bool caught = false;
        try {
            form(impossible());
        } catch (const std::bad_alloc &) {
            caught = true;
        }
        CHECK(caught && calls == before + 3, "%d calls", calls - before);
    }
}

static void last_call()
{
    if (++calls == 3) std::set_new_handler(nullptr);
}

static void quiet_forms_call_the_handler()
{
    for (auto form : silent) {
        calls = 0;
        std::set_new_handler(last_call);
        CHECK(form(impossible()) == nullptr && calls == 3, "%d calls", calls);
    }
}

#ifdef CAIRN_IS_LINKED
// Memory of one partition, or of none, lies in other slices than that of the next.
static size_t slice(const void *block) { return reinterpret_cast<size_t>(block) >> 14; }

static void give_up()
{
    calls++;
    std::set_new_handler(nullptr);
}

// There are free blocks of no partition, beside others in use.
static void quiet_forms_stay_in_their_partition()
{
    static void *blocks[1000];
    for (void *&block : blocks) block = malloc(64);
    for (size_t i = 0; i < COUNT_OF(blocks); i += 2) free(blocks[i]);
    free(__alloc_token_malloc(64, 5));
    struct cairn_memory memory;
    cairn_get_memory(&memory, sizeof memory);
    CHECK(cairn_set_memory_limits(SIZE_MAX, memory.counted) == 1, "%zu", memory.counted);
    for (const auto form : {__alloc_token__ZnwmRKSt9nothrow_t, __alloc_token__ZnamRKSt9nothrow_t}) {
        calls = 0;
        std::set_new_handler(give_up);
        while (calls == 0) {
            const void *found = form(64, quiet, 5);
            for (size_t i = 1; i < COUNT_OF(blocks); i += 2)
                CHECK(slice(blocks[i]) != slice(found), "%p beside %p", found, blocks[i]);
        }
    }
}
#endif

static const struct test_case cases[] = {
#ifdef CAIRN_IS_LINKED
    {"quiet_forms_stay_in_their_partition", quiet_forms_stay_in_their_partition},
#endif
    {"every_form", every_form},
    {"without_handler", without_handler},
    {"the_handler_is_called_and_may_throw", the_handler_is_called_and_may_throw},
    {"quiet_forms_call_the_handler", quiet_forms_call_the_handler},
};
MAIN(cases)
