//! CPython and its own regression tests, with every object allocated by malloc.

use super::install::{Need, find};
use super::stage::{Scale, Stage};
use super::{Evidence, Program};
use anyhow::{Result, ensure};
use std::collections::BTreeSet;

const INTERPRETER: &str = "/usr/bin/python3";
const SUITE: &str = "/usr/lib/python3.*/test/test_list.py";

pub(super) const PYTHON: Program = Program {
    name: "python",
    quick: true,
    needs: &[Need::new(INTERPRETER, "python3"), Need::new(SUITE, "libpython3.*-testsuite")],
    version: &[INTERPRETER, "--version"],
    what: "CPython's own tests, two at a time, PYTHONMALLOC=malloc",
    loaded_in: &["python3"],
    prepare: |_| Ok(()),
    run,
};

/// Fast modules that allocate in many different ways.
const QUICK: &str = "test_list test_dict test_set test_bytes test_unicode test_re test_json \
    test_pickle test_gc test_weakref test_thread test_zlib test_tracemalloc";

/// Left out: what needs a network or a terminal, what watches the clock (`test_signal`), what
/// takes minutes (`test_concurrent_futures`), and what hangs on some kernels (`test_socket`).
const FULL: &str = "test_list test_dict test_set test_tuple test_bytes test_unicode test_string \
    test_int test_long test_float test_complex test_array test_memoryview test_buffer test_bisect \
    test_heapq test_deque test_collections test_ordered_dict test_defaultdict test_userdict \
    test_userlist test_itertools test_functools test_operator test_generators test_coroutines \
    test_asyncgen test_iter test_enumerate test_range test_slice test_sort test_re test_json \
    test_csv test_configparser test_pickle test_pickletools test_copy test_copyreg test_marshal \
    test_shelve test_struct test_codecs test_codeccallbacks test_io test_bufio test_fileio \
    test_memoryio test_zlib test_gzip test_bz2 test_lzma test_zipfile test_tarfile test_hashlib \
    test_hmac test_random test_statistics test_fractions test_decimal test_datetime \
    test_calendar test_time test_weakref test_weakset test_gc test_class test_descr \
    test_dataclasses test_enum test_typing test_inspect test_ast test_grammar test_syntax \
    test_tokenize test_dis test_peepholer test_code test_compile test_exceptions test_traceback \
    test_contextlib test_context test_thread test_threading test_threading_local test_queue \
    test_asyncio test_subprocess test_select test_fork1 test_mmap \
    test_sqlite3 test_ctypes test_xml_etree test_xml_etree_c test_pyexpat test_minidom test_sax \
    test_html test_htmlparser test_email test_difflib test_textwrap test_format test_fstring \
    test_unicodedata test_ucn test_urlparse test_base64 test_binascii test_argparse test_getopt \
    test_logging test_unittest test_doctest test_cmath test_math test_builtin test_tracemalloc \
    test_faulthandler test_multiprocessing_fork";

fn run(stage: &Stage) -> Result<Evidence> {
    let modules = modules(stage.scale);
    ensure!(!modules.is_empty(), "the test suite has none of the modules");
    let output = suite(stage, &["-j2"], &modules)?;
    let states = states(&output);
    let passed: BTreeSet<&str> =
        states.iter().filter(|(_, ok)| *ok).map(|(module, _)| *module).collect();
    let mut failing = BTreeSet::new();
    let mut retried = 0;
    for module in modules.iter().filter(|module| !passed.contains(module.as_str())) {
        // Once more alone: a test that minds a busy machine is not the library's fault.
        retried += 1;
        failing
            .extend(failing_tests(module, &suite(stage, &["-v"], std::slice::from_ref(module))?));
    }
    let mut summary = format!("{} modules, {} tests failing", modules.len(), failing.len());
    if retried > 0 {
        summary.push_str(&format!(", {retried} modules run twice"));
    }
    Ok(Evidence::summary(summary)
        .fact("modules", modules.join(" "))
        .fact("failing tests", failing.into_iter().collect::<Vec<_>>().join(" ")))
}

/// The modules that this version of the suite has.
fn modules(scale: Scale) -> Vec<String> {
    let Some(folder) = find(SUITE).and_then(|file| Some(file.parent()?.to_owned())) else {
        return Vec::new();
    };
    let names = match scale {
        Scale::Quick => QUICK,
        Scale::Full => FULL,
    };
    names
        .split_whitespace()
        .filter(|name| folder.join(name).is_dir() || folder.join(format!("{name}.py")).is_file())
        .map(str::to_owned)
        .collect()
}

fn suite(stage: &Stage, options: &[&str], modules: &[String]) -> Result<String> {
    let finished = stage
        .process(INTERPRETER)?
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "1")
        .line("-m test --timeout 240")
        .args(options)
        .args(modules)
        .limit(stage.pick(240, 1200))
        .run()?;
    Ok(finished.text() + &finished.stderr)
}

/// Each finished module and whether that was a success, from lines such as
/// `0:00:01 load avg: 0.10 [ 9/132/1] test_list passed`.
fn states(output: &str) -> Vec<(&str, bool)> {
    let progress = output.lines().filter_map(|line| line.split_once("] ")?.1.split_once(' '));
    let modules = progress.filter(|(module, _)| module.starts_with("test_"));
    modules.map(|(module, state)| (module, is_success(state))).collect()
}

fn is_success(state: &str) -> bool {
    ["passed", "skipped", "run no tests", "ran no tests"].iter().any(|it| state.starts_with(it))
        || state.contains("env changed")
}

/// The tests that failed in a verbose run of one module; the module itself if it went down.
pub(crate) fn failing_tests(module: &str, output: &str) -> BTreeSet<String> {
    let tests: BTreeSet<String> = output
        .lines()
        .filter_map(|line| line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: ")))
        .filter_map(|line| line.split_whitespace().next())
        .map(|test| format!("{module}.{test}"))
        .collect();
    let came_through = output.lines().any(|line| line.starts_with("Result: SUCCESS"))
        || output.lines().any(|line| line.ends_with("Result: SUCCESS"));
    if tests.is_empty() && !came_through { BTreeSet::from([module.to_owned()]) } else { tests }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_progress_of_the_suite() {
        let output = "0:00:01 load avg: 0.10 [  8/132/1] test_int passed\n\
            0:00:39 load avg: 0.58 [ 77/132/2] test_parser failed (uncaught exception)\n\
            0:00:39 load avg: 0.58 [ 78/132/2] test_socket crashed (Exit code -11) -- running: x\n\
            0:00:40 load avg: 0.58 running: test_asyncio (30.0 sec), test_io (31.0 sec)\n";
        let expected = [("test_int", true), ("test_parser", false), ("test_socket", false)];
        assert_eq!(states(output), expected);
    }

    #[test]
    fn a_crash_is_a_failure_of_the_module() {
        let of = |output| failing_tests("test_io", output).into_iter().collect::<Vec<_>>();
        assert_eq!(of("ok\nTests result: SUCCESS\nResult: SUCCESS\n"), Vec::<String>::new());
        assert_eq!(of("Fatal Python error: Segmentation fault\n"), ["test_io"]);
        assert_eq!(of("FAIL: test_a (test.test_io.X)\n"), ["test_io.test_a"]);
    }
}
