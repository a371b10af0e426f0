/* Reads a line of a file; names malloc and free alone. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    size_t size = 16;
    char *line = malloc(size);
    FILE *file = argc > 1 && line ? fopen(argv[1], "r") : NULL;
    if (!file || getline(&line, &size, file) != 4096) return 1;
    free(line);
    return fclose(file) != 0;
}
