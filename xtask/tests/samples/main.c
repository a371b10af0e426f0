/* Runs on cairn, and says of which version its header's library is. */
#include <cairn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    char *copy = strdup("a block of the C library's");
    void *block = malloc(100);
    if (copy == NULL || block == NULL || cairn_base(copy) != copy || cairn_base(block) != block) {
        return 1;
    }
    free(copy);
    free(block);
    puts(cairn_version());
    return 0;
}
