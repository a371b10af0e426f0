/* The program under trace: it calls one function of the allocator again and again,
 * with an int3 before and after each call that is to be counted.
 *
 *   subject call SYMBOL MAKER MAKER_SIZE FIRST SECOND DROPPER
 *   subject batch
 *
 * SYMBOL(FIRST, SECOND) is the counted call; a MAKER other than "-" first makes the
 * block that takes the place of FIRST; a DROPPER other than "-" gets the result.
 * At each int3, rax says BEGIN or END, rdi which of the series, rsi which function. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { BEGIN = 1, END = 2, ABSENT = 77 };
enum { HELD = 500, WARM_PAIRS = 4000, TRACED = 40 };
enum { BATCH = 1000, WARM_BATCHES = 30, TRACED_BATCHES = 3 };

/* Every function called here takes at most two integer registers and returns at most
 * one, so one type serves them all on x86-64. */
typedef void *call(size_t, size_t);

#define MARK(what, series, function)                                            \
    __asm__ volatile("int3" : : "a"((long)(what)), "D"((long)(series)), "S"(function) : "memory")

static call *function, *maker, *dropper;
static size_t maker_size, first, second;

static call *find(const char *name) {
    if (strcmp(name, "-") == 0)
        return NULL;
    call *found = (call *)dlsym(RTLD_DEFAULT, name);
    if (found == NULL)
        exit(ABSENT);
    return found;
}

static size_t argument(void) {
    return maker == NULL ? first : (size_t)maker(maker_size, 0);
}

/* make and unmake call SYMBOL once between them, on whichever side it belongs: a row
 * without a DROPPER is one that frees, or one that asks and leaves the block in use. */
static size_t make(void) {
    return dropper == NULL ? argument() : (size_t)function(argument(), second);
}

static void unmake(size_t block) {
    if (dropper == NULL)
        function(block, second);
    else
        dropper(block, second);
}

static void run_calls(void) {
    static size_t block[HELD];

    for (int i = 0; i < HELD; i++)
        block[i] = make();
    for (int i = 0; i < HELD; i++)
        unmake(block[i]);
    for (int i = 0; i < WARM_PAIRS; i++)
        unmake(make());

    /* Every other block stays live: a warm call meets no full span and empties none. */
    for (int i = 0; i < HELD; i++)
        block[i] = make();
    for (int i = 0; i < HELD; i += 2)
        unmake(block[i]);

    for (int i = 0; i < TRACED; i++) {
        size_t given = argument();
        MARK(BEGIN, 0, function);
        size_t result = (size_t)function(given, second);
        MARK(END, 0, function);
        if (dropper != NULL)
            dropper(result, second);
    }
}

static void run_batches(void) {
    static void *block[BATCH];
    call *functions[2] = {find("malloc"), find("free")};

    for (int round = 0; round < WARM_BATCHES + TRACED_BATCHES; round++) {
        for (int series = 0; series < 2; series++) {
            call *function = functions[series];
            if (round >= WARM_BATCHES)
                MARK(BEGIN, series, function);
            for (int i = 0; i < BATCH; i++)
                block[i] = series == 0 ? function(64, 0) : function((size_t)block[i], 0);
            if (round >= WARM_BATCHES)
                MARK(END, series, function);
        }
    }
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "batch") == 0) {
        run_batches();
        return 0;
    }
    if (count != 8 || strcmp(arguments[1], "call") != 0)
        return 2;
    function = find(arguments[2]);
    maker = find(arguments[3]);
    maker_size = strtoul(arguments[4], NULL, 10);
    first = strtoul(arguments[5], NULL, 10);
    second = strtoul(arguments[6], NULL, 10);
    dropper = find(arguments[7]);
    run_calls();
    return 0;
}
