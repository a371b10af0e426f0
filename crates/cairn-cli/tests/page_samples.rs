//! The heap map of a process with a heap profile tells how old blocks are, and which code has allocated them: of the span in
//! which they would be, of large blocks, of mappings; and without a profile how to get one.

#![cfg(target_arch = "x86_64")]

mod common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::browser::{Browser, Look};
use common::inspected::{Running, compiled, start};
use common::page::{NARROW, Page, WIDE, heap_page};
use common::{Home, core_file, display};
use flate2::read::ZlibDecoder;
use serde_json::Value;
use std::io::Read;

/// What there was at the start, 2 MB in small blocks and two large ones, and what came a second later.
const AGES: &[u8] = b"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define FAR __attribute__((noinline))
FAR void *early(void) { void *p = malloc(100); __asm__(\"\" ::: \"memory\"); return p; }
FAR void *large(void) { void *p = malloc(10 << 20); __asm__(\"\" ::: \"memory\"); return p; }
FAR void *mapped(void) { void *p = malloc(64 << 20); __asm__(\"\" ::: \"memory\"); return p; }
FAR void *late(void) { void *p = malloc(1000); __asm__(\"\" ::: \"memory\"); return p; }
int main(void)
{
    for (int i = 0; i < 20000; i++) memset(early(), 1, 100);
    memset(large(), 1, 6 << 20);
    memset(mapped(), 1, 32 << 20);
    sleep(1);
    for (int i = 0; i < 1000; i++) memset(late(), 1, 1000);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";

fn ages(home: &Home) -> Option<Running> {
    let program = compiled(home, AGES, &["-g", "-fno-omit-frame-pointer"])?;
    let file = home.path().join("profile");
    let options = ["--profile", display(&file), "--profile-rate", "4KiB"];
    Some(start(home.cairn().arg("run").args(options).arg(program)))
}

/// A sample of a page: its slice, the text of its stack, its age, and what it stands for.
struct Sample {
    slice: u32,
    stack: String,
    age: f32,
    bytes: f32,
}

fn samples(page: &Page) -> Vec<Sample> {
    let map = &page.data["map"]["samples"];
    let (mut bytes, packed) = (Vec::new(), STANDARD.decode(map["rows"].as_str().unwrap()).unwrap());
    ZlibDecoder::new(packed.as_slice()).read_to_end(&mut bytes).unwrap();
    let count = map["count"].as_u64().unwrap() as usize;
    assert_eq!(bytes.len(), 16 * count);
    let word = |column: usize, nth: usize| -> [u8; 4] {
        bytes[4 * (column * count + nth)..][..4].try_into().unwrap()
    };
    let sample = |nth: usize| Sample {
        slice: u32::from_le_bytes(word(0, nth)),
        stack: map["stacks"][u32::from_le_bytes(word(1, nth)) as usize].as_str().unwrap().into(),
        age: f32::from_le_bytes(word(2, nth)),
        bytes: f32::from_le_bytes(word(3, nth)),
    };
    (0..count).map(sample).collect()
}

/// The ages of a function's samples, the least and the most, and what they stand for together.
#[track_caller]
fn told(all: &[Sample], function: &str) -> (f32, f32, f32) {
    let of = || all.iter().filter(|sample| sample.stack.starts_with(function));
    assert!(of().count() > 0, "no {function}");
    let first = of().next().unwrap();
    assert!(
        first.stack.contains(" (program.c:") && first.stack.contains(" < main ("),
        "{function}"
    );
    let least = of().map(|sample| sample.age).fold(f32::MAX, f32::min);
    let most = of().map(|sample| sample.age).fold(0.0, f32::max);
    (least, most, of().map(|sample| sample.bytes).sum())
}

#[test]
fn samples_are_told_by_slice() {
    let home = Home::new();
    let Some(process) = ages(&home) else { return };
    let pid = process.0.id().to_string();
    let page = heap_page(&home, &pid);
    assert_eq!(page.data["map"]["samples"]["dated"], true);
    let all = samples(&page);
    assert!(all.windows(2).all(|pair| pair[0].slice <= pair[1].slice));
    let (early, late) = (told(&all, "early"), told(&all, "late"));
    assert!(early.0 >= 1.0 && early.0 > late.1 && early.1 < 1000.0, "{early:?} {late:?}");
    // 500 samples and 250: what they stand for is near what there is.
    assert!((1.6e6..2.4e6).contains(&early.2), "{early:?}");
    assert!((0.7e6..1.3e6).contains(&late.2), "{late:?}");
    assert_eq!(told(&all, "large").2, (10 << 20) as f32);
    assert_eq!(told(&all, "mapped").2, (64 << 20) as f32);
    // What samples of small blocks lie in is none of the biggest blocks.
    let output = home.cairn().args(["inspect", &pid, "--json"]).output().unwrap();
    let account: Value = serde_json::from_slice(&output.stdout).unwrap();
    let biggest = account["biggest"].as_array().unwrap().iter();
    let biggest: Vec<_> = biggest.map(|block| block["bytes"].as_u64().unwrap() >> 20).collect();
    assert_eq!(biggest, [64, 10]);
    let core = home.path().join("core");
    core_file::write(process.0.id(), &core);
    drop(process);
    let dead = heap_page(&home, display(&core));
    assert_eq!(dead.data["map"]["samples"]["dated"], false);
    let all = samples(&dead);
    assert!(all.iter().any(|sample| sample.age == 0.0), "the youngest");
    assert!(told(&all, "early").0 >= 1.0);
}

/// Points at the tile of which that is so, as `nth` in the page, and clicks at it, until something is told of such a thing.
#[track_caller]
fn click_at(browser: &mut Browser, is: &str, what: &str) {
    let place = browser.value(&format!(
        "(() => {{ const nth = tiles.kind.findIndex((kind, nth) => {is});
         const cell = Math.floor((tiles.starts[nth] - shown.from) / shown.grid.group);
         return [(cell % shown.grid.columns + 0.5) * shown.grid.cell / canvas.clientWidth,
                 (Math.floor(cell / shown.grid.columns) + 0.5) * shown.grid.cell / canvas.clientHeight]; }})()"
    ));
    let at = [0, 1].map(|nth| place[nth].as_f64().unwrap());
    browser.point("#map", at);
    browser.wait(&format!("document.querySelector('#tip').textContent.includes('{what}')"));
    browser.click("#map", at);
    browser.wait(&format!("document.querySelector('#detail').textContent.includes('{what}')"));
}

#[track_caller]
fn text_of(browser: &mut Browser, place: &str) -> String {
    let text = browser.value(&format!("document.querySelector('{place}').innerText"));
    text.as_str().unwrap().to_owned()
}

#[test]
fn a_tile_tells_ages_and_stacks() {
    let home = Home::new();
    let (Some(process), Some(mut browser)) = (ages(&home), Browser::start()) else { return };
    let page = heap_page(&home, &process.0.id().to_string());
    drop(process);
    for (look, name) in [
        (Look { is_dark: true, ..WIDE }, "samples-dark"),
        (NARROW, "samples-narrow-dark"),
        (Look { is_dark: false, ..NARROW }, "samples-narrow-light"),
        (WIDE, "samples-light"),
    ] {
        browser.open(&page.path, look);
        browser.wait("shown.grid !== null");
        click_at(&mut browser, "kind === LARGE && tiles.resident[nth] > 1000", "Large block");
        let told = text_of(&mut browser, "#detail");
        assert!(told.contains("a sample is ") && told.contains("by large (program.c:"), "{told}");
        click_at(&mut browser, "kind === MAPPING", "mapping of its own");
        let told = text_of(&mut browser, "#detail");
        assert!(told.contains("by mapped (program.c:"), "{told}");
        let class = "map.classes[kind - CLASSES]?.[0] === 112";
        let sampled = "firstSample(tiles.starts[nth]) < firstSample(tiles.starts[nth + 1])";
        click_at(&mut browser, &format!("{class} && {sampled}"), "Span of");
        let told = text_of(&mut browser, "#detail");
        assert!(told.contains(" old") && told.contains("by early (program.c:"), "{told}");
        assert!(text_of(&mut browser, "#tip").contains("by early (program.c:"));
        browser.picture(name);
        browser.assert_fits();
    }
    browser.assert_sound();
}

#[test]
fn without_a_profile_that_is_said() {
    let home = Home::new();
    let Some(program) = compiled(&home, AGES, &[]) else { return };
    let process = start(home.cairn().arg("run").arg(program));
    let page = heap_page(&home, &process.0.id().to_string());
    assert_eq!(page.data["map"]["samples"], Value::Null);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page.path, WIDE);
    browser.wait("shown.grid !== null");
    let about = text_of(&mut browser, "#samples-about");
    assert!(about.contains("cairn run --profile"), "{about}");
    browser.assert_sound();
}
