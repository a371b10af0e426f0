// Operators of a program's own, which count.
#pragma once
#include "check.h"

#include <new>

static size_t own_news, own_deletes;

void *operator new(size_t size)
{
    own_news++;
    void *block = malloc(size ? size : 1);
    if (!block) throw std::bad_alloc();
    return block;
}

void operator delete(void *block) noexcept
{
    own_deletes++;
    free(block);
}
