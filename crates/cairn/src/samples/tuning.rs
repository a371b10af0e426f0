//! Owns: the tuned constants of this floor: how much is guarded or drawn, how often, and what is told of it.
//! Idea: one place for a number that was measured or judged; what follows from another one stands where it is used.
//! Never: holds a size or a format that another one relies on: half and twice of each of these are right, too.
//! Threads: any; holds nothing.
//! Checked: `cargo xtask tidy` asks each of them what half and twice of it do.
//! Story: docs/guide/guards.md

/// Blocks and freed blocks that are watched at once. With twice of it the kernel's tables for it are 80 KiB.
pub(crate) const BAYS: usize = 256;
/// Bytes of live blocks, whole pages. What is known of the bays takes 80 KiB besides. Half, twice: not tried.
pub(crate) const RESIDENT_MAX: usize = 768 << 10;
/// One block in so many, on average, lies at the start of its bay: what reads or writes in front of it is rarer.
/// Half, twice: not tried.
pub(crate) const UNDERFLOW_EACH: u64 = 4;

/// Below so many bytes from one sample to the next each allocation can be one. A thread that only allocates and frees
/// takes 3 to 90 times as long (docs/guide/guards.md): caches take in no frees, and samples come as often as bytes.
/// Above, those that come to a refill can be. Half, twice: not tried.
pub(crate) const EACH_BELOW: usize = 1 << 20;
/// Above it there is one sample in so many milliseconds at most: each takes 20 to 50 microseconds, mostly of the
/// system's, so that a program that allocates gigabytes in a second pays no more than others. Half, twice: not tried.
pub(crate) const SAMPLE_MS: u64 = 10;
/// After a pause there may be so many more in a row. Half, twice: not tried.
pub(crate) const SAMPLES_IN_A_ROW: u64 = 16;

/// A thread that waits for another one's report does so this often, for a millisecond each time.
/// Half, twice: not tried.
pub(crate) const REPORT_WAITS: usize = 2000;
/// Of a path, the last so many bytes are shown. Half, twice: not tried.
pub(crate) const SHOWN_PATH_BYTES: usize = 160;

/// The profile trusts a cache that has taken in less than one free for so many blocks before the next sample. Half, twice:
/// the same times.
pub(crate) const TRUST_SHARE: u32 = 8;
/// Such a cache may take in up to 2 to that power times as many frees as there are blocks before the sample. At 512 KiB a
/// malloc and a free among 20,000 blocks of up to 1,016 bytes take 13 ns, and 6.3 without the profile. With half of it 25;
/// with twice of it 8.3, but in batches of 30 blocks that come and go 1 % of the samples have not come yet at the end.
pub(crate) const TRUST_MAX: u8 = 3;

/// Calls of a stack that the profile keeps. With half of it deep stacks end before `main`; with twice of it a site takes up to
/// 256 bytes more.
pub(crate) const PROFILE_FRAMES: usize = 32;
/// Live samples: at 512 KiB from one to the next, of 128 GiB. Half, twice: of 64 and 256, in 5 MiB less and 10 MiB more of
/// address space.
pub(crate) const PROFILE_SAMPLES: usize = 1 << 18;
/// Stacks, each with each size of blocks. Half, twice: 4 MiB less and 8 MiB more of address space.
pub(crate) const PROFILE_SITES: usize = 1 << 16;
/// Calls of all of these: 16 of each. Half, twice: 4 MiB less and 8 MiB more of address space.
pub(crate) const PROFILE_CALLS: usize = 1 << 20;

/// Slow ticks from one look for what a tool outside asks to the next: in a loop that lives in its cache some 400,000 pairs of
/// malloc and free, milliseconds. With half of it `remote_mixed` takes 1.002 of the instructions, with twice of it 0.999
/// (measured); at each tick 1.014.
pub(crate) const LISTEN_TICKS: u32 = 8;
