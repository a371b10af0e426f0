/* Starts a program some times, one after the other, and tells what each run cost.
 *
 *     launch REPORT TIMES PRELOAD PROGRAM [ARGUMENT ...]
 *
 * A line per run goes to the file REPORT: nanoseconds from start to end, microseconds of user
 * and system time, page faults, and the peak resident set in KiB, all with its descendants.
 * PRELOAD may be empty. Ends as the program did, on its first failure.
 *
 * The kernel lets a new program inherit the peak of the process that starts it. This one is
 * static and makes no heap, so its own is below that of any program it starts. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long us(struct timeval t) { return t.tv_sec * 1000000LL + t.tv_usec; }

int main(int argc, char **argv) {
    if (argc < 5) return 125;
    int report = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (report < 0) return 125;
    for (int left = atoi(argv[2]); left > 0; left--) {
        long long start = now();
        pid_t child = fork();
        if (child < 0) return 125;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (*argv[3]) setenv("LD_PRELOAD", argv[3], 1);
            execv(argv[4], argv + 4);
            _exit(127);
        }
        int status;
        struct rusage usage;
        if (wait4(child, &status, 0, &usage) < 0) return 125;
        long long wall = now() - start;
        char line[200];
        int length = snprintf(line, sizeof line, "%lld %lld %lld %ld %ld\n", wall,
                              us(usage.ru_utime), us(usage.ru_stime), usage.ru_minflt,
                              usage.ru_maxrss);
        if (write(report, line, length) != length) return 125;
        if (WIFSIGNALED(status)) {
            struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            signal(WTERMSIG(status), SIG_DFL);
            raise(WTERMSIG(status));
        }
        if (WEXITSTATUS(status)) return WEXITSTATUS(status);
    }
    return 0;
}
