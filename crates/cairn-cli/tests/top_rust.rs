//! `cairn top` and `cairn inspect` of a Rust program whose allocator is cairn: this test itself.

mod common;

use common::inspected::{account, assert_near, number};
use common::{Home, assert_succeeded};
use serde_json::Value;

#[global_allocator]
static CAIRN: cairn::Cairn = cairn::Cairn;

#[test]
fn a_rust_program_is_seen() {
    let home = Home::new();
    let blocks: Vec<_> = (0..20_000).map(|_| vec![1_u8; 1000]).collect();
    let pid = std::process::id().to_string();
    let output = home.cairn().args(["top", "--once", "--json", &pid]).output().unwrap();
    assert_succeeded(&output);
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    let live = number(&seen["processes"][0]["heap"]["live"]);
    assert!(live > 20_000 << 10, "{seen}");
    assert_near(number(&account(&home, &pid)["held"]["bytes"]), live, 5);
    drop(blocks);
}
