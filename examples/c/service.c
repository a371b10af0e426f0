/*
 * A service that tells of its memory over HTTP, under the paths that jemalloc's users know: /debug/pprof/heap is the heap
 * profile, /metrics the figures for Prometheus, /stats all of them as JSON, /stats/allocated a single one.
 *
 *     cc -O2 -pthread service.c -lcairn -o service && ./service 8080
 *     curl -o heap http://127.0.0.1:8080/debug/pprof/heap && cairn profile heap
 *
 * Without a port it takes any, asks itself once for each page, and ends.
 */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <cairn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { PATIENCE_S = 2, REQUEST_MAX = 4096, BLOCKS = 1 << 16 };

static const char *const pages[] = {"/debug/pprof/heap", "/metrics", "/stats", "/stats/allocated"};

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

static void answer(struct client *client, const char *path)
{
    static const char figure[] = "/stats/";
    if (strcmp(path, "/debug/pprof/heap") == 0 || strcmp(path, "/pprof/heap") == 0) {
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

/* Reads a request up to its empty line: `GET PATH HTTP/1.1`, and what need not be looked at. */
static void serve(struct client *client)
{
    char request[REQUEST_MAX + 1], path[256];
    size_t length = 0;
    do {
        ssize_t got = recv(client->socket, request + length, REQUEST_MAX - length, 0);
        if (got <= 0) return;
        length += (size_t)got;
        request[length] = 0;
    } while (!strstr(request, "\r\n\r\n") && length < REQUEST_MAX);
    if (sscanf(request, "GET %255[^ ?\r\n]", path) == 1 && strstr(request, "\r\n\r\n"))
        answer(client, path);
    else
        begin(client, "400 Bad Request");
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
        close(client.socket);
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
