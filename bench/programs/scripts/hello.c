/* The smallest program that uses malloc. With an argument it says its own resident set as
 * well, without malloc. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argv;
    char *text = malloc(64);
    if (!text) return 1;
    strcpy(text, "hello");
    puts(text);
    free(text);
    fflush(stdout);
    if (argc < 2) return 0;

    char table[4096];
    int fd = open("/proc/self/smaps_rollup", O_RDONLY);
    ssize_t length = read(fd, table, sizeof table);
    return length > 0 && write(STDOUT_FILENO, table, length) == length ? 0 : 2;
}
