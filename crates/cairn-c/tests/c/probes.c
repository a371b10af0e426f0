/*
 * Listens to the probes of the heap profile as the system does: it counts itself in, and puts a breakpoint in the place of
 * each. Arguments: where they are, and what counts who listens, in hexadecimal, as the notes of the file say it. On standard
 * output is what has been heard. Run with CAIRN_PROFILE=file.
 */
#include "check.h"

#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { ALLOC, FREE, PROBES, EVENTS = 1 << 16, PAIRS = 20000, HELD = 5000, THREADS = 4 };

struct event {
    int probe;
    size_t block, size, weighted;
};

static unsigned char *places[PROBES];
static unsigned short *listeners[PROBES];
static struct event events[EVENTS];
static int heard;

static void hear(int signal, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned char *place = (unsigned char *)registers[REG_RIP] - 1;
    int probe = place == places[ALLOC] ? ALLOC : FREE;
    int index = __atomic_fetch_add(&heard, 1, __ATOMIC_SEQ_CST);
    (void)signal, (void)info;
    CHECK(place == places[probe], "it is a probe");
    CHECK(index < EVENTS, "there is room");
    events[index] = (struct event){probe, (size_t)registers[REG_RDI], (size_t)registers[REG_RSI],
                                   (size_t)registers[REG_RDX]};
}

/* How far from its file's addresses what the allocator is in has been loaded. */
static int find_bias(struct dl_phdr_info *info, size_t size, void *bias)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        size_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (size_t)(uintptr_t)malloc - start < part->p_memsz) {
            *(size_t *)bias = info->dlpi_addr;
            return 1;
        }
    }
    return 0;
}

static void listen_to(unsigned char *place)
{
    enum { NOP = 0x90, BREAKPOINT = 0xcc };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *start = (void *)((uintptr_t)place & ~(page - 1));
    CHECK(*place == NOP, "it does nothing");
    CHECK(mprotect(start, page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "it can be written");
    *place = BREAKPOINT;
    CHECK(mprotect(start, page, PROT_READ | PROT_EXEC) == 0, "it runs again");
}

static void *work(void *unused)
{
    static _Thread_local void *held[HELD];
    (void)unused;
    for (int i = 0; i < PAIRS; i++) {
        free(malloc(1003));
        if (i % 20 == 0) free(malloc(200003));
    }
    for (int i = 0; i < HELD; i++) held[i] = malloc(3011);
    /* Half of them move; of these half grow without moving, as large blocks do, or move again. */
    for (int i = 0; i < HELD; i += 2) held[i] = realloc(held[i], 5021);
    for (int i = 0; i < HELD; i += 4) held[i] = realloc(held[i], 70001);
    for (int i = 0; i < HELD; i += 4) held[i] = realloc(held[i], 90001);
    for (int i = 0; i < HELD; i += 8) free(held[i]);
    return NULL;
}

int main(int count, char **arguments)
{
    size_t bias = 0;
    pthread_t threads[THREADS];
    struct sigaction action = {.sa_sigaction = hear, .sa_flags = SA_SIGINFO};

    CHECK(count == 1 + 2 * PROBES, "two probes");
    CHECK(dl_iterate_phdr(find_bias, &bias) == 1, "malloc is somewhere");
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0, "a handler");
    for (int probe = 0; probe < PROBES; probe++) {
        places[probe] = (unsigned char *)(bias + strtoul(arguments[1 + 2 * probe], NULL, 16));
        listeners[probe] = (unsigned short *)(bias + strtoul(arguments[2 + 2 * probe], NULL, 16));
        listen_to(places[probe]);
    }
    for (int i = 0; i < PAIRS; i++) free(malloc(4093));
    CHECK(heard == 0, "nobody listens");
    for (int probe = 0; probe < PROBES; probe++) ++*listeners[probe];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0, "a thread");
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0, "it ends");
    for (int probe = 0; probe < PROBES; probe++) --*listeners[probe];
    for (int i = 0; i < heard; i++) {
        struct event *event = &events[i];
        if (event->probe == ALLOC)
            printf("alloc %zx %zu %zu\n", event->block, event->size, event->weighted);
        else
            printf("free %zx\n", event->block);
    }
    return 0;
}
