/*
 * Mistakes of a program, one per case: memcheck is to find each of them in a program on cairn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The compiler must not see what is wrong. */
static char *hide(char *pointer)
{
    __asm__ volatile("" : "+r"(pointer));
    return pointer;
}

int main(int argc, char **argv)
{
    const char *mistake = argc > 1 ? argv[1] : "none";
    char *block = hide(malloc(100));
    memset(block, 1, 100);
    if (!strcmp(mistake, "overrun")) block[100] = 1;
    if (!strcmp(mistake, "underrun")) printf("%d\n", block[-1]);
    if (!strcmp(mistake, "uninitialised")) {
        char *fresh = hide(malloc(100));
        if (fresh[50]) puts("set");
        free(fresh);
    }
    free(block);
    if (!strcmp(mistake, "after_free")) printf("%d\n", hide(block)[10]);
    if (!strcmp(mistake, "twice")) free(hide(block));
    if (!strcmp(mistake, "leak")) memset(hide(malloc(200)), 1, 200);
    return 0;
}
