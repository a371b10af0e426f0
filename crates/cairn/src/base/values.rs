//! Owns: how values of settings are written: switches, times, numbers of bytes.
//! Idea: one way for the environment of C programs, of Rust programs, and for the command.
//! Never: knows a setting, or where the text is from.
//! Threads: any; holds nothing.
//! Checked: tests of the C layer's settings.
//! Story: docs/guide/settings.md

/// `1`; `0` or nothing.
#[must_use]
pub fn switch(value: &[u8]) -> Option<bool> {
    match value {
        b"1" => Some(true),
        b"0" | b"" => Some(false),
        _ => None,
    }
}

/// A time with a unit: `250ms`, `1s`, `0`; `never` is the longest.
#[must_use]
pub fn milliseconds(value: &[u8]) -> Option<usize> {
    if value == b"never" {
        return Some(usize::MAX);
    }
    let (number, unit) = number(value)?;
    match unit {
        b"ms" => Some(number),
        b"s" => number.checked_mul(1000),
        b"" if number == 0 => Some(0),
        _ => None,
    }
}

/// A limit in bytes: a number of them; `never` is the largest.
#[must_use]
pub fn limit(value: &[u8]) -> Option<usize> {
    if value == b"never" { Some(usize::MAX) } else { bytes(value) }
}

/// A number of bytes, with or without a unit: `10MiB`, `512KiB`, `2G`, `1`, `0`.
#[must_use]
pub fn bytes(value: &[u8]) -> Option<usize> {
    let (number, unit) = number(value)?;
    let shift = match unit {
        b"" => 0,
        b"KiB" | b"K" => 10,
        b"MiB" | b"M" => 20,
        b"GiB" | b"G" => 30,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

/// The number in front, and what follows it.
fn number(value: &[u8]) -> Option<(usize, &[u8])> {
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, unit) = value.split_at_checked(digits)?;
    Some((whole(number)?, unit))
}

/// A whole number, and nothing else.
#[must_use]
#[inline(never)]
pub fn whole(digits: &[u8]) -> Option<usize> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}
