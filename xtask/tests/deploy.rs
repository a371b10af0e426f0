//! The drop-in for services of systemd, and the lines for containers: the program runs on cairn.

mod common;

use common::{VERSION, lacks, output_of, scratch, skipped, workspace};
use std::fs;
use std::os::unix::fs::MetadataExt;
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
    output_of(xtask(&["install", "--prefix"]).arg(&prefix));
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

fn xtask(words: &[&str]) -> Command {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args(words);
    xtask
}

/// The lines of the guide, in an image that has this machine's C library and two programs.
#[test]
fn a_container_runs_on_cairn() {
    if lacks(Command::new("buildah").arg("--version"), "the package `buildah`") {
        return;
    }
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skipped("only root can build an image without a namespace of its own");
    }
    let (_folder, folder) = scratch();
    output_of(xtask(&["dist", "--out"]).arg(&folder));
    for program in ["/bin/cat", "/bin/sh"] {
        let needs = output_of(Command::new("ldd").arg(program));
        let needs = needs.split_whitespace().filter(|word| word.starts_with('/'));
        for file in needs.chain([program]) {
            let copy = folder.join("root").join(&file[1..]);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(file, copy).unwrap();
        }
    }
    let guide = fs::read_to_string(workspace().join("docs/guide/install.md")).unwrap();
    let lines = guide.split("```dockerfile\n").nth(1).unwrap().split("```").next().unwrap();
    let image = format!("FROM scratch\nCOPY root /\n{lines}RUN cat /proc/self/maps\n");
    fs::write(folder.join("Containerfile"), image).unwrap();
    let mut build = Command::new("buildah");
    for (option, place) in [("--root", "storage"), ("--runroot", "run")] {
        build.arg(option).arg(folder.join(place));
    }
    build.args(["--storage-driver", "vfs", "build", "--isolation", "chroot"]).arg(&folder);
    let said = output_of(&mut build);
    assert!(said.contains(&format!("/lib/libcairn.so.{VERSION}\n")), "{said}");
}
