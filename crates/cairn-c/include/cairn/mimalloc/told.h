/* What mimalloc tells, is told, and calls. Part of compat/mimalloc.h. */

/* 30302 for 3.3.2: of the mimalloc whose interface this is. */
static inline int mi_version(void) { return MI_MALLOC_VERSION; }
static inline bool mi_is_redirected(void) { return cairn_is_active(); }

/* Nothing need be begun or ended. */
static inline void mi_process_init(void) {}
static inline void mi_process_done(void) {}
static inline void mi_thread_init(void) {}
static inline void mi_thread_set_in_threadpool(void) {}
static inline void mi_thread_done(void) { cairn_thread_idle(); }

static inline void mi_collect(bool force) {
    if (force) cairn_purge();
    else cairn_thread_idle();
}

/* The process is one: heaps and regions keep memory apart. */
typedef void *mi_subproc_id_t;

static inline mi_subproc_id_t mi_subproc_main(void) { return (mi_subproc_id_t)(uintptr_t)&cairn_header; }
static inline mi_subproc_id_t mi_subproc_current(void) { return mi_subproc_main(); }
static inline void mi_subproc_add_current_thread(mi_subproc_id_t process) { (void)process; }

/* Each registration keeps 16 bytes for good: other threads may still call the function of an earlier one. */
typedef void mi_deferred_free_fun(bool force, unsigned long long heartbeat, void *arg);

struct cairn_mi_deferred {
    mi_deferred_free_fun *call;
    void *argument;
};

static inline void cairn_mi_run_deferred(int force, size_t heartbeat, void *registered) {
    const struct cairn_mi_deferred *deferred = (const struct cairn_mi_deferred *)registered;
    deferred->call(force != 0, heartbeat, deferred->argument);
}

/* Without memory for it nothing is registered, and errno is ENOMEM. */
static inline void mi_register_deferred_free(mi_deferred_free_fun *call, void *arg) {
    struct cairn_mi_deferred *deferred;
    if (!call) {
        cairn_on_deferred_free(NULL, NULL);
        return;
    }
    deferred = (struct cairn_mi_deferred *)malloc(sizeof *deferred);
    if (!deferred) return;
    deferred->call = call;
    deferred->argument = arg;
    cairn_on_deferred_free(cairn_mi_run_deferred, deferred);
}

/* Statistics: cairn's account on standard error, or its JSON for a function. They are up to date without a merge. */
typedef void mi_output_fun(const char *msg, void *arg);

static inline void mi_stats_merge(void) {}
/* Figures are of what there is now, which does not begin anew. The few that only grow go on. */
static inline void mi_stats_reset(void) {}
static inline void mi_stats_print(void *ignored) { (void)ignored, cairn_stats_print(); }
static inline void mi_stats_print_out(mi_output_fun *out, void *arg) {
    struct cairn_reader reader;
    reader.read = out;
    reader.argument = arg;
    if (out) cairn_stats_json(cairn_reader_add, &reader);
    else cairn_stats_print();
}
static inline void mi_arenas_print(void) { cairn_stats_print(); }
static inline void mi_debug_show_arenas(void) { cairn_stats_print(); }

/* Of the process: milliseconds, bytes, and page faults that waited for a disk. Committed is what cairn uses. */
static inline size_t cairn_mi_milliseconds(struct timeval time) {
    return (size_t)time.tv_sec * 1000 + (size_t)time.tv_usec / 1000;
}

/* The first number in a file of /proc, or behind so many fields and the last parenthesis; 0 if there is none. */
static inline double cairn_mi_number(const char *path, int fields) {
    char line[1024] = "", *at = line;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    if (!fgets(line, sizeof line, file)) line[0] = 0;
    fclose(file);
    if (strrchr(line, ')')) at = strrchr(line, ')');
    for (; fields > 0 && *at; fields--) {
        while (*at && *at != ' ') at++;
        while (*at == ' ') at++;
    }
    return strtod(at, NULL);
}

static inline void mi_process_info(size_t *elapsed_msecs, size_t *user_msecs, size_t *system_msecs, size_t *current_rss,
                                   size_t *peak_rss, size_t *current_commit, size_t *peak_commit, size_t *page_faults) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), ticks = (size_t)sysconf(_SC_CLK_TCK);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (elapsed_msecs) {
        double began = cairn_mi_number("/proc/self/stat", 20) / (double)ticks;
        double now = cairn_mi_number("/proc/uptime", 0);
        *elapsed_msecs = now > began ? (size_t)((now - began) * 1000) : 0;
    }
    if (user_msecs) *user_msecs = cairn_mi_milliseconds(usage.ru_utime);
    if (system_msecs) *system_msecs = cairn_mi_milliseconds(usage.ru_stime);
    if (current_rss) *current_rss = (size_t)cairn_mi_number("/proc/self/statm", 1) * page;
    if (peak_rss) *peak_rss = (size_t)usage.ru_maxrss * 1024;
    if (current_commit || peak_commit) {
        size_t committed = 0;
        cairn_stats_get("mapped", &committed);
        if (current_commit) *current_commit = committed;
        if (peak_commit) *peak_commit = committed;
    }
    if (page_faults) *page_faults = (size_t)usage.ru_majflt;
}

/*
 * Options. What they set is a setting of cairn's, or nothing: most names do not compile and say which. The purge delay is
 * set, in milliseconds; -1 is never. Those about messages compile: cairn writes one line when it ends the process, and
 * otherwise none. Setting them changes nothing.
 */
#define CAIRN_MI_SETTING(name) CAIRN_UNAVAILABLE("set the environment variable " name)
#define CAIRN_MI_NOTHING CAIRN_UNAVAILABLE("cairn has nothing to set there")

typedef enum mi_option_e {
    mi_option_show_errors,
    mi_option_verbose,
    mi_option_max_errors,
    mi_option_max_warnings,
    mi_option_show_stats CAIRN_MI_SETTING("CAIRN_STATS=1"),
    mi_option_purge_delay,
    mi_option_reset_delay,
    mi_option_allow_large_os_pages CAIRN_MI_SETTING("CAIRN_HUGE_PAGES"),
    mi_option_large_os_pages CAIRN_MI_SETTING("CAIRN_HUGE_PAGES"),
    mi_option_allow_thp CAIRN_MI_SETTING("CAIRN_HUGE_PAGES"),
    mi_option_guarded_sample_rate CAIRN_UNAVAILABLE("cairn_guard_every takes bytes"),
    mi_option_guarded_min CAIRN_MI_NOTHING,
    mi_option_guarded_max CAIRN_MI_NOTHING,
    mi_option_guarded_precise CAIRN_MI_NOTHING,
    mi_option_guarded_sample_seed CAIRN_MI_NOTHING,
    mi_option_eager_commit CAIRN_MI_NOTHING,
    mi_option_arena_eager_commit CAIRN_MI_NOTHING,
    mi_option_eager_region_commit CAIRN_MI_NOTHING,
    mi_option_eager_commit_delay CAIRN_MI_NOTHING,
    mi_option_purge_decommits CAIRN_MI_NOTHING,
    mi_option_reset_decommits CAIRN_MI_NOTHING,
    mi_option_purge_extend_delay CAIRN_MI_NOTHING,
    mi_option_minimal_purge_size CAIRN_MI_NOTHING,
    mi_option_reserve_huge_os_pages CAIRN_MI_NOTHING,
    mi_option_reserve_huge_os_pages_at CAIRN_MI_NOTHING,
    mi_option_reserve_os_memory CAIRN_MI_NOTHING,
    mi_option_use_numa_nodes CAIRN_MI_NOTHING,
    mi_option_disallow_os_alloc CAIRN_MI_NOTHING,
    mi_option_limit_os_alloc CAIRN_MI_NOTHING,
    mi_option_disallow_arena_alloc CAIRN_MI_NOTHING,
    mi_option_arena_reserve CAIRN_MI_NOTHING,
    mi_option_arena_purge_mult CAIRN_MI_NOTHING,
    mi_option_arena_max_object_size CAIRN_MI_NOTHING,
    mi_option_arena_is_numa_local CAIRN_MI_NOTHING,
    mi_option_abandoned_page_purge CAIRN_MI_NOTHING,
    mi_option_abandoned_page_reset CAIRN_MI_NOTHING,
    mi_option_abandoned_reclaim_on_free CAIRN_MI_NOTHING,
    mi_option_max_segment_reclaim CAIRN_MI_NOTHING,
    mi_option_target_segments_per_thread CAIRN_MI_NOTHING,
    mi_option_generic_collect CAIRN_MI_NOTHING,
    mi_option_page_reclaim_on_free CAIRN_MI_NOTHING,
    mi_option_page_full_retain CAIRN_MI_NOTHING,
    mi_option_page_max_candidates CAIRN_MI_NOTHING,
    mi_option_page_commit_on_demand CAIRN_MI_NOTHING,
    mi_option_page_max_reclaim CAIRN_MI_NOTHING,
    mi_option_page_cross_thread_max_reclaim CAIRN_MI_NOTHING,
    mi_option_pagemap_commit CAIRN_MI_NOTHING,
    mi_option_max_vabits CAIRN_MI_NOTHING,
    mi_option_visit_abandoned CAIRN_MI_NOTHING,
    mi_option_destroy_on_exit CAIRN_MI_NOTHING,
    mi_option_retry_on_oom CAIRN_MI_NOTHING,
    mi_option_os_tag CAIRN_MI_NOTHING
} mi_option_t;

static inline bool cairn_mi_is_delay(mi_option_t option) {
    return option == mi_option_purge_delay || option == mi_option_reset_delay;
}
static inline long mi_option_get(mi_option_t option) {
    size_t ms = cairn_purge_delay_ms();
    if (cairn_mi_is_delay(option)) return ms > LONG_MAX ? -1 : (long)ms;
    return option == mi_option_show_errors || option == mi_option_max_errors;
}
static inline bool mi_option_is_enabled(mi_option_t option) { return mi_option_get(option) != 0; }
static inline size_t mi_option_get_size(mi_option_t option) {
    long value = mi_option_get(option);
    return value < 0 ? 0 : (size_t)value;
}
static inline long mi_option_get_clamp(mi_option_t option, long least, long most) {
    long value = mi_option_get(option);
    return value < least ? least : value > most ? most : value;
}
static inline void mi_option_set(mi_option_t option, long value) {
    if (cairn_mi_is_delay(option)) cairn_set_purge_delay_ms(value < 0 ? SIZE_MAX : (size_t)value);
}
/* The environment's stays. */
static inline void mi_option_set_default(mi_option_t option, long value) {
    if (!getenv("CAIRN_PURGE_DELAY")) mi_option_set(option, value);
}
static inline void mi_option_set_enabled(mi_option_t option, bool enable) { mi_option_set(option, enable); }
static inline void mi_option_set_enabled_default(mi_option_t option, bool enable) {
    mi_option_set_default(option, enable);
}
static inline void mi_option_enable(mi_option_t option) { mi_option_set(option, 1); }
static inline void mi_option_disable(mi_option_t option) { mi_option_set(option, 0); }
