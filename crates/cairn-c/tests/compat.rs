//! The headers that give the names of other allocators: programs written for those compile unchanged, and what is
//! promised there holds.

mod common;

use common::{Loading, include_dir, library, passes_in, scratch_dir, skip_for_stand_in, skipped};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LINKED: [Loading; 2] = [Loading::Linked, Loading::Static];

fn compat_pass(source: &str, cases: &[&str]) {
    if skip_for_stand_in() {
        return;
    }
    for case in cases {
        passes_in(&LINKED, source, &[case]);
    }
}

#[test]
fn a_program_of_mimallocs_runs() {
    compat_pass("compat_mimalloc.c", &["family", "resizing", "alignments", "texts", "told"]);
}

#[test]
fn mimallocs_heaps_are_there() {
    compat_pass("compat_mimalloc.c", &["heaps", "visits", "arenas", "reserves", "visits_beside"]);
    compat_pass("compat_mimalloc_2.c", &["visits", "visits_beside"]);
}

#[test]
fn mimallocs_containers_and_operators_are_there() {
    compat_pass("compat_mimalloc.cpp", &["containers", "moves", "operators"]);
}

#[test]
fn a_program_of_jemallocs_runs() {
    compat_pass(
        "compat_jemalloc.c",
        &[
            "sizes",
            "resizing",
            "in_place",
            "control",
            "options",
            "arenas",
            "purges_all",
            "purges_beside",
        ],
    );
}

/// Compilers hold a block of malloc for no larger than its request; what has grown in its place is.
#[test]
fn what_has_grown_in_its_place_may_be_filled() {
    const SOURCE: &str = "
        #include <mimalloc.h>
        #include <string.h>
        int main(void)
        {
            char *p = mi_malloc(100), *q = mi_expand(p, mi_good_size(100));
            if (q) memset(q, 0, 112);
            return q == NULL;
        }
    ";
    optimized_passes("fortified", SOURCE);
}

/// Compilers leave out a block that nobody uses.
#[test]
fn address_space_is_reserved_by_the_first_call_too() {
    optimized_passes(
        "reserves",
        "
        #include <mimalloc.h>
        int main(void) { return mi_reserve_os_memory(64 << 20, true, false); }
        ",
    );
}

/// Runs a program that the compiler has optimized with all it knows.
fn optimized_passes(name: &str, source: &str) {
    if skip_for_stand_in() {
        return;
    }
    let program = scratch_dir().join(format!("{name}-{}", std::process::id()));
    let mut command = Command::new("cc");
    command.args(["-O2", "-D_FORTIFY_SOURCE=2", "-x", "c", "-", "-x", "none", "-o"]).arg(&program);
    command.arg("-I").arg(compat_dir()).arg(&library().shared).stdin(Stdio::piped());
    let mut child = command.spawn().expect("the compiler is there");
    child.stdin.take().expect("a pipe").write_all(source.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success());
    let folder = library().shared.parent().expect("a folder");
    let status = Command::new(&program).env("LD_LIBRARY_PATH", folder).status().expect("it runs");
    std::fs::remove_file(&program).expect("it was just written");
    assert!(status.success(), "{status}");
}

#[test]
fn programs_of_tcmallocs_run() {
    compat_pass("compat_tcmalloc.cpp", &["sizes", "figures", "background"]);
}

/// What a program says with these headers.
const PROGRAM: &str = r#"
#include <mimalloc.h>
#include <mimalloc-stats.h>
#include <mimalloc-override.h>
#include <mimalloc-new-delete.h>
#include <jemalloc/jemalloc.h>
#include <gperftools/malloc_extension_c.h>
struct node { struct node *next; };
#if __cplusplus >= 201703L
#include <tcmalloc/malloc_extension.h>
#endif
#ifdef __cplusplus
#include <gperftools/malloc_extension.h>
#include <list>
#include <vector>
static void containers()
{
    std::vector<int, mi_stl_allocator<int>> plain(10);
    std::list<int, mi_heap_stl_allocator<int>> of_heap(plain.begin(), plain.end());
    std::vector<int, mi_heap_destroy_stl_allocator<int>> goes(of_heap.begin(), of_heap.end());
    plain.assign(goes.begin(), goes.end());
}
#else
static void containers(void) {}
#endif
int main(void)
{
    mi_heap_t *heap = mi_heap_new();
#if MI_MALLOC_VERSION >= 30000
    struct node *node = mi_heap_malloc_tp(struct node, heap);
#else
    struct node *node = mi_heap_malloc_tp(heap, struct node);
#endif
    size_t size = 0;
    void *block = je_mallocx(100, MALLOCX_ALIGN(64) | MALLOCX_ZERO);
    node->next = (struct node *)rallocx(block, 200, MALLOCX_LG_ALIGN(6));
    sdallocx(node->next, 200, MALLOCX_ALIGN(64));
    mi_free(mi_realloc_aligned(mi_zalloc(10), 100, 64));
    mi_heap_destroy(heap);
    containers();
    return mallctl("stats.allocated", NULL, &size, NULL, 0);
}
"#;

/// Compiles a program, in C or C++ as the standard says: whether it could, and what was said.
fn compiled(compiler: &str, standard: &str, more: &[&str], program: &str) -> (bool, String) {
    let language = if standard.contains("++") { "c++" } else { "c" };
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(more).args(["-fsyntax-only", "-x", language, "-"]);
    command.arg("-I").arg(compat_dir()).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the compiler is there");
    child.stdin.take().expect("a pipe").write_all(program.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn compat_dir() -> PathBuf {
    include_dir().join("cairn/compat")
}

fn compilers() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    const C: &[&str] = &["c99", "c11", "c17", "c2x"];
    const CXX: &[&str] = &["c++11", "c++14", "c++17", "c++20"];
    let all = [("cc", C), ("c++", CXX), ("clang", &C[..2]), ("clang++", &CXX[2..])];
    // The first two every test needs; the others may be missing.
    let has_clang = Command::new("clang++").arg("--version").output().is_ok();
    if !has_clang {
        skipped("no clang++ beside c++; install the package `clang`");
    }
    all.into_iter().take(if has_clang { 4 } else { 2 })
}

/// In every standard, without a warning; with the interface of mimalloc 2, too.
#[test]
fn the_headers_are_plain_in_each_standard() {
    let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
    for (compiler, standards) in compilers() {
        for (at, standard) in standards.iter().enumerate() {
            let mut more = strict.to_vec();
            if at % 2 == 1 {
                more.push("-DCAIRN_MIMALLOC_VERSION=2");
            }
            if standard.contains("++") && at % 3 == 1 {
                more.extend(["-fno-exceptions", "-fno-rtti"]);
            }
            let (done, said) = compiled(compiler, standard, &more, PROGRAM);
            assert!(done, "{compiler} {standard}: {said}");
        }
    }
}

/// What nothing serves does not compile where it is used, and the compiler says why.
#[test]
fn what_nothing_serves_says_why() {
    let cases = [
        ("mi_heap_set_default(mi_heap_new());", "malloc does not follow a heap"),
        ("mi_option_set(mi_option_large_os_pages, 1);", "CAIRN_HUGE_PAGES"),
        ("mi_option_enable(mi_option_eager_commit);", "nothing to set"),
        ("mi_register_output(0, 0);", "standard error"),
        ("mi_manage_os_memory(0, 0, 1, 0, 0, 0);", "mi_manage_os_memory_ex"),
        ("mi_stats_t stats;", "mi_stats_get_json"),
        ("mi_subproc_new();", "keep memory apart"),
        ("mallocx(10, MALLOCX_TCACHE(1));", "one cache"),
        ("const char *malloc_conf = \"narenas:1\";", "environment variables"),
        ("extent_hooks_t *hooks;", "cairn_region_new"),
    ];
    let headers = ["mimalloc.h", "mimalloc-stats.h", "jemalloc/jemalloc.h"];
    let mut program: String =
        headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    for (number, (statement, _)) in cases.iter().enumerate() {
        program += &format!("void f{number}(void) {{ {statement} }}\n");
    }
    for (compiler, standards) in compilers() {
        let (done, said) = compiled(compiler, standards[1], &[], &program);
        assert!(!done, "{compiler}: {said}");
        for (statement, reason) in cases {
            assert!(said.contains(reason), "{compiler}, {statement}: {said}");
        }
    }
}

/// Options of jemalloc's that a program has above the include are not ignored without a word.
#[test]
fn options_above_the_include_do_not_compile() {
    for name in ["malloc_conf", "je_malloc_conf"] {
        for (compiler, standards) in compilers() {
            let linkage = if compiler.contains("++") { "extern \"C\" " } else { "" };
            let options =
                format!("{linkage}const char *{name};\nconst char *{name} = \"narenas:1\";\n");
            let program = format!("{options}#include <jemalloc/jemalloc.h>\n");
            let (done, said) = compiled(compiler, standards[1], &[], &program);
            assert!(!done && said.contains("set_its_environment_variables"), "{compiler}: {said}");
            let (done, said) = compiled(compiler, standards[1], &[], &options);
            assert!(done, "{compiler}: {said}");
        }
    }
}

#[test]
fn what_nothing_serves_of_tcmallocs_says_why() {
    let cases = [
        ("tcmalloc::MallocExtension::SetMemoryLimit(1);", "cairn_set_memory_limits"),
        ("tcmalloc::MallocExtension::SetBackgroundReleaseRate(1);", "cairn_set_purge_delay_ms"),
        ("MallocExtension::instance()->SetMemoryReleaseRate(1);", "cairn_set_purge_delay_ms"),
        ("MallocExtension_VerifyAllMemory();", "each block that is freed"),
    ];
    for (statement, reason) in cases {
        let program = format!(
            "#include <tcmalloc/malloc_extension.h>\n#include <gperftools/malloc_extension.h>\n\
             void f() {{ {statement} }}\n"
        );
        for (compiler, standards) in compilers().filter(|(name, _)| name.contains("++")) {
            let (done, said) = compiled(compiler, standards.last().expect("one"), &[], &program);
            assert!(!done && said.contains(reason), "{compiler}, {statement}: {said}");
        }
    }
}

/// All names with these beginnings that a text has.
fn names_in(text: &str, beginnings: &[&str]) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '*'));
    let of_these = |word: &&str| beginnings.iter().any(|start| word.starts_with(start));
    words.filter(of_these).map(|word| word.trim_start_matches('*').to_owned()).collect()
}

/// The functions that a header defines, and those that it declares as not there.
fn functions_of(headers: &[&str]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut served, mut absent) = (BTreeSet::new(), BTreeSet::new());
    for header in headers {
        let text = std::fs::read_to_string(include_dir().join("cairn").join(header)).expect(header);
        for line in text.lines() {
            let name = |rest: &str| rest.split([',', '(']).next().unwrap_or_default().to_owned();
            if let Some(rest) = line.strip_prefix("CAIRN_NONE(") {
                absent.insert(name(rest));
            } else if line.starts_with("static inline ") {
                let before = line.split('(').next().unwrap_or_default();
                served.insert(name(before.rsplit([' ', '*']).next().unwrap_or_default()));
            }
        }
    }
    served.retain(|name| !name.starts_with("cairn_"));
    (served, absent)
}

/// What the table of calls says of a name: whether something serves it. A star stands for the rest of a name, and the
/// name with the most letters before its star counts.
fn served_by_table(table: &str, name: &str) -> Option<bool> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let matches = |pattern: &str| match pattern.split_once('*') {
        Some((start, end)) => {
            name.len() > pattern.len() - 2 && name.starts_with(start) && name.ends_with(end)
        }
        None => pattern == name,
    };
    let found = rows.flat_map(|(patterns, what)| {
        let patterns = patterns.split('`').skip(1).step_by(2).filter(|pattern| matches(pattern));
        patterns.map(move |pattern| (pattern.len() + usize::from(!pattern.contains('*')), what))
    });
    found.max_by_key(|(length, _)| *length).map(|(_, what)| !what.starts_with("none"))
}

/// The names that `mallctl` serves: the table has them, and no others without "none".
#[test]
fn mallctl_serves_what_the_table_says() {
    let read = |path: PathBuf| std::fs::read_to_string(path).expect("it is there");
    let header = read(include_dir().join("cairn/jemalloc/control.h"));
    let list = header.split("names[] = {").nth(1).and_then(|rest| rest.split('}').next());
    let quoted = list.expect("a list").split('"').skip(1).step_by(2);
    let served: BTreeSet<String> = quoted.map(|name| name.replace('*', "<i>")).collect();
    let page = read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parity.md"));
    let rows = page.split("by name: |\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let rows =
        rows.expect("rows").lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let promised: BTreeSet<String> = rows
        .filter(|(_, what)| !what.starts_with("none"))
        .flat_map(|(names, _)| names.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect();
    assert_eq!(served, promised);
}

/// docs/parity.md and the headers name the same, and agree on what is not there.
#[test]
fn the_headers_and_the_table_of_calls_agree() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parity.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let sections: Vec<&str> = page.split("\n## ").collect();
    let mimalloc = [
        "compat/mimalloc-stats.h",
        "mimalloc/plain.h",
        "mimalloc/heaps.h",
        "mimalloc/told.h",
        "mimalloc/absent.h",
    ];
    let jemalloc = ["compat/jemalloc/jemalloc.h", "jemalloc/control.h"];
    for (title, headers, beginnings, least) in [
        ("mimalloc\n", &mimalloc[..], &["mi_"][..], 140),
        (
            "jemalloc\n",
            &jemalloc[..],
            &["mallocx", "rallocx", "xallocx", "sallocx", "dallocx", "nallocx", "mallctl"],
            10,
        ),
    ] {
        let table = sections.iter().find(|section| section.starts_with(title)).expect(title);
        let (served, absent) = functions_of(headers);
        assert!(served.len() >= least, "{title}: {}", served.len());
        for (names, there) in [(&served, true), (&absent, false)] {
            for name in names {
                assert_eq!(served_by_table(table, name), Some(there), "{name}");
            }
        }
        for name in names_in(table, beginnings).iter().filter(|name| !name.contains('*')) {
            let there = served.contains(name) || absent.contains(name);
            assert!(there || name.contains("allocator"), "no header has {name}");
        }
    }
}
