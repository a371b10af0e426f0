/*
 * A small runtime that counts references. When the last one to an object goes, the object is put off instead of freed:
 * its own references would have to go, too, and theirs, which is one long pause for a large structure. The
 * allocator calls the runtime now and then, and each call takes apart at most so many objects.
 *
 *     cc -O2 deferred.c -lcairn -o deferred && ./deferred [NODES]
 */
#include <cairn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { AT_ONCE = 1000 };

struct object {
    union {
        size_t references;
        struct object *next; /* while it is put off */
    };
    struct object *left, *right;
};

/* Volatile: compilers believe that malloc changes no variable of the program. */
static struct object *volatile put_off;
static volatile size_t live, most_at_once, pauses;
static volatile double longest_pause;

static double now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void note_pause(double since)
{
    double pause = now() - since;
    if (pause > longest_pause) longest_pause = pause;
}

static struct object *new_object(struct object *left, struct object *right)
{
    struct object *object = malloc(sizeof *object);
    if (!object) {
        fputs("no memory\n", stderr);
        exit(1);
    }
    *object = (struct object){{1}, left, right};
    live++;
    return object;
}

/* A balanced tree of so many objects. */
static struct object *new_tree(size_t count)
{
    if (count == 0) return NULL;
    size_t left = (count - 1) / 2;
    struct object *smaller = new_tree(left);
    return new_object(smaller, new_tree(count - 1 - left));
}

/* A reference goes: a few steps, whatever hangs on the object. */
static void release(struct object *object)
{
    if (object && --object->references == 0) {
        object->next = put_off;
        put_off = object;
    }
}

/* Takes apart at most `most` objects. */
static void reclaim(size_t most)
{
    size_t count = 0;
    for (; put_off && count < most; count++) {
        struct object *object = put_off;
        put_off = object->next;
        release(object->left);
        release(object->right);
        free(object);
        live--;
    }
    if (count > most_at_once) most_at_once = count;
}

/* What the allocator calls. */
static void on_deferred_free(int force, size_t heartbeat, void *argument)
{
    (void)heartbeat, (void)argument;
    if (!put_off) return;
    double since = now();
    reclaim(force ? (size_t)-1 : AT_ONCE);
    if (!force) note_pause(since), pauses++;
}

/* The other way: all at once. */
static void free_tree(struct object *object)
{
    if (!object) return;
    free_tree(object->left);
    free_tree(object->right);
    free(object);
    live--;
}

/* What the program does meanwhile: lists that come and go. */
static size_t work(void)
{
    static struct object *recent[100];
    size_t turns = 0;
    for (; live > 200; turns++) {
        release(recent[turns % 100]);
        recent[turns % 100] = new_object(NULL, NULL);
    }
    for (int i = 0; i < 100; i++) release(recent[i]), recent[i] = NULL;
    return turns;
}

int main(int argc, char **argv)
{
    size_t count = argc > 1 ? strtoul(argv[1], NULL, 10) : 200000;

    struct object *tree = new_tree(count);
    double since = now();
    free_tree(tree);
    note_pause(since);
    printf("recursive: %zu nodes in one pause of %.3f ms\n", count, longest_pause * 1e3);

    cairn_on_deferred_free(on_deferred_free, NULL);
    tree = new_tree(count);
    longest_pause = 0;
    release(tree);
    size_t turns = work();
    printf("deferred: %zu pauses of at most %zu nodes and %.3f ms, in %zu allocations\n", pauses, most_at_once,
           longest_pause * 1e3, turns);
    if (most_at_once > AT_ONCE) return fputs("a pause was too long\n", stderr), 1;
    cairn_purge();
    cairn_on_deferred_free(NULL, NULL);
    printf("left: %zu\n", live);
    return live != 0;
}
