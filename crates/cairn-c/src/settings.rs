//! The settings: their names, what their values may be, and what to say of others. Pure: the
//! `cairn` command compiles this file too, and checks the variables before it starts a program.
//! docs/guide/settings.md has the table.

use super::values::{bytes, limit, milliseconds, switch, whole};
use core::fmt::{self, Display, Formatter};

/// A setting with its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting<'a> {
    Stats(Stats),
    StatsFile(&'a [u8]),
    StatsAtSignal(Signals),
    ShowConfig(bool),
    NoInherit(bool),
    HugePages(bool),
    PurgeDelayMs(usize),
    PurgeThread(bool),
    /// Bytes from one guarded block to the next; 0: none.
    Guards(usize),
    /// Bytes that the process may have; 0: whatever there is.
    MemoryLimit(usize),
    /// Bytes within which it shall stay; 0: what its memory cgroup says; `usize::MAX`: none, whatever that says.
    MemorySoftLimit(usize),
    /// The file that the heap profile is written to.
    Profile(&'a [u8]),
    /// Bytes from one of its samples to the next on average.
    ProfileRate(usize),
    /// The first process that has seen the request for it, if that was not this one.
    ProfileFirst(u32),
    /// Bytes of address space to reserve at most; 0: as is usual.
    AddressSpace(usize),
    /// Somebody above this process has spoken of settings that make no sense.
    Warned,
}

/// Whose account is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stats {
    pub(crate) whose: Whose,
    /// The first process that has seen the request, if that was not this one.
    pub(crate) top: Option<u32>,
}

/// Which processes write their account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Whose {
    Nobodys,
    /// The first one's, whatever program it becomes by exec.
    Tops,
    /// Its descendants' too.
    Everyones,
}

/// The signals at whose arrival the account is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signals {
    pub(crate) term: bool,
    pub(crate) int: bool,
}

/// What a value may look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Switch,
    Time,
    Bytes,
    Limit,
    Stats,
    Path,
    Signals,
}

impl Form {
    fn in_words(self) -> &'static str {
        match self {
            Form::Switch => "it is 0 or 1",
            Form::Time => "it is a time such as 250ms or 1s, or 0, or never",
            Form::Bytes => "it is a number of bytes such as 10MiB or 512KiB, or 0",
            Form::Limit => "it is a number of bytes such as 2GiB or 512MiB, or 0, or never",
            Form::Stats => "it is 0, 1 or all",
            Form::Path => "it is the path of a file, of less than 1000 bytes",
            Form::Signals => "it is 0, 1, TERM or INT",
        }
    }
}

/// The names, without the prefix.
const NAMES: [(&str, Form); 14] = [
    ("STATS", Form::Stats),
    ("STATS_FILE", Form::Path),
    ("STATS_AT_SIGNAL", Form::Signals),
    ("SHOW_CONFIG", Form::Switch),
    ("NO_INHERIT", Form::Switch),
    ("HUGE_PAGES", Form::Switch),
    ("PURGE_DELAY", Form::Time),
    ("PURGE_THREAD", Form::Switch),
    ("GUARDS", Form::Bytes),
    ("MEMORY_LIMIT", Form::Bytes),
    ("MEMORY_SOFT_LIMIT", Form::Limit),
    ("PROFILE", Form::Path),
    ("PROFILE_RATE", Form::Bytes),
    ("ADDRESS_SPACE", Form::Bytes),
];

/// Longest path of a file; room is left for a process's number behind it.
pub(crate) const PATH_BYTES_MAX: usize = 1000;

/// A variable that is none of ours, or has a value that cannot be read; shown as one sentence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem<'a> {
    prefix: &'a [u8],
    name: &'a [u8],
    value: &'a [u8],
    form: Option<Form>,
}

/// Reads a variable: what all names begin with, what follows that, and the value.
pub(crate) fn read<'a>(
    prefix: &'a [u8],
    name: &'a [u8],
    value: &'a [u8],
) -> Result<Setting<'a>, Problem<'a>> {
    let setting = match name {
        b"STATS" => stats(value).map(Setting::Stats),
        b"STATS_FILE" => path(value).map(Setting::StatsFile),
        b"STATS_AT_SIGNAL" => signals(value).map(Setting::StatsAtSignal),
        b"SHOW_CONFIG" => switch(value).map(Setting::ShowConfig),
        b"NO_INHERIT" => switch(value).map(Setting::NoInherit),
        b"HUGE_PAGES" => switch(value).map(Setting::HugePages),
        b"PURGE_DELAY" => milliseconds(value).map(Setting::PurgeDelayMs),
        b"PURGE_THREAD" => switch(value).map(Setting::PurgeThread),
        b"GUARDS" => bytes(value).map(Setting::Guards),
        b"MEMORY_LIMIT" => bytes(value).map(Setting::MemoryLimit),
        b"MEMORY_SOFT_LIMIT" => limit(value).map(Setting::MemorySoftLimit),
        b"PROFILE" => path(value).map(Setting::Profile),
        b"PROFILE_RATE" => bytes(value).map(Setting::ProfileRate),
        b"PROFILE_FIRST" => number(value).map(Setting::ProfileFirst),
        b"ADDRESS_SPACE" => bytes(value).map(Setting::AddressSpace),
        b"WARNED" => Some(Setting::Warned),
        _ => None,
    };
    let form = NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|&(_, form)| form);
    setting.ok_or(Problem { prefix, name, value, form })
}

/// `1` or `all`, and what the first process has put behind it: a colon and its number.
fn stats(value: &[u8]) -> Option<Stats> {
    let mut parts = value.splitn(2, |&b| b == b':');
    let whose = match parts.next()? {
        b"all" => Whose::Everyones,
        word => match switch(word)? {
            true => Whose::Tops,
            false => Whose::Nobodys,
        },
    };
    let top = match parts.next() {
        Some(digits) => Some(number(digits)?),
        None => None,
    };
    Some(Stats { whose, top })
}

fn number(digits: &[u8]) -> Option<u32> {
    whole(digits)?.try_into().ok()
}

fn path(value: &[u8]) -> Option<&[u8]> {
    (value.len() < PATH_BYTES_MAX).then_some(value)
}

fn signals(value: &[u8]) -> Option<Signals> {
    match value {
        b"TERM" => Some(Signals { term: true, int: false }),
        b"INT" => Some(Signals { term: false, int: true }),
        _ => switch(value).map(|on| Signals { term: on, int: on }),
    }
}

impl Display for Problem<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (prefix, name, value) = (Text(self.prefix), Text(self.name), Text(self.value));
        if let Some(form) = self.form {
            return write!(f, "{prefix}{name}: cannot read `{value}`; {}", form.in_words());
        }
        write!(f, "{prefix}{name} is not a setting; ")?;
        let near = NAMES.iter().min_by_key(|(known, _)| distance(known.as_bytes(), self.name));
        match near {
            Some((known, _)) if distance(known.as_bytes(), self.name) <= TYPING_ERRORS => {
                write!(f, "{prefix}{known} is")
            }
            _ => NAMES.iter().enumerate().try_for_each(|(place, (known, _))| {
                let before = if place == 0 { "there are " } else { ", " };
                write!(f, "{before}{prefix}{known}")
            }),
        }
    }
}

/// So many letters may be missing, too many or wrong for a name to be meant.
const TYPING_ERRORS: usize = 2;
/// Longer than any name that may be meant.
const NAME_MAX: usize = 20;

/// How many letters to add, to leave out or to change lead from one name to the other.
#[inline(never)]
fn distance(known: &[u8], name: &[u8]) -> usize {
    if name.len() > NAME_MAX {
        return usize::MAX;
    }
    // The distances from the letters seen so far of `known` to each beginning of `name`.
    let mut row = [0; NAME_MAX + 1];
    for (place, cell) in row.iter_mut().enumerate() {
        *cell = place;
    }
    for (seen, letter) in known.iter().enumerate() {
        let mut diagonal = seen;
        let mut left = seen + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (cell, other) in row.iter_mut().skip(1).zip(name) {
            let changed = diagonal + usize::from(letter != other);
            diagonal = *cell;
            left = changed.min(*cell + 1).min(left + 1);
            *cell = left;
        }
    }
    row.get(name.len()).copied().unwrap_or(usize::MAX)
}

/// Bytes of the environment, shown as far as they are printable text and not too long.
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 200;
        let text = self.0.get(..SHOWN).unwrap_or(self.0);
        for chunk in text.utf8_chunks() {
            for letter in chunk.valid().chars() {
                write!(f, "{}", if letter.is_control() { '?' } else { letter })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_str("?")?;
            }
        }
        if self.0.len() > SHOWN { f.write_str("...") } else { Ok(()) }
    }
}
