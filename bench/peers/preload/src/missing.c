// What a peer may leave undefined. Weak: a peer's own function wins.

#include <errno.h>
#include <stddef.h>

#define FALLBACK __attribute__((weak, visibility("default")))

static const size_t page = 4096;

void *aligned_alloc(size_t alignment, size_t size);
void *realloc(void *block, size_t size);

FALLBACK void *memalign(size_t alignment, size_t size) {
	return aligned_alloc(alignment, size);
}

FALLBACK int posix_memalign(void **place, size_t alignment, size_t size) {
	if (alignment < sizeof(void *) || (alignment & (alignment - 1)))
		return EINVAL;
	void *block = aligned_alloc(alignment, size);
	if (block != NULL)
		*place = block;
	return block == NULL ? ENOMEM : 0;
}

FALLBACK void *valloc(size_t size) {
	return memalign(page, size);
}

FALLBACK void *pvalloc(size_t size) {
	if (size > (size_t)-1 - page) {
		errno = ENOMEM;
		return NULL;
	}
	return memalign(page, (size + page - 1) & ~(page - 1));
}

FALLBACK void *reallocarray(void *block, size_t count, size_t size) {
	size_t total;
	if (__builtin_mul_overflow(count, size, &total)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(block, total);
}
