//! The drop-in for services of systemd: systemd takes each line, and a program with that environment
//! runs on cairn.

mod common;

use common::{VERSION, lacks, output_of, scratch, workspace};
use std::fs;
use std::path::Path;
use std::process::Command;

const DROP_IN: &str = "packages/systemd/cairn.conf";
const PREFIX: &str = "/usr/local";

#[test]
fn a_service_runs_on_cairn() {
    if lacks(Command::new("systemd-analyze").arg("--version"), "the package `systemd`") {
        return;
    }
    let (_folder, folder) = scratch();
    let (drop_ins, service) = (folder.join("sample.service.d"), folder.join("sample.service"));
    fs::create_dir(&drop_ins).unwrap();
    fs::write(&service, "[Service]\nExecStart=/bin/cat /proc/self/maps\n").unwrap();
    let drop_in = fs::read_to_string(workspace().join(DROP_IN)).unwrap();
    let complaints = |drop_in: &str| {
        fs::write(drop_ins.join("cairn.conf"), drop_in).unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(&service).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(complaints(&drop_in), "");
    // It does look at the file.
    assert!(complaints(&drop_in.replace("Environment", "Environmnt")).contains("cairn.conf:5"));

    let prefix = folder.join("prefix");
    install(&prefix);
    let mut program = Command::new("cat");
    program.arg("/proc/self/maps").arg("/proc/self/environ").env_clear();
    let set = drop_in.lines().filter_map(|line| line.strip_prefix("Environment=")?.split_once('='));
    for (name, value) in set {
        program.env(name, value.replace(PREFIX, prefix.to_str().unwrap()));
    }
    let maps = output_of(&mut program);
    assert!(maps.contains(&format!("{}/lib/libcairn.so.{VERSION}", prefix.display())), "{maps}");
    assert!(maps.contains("CAIRN_PURGE_THREAD=1"), "{maps}");
}

fn install(prefix: &Path) {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    output_of(xtask.args(["install", "--prefix"]).arg(prefix));
}
