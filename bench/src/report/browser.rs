//! A headless Chromium, for what only a browser can do: draw the charts.

use programs::process::{Failure, Limits, Process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Names under which it is installed.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// The browser, if there is one.
pub fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).flat_map(|at| NAMES.map(|name| at.join(name)));
    files.find(|file| file.is_file())
}

/// The HTML of the page at `path` after its scripts have run, in a window of so many pixels; the
/// browser has none below 500.
pub fn dump(path: &Path, width: u32) -> Result<String, Failure> {
    let browser = find().ok_or_else(|| Failure::Absent {
        what: "chromium".into(),
        hint: "apt-get install chromium".into(),
    })?;
    let profile = tempfile::tempdir()?;
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--virtual-time-budget=60000", "--dump-dom"])
        .arg(format!("--window-size={width},900"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", path.canonicalize()?.display()));
    let limits = Limits { timeout: Duration::from_secs(180), memory_mib: 8192.0 };
    Ok(Process::alone(command, &limits).success()?.text())
}
