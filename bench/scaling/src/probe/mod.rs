//! The traced program: threads that allocate and hand blocks over, for ever.
//!
//! It runs at full speed until every thread has done its share of warming up, writes one
//! line of JSON ([`Ready`]), and goes on until it is killed or its input ends.

mod block;
mod shapes;
mod users;

pub use users::Users;

use block::Block;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Who frees what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    /// The threads take turns at writing one line, and have a block each time; a check of
    /// the model, since what moves is known exactly.
    PingPong,
}

impl Shape {
    /// Those that say something about an allocator.
    pub const ALL: [Shape; 6] = [
        Shape::Local,
        Shape::Pairs,
        Shape::AnyConsumer,
        Shape::Swap,
        Shape::LarsonLike,
        Shape::OneToAll,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What to run; the probe's arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct Order {
    /// Who frees what.
    pub shape: Shape,
    /// How many threads.
    pub threads: usize,
    /// Bytes in a block.
    pub size: usize,
    /// Blocks that each thread handles before it is warm.
    pub warm_up: u64,
}

impl Order {
    /// The order as arguments.
    pub fn words(&self) -> [String; 4] {
        let Order { shape, threads, size, warm_up } = self;
        [shape.name(), threads.to_string(), size.to_string(), warm_up.to_string()]
    }
}

/// What the tracer has to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The address of malloc.
    pub malloc: u64,
    /// The address of free.
    pub free: u64,
    /// The address of a byte: 1 while the users of blocks are noted.
    pub noting: u64,
    /// The address of the table of users.
    pub users: u64,
    /// The threads, in order.
    pub threads: Vec<i32>,
}

/// On lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// What all threads know.
struct Common {
    order: Order,
    users: Users,
    noting: Apart<AtomicBool>,
    progress: Vec<Apart<AtomicU64>>,
    threads: Vec<AtomicI32>,
}

impl Common {
    fn new(order: Order) -> std::io::Result<Common> {
        let threads = order.threads;
        Ok(Common {
            order,
            users: Users::new()?,
            noting: Apart(AtomicBool::new(true)),
            progress: std::iter::repeat_with(Apart::default).take(threads).collect(),
            threads: std::iter::repeat_with(AtomicI32::default).take(threads).collect(),
        })
    }

    fn is_warm(&self) -> bool {
        self.progress.iter().all(|done| done.0.load(Relaxed) >= self.order.warm_up)
    }

    fn ready(&self) -> Ready {
        Ready {
            malloc: (libc::malloc as *const ()).addr() as u64,
            free: (libc::free as *const ()).addr() as u64,
            noting: self.noting.0.as_ptr().addr() as u64,
            users: self.users.address(),
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
    #[inline(always)]
    fn allocate(&self, size: usize) -> Block {
        let block = Block::new(size);
        if self.common.noting.0.load(Relaxed) {
            self.common.users.note(block.address(), size, self.index);
        }
        block
    }

    /// Reads the block's first word and frees it.
    #[inline(always)]
    fn free(&mut self, block: Block) {
        let size = block.size();
        if self.common.noting.0.load(Relaxed) {
            self.common.users.note(block.address(), size, self.index);
        }
        block.free();
        self.count();
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
        if self.common.noting.0.load(Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// Runs the program; it returns only on an error.
pub fn run(order: Order) -> anyhow::Result<()> {
    let common = Common::new(order)?;
    let exchange = shapes::Exchange::new(&common.order);
    std::thread::scope(|scope| {
        for index in 0..common.order.threads {
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
