/*
 * A store of vectors in a file: more of them than the program may keep in memory. A region lies in the mapped file and
 * grows with it; the kernel writes pages to the file and drops them as it likes. Names and links are in the region,
 * too, for a heap holds blocks of all sizes. Names that are dropped make room for others.
 *
 *     cc -O2 vectors.c -lcairn -o vectors && ./vectors [VECTORS]
 */
#define _GNU_SOURCE
#include <cairn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DIMENSIONS = 128 };

/* The file, as far as it is mapped. */
struct store_file {
    int fd;
    size_t bytes;
};

static void *more(size_t *bytes, void *argument)
{
    struct store_file *file = argument;
    /* As much as there is already, so that the pieces stay few. */
    size_t least = file->bytes > (8u << 20) ? file->bytes : (8u << 20), page = (size_t)sysconf(_SC_PAGESIZE);
    if (*bytes < least) *bytes = least;
    *bytes = (*bytes + page - 1) / page * page;
    if (ftruncate(file->fd, (off_t)(file->bytes + *bytes)) != 0) return NULL;
    void *at = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, (off_t)file->bytes);
    if (at == MAP_FAILED) return NULL;
    file->bytes += *bytes;
    return at;
}

static void gone(void *start, size_t bytes, void *argument)
{
    (void)argument;
    munmap(start, bytes);
}

/* What is kept of a vector. */
struct entry {
    struct entry *next;
    char *name;
    float values[DIMENSIONS];
};

static uint64_t state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 40) / (1 << 24) - 0.5;
}

static struct entry *add(cairn_heap *heap, struct entry *first, size_t number)
{
    struct entry *entry = cairn_heap_malloc(heap, sizeof *entry);
    char *name = cairn_heap_malloc(heap, 16 + number % 50);
    if (!entry || !name) {
        fprintf(stderr, "the file is full\n");
        exit(1);
    }
    sprintf(name, "vector %zu", number);
    *entry = (struct entry){.next = first, .name = name};
    for (int at = 0; at < DIMENSIONS; at++) entry->values[at] = (float)uniform();
    return entry;
}

static const struct entry *nearest(const struct entry *all, const float *to)
{
    const struct entry *best = NULL;
    float least = INFINITY;
    for (; all; all = all->next) {
        float sum = 0;
        for (int at = 0; at < DIMENSIONS; at++) sum += (all->values[at] - to[at]) * (all->values[at] - to[at]);
        if (sum < least) least = sum, best = all;
    }
    return best;
}

/* Pages of a kind that the process shows, in KiB. */
static size_t shown(const char *kind)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    size_t kib = 0;
    while (status && fgets(line, sizeof line, status)) {
        if (strncmp(line, kind, strlen(kind)) == 0) kib = strtoul(line + strlen(kind), NULL, 10);
    }
    if (status) fclose(status);
    return kib;
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
    FILE *opened = tmpfile();
    if (!opened) return perror("a file"), 1;
    struct store_file file = {fileno(opened), 0};
    size_t before = shown("RssAnon:");
    cairn_region *region =
        cairn_region_new(NULL, 0, &(struct cairn_region_calls){.reserve = more, .release = gone, .argument = &file});
    cairn_heap *heap = region ? cairn_heap_new_in(region) : NULL;
    if (!heap) return perror("a heap in the file"), 1;

    struct entry *all = NULL;
    for (size_t number = 0; number < count; number++) all = add(heap, all, number);
    size_t full = file.bytes;
    /* Every other one goes, and as many come: the file stays as long as it is. */
    for (struct entry *entry = all; entry && entry->next; entry = entry->next) {
        struct entry *dropped = entry->next;
        entry->next = dropped->next;
        free(dropped->name);
        free(dropped);
    }
    for (size_t number = count; number < count + count / 2; number++) all = add(heap, all, number);

    const float *wanted = all->next->next->values;
    printf("%zu vectors, nearest to itself: %s\n", count, nearest(all, wanted)->name);
    printf("file %zu KiB, at first %zu KiB\n", file.bytes / 1024, full / 1024);
    printf("memory of the program's own %zu KiB\n", shown("RssAnon:") - before);
    cairn_heap_destroy(heap);
    if (!cairn_region_end(region)) return perror("the region"), 1;
    return fclose(opened);
}
