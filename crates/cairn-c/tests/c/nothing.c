/* The least a program can do: start, allocate once, end. Its system calls are counted. */
#include <stdlib.h>

int main(void)
{
    void *volatile block = malloc(100);
    free(block);
    return block == NULL;
}
