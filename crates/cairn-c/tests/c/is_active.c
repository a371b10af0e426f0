/* The way to ask for cairn that docs/guide/c-api.md shows: prints 1 or 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#pragma weak cairn_is_active
extern int cairn_is_active(void);

int main(void)
{
    void *volatile block = malloc(10);
    free(block);
    int active = cairn_is_active || dlsym(RTLD_DEFAULT, "cairn_is_active");
    printf("%d\n", active);
    return 0;
}
