//! The traced program: threads that allocate and hand blocks over, for ever.
//!
//! It runs at full speed until every thread has done its share of warming up, writes one
//! line of JSON ([`Ready`]), and goes on until it is killed or its input ends.

mod shapes;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::Read;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64};
use std::time::Duration;

/// Who frees what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Shape {
    /// Each thread frees its own, the oldest of 64 first.
    Local,
    /// Half the threads allocate, each for one that frees, through a ring of 64.
    Pairs,
    /// Half the threads fill batches of 32; any of the others takes and frees one.
    AnyConsumer,
    /// Each thread puts a block in a random slot of all and frees what was there.
    Swap,
    /// Each thread replaces random blocks of 16 in a set of 64, of 1/4 to 4 times the
    /// size, and now and then changes sets with others.
    LarsonLike,
    /// One thread allocates for all others, 8 blocks at a time.
    OneToAll,
}

impl Shape {
    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The probe's variable: an [`Order`] as JSON.
pub const ORDER: &str = "CAIRN_SCALING_PROBE";

/// Bytes in a block.
const SIZE: usize = 64;

/// What to run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Who frees what.
    pub shape: Shape,
    /// How many threads.
    pub threads: usize,
}

/// What the tracer has to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The address of malloc.
    pub malloc: u64,
    /// The address of free.
    pub free: u64,
    /// The address of a byte that is to be 1 while the program is traced.
    pub traced: u64,
    /// The threads, in order.
    pub threads: Vec<i32>,
}

/// A block that carries its size in its first eight bytes.
///
/// Invariant 1: a live block from malloc that belongs to this value alone, of more than
/// 8 bytes, the first eight of which are its size.
struct Block(NonNull<usize>);

impl Block {
    /// Allocates; writes the first word and the last byte.
    #[inline(always)]
    fn new(size: usize) -> Block {
        assert!(size > size_of::<usize>());
        // SAFETY: malloc takes any size.
        let raw = black_box(unsafe { libc::malloc(size) });
        let block = NonNull::new(raw.cast::<usize>()).expect("memory for a block");
        // SAFETY: the last byte of a fresh block, and its first word: malloc aligns those of 8 bytes
        // and more to 8 or more.
        unsafe {
            block.cast::<u8>().add(size - 1).write_volatile(1);
            block.write_volatile(size);
        }
        Block(block)
    }

    /// Frees.
    #[inline(always)]
    fn free(self) {
        // SAFETY: invariant 1; `self` is consumed, so it is freed once.
        unsafe { libc::free(black_box(self.0.as_ptr()).cast()) };
    }

    /// Its size, which is read from the block.
    #[inline(always)]
    fn size(&self) -> usize {
        // SAFETY: invariant 1.
        unsafe { self.0.read_volatile() }
    }
}

/// A place for one block that threads share.
///
/// Invariant 1: null, or a block that belongs to the slot.
#[derive(Default)]
struct Slot(AtomicPtr<usize>);

impl Slot {
    /// Puts a block in, and takes out what was there.
    #[inline(always)]
    fn swap(&self, block: Block) -> Option<Block> {
        // What was there belonged to the slot and now to nobody else: Block's invariant.
        NonNull::new(self.0.swap(block.0.as_ptr(), AcqRel)).map(Block)
    }

    /// Takes the block out, if there is one. One thread at a time takes from a slot.
    #[inline(always)]
    fn take(&self) -> Option<Block> {
        let block = NonNull::new(self.0.load(Acquire))?;
        self.0.store(std::ptr::null_mut(), Release);
        Some(Block(block))
    }

    /// Puts a block into an empty slot. One thread at a time puts into a slot.
    #[inline(always)]
    fn put(&self, block: Block) {
        self.0.store(block.0.as_ptr(), Release);
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.0.load(Acquire).is_null()
    }
}

/// On lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// What all threads know.
struct Common {
    order: Order,
    traced: Apart<AtomicBool>,
    progress: Vec<Apart<AtomicU64>>,
    threads: Vec<AtomicI32>,
}

impl Common {
    /// Whether each thread has handled enough blocks.
    fn is_warm(&self) -> bool {
        let enough = (200_000 / self.order.threads as u64).max(4_000);
        self.progress.iter().all(|done| done.0.load(Relaxed) >= enough)
    }

    fn ready(&self) -> Ready {
        Ready {
            malloc: (libc::malloc as *const ()).addr() as u64,
            free: (libc::free as *const ()).addr() as u64,
            traced: self.traced.0.as_ptr().addr() as u64,
            threads: self.threads.iter().map(|thread| thread.load(Relaxed)).collect(),
        }
    }
}

/// One thread.
struct Worker<'a> {
    index: usize,
    common: &'a Common,
    random: fastrand::Rng,
    done: u64,
}

impl Worker<'_> {
    /// Reads the block's first word and frees it, if there is a block.
    #[inline(always)]
    fn free(&mut self, block: Option<Block>) {
        if let Some(block) = block {
            black_box(block.size());
            block.free();
            self.count();
        }
    }

    /// Counts one call of free, or of a malloc whose block another thread frees.
    #[inline(always)]
    fn count(&mut self) {
        self.done += 1;
        self.common.progress[self.index].0.store(self.done, Relaxed);
    }

    /// One turn of a waiting loop.
    #[inline(always)]
    fn wait(&self) {
        std::hint::spin_loop();
        self.give_way();
    }

    /// Other threads may need this core, but for a traced thread, which has one to itself.
    #[inline(always)]
    fn give_way(&self) {
        if !self.common.traced.0.load(Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// Runs the program; it returns only on an error.
pub fn run(order: &str) -> anyhow::Result<()> {
    let order: Order = serde_json::from_str(order)?;
    let common = Common {
        order,
        traced: Apart::default(),
        progress: (0..order.threads).map(|_| Apart::default()).collect(),
        threads: (0..order.threads).map(|_| AtomicI32::default()).collect(),
    };
    let exchange = shapes::Exchange::new(order);
    std::thread::scope(|scope| {
        for index in 0..order.threads {
            let (common, exchange) = (&common, &exchange);
            scope.spawn(move || {
                // SAFETY: gettid takes nothing and changes nothing.
                common.threads[index].store(unsafe { libc::gettid() }, Relaxed);
                let random = fastrand::Rng::with_seed(index as u64);
                shapes::work(&mut Worker { index, common, random, done: 0 }, exchange);
            });
        }
        while !common.is_warm() {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("{}", serde_json::to_string(&common.ready())?);
        // The tracer holds the other end and never writes: its end is ours.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0)
    })
}
