//! cairn.hpp.

mod common;

use common::{Loading, include_dir, lacks, passes_in, skip_for_stand_in};
use std::io::Write;
use std::process::{Command, Stdio};

const LINKED: [Loading; 2] = [Loading::Linked, Loading::Static];

fn heaps_pass(case: &str) {
    if !skip_for_stand_in() {
        passes_in(&LINKED, "cxx_heaps.cpp", &[case]);
    }
}

#[test]
fn containers_lie_in_their_heap() {
    heaps_pass("containers");
}

#[test]
fn what_fails_leaves_nothing() {
    heaps_pass("failures");
}

#[test]
fn pointers_end_what_they_own() {
    heaps_pass("owners");
}

#[test]
fn threads_share_a_heap() {
    heaps_pass("threads");
}

#[test]
fn memory_resources_give_back() {
    heaps_pass("resources");
}

/// A program that uses what each standard has.
const PROGRAM: &str = r"
#include <cairn.hpp>
#include <string>
#include <vector>
struct base { int number; };
int main()
{
    cairn::heap heap;
    cairn::shared_heap shared;
    std::vector<int, cairn::heap_allocator<int>> numbers(heap);
    std::vector<int, cairn::monotonic_allocator<int>> kept(shared);
    std::vector<int, cairn::allocator<int>> plain;
    numbers.push_back(1), kept.push_back(1), plain.push_back(1);
    auto object = cairn::make_unique<base>(heap);
#if defined(__cpp_lib_memory_resource)
    cairn::heap_resource resource(heap);
    std::pmr::vector<int> more(3, &resource), others(3, cairn::memory_resource());
#endif
#if __cpp_lib_allocate_at_least >= 202302L
    cairn::heap_allocator<int> allocator(heap);
    auto some = allocator.allocate_at_least(10);
    allocator.deallocate(some.ptr, some.count);
#endif
    return object == nullptr;
}
";

/// What the guide shows compiles.
#[test]
fn the_guide_is_right() {
    let page = include_str!("../../../docs/guide/cpp.md");
    let excerpt = page.split("```cpp\n").nth(1).and_then(|rest| rest.split("```").next());
    let program = format!(
        "#include <cairn.hpp>\n#include <string>\n#include <unordered_map>\n#include <vector>\nint main()\n{{\n{}\
         return object->empty() || numbers.size() + counts.size() > 0;\n}}\n",
        excerpt.expect("an excerpt")
    );
    let (done, said) = compiles("g++", "17", &[], &program).expect("a C++ compiler");
    assert!(done, "{said}");
}

/// Whether a program compiles without a warning, and what the compiler says; None if there is no such compiler.
fn compiles(
    compiler: &str,
    standard: &str,
    more: &[&str],
    program: &str,
) -> Option<(bool, String)> {
    let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-fsyntax-only"];
    let mut command = Command::new(compiler);
    command.arg(format!("-std=c++{standard}")).args(more).args(strict).args(["-x", "c++", "-"]);
    command.arg("-I").arg(include_dir()).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    child.stdin.take()?.write_all(program.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Every standard that a compiler has, without a warning, and without exceptions or run-time types.
#[test]
fn it_is_plain_in_each_standard() {
    for compiler in ["g++", "clang++"] {
        if lacks(compiler, if compiler == "g++" { "g++" } else { "clang" }) {
            continue;
        }
        let has =
            |standard: &&str| compiles(compiler, standard, &[], "").is_some_and(|done| done.0);
        let mut tried = 0;
        for standard in ["11", "14", "17", "20", "23", "26"].into_iter().filter(|at| has(at)) {
            // Each as it is, and every second one bare, too.
            tried += 1;
            let bare = &["-fno-exceptions", "-fno-rtti"][..];
            let ways = [&[][..], bare];
            for more in ways.into_iter().take(1 + (tried + 1) % 2) {
                let (done, said) =
                    compiles(compiler, standard, more, PROGRAM).expect("it is there");
                assert!(done, "{compiler} {standard} {more:?}: {said}");
            }
        }
        assert!(tried >= 3, "{compiler}: {tried}");
    }
}
