//! Packages for Debian, as its policy has them: the libraries, what programs are built with, and the command.

use super::archive::{gzip, newest_glibc, tar};
use super::{File, Files, VERSION};
use anyhow::{Context, Result, bail};
use std::env::consts::ARCH;
use std::fs;
use std::path::Path;
use xshell::{Shell, cmd};

/// The first package of the version.
const REVISION: &str = "1";

/// One of the packages.
struct Package {
    name: &'static str,
    section: &'static str,
    /// Libraries of several architectures live side by side.
    is_multi: bool,
    needs: fn(libc: &str, version: &str) -> String,
    summary: &'static str,
    text: &'static str,
    has: fn(path: &str) -> bool,
}

const PACKAGES: [Package; 3] = [
    Package {
        name: "libcairn0",
        section: "libs",
        is_multi: true,
        needs: |libc, _| libc.to_owned(),
        summary: "general-purpose memory allocator",
        text: "Libraries in the place of malloc and of the operators new and delete: for\n \
               programs that are linked with them, or to preload. The hardened build\n \
               stops more attacks on the heap.",
        has: |path| path.contains(".so."),
    },
    Package {
        name: "libcairn-dev",
        section: "libdevel",
        is_multi: true,
        needs: |_, version| format!("libcairn0 (= {version})"),
        summary: "general-purpose memory allocator (development files)",
        text: "Headers, archives, and files for pkg-config and CMake: for programs that call\n \
               cairn's own functions, or are linked with cairn. Headers for programs that\n \
               were written for mimalloc, jemalloc or tcmalloc are among them.",
        has: |path| {
            let is_library = path.starts_with("lib/") && !path.contains(".so.");
            is_library || path.starts_with("include/") || path.starts_with("share/man/man3/")
        },
    },
    Package {
        name: "cairn",
        section: "utils",
        is_multi: false,
        needs: |libc, _| format!("{libc}, libgcc-s1"),
        summary: "runs programs with the cairn memory allocator",
        text: "The command runs any dynamically linked program on cairn in the place of\n \
               the C library's allocator, says where its memory is, and switches guards\n \
               in running processes. It carries the libraries inside.",
        has: |path| {
            path.starts_with("bin/")
                || path.starts_with("share/man/man1/")
                || path.contains("completion")
        },
    },
];

/// Who answers for the packages, and when their sources are of.
pub(super) struct Origin {
    pub(super) time: u64,
    /// A name and an address.
    pub(super) contact: String,
}

/// The packages of an installation: their names, and their contents.
pub(super) fn packages(
    mut files: Files,
    source: &Path,
    origin: &Origin,
) -> Result<Vec<(String, Vec<u8>)>> {
    // Each package has its own, by reference.
    files.retain(|path, _| !path.starts_with("share/doc/"));
    let mut all = Vec::new();
    for package in &PACKAGES {
        let (own, rest) = files.into_iter().partition(|(path, _)| (package.has)(path));
        files = rest;
        all.push(package.packed(own, source, origin)?);
    }
    match files.keys().next() {
        Some(path) => bail!("{path} belongs to no package"),
        None => Ok(all),
    }
}

/// Debian's name for the architecture.
fn architecture() -> Result<&'static str> {
    match ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no package for Debian: its name for {other} is not known here"),
    }
}

impl Package {
    /// Control data and files, each in a tarball, in an archive.
    fn packed(
        &self,
        mut files: Files,
        source: &Path,
        origin: &Origin,
    ) -> Result<(String, Vec<u8>)> {
        self.add_documents(&mut files, source, origin)?;
        let control = self.control(&files, origin)?;
        let mut archive = ar::Builder::new(Vec::new());
        for (name, contents) in [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", tar("./", &control, origin.time)?),
            ("data.tar.gz", tar("./usr/", &files, origin.time)?),
        ] {
            let mut header = ar::Header::new(name.into(), contents.len() as u64);
            header.set_mode(0o100_644);
            header.set_mtime(origin.time);
            archive.append(&header, contents.as_slice())?;
        }
        let name = format!("{}_{VERSION}-{REVISION}_{}.deb", self.name, architecture()?);
        Ok((name, archive.into_inner()?))
    }

    /// Manual pages in Debian's form, the licences, and both changelogs.
    fn add_documents(&self, files: &mut Files, source: &Path, origin: &Origin) -> Result<()> {
        let pages: Vec<_> =
            files.keys().filter(|path| path.starts_with("share/man")).cloned().collect();
        for path in pages {
            let Some(File::Plain(page, mode)) = files.remove(&path) else { continue };
            files.insert(path + ".gz", File::Plain(gzip(&page)?, mode));
        }
        let read =
            |path: &str| fs::read_to_string(source.join(path)).with_context(|| path.to_owned());
        let changes = gzip(read("CHANGELOG.md")?.as_bytes())?;
        let entry = gzip(changelog(origin)?.as_bytes())?;
        let copyright = copyright(&read("LICENSE-MIT")?, origin)?;
        for (name, file) in [
            ("changelog.gz", File::Plain(changes, 0o644)),
            ("changelog.Debian.gz", File::Plain(entry, 0o644)),
            ("copyright", File::text(copyright)),
        ] {
            files.insert(format!("share/doc/{}/{name}", self.name), file);
        }
        Ok(())
    }

    fn control(&self, files: &Files, origin: &Origin) -> Result<Files> {
        let plain = files.values().filter_map(|file| match file {
            File::Plain(contents, _) => Some(contents.as_slice()),
            File::Link(_) => None,
        });
        let kibibytes: usize = plain.clone().map(|contents| contents.len().div_ceil(1024)).sum();
        let glibc = plain.filter_map(newest_glibc).max();
        let libc = glibc.map_or("libc6".to_owned(), |glibc| format!("libc6 (>= 2.{glibc})"));
        let needs = (self.needs)(&libc, &format!("{VERSION}-{REVISION}"));
        let multi = if self.is_multi { "Multi-Arch: same\n" } else { "" };
        let text = format!(
            "Package: {}\nSource: cairn-malloc\nVersion: {VERSION}-{REVISION}\nArchitecture: {}\n\
             Maintainer: {}\nInstalled-Size: {kibibytes}\nDepends: {needs}\nSection: {}\n\
             Priority: optional\n{multi}Description: {}\n {}\n",
            self.name,
            architecture()?,
            origin.contact,
            self.section,
            self.summary,
            self.text
        );
        let mut control = Files::from([("control".into(), File::text(text))]);
        control.insert("md5sums".into(), File::text(md5sums(files)?));
        if files.keys().any(|path| path.contains(".so.")) {
            let shlibs = ["libcairn", "libcairn-hardened"]
                .map(|name| format!("{name} 0 {} (>= {VERSION})\n", self.name));
            control.insert("shlibs".into(), File::text(shlibs.concat()));
            control.insert("triggers".into(), File::text("activate-noawait ldconfig\n".into()));
        }
        Ok(control)
    }
}

/// The hash of each file, by which `dpkg --verify` knows it.
fn md5sums(files: &Files) -> Result<String> {
    let shell = Shell::new()?;
    let mut sums = String::new();
    for (path, file) in files {
        let File::Plain(contents, _) = file else { continue };
        let sum = cmd!(shell, "md5sum").stdin(contents).quiet().read()?;
        let sum = sum.split_whitespace().next().context("md5sum writes a hash")?;
        sums += &format!("{sum}  usr/{path}\n");
    }
    Ok(sums)
}

/// The time of the sources in a form of `date`.
fn date(origin: &Origin, form: &str) -> Result<String> {
    let (shell, time) = (Shell::new()?, format!("@{}", origin.time));
    Ok(cmd!(shell, "date -u -d {time} {form}").env("LC_ALL", "C").quiet().read()?)
}

fn changelog(origin: &Origin) -> Result<String> {
    let date = date(origin, "-R")?;
    Ok(format!(
        "cairn-malloc ({VERSION}-{REVISION}) unstable; urgency=medium\n\n  * Release {VERSION}: see \
         changelog.gz beside this file.\n\n -- {}  {date}\n",
        origin.contact
    ))
}

/// As machines read it. Apache's licence is on each Debian, the other is not.
fn copyright(mit: &str, origin: &Origin) -> Result<String> {
    let (owners, terms) = mit.split_once("\n\n").unwrap_or(("", mit));
    let owners = owners.trim_start_matches("Copyright (c) ");
    let terms: String = terms
        .trim_end()
        .lines()
        .map(|line| if line.trim().is_empty() { " .\n".to_owned() } else { format!(" {line}\n") })
        .collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: cairn\nUpstream-Contact: {}\n\nFiles: *\nCopyright: {} {owners}\nLicense: \
         Expat or Apache-2.0\n\nLicense: Expat\n{terms}\nLicense: Apache-2.0\n On Debian systems, \
         the full text of the Apache License, Version 2.0, is in the\n file \
         /usr/share/common-licenses/Apache-2.0.\n",
        origin.contact,
        date(origin, "+%Y")?
    ))
}
