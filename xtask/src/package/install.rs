//! Writes an installation to a folder, looks whether it is whole, and takes it away.
//!
//! A manifest in it names each file with the hash of its contents, and each folder that was made
//! for it. What is something else by now, by another version in the same place or by its user,
//! stays.

use super::{File, Files, VERSION, files};
use crate::library::{target_dir, workspace};
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// Options of both commands.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// Where the installation is used from, such as /usr/local or ~/.local.
    #[arg(long)]
    prefix: PathBuf,
    /// A folder to put in front of that, for those who make packages.
    #[arg(long)]
    destdir: Option<PathBuf>,
}

/// Options.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// The folder of libraries below the prefix.
    #[arg(long, default_value = "lib")]
    libdir: String,
    /// Only say whether what is installed there is whole.
    #[arg(long)]
    check: bool,
}

/// By paths: the hash of a file, where a link leads, or [`FOLDER`].
type Manifest = BTreeMap<String, String>;
const FOLDER: &str = "folder";
/// Where the manifests of versions are.
const MANIFESTS: &str = "share/cairn/manifests";

/// Installs, or looks.
pub(crate) fn install(args: &Args) -> Result<()> {
    let root = args.place.root()?;
    let there = root.display();
    if args.check {
        let mut wrong = Vec::new();
        for (path, is) in &manifest(&root)? {
            wrong.extend(problem(&root, path, is));
        }
        ensure!(wrong.is_empty(), "cairn {VERSION} in {there} is broken: {}", wrong.join(", "));
        println!("cairn {VERSION} in {there} is whole");
        return Ok(());
    }
    let libdir = below(&args.libdir).context("--libdir is a path below the prefix")?;
    // Before anything is built: that takes a while.
    let folder = root.ancestors().find(|folder| folder.exists()).context("no such folder")?;
    let writable = tempfile::tempfile_in(folder);
    writable.with_context(|| format!("cannot write to {}", folder.display()))?;

    let target = target_dir("package");
    let files = files(workspace(), &target, [&libdir, "share/zsh/site-functions"], None)?;
    write(&root, &files).with_context(|| {
        format!(
            "cairn is installed in part; `cargo xtask uninstall --prefix {there}` takes it away"
        )
    })?;
    println!("cairn {VERSION}: {} files in {there}", files.len());
    Ok(())
}

/// A path below the prefix as manifests spell it: `lib`, also for `lib/` or `lib/.`.
fn below(path: &str) -> Option<String> {
    let parts = Path::new(path).components().map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let path = parts.collect::<Option<Vec<_>>>()?.join("/");
    Some(path).filter(|path| !path.is_empty())
}

/// Takes away what this version has installed.
pub(crate) fn uninstall(place: &Place) -> Result<()> {
    let root = place.root()?;
    let manifest = manifest(&root)?;
    let others = others(&root);
    // From within outwards.
    for (path, is) in manifest.iter().rev() {
        match problem(&root, path, is) {
            Some(problem) => println!("left alone: {problem}"),
            None if is == FOLDER => {}
            // Another version has the same.
            None if others.contains(&line(path, is)) => {}
            None => fs::remove_file(root.join(path)).with_context(|| path.clone())?,
        }
    }
    // Last what says that there is something: it may have to be done again.
    let inside = |path: &str| Path::new(MANIFESTS).starts_with(path);
    remove_folders(&root, manifest.iter().rev(), |path| !inside(path))?;
    fs::remove_file(root.join(MANIFESTS).join(VERSION))?;
    remove_folders(&root, manifest.iter().rev(), inside)
}

/// Removes folders of a manifest, if nothing of others is in them.
fn remove_folders<'a>(
    root: &Path,
    all: impl Iterator<Item = (&'a String, &'a String)>,
    is_meant: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut meant = all.filter(|(path, is)| *is == FOLDER && is_meant(path));
    meant.try_for_each(|(path, _)| match fs::remove_dir(root.join(path)) {
        Err(error) if GONE_OR_IN_USE.contains(&error.kind()) => Ok(()),
        removed => removed.with_context(|| format!("cannot remove {path}")),
    })
}

/// Why a folder is not removed: others have put something into it, or have taken it away, or its place.
const GONE_OR_IN_USE: [ErrorKind; 3] =
    [ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound, ErrorKind::NotADirectory];

/// The lines of the manifests of other versions.
fn others(root: &Path) -> BTreeSet<String> {
    let all = fs::read_dir(root.join(MANIFESTS)).into_iter().flatten().flatten();
    let others = all.filter(|other| other.file_name() != VERSION);
    let texts = others.filter_map(|other| fs::read_to_string(other.path()).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

impl Place {
    /// The folder that files are written to.
    fn root(&self) -> Result<PathBuf> {
        let prefix = std::path::absolute(&self.prefix).context("--prefix")?;
        // An empty one is none, as elsewhere.
        let destdir = self.destdir.as_ref().filter(|destdir| !destdir.as_os_str().is_empty());
        let Some(destdir) = destdir else { return Ok(prefix) };
        Ok(std::path::absolute(destdir).context("--destdir")?.join(prefix.strip_prefix("/")?))
    }
}

fn manifest(root: &Path) -> Result<Manifest> {
    let text = fs::read_to_string(root.join(MANIFESTS).join(VERSION));
    let text = text.with_context(|| format!("no cairn {VERSION} in {}", root.display()))?;
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    Ok(lines.map(|(path, is)| (path.to_owned(), is.to_owned())).collect())
}

/// What is wrong with a path, if it is not what a manifest says.
fn problem(root: &Path, path: &str, is: &str) -> Option<String> {
    let place = root.join(path);
    let found = match fs::symlink_metadata(&place) {
        Ok(found) if found.is_dir() => Ok(FOLDER.to_owned()),
        Ok(_) => File::read(&place).map(|file| file.identity()),
        Err(error) => Err(error),
    };
    match found {
        Ok(found) if found == is => None,
        Ok(_) => Some(format!("{path} is not what was installed")),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("{path} is missing")),
        Err(error) => Some(format!("{path}: {error}")),
    }
}

impl File {
    /// As manifests have it.
    fn identity(&self) -> String {
        match self {
            File::Plain(contents, _) => hex::encode(Sha256::digest(contents)),
            File::Link(target) => format!("-> {}", target.display()),
        }
    }
}

/// Writes the manifest and then the files. What this version has installed there before, by other options or of an older tree, and
/// does not any more, goes.
fn write(root: &Path, files: &Files) -> Result<()> {
    let own = format!("{MANIFESTS}/{VERSION}");
    let before = manifest(root).unwrap_or_default();
    let mut manifest: Manifest =
        files.iter().map(|(path, file)| (path.clone(), file.identity())).collect();
    // Folders that came with a version belong to all, and go with the last.
    let known = others(root);
    let ours = before.iter().filter(|(path, is)| *is == FOLDER && root.join(path).is_dir());
    manifest.extend(ours.map(|(path, is)| (path.clone(), is.clone())));
    for folder in files.keys().chain([&own]).flat_map(|path| Path::new(path).ancestors().skip(1)) {
        let folder = folder.display().to_string();
        if !root.join(&folder).exists() || known.contains(&line(&folder, FOLDER)) {
            manifest.insert(folder, FOLDER.to_owned());
        }
    }
    let is_left = |path: &str| !manifest.contains_key(path);
    let left: Manifest = before.clone().into_iter().filter(|(path, _)| is_left(path)).collect();
    let place = root.join(own);
    put(&place, &File::text(text(&manifest) + &text(&left)))?;
    files.iter().try_for_each(|(path, file)| put(&root.join(path), file))?;
    let fresh: BTreeSet<_> = files.keys().filter_map(|path| real_place(root, path)).collect();
    for (path, is) in &left {
        // A folder of another name may be a link to where they are.
        let is_fresh = real_place(root, path).is_some_and(|place| fresh.contains(&place));
        if !is_fresh && problem(root, path, is).is_none() && !known.contains(&line(path, is)) {
            fs::remove_file(root.join(path)).with_context(|| path.clone())?;
        }
    }
    remove_folders(root, before.iter().rev(), |path| !Path::new(MANIFESTS).starts_with(path))?;
    manifest.retain(|path, is| is != FOLDER || root.join(path).is_dir());
    put(&place, &File::text(text(&manifest)))
}

/// Where a path leads, by folders that are no links; what it names may be one.
fn real_place(root: &Path, path: &str) -> Option<PathBuf> {
    let place = root.join(path);
    Some(place.parent()?.canonicalize().ok()?.join(place.file_name()?))
}

/// As it is written.
fn text(manifest: &Manifest) -> String {
    manifest.iter().map(|(path, is)| line(path, is) + "\n").collect()
}

fn line(path: &str, is: &str) -> String {
    format!("{path}\t{is}")
}

/// Makes a folder, and those that it is in, for all to enter, as files are for all to read.
fn make_folders(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folders)?;
    fs::create_dir(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))
}

/// Writes a file under another name and renames it: who uses the former one keeps that.
fn put(path: &Path, file: &File) -> Result<()> {
    let folder = path.parent().context("a file is in a folder")?;
    let place = || -> Result<()> {
        make_folders(folder)?;
        let mut fresh = tempfile::Builder::new().prefix(".cairn-").tempfile_in(folder)?;
        match file {
            File::Plain(contents, mode) => {
                fresh.as_file().set_permissions(Permissions::from_mode(*mode))?;
                fresh.write_all(contents)?;
                fresh.persist(path)?;
            }
            File::Link(target) => {
                let name = fresh.into_temp_path();
                fs::remove_file(&name)?;
                symlink(target, &name)?;
                name.persist(path)?;
            }
        }
        Ok(())
    };
    place().with_context(|| format!("cannot write {}", path.display()))
}
