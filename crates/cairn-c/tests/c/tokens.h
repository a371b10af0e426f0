/*
 * The functions that clang calls under -fsanitize=alloc-token, in both of its conventions: with the token
 * as the last argument, and as a part of the name. Any compiler can call them.
 */
#ifndef TOKENS_H
#define TOKENS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void *__alloc_token_malloc(size_t, size_t);
void *__alloc_token_calloc(size_t, size_t, size_t);
void *__alloc_token_realloc(void *, size_t, size_t);
void *__alloc_token_reallocarray(void *, size_t, size_t, size_t);
int __alloc_token_posix_memalign(void **, size_t, size_t, size_t);
void *__alloc_token_memalign(size_t, size_t, size_t);
void *__alloc_token_aligned_alloc(size_t, size_t, size_t);
void *__alloc_token_valloc(size_t, size_t);
void *__alloc_token_pvalloc(size_t, size_t);
void *__alloc_token__Znwm(size_t, size_t);
void *__alloc_token__Znam(size_t, size_t);
void *__alloc_token__ZnwmSt11align_val_t(size_t, size_t, size_t);
void *__alloc_token__ZnamSt11align_val_t(size_t, size_t, size_t);
void *__alloc_token__ZnwmRKSt9nothrow_t(size_t, const void *, size_t);
void *__alloc_token__ZnamRKSt9nothrow_t(size_t, const void *, size_t);
void *__alloc_token__ZnwmSt11align_val_tRKSt9nothrow_t(size_t, size_t, const void *, size_t);
void *__alloc_token__ZnamSt11align_val_tRKSt9nothrow_t(size_t, size_t, const void *, size_t);

#define TOKEN_IN_NAME(id)                                                                          \
    void *__alloc_token_##id##_malloc(size_t);                                                     \
    void *__alloc_token_##id##_calloc(size_t, size_t);                                             \
    void *__alloc_token_##id##_realloc(void *, size_t);                                            \
    void *__alloc_token_##id##_reallocarray(void *, size_t, size_t);                               \
    int __alloc_token_##id##_posix_memalign(void **, size_t, size_t);                              \
    void *__alloc_token_##id##_memalign(size_t, size_t);                                           \
    void *__alloc_token_##id##_aligned_alloc(size_t, size_t);                                      \
    void *__alloc_token_##id##_valloc(size_t);                                                     \
    void *__alloc_token_##id##_pvalloc(size_t);                                                    \
    void *__alloc_token_##id##__Znwm(size_t);                                                      \
    void *__alloc_token_##id##__Znam(size_t);                                                      \
    void *__alloc_token_##id##__ZnwmSt11align_val_t(size_t, size_t);                               \
    void *__alloc_token_##id##__ZnamSt11align_val_t(size_t, size_t);                               \
    void *__alloc_token_##id##__ZnwmRKSt9nothrow_t(size_t, const void *);                          \
    void *__alloc_token_##id##__ZnamRKSt9nothrow_t(size_t, const void *);                          \
    void *__alloc_token_##id##__ZnwmSt11align_val_tRKSt9nothrow_t(size_t, size_t, const void *);   \
    void *__alloc_token_##id##__ZnamSt11align_val_tRKSt9nothrow_t(size_t, size_t, const void *);

TOKEN_IN_NAME(0)
TOKEN_IN_NAME(7)
TOKEN_IN_NAME(15)

#ifdef __cplusplus
}
#endif

#endif
