// A program with its own operator new: ours must stand back.
#include "cxx_sized.h"
#include "replaced.h"
#include "tokens.h"

#include <string>
#include <vector>

void operator delete(void *block, size_t) noexcept
{
    own_deletes++;
    free(block);
}

static void program_wins()
{
    size_t before = own_news;
    delete new int(7);
    // The C++ library must use the program's one too.
    {
        std::vector<std::string> texts;
        for (int i = 0; i < 100; i++) texts.push_back(std::string(100, 'x'));
    }
    CHECK(own_news > before + 100, "%zu calls", own_news - before);
    CHECK(own_deletes >= own_news - before, "%zu and %zu calls", own_news, own_deletes);
}

// The standard has the forms that are not replaced call those that are: what `new (nothrow)`
// gives, the program's own `delete` takes.
static void other_forms_follow()
{
    size_t news = own_news, deletes = own_deletes;
    delete[] static_cast<char *>(hide(new char[100]));
    char *quiet = static_cast<char *>(hide(new (std::nothrow) char));
    ::operator delete(quiet, std::nothrow);
    CHECK(own_news == news + 2 && own_deletes == deletes + 2, "%zu and %zu calls", own_news - news,
          own_deletes - deletes);
}

#ifdef CAIRN_IS_LINKED
// So do those that clang calls with a token.
static void tokens_follow()
{
    size_t news = own_news, deletes = own_deletes;
    ::operator delete(hide(__alloc_token__Znwm(100, 3)));
    ::operator delete[](hide(__alloc_token_7__Znam(100)));
    ::operator delete(hide(__alloc_token__ZnwmRKSt9nothrow_t(100, &std::nothrow, 3)));
    CHECK(own_news == news + 3 && own_deletes == deletes + 3, "%zu and %zu calls", own_news - news,
          own_deletes - deletes);
}
#endif

// The block is the program's own operator new's, and of its size no more is known.
static void size_feedback_follows()
{
    size_t before = own_news;
    sized_ptr block = __size_returning_new(100);
    CHECK(own_news == before + 1 && block.p && block.n == 100, "%zu calls, %zu", own_news - before, block.n);
    operator delete(block.p);
    size_t thrown = 0;
    try {
        __size_returning_new(hide_size(PTRDIFF_MAX));
    } catch (const std::bad_alloc &) {
        thrown++;
    }
    CHECK(thrown == 1, "it throws");
}

static const struct test_case cases[] = {
    {"program_wins", program_wins},
    {"size_feedback_follows", size_feedback_follows},
    {"other_forms_follow", other_forms_follow},
#ifdef CAIRN_IS_LINKED
    {"tokens_follow", tokens_follow},
#endif
};
MAIN(cases)
