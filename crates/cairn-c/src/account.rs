//! The account in words and as a table, for people who run programs. The core's `Stats` has the
//! figures; the kernel says what is resident. docs/guide/statistics.md explains the lines.

use crate::report::{Output, process};
use crate::settings::Text;
use cairn::{Amount, GroupMemory, MemoryUse, Stats};
use core::fmt::{self, Display, Formatter, Write};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The account of this process, on standard error.
pub(crate) fn print() {
    write_now(&mut Output::to_stderr());
}

/// The account of this process.
pub(crate) fn write_now(out: &mut Output) {
    let stats = Stats::take();
    let mut room = [0; 4096];
    let status = Status::read(&mut room);
    let summary = Summary::of(&stats);
    // Outputs do not fail.
    let _ = write_head(out, &stats, &summary, &status);
    let _ = write_table(out, &stats);
}

/// What the kernel says of the process; as far as it does.
struct Status<'a> {
    name: &'a [u8],
    resident: Option<usize>,
    peak: Option<usize>,
}

impl<'a> Status<'a> {
    fn read(room: &'a mut [u8]) -> Status<'a> {
        let text = crate::report::read_file(c"/proc/self/status", room).unwrap_or(&[]);
        let field = |name: &[u8]| {
            let mut lines = text.split(|&b| b == b'\n');
            lines.find_map(|line| Some(line.strip_prefix(name)?.trim_ascii()))
        };
        let kib = |name| cairn::values::whole(field(name)?.strip_suffix(b" kB")?)?.checked_mul(KIB);
        Status {
            name: field(b"Name:").unwrap_or(b"a program"),
            resident: kib(b"VmRSS:"),
            peak: kib(b"VmHWM:"),
        }
    }
}

/// The statistics in three sums. Resident bytes, but for `held`.
struct Summary {
    /// What the program holds: all bytes of its blocks, touched or not.
    held: usize,
    blocks: usize,
    /// Of these, resident. Small blocks count as if they were all: nobody knows of each.
    held_resident: usize,
    /// Free blocks beside used ones, in all their stages.
    between: usize,
    /// Free, to be given back.
    waiting: usize,
    tables: usize,
}

impl Summary {
    fn of(stats: &Stats) -> Summary {
        let small = stats.sum(|c| c.in_use).min(stats.spans.resident);
        let first = stats.nursery_used.min(stats.nurseries.resident);
        Summary {
            held: stats.allocated(),
            blocks: stats.blocks(),
            held_resident: small + first + stats.large.resident + stats.mappings.resident,
            between: stats.spans.resident - small + stats.nurseries.resident - first,
            waiting: stats.dirty.resident,
            tables: stats.metadata.resident,
        }
    }

    fn added(&self) -> usize {
        self.between + self.waiting + self.tables
    }
}

fn write_head(
    out: &mut Output,
    stats: &Stats,
    summary: &Summary,
    status: &Status<'_>,
) -> fmt::Result {
    let process = process();
    writeln!(out, "cairn: the memory of {}, process {process}", Text(status.name))?;
    let held = (Size(summary.held), summary.blocks);
    writeln!(out, "  the program holds  {:>10}  in {} blocks", held.0, held.1)?;
    writeln!(
        out,
        "  cairn adds         {:>10}  {} free between blocks, {} free and not yet given back, \
         {} tables",
        Size(summary.added()),
        Size(summary.between),
        Size(summary.waiting),
        Size(summary.tables),
    )?;
    write_limits(out)?;
    let ours = Size(stats.total().resident);
    match (status.resident, status.peak) {
        (Some(now), Some(peak)) => writeln!(
            out,
            "  resident           {:>10}  {} at the peak; {ours} of it came through cairn",
            Size(now),
            Size(peak),
        )?,
        _ => writeln!(out, "  resident                    ?  {ours} came through cairn")?,
    }
    writeln!(out, "  In short: {}.", Verdict { summary, resident: status.resident })
}

/// What limits the process's memory, if anything does.
fn write_limits(out: &mut Output) -> fmt::Result {
    let memory = MemoryUse::take();
    let soft = if memory.soft_limit == usize::MAX { 0 } else { memory.soft_limit };
    if memory.hard_limit > 0 || soft > 0 {
        let counted = Size(memory.counted);
        let [hard, soft] = [memory.hard_limit, soft].map(Size);
        writeln!(out, "  limits             {hard:>10}  hard, {soft} soft; {counted} count")?;
    }
    let Some(GroupMemory { used, limit, files, hits, kills, pressure }) = memory.group else {
        return Ok(());
    };
    let [used, limit, files] = [used, limit, files].map(|bytes| Size(bytes as usize));
    writeln!(
        out,
        "  its cgroup may have{limit:>10}  {used} in use, {files} of that for files; at its limit {hits} \
         times, {kills} ended; waiting {}.{:02} % of the time",
        pressure / 100,
        pressure % 100,
    )
}

/// The account in one sentence.
struct Verdict<'a> {
    summary: &'a Summary,
    resident: Option<usize>,
}

impl Display for Verdict<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        /// So little is not worth a second thought.
        const LITTLE: usize = 8 * MIB;
        let Summary { held_resident, between, waiting, tables, .. } = *self.summary;
        let added = self.summary.added();
        let ours = held_resident + added;
        let resident = self.resident.unwrap_or(ours);
        if added <= LITTLE.max(held_resident / 10).max(resident / 4) {
            if ours < resident / 2 {
                let rest = Size(resident - ours);
                return write!(
                    f,
                    "most resident memory, {rest}, is not malloc's but code, stacks and mappings \
                     of the program's own"
                );
            }
            return match (added * 100).checked_div(held_resident) {
                Some(percent) if percent < 100 => {
                    write!(f, "cairn adds {percent} % to what the program holds")
                }
                _ => write!(f, "cairn adds {} to what the program holds", Size(added)),
            };
        }
        if waiting >= between && waiting >= tables {
            let ms = cairn::purge_delay_ms();
            return write!(
                f,
                "{} are free, and go back to the system once idle for {ms} ms while the program \
                 allocates and frees",
                Size(waiting)
            );
        }
        if between >= tables {
            return write!(
                f,
                "{} are holes, free blocks among used ones: new blocks go there first",
                Size(between)
            );
        }
        write!(f, "{} are cairn's own tables, left from a larger heap", Size(tables))
    }
}

fn write_table(out: &mut Output, stats: &Stats) -> fmt::Result {
    writeln!(out, "{:36}{:>12}{:>12}", "", "size", "resident")?;
    let (both, one) =
        (|amount: Amount| (amount.bytes, Some(amount.resident)), |bytes| (bytes, None));
    let parts = [
        stats.sum(|c| c.in_use),
        stats.sum(|c| c.cached),
        stats.sum(|c| c.free),
        stats.sum(|c| c.untouched),
    ];
    // Few programs have such blocks: then these rows have no names.
    let has_nurseries = stats.nurseries.bytes > 0;
    let [first, first_in_use] =
        if has_nurseries { ["first blocks of the program's heaps", "  in use"] } else { [""; 2] };
    let [in_use, cached, free, untouched] = parts.map(one);
    let given_back = usize::try_from(stats.given_back).unwrap_or(usize::MAX);
    let rows = [
        ("small blocks, up to 64 KiB", both(stats.spans)),
        ("  in use", in_use),
        ("  free, at hand for a thread", cached),
        ("  free, among used ones", free),
        ("  not used so far", untouched),
        ("  too small a rest for a block", one(stats.spans.bytes - parts.iter().sum::<usize>())),
        (first, both(stats.nurseries)),
        (first_in_use, one(stats.nursery_used)),
        ("large blocks in use", both(stats.large)),
        ("larger ones, mapped one by one", both(stats.mappings)),
        ("free, not yet given back", both(stats.dirty)),
        ("cairn's own tables", both(stats.metadata)),
        ("all of cairn", both(stats.total())),
        ("free and given back (addresses only)", one(stats.clean)),
        ("given back since the start", one(given_back)),
    ];
    for (name, (bytes, resident)) in rows {
        if name.is_empty() {
            continue;
        }
        write!(out, "{name:36}{:>12}", Size(bytes))?;
        resident.map_or(Ok(()), |resident| write!(out, "{:>12}", Size(resident)))?;
        out.add(b"\n");
    }
    writeln!(
        out,
        "blocks: {} small, {} large, {} mapped; threads' heaps: {} in use of {}",
        stats.blocks() - stats.large_blocks - stats.nursery_blocks - stats.mapping_blocks,
        stats.large_blocks,
        stats.mapping_blocks,
        stats.heaps.0,
        stats.heaps.1,
    )?;
    writeln!(
        out,
        "A block counts with all the bytes it has room for. More in cairn's \
         docs/guide/statistics.md."
    )
}

/// Bytes with a unit and three digits or so: `512 B`, `1.5 KiB`, `250 MiB`.
struct Size(usize);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut room = [0; 24];
        let mut text = crate::report::Line::new(&mut room);
        if self.0 < KIB {
            write!(text, "{} B", self.0)?;
        } else {
            let power = self.0.ilog2() / 10;
            let unit = UNITS.get(power as usize - 1).copied().unwrap_or("");
            let shift = 10 * power;
            let (whole, rest) = (self.0 >> shift, self.0 & ((1 << shift) - 1));
            // Of the rest 10 bits: more would overflow.
            let tenth = ((rest >> (shift - 10)) * 10) >> 10;
            if whole < 100 {
                write!(text, "{whole}.{tenth} {unit}")?;
            } else {
                write!(text, "{whole} {unit}")?;
            }
        }
        f.pad(text.as_str())
    }
}
