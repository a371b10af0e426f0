//! `cairn profile --html` and `cairn inspect --html`: one file that holds everything, whatever names say; and in a browser it can
//! be looked at, clicked through, and read in any window.

mod common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::browser::{Browser, Look};
use common::inspected::{Running, compiled, start};
use common::page::{NARROW, Page, WIDE, heap_page, page};
use common::{Home, assert_refused, assert_succeeded, core_file, display, text};
use flate2::{Compression, write::ZlibEncoder};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

#[track_caller]
fn profile_page(home: &Home, arguments: &[&str]) -> Page {
    let mut command = home.cairn();
    let output = command.current_dir(home.path()).arg("profile").args(arguments).output().unwrap();
    assert_succeeded(&output);
    assert_eq!(text(&output.stdout), "");
    page(home.path().join("out.html"))
}

/// What programs keep: the second one more of some, and less of other things.
const KEEPS: &str = "
#include <stdlib.h>
#define FAR __attribute__((noinline))
static void *kept[40000];
FAR void *keep_small(void) { void *p = malloc(100); __asm__(\"\" ::: \"memory\"); return p; }
FAR void *keep_large(void) { void *p = malloc(3000); __asm__(\"\" ::: \"memory\"); return p; }
FAR void serve(int i) { kept[i] = i % SHARE ? keep_small() : keep_large(); __asm__(\"\" ::: \"memory\"); }
int main(void) { for (int i = 0; i < 40000; i++) serve(i); return 0; }
";

/// The profiles of both, where stacks can be followed.
fn profiles(home: &Home) -> Option<[PathBuf; 2]> {
    if !cfg!(target_arch = "x86_64") {
        common::skipped("stacks end early here");
        return None;
    }
    let source = home.file("keeps.c", 0o644, KEEPS.as_bytes());
    let profile = |name: &str, share: &str| {
        // Each has a file of its own, in which names are found later.
        let (program, profile) = (home.path().join(share), home.path().join(name));
        let mut cc = Command::new("cc");
        cc.args(["-g", "-O1", "-fno-builtin", "-fno-omit-frame-pointer", share, "-o"]);
        let compiled = cc.arg(&program).arg(&source).status();
        if !compiled.is_ok_and(|status| status.success()) {
            common::skipped("no C compiler that can");
            return None;
        }
        let options = ["--profile", display(&profile), "--profile-rate", "4KiB", "--"];
        assert_succeeded(&home.run(&[&options[..], &[display(&program)]].concat()));
        Some(profile)
    };
    Some([profile("old", "-DSHARE=10")?, profile("new", "-DSHARE=2")?])
}

/// A program with survivors among free blocks, and blocks of its own.
const HEAP: &[u8] = b"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *blocks[100000];
static void *work(void *arg)
{
    for (int i = 0; i < 300; i++) memset(malloc(1000), 1, 1000);
    pthread_barrier_wait(arg);
    pause();
    return 0;
}
int main(void)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, 0, 3);
    for (int i = 0; i < 100000; i++) memset(blocks[i] = malloc(100), 1, 100);
    for (int i = 0; i < 100000; i++) if (i % 40) free(blocks[i]);
    memset(malloc(10 << 20), 1, 6 << 20);
    memset(malloc(64 << 20), 1, 32 << 20);
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, work, &barrier);
    pthread_barrier_wait(&barrier);
    puts(\"ready\");
    fflush(stdout);
    pause();
}
";

fn heap(home: &Home) -> Option<Running> {
    Some(start(home.cairn().arg("run").arg(compiled(home, HEAP, &[])?)))
}

#[test]
fn a_profile_is_all_in_its_page() {
    let home = Home::new();
    let Some([old, new]) = profiles(&home) else { return };
    let page = profile_page(&home, &[display(&new), "--html", "out.html"]);
    let names = page.data["texts"].as_array().unwrap();
    for name in ["keep_small", "keep_large", "serve", "main"] {
        assert!(names.contains(&json!(name)), "{name}");
    }
    assert_eq!(page.data["views"][page.data["first"].as_u64().unwrap() as usize], "live");
    assert_eq!(
        page.data["stacks"].as_array().unwrap().len(),
        page.data["now"][0].as_array().unwrap().len()
    );
    assert!(page.data["old"].is_null());
    let both =
        [display(&new), "--html", "out.html", "--compare", display(&old), "--view", "allocated"];
    let page = profile_page(&home, &both);
    assert_eq!(page.data["views"][page.data["first"].as_u64().unwrap() as usize], "allocated");
    let stacks = page.data["stacks"].as_array().unwrap().len();
    assert_eq!(page.data["old"][0].as_array().unwrap().len(), stacks);
    // What is read is not written over, nor looked for where nobody has asked.
    for arguments in
        [["new", "--html", "new", "--compare", "old"], ["new", "--html", "old", "--compare", "old"]]
    {
        let mut command = home.cairn();
        let output =
            command.current_dir(home.path()).arg("profile").args(arguments).output().unwrap();
        assert_refused(&output, 125, &["is what is read itself"]);
    }
    let alone = home.cairn().args(["profile", "new", "--compare", "old"]).output().unwrap();
    assert_eq!(alone.status.code(), Some(125));
}

/// Names and numbers that somebody has made up.
#[test]
fn no_name_gets_out_of_the_data() {
    let home = Home::new();
    let hostile = "</script><script>document.title='no'</script><img src=x onerror=alert(1)>\u{2028}\"'&amp;<!--";
    let max = u64::MAX;
    let lines = format!(
        "cairn heap profile 1\nrate {max}\ndropped {max}\nsite 16 1 5 80 0 0 1001 2001\n\
         site {max} 1 {max} {max} 0 0 1001\nsite 1 {max} {max} {max} 0 0 7\nsite 16 1 0 0 {max} {max}\nmappings\n\
         1000-2000 r-xp 00000000 00:00 0 /tmp/{hostile}\n2000-3000 r-xp 00000000 00:00 0 {hostile}\nend\n"
    );
    let file = home.file(&hostile.replace('/', "|"), 0o644, lines.as_bytes());
    let page =
        profile_page(&home, &[display(&file), "--html", "out.html", "--compare", display(&file)]);
    assert_eq!(page.rest.matches("<script").count(), 2);
    assert!(page.data["texts"].to_string().contains("onerror"), "{}", page.data);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page.path, WIDE);
    assert_eq!(browser.value("document.images.length + document.scripts.length"), 2);
    assert!(browser.value("document.title").as_str().unwrap().starts_with("cairn: "));
    browser.assert_sound();
    browser.assert_fits();
}

#[test]
fn a_profile_of_nothing_is_a_page() {
    let home = Home::new();
    let file = home.file("heap", 0o644, b"cairn heap profile 1\nmappings\nend\n");
    let page = profile_page(&home, &[display(&file), "--html", "out.html"]);
    assert_eq!(page.data["views"], json!(["live"]));
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page.path, NARROW);
    browser.assert_sound();
}

#[test]
fn the_flame_graph_is_clicked_through() {
    let home = Home::new();
    let (Some([_, new]), Some(mut browser)) = (profiles(&home), Browser::start()) else { return };
    let page = profile_page(&home, &[display(&new), "--html", "out.html"]);
    browser.open(&page.path, WIDE);
    browser.picture("profile-light");
    browser.assert_fits();
    // It is drawn: there is more than one colour.
    let colours = "new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size";
    assert!(browser.value(colours).as_u64().unwrap() > 5);
    let row = |browser: &mut Browser, name: &str| {
        let script = format!("state.boxes.find(([at]) => at.name === '{name}').slice(1)
            .concat(state.boxes.find(([at]) => at.name === '{name}')[0].depth, canvas.clientHeight)");
        let found = browser.value(&script);
        let [left, width, depth, height] = [0, 1, 2, 3].map(|nth| found[nth].as_f64().unwrap());
        [left + width / 2.0, (depth + 0.5) * 18.0 / height]
    };
    let at = row(&mut browser, "keep_large");
    browser.point("#flames", at);
    browser.wait("!document.querySelector('#tip').hidden");
    let tip = text(
        browser.value("document.querySelector('#tip').textContent").as_str().unwrap().as_bytes(),
    );
    assert!(
        tip.starts_with("keep_large") && tip.contains("keeps.c") && tip.contains("% of serve"),
        "{tip}"
    );
    browser.click("#flames", at);
    browser.wait("state.zoom.name === 'keep_large' && !document.querySelector('#out').disabled");
    browser.click("#out", [0.5, 0.5]);
    browser.wait("state.zoom.name === 'serve'");
    browser.click("#whole", [0.5, 0.5]);
    browser.wait("state.zoom === state.root");
    // By keys: down to the first function, in, and out again.
    browser.value("canvas.focus()");
    for key in ["ArrowDown", "ArrowDown", "ArrowUp", "Enter"] {
        browser.press(key);
    }
    browser.wait("state.zoom.depth === 1");
    browser.press("Escape");
    browser.wait("state.zoom === state.root");
    browser.value("document.querySelector('#search').focus()");
    browser.write("KEEP_S");
    browser.wait(
        "/^[0-9.]+ [KM]iB, [0-9.]+ %, match$/.test(document.querySelector('#share').textContent)",
    );
    browser.picture("profile-search");
    browser.click("#inverted", [0.5, 0.5]);
    browser.wait("[...state.root.kids.keys()].some((name) => name.startsWith('keep_'))");
    browser.click("#views input[value='1']", [0.5, 0.5]);
    browser.wait("data.views[state.view] === 'allocated'");
    browser.value("document.querySelector('#unit').value = 1, document.querySelector('#unit').onchange({target: document.querySelector('#unit')})");
    browser.wait("document.querySelector('#detail').textContent.includes('blocks')");
    browser.click("#sites button", [0.1, 0.5]);
    browser.wait("state.zoom !== state.root");
    browser.assert_sound();
}

#[test]
fn what_has_changed_is_told() {
    let home = Home::new();
    let (Some([old, new]), Some(mut browser)) = (profiles(&home), Browser::start()) else { return };
    let both = [display(&new), "--html", "out.html", "--compare", display(&old)];
    let page = profile_page(&home, &both);
    browser.open(&page.path, NARROW);
    browser.picture("profile-change-narrow-dark");
    browser.assert_fits();
    let change = browser.value("(() => { const of = (name) => sites(0).find((site) => innermost(site.stack, 1)[0][0] === name); \
                                return ['keep_small', 'keep_large'].map((name) => Math.sign(of(name).now[0] - of(name).old[0])); })()");
    assert_eq!(change, json!([-1, 1]));
    browser.assert_sound();
}

/// 10,000 frames are drawn at once.
#[test]
fn many_frames_are_drawn() {
    let home = Home::new();
    let mut lines = "cairn heap profile 1\nrate 1\n".to_owned();
    for nth in 0..100 {
        let calls: Vec<_> = (0..100).map(|depth| format!("{:x}", 100 * depth + nth + 1)).collect();
        lines += &format!("site 4096 1 1 4096 0 0 {}\n", calls.join(" "));
    }
    let file = home.file("heap", 0o644, (lines + "mappings\nend\n").as_bytes());
    let page = profile_page(&home, &[display(&file), "--html", "out.html"]);
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&page.path, WIDE);
    assert_eq!(browser.value("state.boxes.length"), 1 + 100 * 100);
    let took = browser.value(
        "(() => { const begin = performance.now(); draw(); return performance.now() - begin; })()",
    );
    println!("10,000 frames drawn in {took} ms");
    assert!(took.as_f64().unwrap() < 2000.0, "{took} ms");
}

#[test]
fn an_account_is_all_in_its_page() {
    let home = Home::new();
    let Some(process) = heap(&home) else { return };
    let alive = heap_page(&home, &process.0.id().to_string());
    let map = &alive.data["map"];
    assert!(map["count"].as_u64().unwrap() > 100 && map["mappings"].as_array().unwrap().len() <= 1);
    let core = home.path().join("core");
    core_file::write(process.0.id(), &core);
    drop(process);
    let dead = heap_page(&home, display(&core));
    for name in ["classes", "holders", "mappings", "base"] {
        assert_eq!(map[name], dead.data["map"][name], "{name}");
    }
    let over =
        home.cairn().args(["inspect", display(&core), "--html", display(&core)]).output().unwrap();
    assert_refused(&over, 125, &["is what is read itself"]);
}

#[test]
fn the_heap_map_is_clicked_through() {
    let home = Home::new();
    let (Some(process), Some(mut browser)) = (heap(&home), Browser::start()) else { return };
    let page = heap_page(&home, &process.0.id().to_string());
    drop(process);
    browser.open(&page.path, WIDE);
    browser.wait("shown.grid !== null");
    browser.picture("heap-light");
    browser.assert_fits();
    // What tiles say is what the account says.
    let sums = browser.value(
        "account.classes.map((row) => { const kind = CLASSES + map.classes.findIndex(([size]) => size === row.size); let [spans, used] = [0, 0];
         tiles.kind.forEach((of, nth) => { if (of === kind) { spans++; used += tiles.used[nth]; } }); return [spans, used]; })",
    );
    for (sum, row) in
        sums.as_array().unwrap().iter().zip(page.data["account"]["classes"].as_array().unwrap())
    {
        assert_eq!(*sum, json!([row["spans"], row["in_use"]]));
    }
    browser.point("#map", [0.01, 0.01]);
    browser.wait("document.querySelector('#tip').textContent.includes('blocks in use')");
    browser.click("#map", [0.01, 0.01]);
    browser.wait("document.querySelector('#detail').textContent.includes('Span of blocks of')");
    browser.click("#in", [0.5, 0.5]);
    browser.wait("shown.before.length === 1 && !document.querySelector('#out').disabled");
    browser.value("canvas.focus()");
    for key in ["ArrowRight", "ArrowDown", "Enter"] {
        browser.press(key);
    }
    browser.wait("document.querySelector('#detail').textContent !== ''");
    browser.press("Escape");
    browser.wait("shown.before.length === 0");
    browser.click("#classes button", [0.5, 0.5]);
    browser.wait("shown.kind !== null && document.querySelector('#only-class').value !== ''");
    browser.picture("heap-class");
    browser.open(&page.path, NARROW);
    browser.picture("heap-narrow-dark");
    browser.assert_fits();
    browser.assert_sound();
}

/// A minute in which the program holds more and more, with a burst in the midst of it.
fn minute() -> Value {
    let moment = |nth: u64| {
        let (live, burst) = (nth << 18, if (90..120).contains(&nth) { 40 << 20 } else { 0 });
        json!({"seconds": nth as f64 / 5.0, "live": live + burst, "cached": (nth % 7) << 18, "resident": live + (60 << 20)})
    };
    (0..=300).map(moment).collect()
}

#[test]
fn a_curve_is_drawn_and_pointed_at() {
    let home = Home::new();
    let (Some(process), Some(mut browser)) = (heap(&home), Browser::start()) else { return };
    let page = heap_page(&home, &process.0.id().to_string());
    drop(process);
    assert_eq!(page.data["account"]["curve"], json!([]));
    browser.open(&page.path, WIDE);
    assert_eq!(browser.value("document.querySelector('#curve-section').hidden"), true);
    let mut data = page.data.clone();
    data["account"]["curve"] = minute();
    let page = page.with(data);
    for (look, name) in [
        (WIDE, "curve-light"),
        (Look { is_dark: true, ..WIDE }, "curve-dark"),
        (NARROW, "curve-narrow-dark"),
        (Look { is_dark: false, ..NARROW }, "curve-narrow-light"),
    ] {
        browser.open(&page.path, look);
        browser.wait("shown.grid !== null && document.querySelector('#curve').height === 220");
        browser.picture(name);
        browser.assert_fits();
    }
    browser.point("#curve", [0.5, 0.5]);
    browser.wait("document.querySelector('#tip').textContent.startsWith('after ')");
    assert_eq!(browser.value("document.querySelectorAll('#curves li').length"), 3);
    browser.assert_sound();
}

/// 50 GiB in spans of a slice each: what a map says of them.
fn fifty_gib() -> Value {
    let count = (50_u64 << 30) / (16 << 10);
    let mut bytes = Vec::new();
    let random = |nth: u64| nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    for column in [|_| 1, |random: u64| (random % 5) as u32] {
        (0..count).for_each(|nth| bytes.extend(column(random(nth)).to_le_bytes()));
    }
    for column in
        [|random: u64| 4 + (random % 40) as u16, |_| 1, |random| (random % 140) as u16, |_| 0]
    {
        (0..count).for_each(|nth| bytes.extend(column(random(nth)).to_le_bytes()));
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&bytes).unwrap();
    let classes: Vec<_> = (1..=40).map(|nth| json!([nth * 112, 140])).collect();
    json!({
        "slice": 16 << 10, "page": 4096, "base": "7f0000000000", "classes": classes, "holders": [0], "mappings": [],
        "count": count, "left_out": 0, "tiles": STANDARD.encode(encoder.finish().unwrap()),
    })
}

#[test]
fn a_heap_of_fifty_gib_is_drawn() {
    let home = Home::new();
    let (Some(process), Some(mut browser)) = (heap(&home), Browser::start()) else { return };
    let page = heap_page(&home, &process.0.id().to_string());
    drop(process);
    let mut data = page.data.clone();
    data["map"] = fifty_gib();
    let page = page.with(data);
    let begin = Instant::now();
    browser.open(&page.path, WIDE);
    browser.wait("shown.grid !== null");
    let megabytes = fs::metadata(&page.path).unwrap().len() >> 20;
    println!("a page of {megabytes} MiB is there after {:?}", begin.elapsed());
    let took = browser.value(
        "(() => { const begin = performance.now(); draw(); return performance.now() - begin; })()",
    );
    println!("drawn again in {took} ms");
    assert!(took.as_f64().unwrap() < 2000.0, "{took} ms");
    browser.picture("heap-50-gib");
    browser.click("#map", [0.5, 0.5]);
    browser.wait("shown.before.length === 1");
    browser.assert_sound();
}
