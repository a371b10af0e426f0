//! Owns: what would make a difference, in plain words, each with its figures.
//! Idea: few sentences, and only where one look is enough to be sure. Whether something grows takes two looks.
//! Never: speaks of little.
//! Threads: none.
//! Checked: tests here; tests/inspect.rs of the command
//! Story: docs/guide/inspect.md

use crate::account::{Account, Advice, ClassRow};
use crate::limits::Limit;

/// Bytes that are worth a sentence, if they are a part of what came through cairn that is worth one.
const LEAST: u64 = 1 << 20;
/// One in so many.
const PART: u64 = 20;
/// Classes that are named at most.
const CLASSES: usize = 3;

/// What is to be said of an account, behind what has been said.
pub(crate) fn advice(account: &Account, limits: &[Limit]) -> Vec<Advice> {
    let mut all = account.advice.clone();
    all.extend(limits.iter().filter_map(near));
    all.extend(survivors(account));
    all.extend(cached(account));
    all.extend(free(account));
    all.extend(huge(account));
    all.extend(elsewhere(account));
    if all.is_empty() {
        let (floor, through) = (account.floor.bytes, account.resident.through_cairn);
        all.push(Advice {
            kind: "nothing".into(),
            text: format!(
                "Nothing stands out: of {} through cairn {} are pages with a block in use.",
                mib(through),
                mib(floor)
            ),
            bytes: floor,
            ..Advice::default()
        });
    }
    all
}

fn is_worth(account: &Account, bytes: u64) -> bool {
    bytes >= LEAST && bytes >= account.resident.through_cairn / PART
}

fn near(limit: &Limit) -> Option<Advice> {
    let Limit { name, used, most } = limit;
    (*used >= most / 10 * 9).then(|| Advice {
        kind: "limit near".into(),
        text: format!("A limit is near: {} of {} of its {name} are used.", mib(*used), mib(*most)),
        bytes: *used,
        ..Advice::default()
    })
}

/// Few blocks on many pages.
fn survivors(account: &Account) -> impl Iterator<Item = Advice> {
    let more = |row: &ClassRow| row.floor.saturating_sub(row.in_use * row.size);
    let is_thin = |row: &&ClassRow| row.in_use * row.size < row.floor / 2;
    let rows = account.classes.iter().filter(is_thin);
    let mut rows: Vec<_> = rows.filter(|row| is_worth(account, more(row))).copied().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(more(row)));
    rows.into_iter().take(CLASSES).map(move |row| Advice {
        kind: "survivors scattered".into(),
        text: format!(
            "Survivors are scattered: {} blocks of {} bytes ({}) keep pages of {} resident. Allocate what lives long \
             apart from what does not (cairn_heap_new), or move it (cairn_should_move).",
            row.in_use,
            row.size,
            mib(row.in_use * row.size),
            mib(row.floor)
        ),
        bytes: more(&row),
        ..Advice::default()
    })
}

/// Caches of threads that sleep.
fn cached(account: &Account) -> Option<Advice> {
    let bytes = account.classes.iter().map(|row| row.cached * row.size).sum();
    let (threads, asleep) = account.target.threads?;
    (is_worth(account, bytes) && asleep * 2 > threads).then(|| Advice {
        kind: "cached by idle threads".into(),
        text: format!(
            "Threads' caches hold {}, and {asleep} of {threads} threads are asleep: a thread that is going to wait may \
             call cairn_thread_idle first.",
            mib(bytes)
        ),
        bytes,
        ..Advice::default()
    })
}

/// Free memory that is still there.
fn free(account: &Account) -> Option<Advice> {
    let (dirty, in_spans) = (account.floor.dirty, account.floor.free_in_spans);
    let bytes = dirty + in_spans;
    is_worth(account, bytes).then(|| Advice {
        kind: "free memory kept".into(),
        text: format!(
            "{} are free and not given back yet ({} in spans, {} dirty). In a process that is idle they stay: \
             malloc_trim(0) gives them back, or CAIRN_PURGE_THREAD=1 while it idles.",
            mib(bytes),
            mib(in_spans),
            mib(dirty)
        ),
        bytes,
        ..Advice::default()
    })
}

fn huge(account: &Account) -> Option<Advice> {
    let bytes = account.resident.huge;
    let spare = account.resident.through_cairn.saturating_sub(account.floor.bytes);
    (is_worth(account, bytes) && is_worth(account, spare)).then(|| Advice {
        kind: "huge pages".into(),
        text: format!(
            "{} of the heap are huge pages: each is resident as a whole from its first byte on, and {} of the heap \
             hold no block in use.",
            mib(bytes),
            mib(spare)
        ),
        bytes,
        ..Advice::default()
    })
}

/// Most of it is not cairn's.
fn elsewhere(account: &Account) -> Option<Advice> {
    let bytes = account.resident.sum - account.resident.through_cairn;
    (bytes >= 16 * LEAST && bytes > account.resident.sum / 2).then(|| Advice {
        kind: "elsewhere".into(),
        text: format!(
            "Most is not cairn's: {} of {} resident are files, stacks and mappings of the program's own.",
            mib(bytes),
            mib(account.resident.sum)
        ),
        bytes,
        ..Advice::default()
    })
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::advice;
    use crate::account::{Account, ClassRow, Floor, Held, Resident, Target};
    use crate::limits::Limit;

    const MIB: u64 = 1 << 20;

    /// 100 MiB through cairn, all of it needed.
    fn account() -> Account {
        let target = Target { pid: Some(1), threads: Some((10, 9)), ..Target::default() };
        let (through_cairn, sum) = (100 * MIB, 110 * MIB);
        Account {
            schema: 1,
            target,
            held: Held::default(),
            steps: Vec::new(),
            resident: Resident { through_cairn, sum, kernel: Some(sum), huge: 0, swapped: 0 },
            floor: Floor { bytes: 100 * MIB, ..Floor::default() },
            classes: Vec::new(),
            heaps: Vec::new(),
            biggest: Vec::new(),
            advice: Vec::new(),
            curve: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn kinds(account: &Account, limits: &[Limit]) -> Vec<String> {
        advice(account, limits).iter().map(|advice| advice.kind.to_string()).collect()
    }

    #[test]
    fn of_little_nothing_is_said() {
        let mut account = account();
        assert_eq!(kinds(&account, &[]), ["nothing"]);
        account.floor.dirty = 4 * MIB;
        account.classes.push(ClassRow {
            size: 64,
            in_use: 100,
            floor: 4 * MIB,
            ..ClassRow::default()
        });
        account.classes.push(ClassRow { size: 64, cached: 1000, ..ClassRow::default() });
        assert_eq!(kinds(&account, &[Limit { name: "x", used: 80, most: 100 }]), ["nothing"]);
    }

    #[test]
    fn each_kind_is_said_with_its_figures() {
        let mut account = account();
        account.floor.bytes = 70 * MIB;
        account.floor.dirty = 20 * MIB;
        account.floor.free_in_spans = 10 * MIB;
        account.resident.huge = 50 * MIB;
        account.resident.sum = 300 * MIB;
        account.classes.push(ClassRow {
            size: 64,
            in_use: 1000,
            floor: 30 * MIB,
            ..ClassRow::default()
        });
        account.classes.push(ClassRow { size: 1024, cached: 10 << 10, ..ClassRow::default() });
        let limit = Limit { name: "memory cgroup", used: 95 * MIB, most: 100 * MIB };
        let all = [
            "limit near",
            "survivors scattered",
            "cached by idle threads",
            "free memory kept",
            "huge pages",
            "elsewhere",
        ];
        assert_eq!(kinds(&account, &[limit]), all);
        let said = advice(&account, &[]);
        assert!(said[0].text.contains("1000 blocks of 64 bytes (0.1 MiB)"), "{}", said[0].text);
        assert!(said[1].text.contains("9 of 10 threads are asleep"), "{}", said[1].text);
        account.target.threads = Some((10, 1));
        assert!(!kinds(&account, &[]).iter().any(|kind| kind == "cached by idle threads"));
    }
}
