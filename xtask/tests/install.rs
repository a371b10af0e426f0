//! Installs cairn and the packages into scratch folders, builds programs with what is there, and
//! takes it away again. What needs a program that is not here is skipped with a line.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// `cargo xtask uninstall` finds what was installed by it.
const MANIFEST: &str = concat!("share/cairn/manifests/", env!("CARGO_PKG_VERSION"));

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples")
}

/// A folder for one test, without symbolic links in its path.
fn scratch() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn command<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    // Only what is asked for decides what is found.
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "PKG_CONFIG_PATH", "CFLAGS", "LDFLAGS"] {
        command.env_remove(name);
    }
    command
}

/// What a command writes, which must end well.
#[track_caller]
fn output_of(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

#[track_caller]
fn says_version(program: &Path) {
    assert_eq!(output_of(command::<&str>(program, &[])), format!("{VERSION}\n"));
}

fn xtask<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_xtask"), arguments);
    // The tests' cargo may have others in mind for itself.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    command
}

/// Asserts that a command fails, and says so in one line.
#[track_caller]
fn fails_with(mut command: Command, parts: &[&str]) {
    let Output { status, stderr, .. } = command.output().unwrap();
    let message = String::from_utf8(stderr).unwrap();
    assert!(!status.success() && message.lines().count() == 1, "{status}: {message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

/// Whether to go on without this program of a package of Debian. A panic if `CAIRN_TEST_ALL`
/// demands it.
fn lacks(program: &str, package: &str) -> bool {
    if Command::new(program).arg("--version").output().is_ok() {
        return false;
    }
    let why = format!("no {program}; install the package `{package}`");
    assert!(std::env::var_os("CAIRN_TEST_ALL").is_none(), "CAIRN_TEST_ALL is set, but {why}");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not `eprintln!`, which the harness keeps to itself if the test passes.
    let _ = std::io::stderr().write_all(format!("skipped {name}: {why}\n").as_bytes());
    true
}

/// All paths below a folder, and what they are.
fn tree(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is = match fs::read_link(&path) {
            Ok(target) => format!("-> {}", target.display()),
            Err(_) if path.is_dir() => {
                found.extend(tree(&path));
                "folder".to_owned()
            }
            Err(_) => format!("{:?}", fs::read(&path).unwrap()),
        };
        found.insert(path, is);
    }
    found
}

/// Installed in one place and moved to another: nothing in it says where it was.
fn installed(folder: &Path) -> PathBuf {
    let (first, prefix) = (folder.join("first"), folder.join("moved"));
    output_of(xtask(&[OsStr::new("install"), "--prefix".as_ref(), first.as_ref()]));
    fs::rename(&first, &prefix).unwrap();
    prefix
}

#[test]
#[ignore = "builds all that is delivered: a minute"]
fn programs_are_built_with_what_is_installed() {
    let (_folder, folder) = scratch();
    let prefix = installed(&folder);
    with_the_compiler(&prefix, &folder);
    with_pkg_config(&prefix.join("lib"), &folder);
    with_cmake(&prefix, &folder);
    with_meson(&prefix, &folder);
    the_command_runs(&prefix);
    shells_read_the_completions(&prefix);

    let run = |verb: &str| xtask(&[verb.as_ref(), OsStr::new("--prefix"), prefix.as_ref()]);
    output_of(run("uninstall"));
    assert!(!prefix.exists(), "{:?}", tree(&prefix).keys());
    fails_with(run("uninstall"), &[&format!("no cairn {VERSION} in ")]);
}

fn with_the_compiler(prefix: &Path, folder: &Path) {
    let (source, include) = (samples().join("main.c"), prefix.join("include"));
    let lib = |name: &str| prefix.join("lib").join(name).into_os_string();
    let rpath = OsStr::new("-Wl,-rpath,").to_owned();
    let rpath = [rpath, lib("")].into_iter().collect::<std::ffi::OsString>();
    let source = source.into_os_string();
    let folder_of_libraries = [OsStr::new("-L").to_owned(), lib("")].into_iter().collect();
    for (name, arguments) in [
        ("shared", vec![source.clone(), folder_of_libraries, "-lcairn".into(), rpath.clone()]),
        ("archive", vec![source.clone(), lib("libcairn.a")]),
        ("static", vec!["-static".into(), source.clone(), lib("libcairn.a")]),
        ("object", vec![lib("cairn.o"), source.clone()]),
        ("object-static", vec!["-static".into(), lib("cairn.o"), source.clone()]),
        ("hardened", vec![lib("cairn-hardened.o"), source]),
    ] {
        let program = folder.join(name);
        let mut cc = command("cc", &["-Wall", "-Werror", "-fno-builtin", "-I"]);
        output_of({
            cc.arg(&include).args(&arguments).arg("-o").arg(&program);
            cc
        });
        says_version(&program);
    }
    let needed =
        output_of(command("readelf", &[OsStr::new("-dW"), folder.join("shared").as_ref()]));
    assert!(needed.contains("[libcairn.so.0]"), "{needed}");
}

fn with_pkg_config(libraries: &Path, folder: &Path) {
    if lacks("pkg-config", "pkgconf") {
        return;
    }
    let program = folder.join("pkg-config");
    let ask = |option: &str| {
        let mut ask = command("pkg-config", &[option, "cairn"]);
        ask.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
        output_of(ask).trim().to_owned()
    };
    assert_eq!(ask("--modversion"), VERSION);
    let mut cc = command("cc", &[samples().join("main.c")]);
    cc.args(ask("--cflags").split_whitespace()).args(ask("--libs").split_whitespace());
    cc.arg(format!("-Wl,-rpath,{}", ask("--variable=libdir"))).arg("-o").arg(&program);
    output_of(cc);
    says_version(&program);
}

fn with_cmake(prefix: &Path, folder: &Path) {
    if lacks("cmake", "cmake") || lacks("make", "make") {
        return;
    }
    let configure = |build: &Path| {
        let mut cmake = command("cmake", &["-G", "Unix Makefiles", "-S"]);
        cmake.arg(samples()).arg("-B").arg(build);
        cmake.env("CMAKE_PREFIX_PATH", prefix);
        cmake
    };
    let build = folder.join("cmake");
    output_of(configure(&build));
    output_of(command("cmake", &[OsStr::new("--build"), build.as_ref()]));
    for name in ["shared", "static", "hardened", "hardened-static", "cxx"] {
        says_version(&build.join(name));
    }
    // Without one of its files the package is not found, and the file is named.
    let (file, away) = (prefix.join("lib/libcairn.a"), folder.join("away"));
    fs::rename(&file, &away).unwrap();
    let output = configure(&folder.join("broken")).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<String>();
    assert!(
        !output.status.success() && message.contains("lib/libcairn.a;installcairnagain"),
        "{message}"
    );
    let check = [OsStr::new("install"), "--check".as_ref(), "--prefix".as_ref(), prefix.as_ref()];
    fails_with(xtask(&check), &["is broken: lib/libcairn.a is missing"]);
    fs::rename(&away, &file).unwrap();
    output_of(xtask(&check));
}

fn with_meson(prefix: &Path, folder: &Path) {
    if lacks("meson", "meson") || lacks("ninja", "ninja-build") || lacks("pkg-config", "pkgconf") {
        return;
    }
    let build = folder.join("meson");
    let mut setup = command("meson", &["setup"]);
    setup.arg(&build).arg(samples()).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    output_of(setup);
    output_of(command("ninja", &[OsStr::new("-C"), build.as_ref()]));
    for name in ["shared", "static", "hardened", "cxx"] {
        says_version(&build.join(name));
    }
}

/// The installed library is the one that the command carries.
fn the_command_runs(prefix: &Path) {
    let cairn = |arguments: &[&str]| {
        let mut cairn = command(prefix.join("bin/cairn"), arguments);
        cairn.env("XDG_CACHE_HOME", prefix.with_file_name("cache"));
        output_of(cairn)
    };
    assert!(cairn(&["--version"]).starts_with(&format!("cairn {VERSION} ")));
    for (arguments, library) in
        [(&["path"][..], "libcairn.so"), (&["path", "--hardened"], "libcairn-hardened.so")]
    {
        let carried = fs::read(cairn(arguments).trim_end()).unwrap();
        assert!(carried == fs::read(prefix.join("lib").join(library)).unwrap(), "{library}");
    }
}

fn shells_read_the_completions(prefix: &Path) {
    for (shell, path) in [
        ("bash", "bash-completion/completions/cairn"),
        ("zsh", "zsh/site-functions/_cairn"),
        ("fish", "fish/vendor_completions.d/cairn.fish"),
    ] {
        if !lacks(shell, shell) {
            let script = prefix.join("share").join(path);
            assert!(fs::read_to_string(&script).unwrap().contains("hardened"), "{shell}");
            output_of(command(shell, &[OsStr::new("-n"), script.as_ref()]));
        }
    }
}

/// Another version in the same place, and what its user has changed, stay.
#[test]
#[ignore = "builds all that is delivered: a minute"]
fn what_is_not_ours_stays() {
    let (_folder, folder) = scratch();
    let prefix = folder.join("prefix");
    let others = ["lib/libcairn.so.0.0.9", "bin/other"].map(|path| prefix.join(path));
    for path in &others {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "another").unwrap();
    }
    let before = tree(&prefix);
    let run = |verb: &str| xtask(&[verb.as_ref(), OsStr::new("--prefix"), prefix.as_ref()]);
    let elsewhere = ["--libdir", "lib64"].map(OsStr::new);
    output_of(xtask(
        &[&[OsStr::new("install"), "--prefix".as_ref(), prefix.as_ref()][..], &elsewhere].concat(),
    ));
    assert!(prefix.join("lib64/libcairn.so").exists());
    // Once more over itself, elsewhere: nothing of the first is left. Folders are for all, whatever the user's mask.
    let mut again = command("sh", &["-c", "umask 077; exec \"$0\" \"$@\""]);
    let install = run("install");
    again.arg(install.get_program()).args(install.get_args());
    again.current_dir(install.get_current_dir().unwrap_or(Path::new(".")));
    output_of(again);
    assert!(!prefix.join("lib64").exists() && prefix.join("lib/libcairn.so").exists());
    let mode = fs::metadata(prefix.join("lib/pkgconfig")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    fs::write(prefix.join("include/cairn.h"), "of another version\n").unwrap();
    fs::remove_file(prefix.join("lib/cairn.o")).unwrap();
    let said = output_of(run("uninstall"));
    assert_eq!(
        said,
        "left alone: lib/cairn.o is missing\nleft alone: include/cairn.h is not what was installed\n"
    );
    fs::remove_dir_all(prefix.join("include")).unwrap();
    assert_eq!(tree(&prefix), before);
}

/// Spelled otherwise, or by a link, the folder of libraries is the same one.
#[test]
#[ignore = "builds all that is delivered: a minute"]
fn once_more_in_the_same_place_all_is_there() {
    let (_folder, folder) = scratch();
    let prefix = folder.join("prefix");
    let run = |arguments: &[&str]| {
        let place = [OsStr::new("--prefix"), prefix.as_ref()];
        let arguments: Vec<_> = arguments.iter().map(OsStr::new).chain(place).collect();
        xtask(&arguments)
    };
    fs::create_dir_all(prefix.join("lib")).unwrap();
    std::os::unix::fs::symlink("lib", prefix.join("lib64")).unwrap();
    let empty = tree(&prefix);
    for libdir in ["lib", "lib/", "lib/.", "lib64", "lib", "lib64//"] {
        output_of(run(&["install", "--libdir", libdir]));
        output_of(run(&["install", "--check"]));
        assert!(prefix.join("lib/libcairn.so").exists(), "{libdir}");
        let manifest = fs::read_to_string(prefix.join(MANIFEST)).unwrap();
        let odd = |line: &&str| line.contains("//") || line.contains("/.");
        assert_eq!(manifest.lines().find(odd), None, "{libdir}");
    }
    assert_eq!(output_of(run(&["uninstall"])), "");
    assert_eq!(tree(&prefix), empty);
}

/// What takes minutes is said first.
#[test]
fn an_installation_says_what_it_builds() {
    let (_kept, folder) = scratch();
    let cargo = folder.join("cargo");
    let script = "#!/bin/sh\ncase $1 in metadata) echo '{\"packages\":[]}';; *) exit 1;; esac\n";
    fs::write(&cargo, script).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let prefix = folder.join("prefix");
    let mut install = xtask(&[OsStr::new("install"), "--prefix".as_ref(), prefix.as_ref()]);
    let path = std::env::var("PATH").unwrap();
    let output = install.env("PATH", format!("{}:{path}", folder.display())).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("xtask: builds libcairn\n") && !output.status.success(), "{said}");
}

#[test]
fn a_prefix_that_cannot_be_is_named() {
    let (_folder, folder) = scratch();
    let file = folder.join("file");
    fs::write(&file, "").unwrap();
    let install = [OsStr::new("install"), "--prefix".as_ref(), file.as_ref()];
    fails_with(xtask(&install), &["cannot write to", "file", "Not a directory"]);
    fails_with(xtask(&["install", "--prefix", "/proc/cairn"]), &["cannot write to /proc"]);
    let outside = ["install", "--prefix", "/nowhere", "--libdir", "../lib"];
    fails_with(xtask(&outside), &["--libdir is a path below the prefix"]);
    let empty = ["install", "--prefix", "/nowhere", "--libdir", ""];
    fails_with(xtask(&empty), &["--libdir is a path below the prefix"]);
}

/// What was written of an installation that failed half-way goes, and what is not there is no obstacle.
#[test]
fn half_an_installation_is_taken_away() {
    let (_folder, folder) = scratch();
    let prefix = folder.join("prefix");
    let manifests = prefix.join("share/cairn/manifests");
    fs::create_dir_all(&manifests).unwrap();
    let lines = ["", "share", "share/cairn", "share/cairn/manifests", "share/zsh"];
    let folders: String = lines.iter().map(|path| format!("{path}\tfolder\n")).collect();
    fs::write(manifests.join("0.1.0"), folders + "share/zsh/_cairn\t00\n").unwrap();
    let uninstall = [OsStr::new("uninstall"), "--prefix".as_ref(), prefix.as_ref()];
    let said = output_of(xtask(&uninstall));
    assert!(said.contains("left alone: share/zsh/_cairn is missing"), "{said}");
    assert!(!prefix.exists());
}

#[test]
#[ignore = "builds all that is delivered: a minute"]
fn packages_hold_an_installation() {
    let (_folder, folder) = scratch();
    output_of(xtask(&[OsStr::new("dist"), "--out".as_ref(), folder.as_ref()]));
    let packages: Vec<_> = tree(&folder).into_keys().collect();
    let with_end =
        |end: &str| packages.iter().find(|path| path.to_str().unwrap().ends_with(end)).unwrap();

    let tarball = with_end(".tar.gz");
    let mut unpack = command("tar", &["--strip-components=1", "-xzf"]);
    unpack.arg(tarball).arg("-C").arg(folder.join("."));
    output_of(unpack);
    let staged = folder.join("staged");
    let place = ["--prefix", "/usr/local", "--destdir"].map(OsStr::new);
    output_of(xtask(&[&[OsStr::new("install")][..], &place, &[staged.as_ref()]].concat()));
    let root = staged.join("usr/local");
    fs::remove_file(root.join(MANIFEST)).unwrap();
    for (path, is) in tree(&root) {
        let path = path.strip_prefix(&root).unwrap();
        if !path.starts_with("share/cairn") {
            assert_eq!(tree(&folder).get(&folder.join(path)), Some(&is), "{}", path.display());
        }
    }

    if lacks("dpkg-deb", "dpkg") {
        return;
    }
    debian_takes_them(&packages, &folder);
}

/// The packages are as Debian's tools want them, and hold what they are to hold.
fn debian_takes_them(packages: &[PathBuf], folder: &Path) {
    let debs = ["/libcairn0_", "/libcairn-dev_", "/cairn_"].map(|start| {
        let is_meant = |path: &&PathBuf| path.to_str().unwrap().contains(start);
        packages.iter().find(is_meant).expect(start).as_path()
    });
    let root = folder.join("debian");
    for (deb, line) in debs.into_iter().zip([
        " Depends: libc6 (>= 2.",
        &format!(" Depends: libcairn0 (= {VERSION}-1)"),
        " Depends: libc6 (>= 2.",
    ]) {
        let info = output_of(command("dpkg-deb", &[OsStr::new("--info"), deb.as_ref()]));
        for line in [&format!(" Version: {VERSION}-1"), " Maintainer: ", line] {
            assert!(info.contains(line), "no {line} in {info}");
        }
        output_of(command("dpkg-deb", &[OsStr::new("-x"), deb.as_ref(), root.as_ref()]));
    }
    let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let link = fs::read_link(libraries.join("libcairn.so.0")).unwrap();
    assert_eq!(link, Path::new(&format!("libcairn.so.{VERSION}")));
    for name in ["libcairn0", "libcairn-dev", "cairn"] {
        let documents = root.join("usr/share/doc").join(name);
        let licences = fs::read_to_string(documents.join("copyright")).unwrap();
        assert!(licences.contains("/usr/share/common-licenses/Apache-2.0"), "{licences}");
        assert!(documents.join("changelog.Debian.gz").is_file(), "{name}");
    }
    output_of({
        let mut cairn = command(root.join("usr/bin/cairn"), &["--version"]);
        cairn.current_dir(&root);
        cairn
    });
    let paths = fs::read_to_string(libraries.join("pkgconfig/cairn.pc")).unwrap();
    assert!(paths.starts_with("prefix=/usr\n") && !paths.contains(".."), "{paths}");
    if !lacks("lintian", "lintian") {
        let mut lintian = command("lintian", &["--allow-root", "--fail-on", "error"]);
        lintian.args(debs);
        output_of(lintian);
    }
    fs::remove_dir_all(&root).unwrap();
    // Only root can give files to root.
    if rustix::process::geteuid().is_root() {
        installs_by_dpkg(&debs, &root);
    }
}

/// In a root of its own, which is empty again afterwards but for dpkg's own files.
fn installs_by_dpkg(debs: &[&Path], root: &Path) {
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
    let dpkg = |verb: &str, arguments: &[&OsStr]| {
        let mut dpkg =
            command("dpkg", &["--force-depends", "--force-not-root", "--force-bad-path"]);
        dpkg.arg("--root").arg(root).arg(format!("--log={}", root.join("log").display()));
        dpkg.arg(verb).args(arguments);
        dpkg
    };
    let files: Vec<_> = debs.iter().map(|deb| deb.as_os_str()).collect();
    output_of(dpkg("-i", &files));
    assert!(root.join("usr/include/cairn.h").is_file() && root.join("usr/bin/cairn").is_file());
    output_of(dpkg("--verify", &[]));
    output_of(dpkg("-P", &["cairn", "libcairn-dev", "libcairn0"].map(OsStr::new)));
    let left = tree(root).into_keys().filter(|path| !path.starts_with(root.join("var")));
    let left: Vec<_> = left.filter(|path| !path.ends_with("log")).collect();
    assert!(left.is_empty(), "{left:?}");
}
