//! What `cairn run` is given: programs that cannot be found or run, those that the library cannot get
//! into, and scripts.

mod common;

use common::{
    Home, NOBODY, assert_refused, assert_succeeded, display, is_root, lacks, skipped, text,
};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Offset and width of `e_machine` in an ELF header.
const E_MACHINE: std::ops::Range<usize> = 18..20;

// Programs that cannot be found or run.

#[test]
fn missing_programs() {
    let home = Home::new();
    assert_refused(&home.run(&["cairn-test-nope"]), 127, &["cairn-test-nope: not found in PATH"]);
    assert_refused(&home.run(&["./cairn-test-nope"]), 127, &["./cairn-test-nope: no such file"]);
    assert_refused(&home.run(&["/bin/sh/nope"]), 127, &["/bin/sh/nope: no such file"]);
    assert_refused(&home.run(&[""]), 127, &["not found in PATH"]);
}

#[test]
fn files_that_are_not_programs() {
    let home = Home::new();
    let text_file = home.file("text", 0o644, b"hello\n");
    let bytes = home.file("bytes", 0o755, b"\x01\x02\x00\x03");
    let cut_off = home.file("cut-off", 0o755, b"\x7fELF\x02\x01\x01");
    assert_refused(&home.run(&[&home.path()]), 126, &[": is a directory"]);
    assert_refused(&home.run(&[text_file]), 126, &["/text: not executable"]);
    assert_refused(&home.run(&[bytes]), 126, &["neither an ELF program nor a script"]);
    assert_refused(&home.run(&[cut_off]), 126, &["damaged ELF file"]);
}

#[test]
fn the_search_in_path_is_that_of_execvp() {
    let home = Home::new();
    let script = |text: &str| format!("#!/bin/sh\necho {text}\n").into_bytes();
    for directory in ["first", "second"] {
        fs::create_dir(home.path().join(directory)).unwrap();
    }
    home.file("first/tool", 0o644, &script("not executable"));
    home.file("second/tool", 0o755, &script("second"));
    home.file("here", 0o755, &script("here"));
    let run = |path: &str, name: &str| {
        let mut command = home.cairn();
        command.current_dir(home.path()).env("PATH", path).args(["run", name]).output().unwrap()
    };
    assert_eq!(text(&run("absent:first:second", "tool").stdout), "second\n");
    assert_refused(&run("absent:first", "tool"), 126, &["first/tool: not executable"]);
    assert_eq!(text(&run("absent:", "here").stdout), "here\n");
    assert_refused(&run("absent", "here"), 127, &["here: not found in PATH"]);

    let mut command = home.cairn();
    assert_succeeded(&command.env_remove("PATH").args(["run", "sh", "-c", ":"]).output().unwrap());
}

// Programs that the library cannot get into.

#[test]
fn static_programs() {
    let home = Home::new();
    let mut tested = 0;
    for flag in ["-static", "-static-pie"] {
        let Some(program) = home.c_program(&[flag]) else { continue };
        let output = home.run(&[program]);
        assert_refused(&output, 126, &["statically linked", "link libcairn.a"]);
        tested += 1;
    }
    if tested == 0 {
        skipped("no C compiler here links statically");
    }
}

#[test]
fn programs_of_other_architectures() {
    let home = Home::new();
    let native = fs::read("/bin/sh").unwrap();

    let mut other = native.clone();
    let (machine, name) =
        if cfg!(target_arch = "aarch64") { (62_u16, "x86-64") } else { (183, "aarch64") };
    other[E_MACHINE].copy_from_slice(&machine.to_le_bytes());
    let other = home.file("other", 0o755, &other);
    let expected = format!("built for {name}, but this cairn is for ");
    assert_refused(&home.run(&[other]), 126, &[&expected]);

    let mut narrow = native;
    narrow[4] = 1; // ELFCLASS32
    let narrow = home.file("narrow", 0o755, &narrow);
    assert_refused(&home.run(&[narrow]), 126, &["32-bit, but this cairn is for "]);
}

#[test]
fn programs_with_another_loader() {
    let home = Home::new();
    let build = |loader: &str| home.c_program(&[&format!("-Wl,--dynamic-linker={loader}")]);
    let Some(program) = build("/lib/ld-musl-x86_64.so.1") else {
        return skipped("no C compiler here");
    };
    let output = home.run(&[program]);
    assert_refused(&output, 126, &["its loader is /lib/ld-musl-x86_64.so.1", "one of glibc"]);

    let program = build("/absent/ld-linux-x86-64.so.2").unwrap();
    assert_refused(&home.run(&[program]), 126, &["/absent/ld-linux-x86-64.so.2 does not exist"]);
}

#[test]
fn the_loader_itself_is_a_program() {
    let Ok(loader) = fs::canonicalize("/lib64/ld-linux-x86-64.so.2") else {
        return skipped("no loader of x86-64 here");
    };
    let output = Home::new().run(&[&loader, Path::new("/bin/sh"), Path::new("-c")]);
    assert!(!text(&output.stderr).starts_with("cairn: "), "{}", text(&output.stderr));
}

#[test]
fn set_id_programs() {
    let home = Home::new();
    let program = home.copy_of("/bin/true");
    let mount = rustix::fs::statvfs(&program).unwrap();
    if !is_root() || mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        return skipped("only root can give a file to another user, and not on nosuid");
    }
    for (user, group, mode) in [(NOBODY, 0, 0o4755), (0, NOBODY, 0o2755)] {
        chown(&program, Some(user), Some(group)).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        assert_refused(&home.run(&[&program]), 126, &["set-uid or set-gid", "ignores preloaded"]);
    }

    // Of the user's own: nothing is gained, the loader does not mind.
    chown(&program, Some(0), Some(0)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    assert_succeeded(&home.run(&[&program]));

    // For others it is set-uid, whether they may read it or not.
    fs::set_permissions(&program, Permissions::from_mode(0o4711)).unwrap();
    assert_refused(&home.run_as_nobody(&program), 126, &["set-uid or set-gid"]);
}

#[test]
fn programs_with_file_capabilities() {
    let home = Home::new();
    let program = home.copy_of("/bin/true");
    if !is_root() {
        return skipped("only root can give a file capabilities");
    }
    if lacks("setcap", "libcap2-bin") {
        return;
    }
    if !Command::new("setcap").arg("cap_net_raw=ep").arg(&program).status().unwrap().success() {
        return skipped("this file system has no capabilities");
    }
    assert_succeeded(&home.run(&[&program]));

    let output = home.run_as_nobody(&program);
    assert_refused(&output, 126, &["has file capabilities", "ignores preloaded"]);
}

// Scripts.

#[test]
fn scripts_run() {
    let home = Home::new();
    let script = |name: &str, text: &str| home.file(name, 0o755, text.as_bytes());
    let body = "\nprintf '%s|' \"$@\"; echo $LD_PRELOAD\n";
    let preloaded = home.preloaded(&home.library());
    for (name, first_line) in [
        ("direct", "#!/bin/sh"),
        ("blanks", "#! /bin/sh -e "),
        ("env", "#!/usr/bin/env sh"),
        ("split", "#!/usr/bin/env -S sh -e"),
        ("set", "#!/usr/bin/env -S FOO=bar sh -e"),
        ("bare", ""),
    ] {
        let script = script(name, &format!("{first_line}{body}"));
        let output = home.run(&[script.to_str().unwrap(), "a b", "c"]);
        assert_eq!(text(&output.stdout), format!("a b|c|{preloaded}\n"), "{name}");
        assert_eq!(text(&output.stderr), "", "{name}");
    }
}

#[test]
fn scripts_know_their_names() {
    let home = Home::new();
    for first_line in ["#!/bin/sh", "#!/usr/bin/env sh", ""] {
        let script = home.file("named", 0o755, format!("{first_line}\necho $0\n").as_bytes());
        assert_eq!(text(&home.run(&[&script]).stdout), format!("{}\n", display(&script)));
    }
}

/// With an env in between, that would be the program, and with `--no-inherit` the only one.
#[test]
fn env_is_not_started() {
    let home = Home::new();
    let env = home.file("env", 0o755, &fs::read("/bin/false").unwrap());
    let inner = format!("#!{} -S sh -e\necho $*\n", display(&env));
    let inner = home.file("inner", 0o755, inner.as_bytes());
    let outer = format!("#!{} {}\n", display(&env), display(&inner));
    let outer = home.file("outer", 0o755, outer.as_bytes());
    let output = home.run(&[display(&outer), "x"]);
    assert_eq!(text(&output.stdout), format!("{} x\n", display(&outer)));
}

#[test]
fn the_interpreters_of_scripts_are_checked() {
    let home = Home::new();
    let bytes = home.file("bytes", 0o755, b"\x01\x02\x00\x03");
    let script = |name: &str, interpreter: &str| {
        home.file(name, 0o755, format!("#!{interpreter}\n").as_bytes())
    };

    let missing = script("missing", "/absent/python");
    let parts = ["/missing: its interpreter /absent/python: no such file"];
    assert_refused(&home.run(&[missing]), 126, &parts);

    let missing = script("missing", "/usr/bin/env cairn-test-nope");
    let parts = ["/missing: its interpreter cairn-test-nope: not found in PATH"];
    assert_refused(&home.run(&[missing]), 126, &parts);

    let windows = script("windows", "/bin/sh\r");
    let parts = [r"/windows: its interpreter /bin/sh\r: no such file"];
    assert_refused(&home.run(&[windows]), 126, &parts);

    let unfit = script("unfit", display(&bytes));
    let unfit = script("nested", display(&unfit));
    let parts = ["/nested: its interpreter ", "/bytes: neither an ELF program nor a script"];
    assert_refused(&home.run(&[unfit]), 126, &parts);

    let endless = home.path().join("endless");
    script("endless", display(&endless));
    assert_refused(&home.run(&[endless]), 126, &["each other's interpreters"]);

    assert_refused(&home.run(&[script("nothing", "")]), 126, &["neither an ELF program nor"]);
}
