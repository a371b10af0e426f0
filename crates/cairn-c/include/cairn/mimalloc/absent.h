/* What of mimalloc nothing serves, and why. Part of compat/mimalloc.h. */

#ifndef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#endif

CAIRN_NONE(mi_heap_set_default, "malloc does not follow a heap: allocate from it by mi_heap_malloc");
CAIRN_NONE(mi_theap_set_default, "malloc does not follow a heap: allocate from it by mi_heap_malloc");

CAIRN_NONE(mi_heap_malloc_aligned_at, "a heap aligns starts of blocks only: mi_malloc_aligned_at, without a heap");
CAIRN_NONE(mi_heap_zalloc_aligned_at, "a heap aligns starts of blocks only: mi_zalloc_aligned_at, without a heap");
CAIRN_NONE(mi_heap_calloc_aligned_at, "a heap aligns starts of blocks only: mi_calloc_aligned_at, without a heap");
CAIRN_NONE(mi_heap_realloc_aligned_at, "a heap aligns starts of blocks only: mi_realloc_aligned_at, without a heap");
CAIRN_NONE(mi_heap_rezalloc_aligned_at, "a heap aligns starts of blocks only: mi_rezalloc_aligned_at, without a heap");
CAIRN_NONE(mi_heap_recalloc_aligned_at, "a heap aligns starts of blocks only: mi_recalloc_aligned_at, without a heap");

CAIRN_NONE(mi_heap_set_numa_affinity, "memory is where a thread touches it first");
CAIRN_NONE(mi_heap_new_ex, "make it by mi_heap_new, and give it a tag by cairn_heap_set_tag");
CAIRN_NONE(mi_abandoned_visit_blocks, "cairn_visit shows areas that no thread owns, and the tags of their heaps");

CAIRN_NONE(mi_manage_os_memory, "malloc takes no memory of the program's: a heap does, by mi_manage_os_memory_ex");
typedef bool mi_commit_fun_t(bool commit, void *start, size_t size, bool *is_zero, void *user_arg);
CAIRN_NONE(mi_manage_memory, "cairn_region_new takes functions that commit and decommit");
CAIRN_NONE(mi_arena_area, "the program knows where its memory is; cairn_region_get_stats has the bytes");
CAIRN_NONE(mi_arena_contains, "mi_heap_contains says so of a heap in it");
CAIRN_NONE(mi_arena_unload, "what is noted down of a region is not in it");
CAIRN_NONE(mi_arena_reload, "what is noted down of a region is not in it");
CAIRN_NONE(mi_theap_unload, "what is noted down of a region is not in it");
CAIRN_NONE(mi_theap_reload, "what is noted down of a region is not in it");
CAIRN_NONE(mi_reserve_huge_os_pages, "map them, and call mi_manage_os_memory_ex");
CAIRN_NONE(mi_reserve_huge_os_pages_at, "map them, and call mi_manage_os_memory_ex");
CAIRN_NONE(mi_reserve_huge_os_pages_at_ex, "map them, and call mi_manage_os_memory_ex");
CAIRN_NONE(mi_reserve_huge_os_pages_interleave, "map them, and call mi_manage_os_memory_ex");

CAIRN_NONE(mi_subproc_new, "heaps and regions keep memory apart");
CAIRN_NONE(mi_subproc_delete, "heaps and regions keep memory apart");
CAIRN_NONE(mi_subproc_destroy, "heaps and regions keep memory apart");
typedef bool mi_heap_visit_fun(mi_heap_t *heap, void *arg);
CAIRN_NONE(mi_subproc_visit_heaps, "cairn_visit names the heap of each area");

CAIRN_NONE(mi_heap_guarded_set_sample_rate, "cairn_guard_every takes bytes, for all heaps");
CAIRN_NONE(mi_heap_guarded_set_size_bound, "guards are for all sizes: cairn_guard_every");
CAIRN_NONE(mi_theap_guarded_set_sample_rate, "cairn_guard_every takes bytes, for all heaps");
CAIRN_NONE(mi_theap_guarded_set_size_bound, "guards are for all sizes: cairn_guard_every");

typedef void mi_error_fun(int err, void *arg);
CAIRN_NONE(mi_register_error, "misuse ends the process; without memory a call returns NULL and ENOMEM");
CAIRN_NONE(mi_register_output, "cairn writes to standard error, and only one line when it ends the process");

CAIRN_NONE(mi_thread_stats_print_out, "cairn_count and cairn_thread_allocated count for a thread");
CAIRN_NONE(mi_collect_reduce, "caches are bounded: mi_collect(true) gives back what is free");
CAIRN_NONE(mi_options_print, "set the environment variable CAIRN_SHOW_CONFIG=1");
CAIRN_NONE(mi_options_print_out, "set the environment variable CAIRN_SHOW_CONFIG=1");
CAIRN_NONE(mi_process_info_print, "mi_process_info has the figures");
CAIRN_NONE(mi_process_info_print_out, "mi_process_info has the figures");

#ifndef __cplusplus
#pragma GCC diagnostic pop
#endif
