//! What happens when the library is loaded, and at the end: settings are read once, from the
//! environment; not at all in set-uid programs. docs/guide/settings.md has the table.

use crate::environment::{
    PREFIX_BYTES_MAX, cairn_variables, leave_children_alone, mark_as_warned, prefix,
};
use crate::report::{self, Output, warn};
use crate::settings::{self, Setting, Signals, Text};
use crate::{at_signal, cxx, destination, profile, stats};
use core::arch::global_asm;
use core::fmt::{self, Display, Formatter, Write};
use core::sync::atomic::{AtomicBool, Ordering};

/// Runs before the program's own constructors, usually; of a static program's, before those
/// with a priority too.
#[used]
#[unsafe(link_section = ".init_array.00001")]
static START: extern "C" fn() = start;

/// Runs after the program's exit handlers; inside a program, after its destructors too: the first in the array is the
/// last to run.
#[used]
#[unsafe(link_section = ".fini_array.00001")]
static END: extern "C" fn() = end;

/// How the configuration names the build.
const BUILD: &str = if cfg!(feature = "hardened") { " hardened" } else { "" };

/// Settings that have an effect only when all have been read.
struct Wishes {
    show: bool,
    no_inherit: bool,
    purge_thread: bool,
    guards: usize,
    memory_limit: usize,
    memory_soft_limit: usize,
    profile: bool,
    profile_rate: usize,
    profile_first: u32,
    address_space: usize,
    at_signal: Option<Signals>,
    warned: bool,
}

impl Wishes {
    const NONE: Wishes = Wishes {
        show: false,
        no_inherit: false,
        purge_thread: false,
        guards: 0,
        profile: false,
        profile_rate: profile::RATE,
        profile_first: 0,
        memory_limit: 0,
        memory_soft_limit: 0,
        address_space: 0,
        at_signal: None,
        warned: false,
    };

    fn apply(&mut self, setting: Setting<'_>) {
        match setting {
            Setting::Stats(stats) => stats::ask(stats),
            Setting::StatsFile(path) => stats::write_to(path),
            Setting::StatsAtSignal(signals) => self.at_signal = Some(signals),
            Setting::ShowConfig(on) => self.show = on,
            Setting::NoInherit(on) => self.no_inherit = on,
            Setting::HugePages(on) => cairn::HUGE_PAGES.store(on, Ordering::Relaxed),
            Setting::PurgeDelayMs(ms) => cairn::set_purge_delay_ms(ms),
            Setting::PurgeThread(on) => self.purge_thread = on,
            Setting::Guards(bytes) => self.guards = bytes,
            Setting::MemoryLimit(bytes) => self.memory_limit = bytes,
            Setting::MemorySoftLimit(bytes) => self.memory_soft_limit = bytes,
            Setting::Profile(path) => {
                self.profile = !path.is_empty();
                profile::write_to(path);
            }
            Setting::ProfileRate(bytes) => self.profile_rate = bytes,
            Setting::ProfileFirst(process) => self.profile_first = process,
            Setting::AddressSpace(0) => {}
            Setting::AddressSpace(bytes) => {
                self.address_space = bytes;
                cairn::set_address_space(bytes);
            }
            Setting::Warned => self.warned = true,
        }
    }
}

/// The settings have been read.
static HAS_READ: AtomicBool = AtomicBool::new(false);

/// What the core asks before it reserves anything (`os::early_address_space`): libraries and a static program's C library may
/// allocate before `start`. 0: as usual. Nothing of the C library's is called: a lock is held.
extern "C" fn early_address_space() -> usize {
    if HAS_READ.load(Ordering::Relaxed) {
        return 0;
    }
    let bytes = |(name, value)| match settings::read(prefix(), name, value) {
        Ok(Setting::AddressSpace(bytes)) => Some(bytes),
        _ => None,
    };
    cairn_variables().filter_map(bytes).last().unwrap_or(0)
}

// Weak, as where it is asked: the same file may have both.
global_asm!(
    ".weak cairn_early_address_space",
    ".hidden cairn_early_address_space",
    ".set cairn_early_address_space, {asked}",
    asked = sym early_address_space,
);

extern "C" fn start() {
    // Nothing is reserved here: a program may limit its own address space before it allocates.
    cairn::see_forks();
    HAS_READ.store(true, Ordering::Relaxed);
    cxx::begin();
    // SAFETY: getauxval has no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    let shown = Text(prefix());
    if prefix().len() > PREFIX_BYTES_MAX {
        warn(format_args!("cairn_settings_prefix: `{shown}` is too long; no setting is read"));
    }
    let mut wishes = Wishes::NONE;
    let mut problems = 0;
    for (name, value) in cairn_variables() {
        match settings::read(prefix(), name, value) {
            Ok(setting) => wishes.apply(setting),
            Err(_) => problems += 1,
        }
    }
    if wishes.show {
        print_config(&wishes);
    }
    // Standard error is the program's, and somebody may compare it: so a person must be there, or
    // have asked; and one process of many is enough.
    if problems > 0 && (wishes.show || (!wishes.warned && report::stderr_is_a_terminal())) {
        for (name, value) in cairn_variables() {
            if let Err(problem) = settings::read(prefix(), name, value) {
                warn(format_args!("{problem}"));
            }
        }
        mark_as_warned();
    }
    if stats::is_wanted() || wishes.profile {
        report::note_stderr();
        destination::note_copy();
        if report::see_forks() && needs_stderr(&wishes) {
            report::keep_stderr();
        }
    }
    if wishes.no_inherit {
        leave_children_alone();
    }
    let limits = (wishes.memory_soft_limit, wishes.memory_limit);
    // What few programs call lies apart, and is resident from the first call on.
    if limits != (0, 0) && !cairn::set_memory_limits(limits.0, limits.1) {
        warn(format_args!("{shown}MEMORY_SOFT_LIMIT: it is more than {shown}MEMORY_LIMIT"));
        cairn::set_memory_limits(0, wishes.memory_limit);
    }
    if wishes.guards > 0 && !cairn::guard_every(wishes.guards) {
        warn(format_args!("{shown}GUARDS: there is no memory for it"));
    }
    if wishes.profile {
        profile::begin(wishes.profile_rate, wishes.profile_first);
    }
    // Last: the environment is changed while there is one thread.
    if wishes.purge_thread && !cairn::start_purge_thread() {
        warn(format_args!("{shown}PURGE_THREAD: no thread can be started"));
    }
    if let Some(signals) = wishes.at_signal
        && (signals.term || signals.int)
        && stats::is_wanted()
        && !at_signal::begin(signals)
    {
        warn(format_args!("{shown}STATS_AT_SIGNAL: no thread can be started"));
    }
}

/// Whether standard error is needed at the end: also for a file that cannot be made then. Else who reads a pipe shall not wait for
/// what the program has closed.
fn needs_stderr(wishes: &Wishes) -> bool {
    let is_sure = |is_wanted: bool, file| !is_wanted || destination::seems_possible(file);
    let is_in_files =
        is_sure(stats::is_wanted(), stats::file()) && is_sure(wishes.profile, profile::file());
    !is_in_files || !report::has_reader()
}

extern "C" fn end() {
    profile::at_exit();
    at_signal::at_exit();
}

/// Milliseconds, as the setting writes them.
struct Delay(usize);

impl Display for Delay {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == usize::MAX { f.write_str("never") } else { write!(f, "{}ms", self.0) }
    }
}

/// A soft limit, as the setting writes it.
struct Soft(usize);

impl Display for Soft {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == usize::MAX { f.write_str("never") } else { write!(f, "{}", self.0) }
    }
}

fn print_config(wishes: &Wishes) {
    let mut out = Output::to_stderr();
    let flag = |on| u8::from(on);
    let at_signal = match wishes.at_signal {
        Some(Signals { term: true, int: true }) => "1",
        Some(Signals { term: true, int: false }) => "TERM",
        Some(Signals { term: false, int: true }) => "INT",
        _ => "0",
    };
    // Outputs do not fail.
    let _ = writeln!(
        out,
        "cairn {}{BUILD} configuration\n{p}STATS={}\n{p}STATS_FILE={}\n\
         {p}STATS_AT_SIGNAL={at_signal}\n{p}SHOW_CONFIG=1\n{p}NO_INHERIT={}\n\
         {p}HUGE_PAGES={}\n{p}PURGE_DELAY={}\n{p}PURGE_THREAD={}\n\
         {p}GUARDS={}\n{p}PROFILE={}\n{p}PROFILE_RATE={}\n{p}MEMORY_LIMIT={}\n{p}MEMORY_SOFT_LIMIT={}\n\
         {p}ADDRESS_SPACE={}",
        env!("CARGO_PKG_VERSION"),
        stats::whose(),
        Text(stats::file()),
        flag(wishes.no_inherit),
        flag(cairn::HUGE_PAGES.load(Ordering::Relaxed)),
        Delay(cairn::purge_delay_ms()),
        flag(wishes.purge_thread),
        wishes.guards,
        Text(profile::file()),
        wishes.profile_rate,
        wishes.memory_limit,
        Soft(wishes.memory_soft_limit),
        wishes.address_space,
        p = Text(prefix()),
    );
}
