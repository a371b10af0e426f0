//! Owns: what a Rust program sets once, at its start.
//! Idea: a constant of the program's, which the environment overrides: the variables are those of C programs.
//! Never: runs by itself: who wants no settings links none of this.
//! Threads: see each call.
//! Checked: tests/settings.rs
//! Story: crates/cairn/README.md

use crate::program::tuning::PREFIX_BYTES_MAX;
use crate::slices::{PURGE_DELAY_MS, arena};
use crate::{base::values, os, thread};
use core::ffi::CStr;
use core::fmt::{self, Display, Formatter};
use core::sync::atomic::Ordering;

/// What a program wants of the allocator as a whole. `Settings::DEFAULT` is what it does unasked.
///
/// ```
/// use cairn::Settings;
///
/// #[global_allocator]
/// static ALLOCATOR: cairn::Cairn = cairn::Cairn;
///
/// const SETTINGS: Settings = Settings { purge_delay_ms: 1000, ..Settings::DEFAULT };
///
/// fn main() {
///     match SETTINGS.with_environment() {
///         Ok(settings) => assert!(settings.apply()),
///         Err(bad) => eprintln!("{bad}"),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Large, dense heaps ask for huge pages. `CAIRN_HUGE_PAGES`.
    pub huge_pages: bool,
    /// How long memory is idle before it goes back to the system, in milliseconds; `usize::MAX`: nothing goes back, and
    /// nothing is mapped apart. `CAIRN_PURGE_DELAY`, with a unit, or `never`.
    pub purge_delay_ms: usize,
    /// A thread that gives memory back while the program is idle. `CAIRN_PURGE_THREAD`.
    pub purge_thread: bool,
    /// Bytes that the process may have; 0: whatever there is. `CAIRN_MEMORY_LIMIT`. See `set_memory_limits`.
    pub memory_limit: usize,
    /// Bytes within which it shall stay; 0: what its memory cgroup says; `usize::MAX`, `never`: none, and nobody asks the
    /// group. `CAIRN_MEMORY_SOFT_LIMIT`.
    pub memory_soft_limit: usize,
    /// Bytes from one guarded block to the next; 0: none. `CAIRN_GUARDS`.
    pub guards: usize,
}

/// A variable whose value cannot be read.
///
/// ```
/// let bad: Option<cairn::BadSetting> = cairn::Settings::DEFAULT.with_environment().err();
/// if let Some(bad) = bad {
///     eprintln!("{bad}");
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSetting {
    prefix: &'static str,
    name: &'static str,
    form: &'static str,
}

impl Display for BadSetting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: the value cannot be read; it is {}", self.prefix, self.name, self.form)
    }
}

impl core::error::Error for BadSetting {}

impl Settings {
    /// What the allocator does unasked.
    ///
    /// ```
    /// const QUICK: cairn::Settings = cairn::Settings { purge_delay_ms: 0, ..cairn::Settings::DEFAULT };
    /// assert!(QUICK.huge_pages && !QUICK.purge_thread);
    /// ```
    pub const DEFAULT: Settings = Settings {
        huge_pages: true,
        purge_delay_ms: PURGE_DELAY_MS,
        purge_thread: false,
        memory_limit: 0,
        memory_soft_limit: 0,
        guards: 0,
    };

    /// The same with what the environment says; not in programs that run with other rights than their caller.
    ///
    /// Call it while no other thread changes the environment.
    ///
    /// # Errors
    /// The first variable of these settings whose value cannot be read.
    ///
    /// ```
    /// // SAFETY: no other thread is there.
    /// unsafe { std::env::set_var("CAIRN_PURGE_DELAY", "250ms") };
    /// assert_eq!(cairn::Settings::DEFAULT.with_environment().unwrap().purge_delay_ms, 250);
    /// ```
    pub fn with_environment(self) -> Result<Settings, BadSetting> {
        self.with_prefix("CAIRN_")
    }

    /// The same with variables whose names begin otherwise, such as `APP_CAIRN_PURGE_DELAY`: a plugin does not obey what
    /// is meant for its host. The prefix has 1 to 32 bytes; with another no variable is read.
    ///
    /// ```
    /// let settings = cairn::Settings::DEFAULT.with_prefix("APP_CAIRN_");
    /// assert_eq!(settings, Ok(cairn::Settings::DEFAULT));
    /// ```
    ///
    /// # Errors
    /// As for `with_environment`.
    pub fn with_prefix(mut self, prefix: &'static str) -> Result<Settings, BadSetting> {
        const SWITCH: &str = "0 or 1";
        set(&mut self.huge_pages, prefix, "HUGE_PAGES", values::switch, SWITCH)?;
        let time = "a time such as 250ms or 1s, or 0, or never";
        set(&mut self.purge_delay_ms, prefix, "PURGE_DELAY", values::milliseconds, time)?;
        set(&mut self.purge_thread, prefix, "PURGE_THREAD", values::switch, SWITCH)?;
        let bytes = "a number of bytes such as 10MiB or 512KiB, or 0";
        set(&mut self.guards, prefix, "GUARDS", values::bytes, bytes)?;
        set(&mut self.memory_limit, prefix, "MEMORY_LIMIT", values::bytes, bytes)?;
        let limit = "a number of bytes such as 2GiB or 512MiB, or 0, or never";
        set(&mut self.memory_soft_limit, prefix, "MEMORY_SOFT_LIMIT", values::limit, limit)?;
        Ok(self)
    }

    /// Has them from now on: call it once, at the start of `main`. False if there is no memory for the guards, no thread
    /// can be started, or the soft limit is more than the hard one; the rest is done.
    ///
    /// ```
    /// assert!(cairn::Settings { purge_delay_ms: 5000, ..cairn::Settings::DEFAULT }.apply());
    /// assert_eq!(cairn::purge_delay_ms(), 5000);
    /// ```
    #[must_use]
    pub fn apply(self) -> bool {
        os::HUGE_PAGES.store(self.huge_pages, Ordering::Relaxed);
        arena::set_purge_delay_ms(self.purge_delay_ms);
        let has_guards = self.guards == 0 || thread::guard_every(self.guards);
        let has_limits = thread::set_memory_limits(self.memory_soft_limit, self.memory_limit);
        has_guards & has_limits & (!self.purge_thread || thread::start_purge_thread())
    }
}

fn set<T>(
    field: &mut T,
    prefix: &'static str,
    name: &'static str,
    read: fn(&[u8]) -> Option<T>,
    form: &'static str,
) -> Result<(), BadSetting> {
    if let Some(value) = variable(prefix, name) {
        let bad = BadSetting { prefix, name, form };
        *field = read(value.to_bytes()).ok_or(bad)?;
    }
    Ok(())
}

/// The value of a variable whose name has two parts; None, too, if the first is no prefix.
fn variable(prefix: &str, name: &str) -> Option<&'static CStr> {
    let mut room = [0; PREFIX_BYTES_MAX + 32];
    if !(1..=PREFIX_BYTES_MAX).contains(&prefix.len()) {
        return None;
    }
    let (head, tail) = room.split_at_mut_checked(prefix.len())?;
    head.copy_from_slice(prefix.as_bytes());
    tail.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    os::variable(CStr::from_bytes_until_nul(&room).ok()?)
}
