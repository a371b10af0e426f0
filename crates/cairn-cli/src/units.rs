//! How numbers of bytes are written, and texts of others.
//!
//! Owns the units. The one idea: three digits or more, so that a rounded figure is within a percent of the one that
//! it stands for. It must never round a figure of another kind.

/// A number of bytes with three digits or more, in the unit that suits it.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64 / 1024.0, units[0]);
    for next in &units[1..] {
        if value >= 1024.0 {
            (value, unit) = (value / 1024.0, next);
        }
    }
    match value {
        _ if bytes < 1024 => format!("{bytes} B"),
        ..100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

/// A difference of such numbers, with its sign; a number that is none, or no difference, is a dash.
pub(crate) fn change(bytes: f64) -> String {
    let size = human(bytes.abs().round() as u64);
    match bytes {
        0.5.. => format!("+{size}"),
        ..-0.5 => format!("-{size}"),
        _ => "-".to_owned(),
    }
}

/// A text on one line and without effect on a terminal.
pub(crate) fn printable(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect()
}
