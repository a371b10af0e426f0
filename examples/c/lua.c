/*
 * A server runs each request's script in a Lua state of its own, and each state has a heap of its own by Lua's allocator hook.
 * The heap limits what a script can take. When the request is over, all that the state has goes at once: no walk over
 * its tables and strings.
 *
 *     cc -O2 $(pkg-config --cflags lua5.4) lua.c -lcairn $(pkg-config --libs lua5.4) -o lua && ./lua [REQUESTS]
 */
#include <cairn.h>
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LIMIT = 16 << 20 };

static const char SCRIPT[] =
    "local lines, count = {}, {}\n"
    "for i = 1, 2000 do\n"
    "  local word = 'word' .. i % 97\n"
    "  lines[#lines + 1] = { text = word, number = i }\n"
    "  count[word] = (count[word] or 0) + 1\n"
    "end\n"
    "return #lines + count.word5\n";
static const char GREEDY[] = "local t = {} for i = 1, 1e9 do t[i] = { i } end";

static double now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Lua's contract: frees for a size of 0, and can use any block that is large enough. NULL is "not enough memory" there. */
static void *allocate(void *heap, void *block, size_t old_size, size_t size)
{
    (void)old_size;
    if (size > 0) return cairn_heap_realloc(heap, block, size);
    free(block);
    return NULL;
}

/* Runs a script in a state of its own; 1 if it ran out of memory. How long it took to end the state is added to `ending`. */
static int serve(const char *script, int destroys, lua_Integer *result, double *ending)
{
    cairn_heap *heap = cairn_heap_new();
    if (heap == NULL || !cairn_heap_set_limits(heap, 0, LIMIT, NULL, NULL)) exit(1);
    lua_State *state = lua_newstate(allocate, heap);
    if (state == NULL) exit(1);
    luaL_openlibs(state);
    int status = luaL_loadstring(state, script);
    if (status == LUA_OK) status = lua_pcall(state, 0, 1, 0);
    if (status == LUA_OK) *result = lua_tointeger(state, -1);
    struct cairn_heap_stats stats;
    cairn_heap_get_stats(heap, &stats, sizeof stats);
    if (stats.peak > LIMIT) exit(1);
    double start = now();
    /* Scripts whose objects have something else to close, such as files, want lua_close. */
    if (!destroys) lua_close(state);
    cairn_heap_destroy(heap);
    *ending += now() - start;
    return status == LUA_ERRMEM;
}

int main(int argc, char **argv)
{
    int requests = argc > 1 ? atoi(argv[1]) : 200;
    double closing = 0, destroying = 0, ignored = 0;
    lua_Integer result = 0;
    for (int nth = 0; nth < requests; nth++) {
        for (int destroys = 0; destroys <= 1; destroys++) {
            result = 0;
            serve(SCRIPT, destroys, &result, destroys ? &destroying : &closing);
            if (result != 2000 + 21) return 1;
        }
    }
    int refused = serve(GREEDY, 1, &result, &ignored);
    printf("%d requests: %.1f us to close a state, %.1f us to destroy its heap; a greedy script was %s\n", 2 * requests,
           closing / requests * 1e6, destroying / requests * 1e6, refused ? "refused" : "served");
    return !refused;
}
