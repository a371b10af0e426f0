//! What an installation consists of, built for delivery: files by their paths below a prefix. An
//! installation writes them to a folder, a package holds them.
//!
//! Nothing in them names a folder of the machine, and they are the same from whatever folder they
//! are built.

mod archive;
mod debian;
pub(crate) mod dist;
pub(crate) mod install;
pub(crate) mod wheel;

use crate::library::{built, link};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The version that is built here.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Contents and mode, or where a link leads.
enum File {
    Plain(Vec<u8>, u32),
    Link(PathBuf),
}

/// By their paths below the prefix.
type Files = BTreeMap<String, File>;

/// Builds from `source` in a folder for cargo, and collects what belongs to an installation.
/// Libraries and zsh's completions go to these folders below the prefix. Without a prefix it may be moved.
fn files(
    source: &Path,
    target: &Path,
    [libraries, zsh]: [&str; 2],
    prefix: Option<&str>,
) -> Result<Files> {
    let mut files = Files::new();
    let (cairn, linked) = build(source, target)?;
    add(&mut files, &linked, libraries)?;
    add(&mut files, &cairn, "bin")?;
    add(&mut files, &source.join("crates/cairn-c/include"), "include")?;
    for page in fs::read_dir(source.join("docs/man"))? {
        let page = page?.path();
        let section = page.extension().context("a page has a section")?.display();
        add(&mut files, &page, &format!("share/man/man{section}"))?;
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        add(&mut files, &source.join(licence), "share/doc/cairn")?;
    }
    let up = vec![".."; Path::new(libraries).components().count() + 1].join("/");
    let moves = format!("${{pcfiledir}}/{up}");
    for (template, name, path) in [
        ("library.pc", "cairn", "pkgconfig/cairn.pc"),
        ("library.pc", "cairn-hardened", "pkgconfig/cairn-hardened.pc"),
        ("cairn-config.cmake", "", "cmake/cairn/cairn-config.cmake"),
        ("cairn-config-version.cmake", "", "cmake/cairn/cairn-config-version.cmake"),
    ] {
        let mut text = fs::read_to_string(source.join("crates/cairn-c/package").join(template))?;
        for (key, value) in [
            ("@PREFIX@", prefix.unwrap_or(&moves)),
            ("@UP@", up.as_str()),
            ("@LIBDIR@", libraries),
            ("@NAME@", name),
            ("@VERSION@", VERSION),
        ] {
            text = text.replace(key, value);
        }
        files.insert(format!("{libraries}/{path}"), File::text(text));
    }
    let shell = Shell::new()?;
    for (name, path) in [
        ("bash", "share/bash-completion/completions/cairn"),
        ("zsh", &format!("{zsh}/_cairn")),
        ("fish", "share/fish/vendor_completions.d/cairn.fish"),
    ] {
        let script = cmd!(shell, "{cairn} completions {name}").quiet().read()?;
        files.insert(path.to_owned(), File::text(script + "\n"));
    }
    Ok(files)
}

impl File {
    fn text(text: String) -> File {
        File::Plain(text.into_bytes(), 0o644)
    }

    fn read(path: &Path) -> std::io::Result<File> {
        let kind = fs::symlink_metadata(path)?;
        if kind.is_symlink() {
            return Ok(File::Link(fs::read_link(path)?));
        }
        // What else the mode says follows from the umask.
        let mode = if kind.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
        Ok(File::Plain(fs::read(path)?, mode))
    }
}

/// Adds a file, or all that is in a folder, to a folder.
fn add(files: &mut Files, from: &Path, to: &str) -> Result<()> {
    let name = from.file_name().context("a file has a name")?.display();
    let problem = || from.display().to_string();
    if from.is_file() {
        files.insert(format!("{to}/{name}"), File::read(from).with_context(problem)?);
        return Ok(());
    }
    for inside in fs::read_dir(from).with_context(problem)? {
        let inside = inside?;
        let name = inside.file_name();
        // Somebody is making those.
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let to = if inside.path().is_dir() { &format!("{to}/{}", name.display()) } else { to };
        add(files, &inside.path(), to)?;
    }
    Ok(())
}

/// Builds the libraries, and the command that carries them; the file of the command, and the
/// folder of the others.
fn build(source: &Path, target: &Path) -> Result<(PathBuf, PathBuf)> {
    // Nothing else is said for minutes.
    let begin = |what: &str| eprintln!("xtask: builds {what}");
    let shell = Shell::new()?;
    shell.change_dir(source);
    // For any processor of the architecture, whatever the user's own flags are.
    shell.set_var("CARGO_ENCODED_RUSTFLAGS", remapped(&shell, source)?.join("\x1f"));
    shell.set_var("CARGO_PROFILE_RELEASE_DEBUG", "false");
    shell.set_var("CARGO_PROFILE_RELEASE_SPLIT_DEBUGINFO", "off");
    shell.set_var("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    let cargo = |target: &Path, profile: &str, arguments: &[&str], file: &str| {
        let command =
            cmd!(shell, "cargo build --quiet --locked --profile {profile} --target-dir {target}");
        built(command.args(arguments), file)
    };
    // Another version's may lie beside it.
    let linked = target.join(format!("linked-{VERSION}"));
    for (name, features) in [("libcairn", ""), ("libcairn-hardened", "hardened")] {
        begin(name);
        let target = target.join(name);
        let arguments = ["-p", "cairn-c", "--features", features];
        let archive = cargo(&target, "library", &arguments, "libcairn_archive.a")?;
        link(&shell, &archive, &linked, name)?;
    }
    shell.set_var("CAIRN_PREBUILT_LIBRARIES", &linked);
    begin("the command");
    Ok((cargo(target, "release", &["-p", "cairn-malloc-cli"], "cairn")?, linked))
}

/// Flags that have the compiler name each package's folder by the package alone.
fn remapped(shell: &Shell, source: &Path) -> Result<Vec<String>> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = cmd!(shell, "cargo metadata --quiet --locked --format-version 1");
    let metadata = metadata.args(["--filter-platform", &platform]).quiet().read()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo knows packages")?;
    let of_others = packages.iter().filter(|package| !package["source"].is_null());
    let flags = of_others.map(|package| {
        let text = |key: &str| package[key].as_str().context("a package has a name and a place");
        let folder = Path::new(text("manifest_path")?).with_file_name("");
        Ok(format!(
            "--remap-path-prefix={}={}-{}/",
            folder.display(),
            text("name")?,
            text("version")?
        ))
    });
    let own = format!("--remap-path-prefix={}=cairn", source.display());
    [Ok(own)].into_iter().chain(flags).collect()
}
