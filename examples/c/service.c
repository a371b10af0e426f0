/*
 * A service that tells of its memory over HTTP: /debug/pprof/heap is the heap profile for pprof, and /pprof/heap for jeprof,
 * as jemalloc's users know them, with names of functions from /pprof/symbol; /profile is the same for `cairn profile`,
 * /metrics the figures for Prometheus, /stats all of them as JSON, /stats/allocated a single one.
 *
 *     cc -O2 -pthread -rdynamic service.c -lcairn -lm -o service && ./service 8080
 *     go tool pprof -top http://127.0.0.1:8080/debug/pprof/heap
 *     curl -o heap http://127.0.0.1:8080/profile && cairn profile heap
 *
 * Without a port it takes any, asks itself once for each page, and ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <cairn.h>
#include <dlfcn.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { PATIENCE_S = 2, REQUEST_MAX = 4096, LINE_MAX_BYTES = 8192, BLOCKS = 1 << 16 };

static const char *const pages[] = {"/debug/pprof/heap", "/profile", "/metrics", "/stats", "/stats/allocated"};

struct client {
    int socket;
    int is_gone;
};

/* What cairn calls with each piece of a text. */
static void give(void *arg, const char *text, size_t n)
{
    struct client *client = arg;
    while (n > 0 && !client->is_gone) {
        ssize_t sent = send(client->socket, text, n, MSG_NOSIGNAL);
        if (sent <= 0) {
            client->is_gone = 1;
        } else {
            text += sent;
            n -= (size_t)sent;
        }
    }
}

/* The end of the answer is where the connection ends. */
static void begin(struct client *client, const char *status)
{
    char head[128];
    int length = snprintf(head, sizeof head, "HTTP/1.0 %s\r\nContent-Type: text/plain\r\n\r\n", status);
    give(client, head, (size_t)length);
}

static void give_figure(struct client *client, const char *name)
{
    size_t value;
    char line[32];
    if (!cairn_stats_get(name, &value)) {
        begin(client, "404 Not Found");
        return;
    }
    begin(client, "200 OK");
    give(client, line, (size_t)snprintf(line, sizeof line, "%zu\n", value));
}

/* The lines of a profile, one by one, on their way to pprof. */
struct lines {
    struct client *client;
    enum { SITES, MAPPINGS, OTHERS } part;
    size_t length;
    char line[LINE_MAX_BYTES];
};

/*
 * A site in the text form that pprof has from tcmalloc. A sample of a block of `weighed` bytes stands for 1 / p blocks. It is
 * scaled here, and pprof is told so: it would scale by the bytes that were asked for.
 */
static void give_site(struct client *client, char *site)
{
    double weighed, rate, made, made_bytes, freed, freed_bytes;
    char out[2048], *rest;
    int end = 0;
    if (sscanf(site, "site %lf %lf %lf %lf %lf %lf%n", &weighed, &rate, &made, &made_bytes, &freed, &freed_bytes, &end) != 6)
        return;
    double scale = -1 / expm1(-weighed / rate);
    double live = fmax(made - freed, 0), live_bytes = live > 0 ? fmax(made_bytes - freed_bytes, 0) : 0;
    size_t length = (size_t)snprintf(out, sizeof out, "%.0f: %.0f [%.0f: %.0f] @", live * scale, live_bytes * scale,
                                     made * scale, made_bytes * scale);
    for (char *call = strtok_r(site + end, " ", &rest); call && length < sizeof out - 32; call = strtok_r(NULL, " ", &rest))
        length += (size_t)snprintf(out + length, sizeof out - length, " 0x%.16s", call);
    out[length++] = '\n';
    give(client, out, length);
}

static void give_line(struct lines *lines)
{
    if (strcmp(lines->line, "mappings") == 0) {
        lines->part = MAPPINGS;
        give(lines->client, "MAPPED_LIBRARIES:\n", strlen("MAPPED_LIBRARIES:\n"));
    } else if (lines->part == MAPPINGS && !strchr(lines->line, '-')) {
        lines->part = OTHERS;
    } else if (lines->part == SITES) {
        give_site(lines->client, lines->line);
    } else if (lines->part == MAPPINGS) {
        lines->line[lines->length] = '\n';
        give(lines->client, lines->line, lines->length + 1);
    }
}

/* What cairn calls with each piece of the profile; what is too long of a line is left out. */
static void convert(void *arg, const char *text, size_t n)
{
    struct lines *lines = arg;
    for (; n > 0; text++, n--) {
        if (*text == '\n') {
            lines->line[lines->length] = 0;
            give_line(lines);
            lines->length = 0;
        } else if (lines->length < LINE_MAX_BYTES - 1) {
            lines->line[lines->length++] = *text;
        }
    }
}

static void give_pprof(struct client *client)
{
    static const char head[] = "heap profile: 0: 0 [1: 1] @ heapprofile\n";
    struct lines lines = {.client = client, .part = SITES};
    give(client, head, sizeof head - 1);
    cairn_profile_text(convert, &lines);
}

static int is_pprof(const char *path, const char *page)
{
    size_t prefix = strncmp(path, "/debug", 6) == 0 ? 6 : 0;
    return strncmp(path + prefix, "/pprof/", 7) == 0 && strcmp(path + prefix + 7, page) == 0;
}

static void answer(struct client *client, const char *path)
{
    static const char figure[] = "/stats/";
    if (is_pprof(path, "heap")) {
        begin(client, "200 OK");
        give_pprof(client);
    } else if (strcmp(path, "/profile") == 0) {
        begin(client, "200 OK");
        cairn_profile_text(give, client);
    } else if (strcmp(path, "/metrics") == 0) {
        begin(client, "200 OK");
        cairn_stats_prometheus(give, client);
    } else if (strcmp(path, "/stats") == 0) {
        begin(client, "200 OK");
        cairn_stats_json(give, client);
    } else if (strncmp(path, figure, sizeof figure - 1) == 0) {
        give_figure(client, path + sizeof figure - 1);
    } else {
        begin(client, "404 Not Found");
    }
}

/* The name of the function at an address, if a library or the program, linked with -rdynamic, exports it. */
static void give_name(struct client *client, const char *address)
{
    char line[512];
    Dl_info info;
    if (!dladdr((void *)(uintptr_t)strtoull(address, NULL, 16), &info) || !info.dli_sname) return;
    int length = snprintf(line, sizeof line, "%s\t%s\n", address, info.dli_sname);
    if ((size_t)length < sizeof line) give(client, line, (size_t)length);
}

/* pprof asks for names that it has not found itself: `0x401136+0x7f31c0de`, so many bytes, of which some have come already. */
static void give_names(struct client *client, const char *come, size_t n, size_t bytes)
{
    char address[24], more[REQUEST_MAX];
    size_t length = 0;
    static const char some[] = "num_symbols: 1\n";
    begin(client, "200 OK");
    give(client, some, sizeof some - 1);
    for (;; come++, n--, bytes--) {
        if (bytes > 0 && n == 0) {
            ssize_t got = recv(client->socket, more, sizeof more, 0);
            if (got <= 0) return;
            come = more;
            n = (size_t)got;
        }
        if (bytes == 0 || *come == '+') {
            address[length] = 0;
            give_name(client, address);
            length = 0;
            if (bytes == 0) return;
        } else if (length < sizeof address - 1) {
            address[length++] = *come;
        }
    }
}

/* Reads a request up to its empty line: `GET PATH HTTP/1.1`, and what need not be looked at. */
static void serve(struct client *client)
{
    char request[REQUEST_MAX + 1], path[256], *head_end;
    size_t length = 0;
    do {
        ssize_t got = recv(client->socket, request + length, REQUEST_MAX - length, 0);
        if (got <= 0) return;
        length += (size_t)got;
        request[length] = 0;
    } while (!(head_end = strstr(request, "\r\n\r\n")) && length < REQUEST_MAX);
    if (head_end && sscanf(request, "GET %255[^ ?\r\n]", path) == 1) {
        answer(client, path);
    } else if (head_end && sscanf(request, "POST %255[^ ?\r\n]", path) == 1 && is_pprof(path, "symbol")) {
        const char *bytes = strcasestr(request, "\r\nContent-Length:"), *body = head_end + 4;
        size_t come = length - (size_t)(body - request);
        give_names(client, body, come, bytes && bytes < head_end ? strtoul(bytes + 17, NULL, 10) : 0);
    } else {
        begin(client, "400 Bad Request");
    }
}

/* Whoever is still sending when the connection closes would lose the answer. */
static void end(struct client *client)
{
    char rest[REQUEST_MAX];
    shutdown(client->socket, SHUT_WR);
    for (int i = 0; i < 16 && recv(client->socket, rest, sizeof rest, 0) > 0; i++) continue;
    close(client->socket);
}

static void *loop(void *listening)
{
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    for (;;) {
        struct client client = {.socket = accept(*(int *)listening, NULL, NULL)};
        if (client.socket < 0) continue;
        setsockopt(client.socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(client.socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        serve(&client);
        end(&client);
    }
    return NULL;
}

/* Asks for a page, and says how the answer begins and how long it is. */
static void ask(const struct sockaddr_in *address, const char *path)
{
    struct client client = {.socket = socket(AF_INET, SOCK_STREAM, 0)};
    char text[256], first[sizeof text] = "";
    size_t length = 0;
    ssize_t got;
    if (connect(client.socket, (const struct sockaddr *)address, sizeof *address) != 0) abort();
    give(&client, text, (size_t)snprintf(text, sizeof text, "GET %s HTTP/1.0\r\n\r\n", path));
    while ((got = recv(client.socket, text, sizeof text - 1, 0)) > 0) {
        if (length == 0) memcpy(first, text, (size_t)got);
        length += (size_t)got;
    }
    close(client.socket);
    printf("%s: %.15s, %zu bytes\n", path, first, length);
}

int main(int count, char **arguments)
{
    static void *cache[BLOCKS];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    pthread_t thread;

    if (!cairn_profile_every(512 << 10)) abort();
    for (int i = 0; i < BLOCKS; i++) cache[i] = malloc(1 << 10);
    if (count > 1) address.sin_port = htons((uint16_t)atoi(arguments[1]));
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) != 0 || listen(listening, 16) != 0 ||
        getsockname(listening, (struct sockaddr *)&address, &size) != 0) {
        perror("service");
        return 1;
    }
    printf("http://127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    if (count > 1) loop(&listening);
    if (pthread_create(&thread, NULL, loop, &listening) != 0) abort();
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) ask(&address, pages[i]);
    for (int i = 0; i < BLOCKS; i++) free(cache[i]);
    return 0;
}
