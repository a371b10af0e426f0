//! The threads of a program. In lock-step the table of blocks goes to the one thread that works and
//! comes back; in a burst it is dealt out, and put together again at the end.

use super::Counts;
use super::bytes::Bytes;
use super::hand_over::{When, leave};
use super::step::{Company, steps};
use super::table::Table;
use super::{exchange, world};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Threads besides the one that runs the program.
const MEMBERS: usize = 4;

/// A thread that has done more in a burst begins no further round.
const ROUNDS_OPERATIONS: u64 = 4000;

/// Steps for one thread.
struct Job {
    table: Table,
    bytes: Vec<u8>,
    rounds: usize,
    company: Company,
    /// Where those who begin together wait for each other: how many are not there yet.
    gate: Option<Arc<AtomicUsize>>,
    reply: Sender<Table>,
    /// To be done by a thread that ends, as late as it can.
    will: bool,
}

impl Job {
    fn run(mut self) {
        if let Some(gate) = &self.gate {
            wait(gate);
        }
        for _ in 0..self.rounds {
            if self.table.operations >= ROUNDS_OPERATIONS {
                break;
            }
            steps(&mut self.table, &mut Bytes::new(&self.bytes), self.company);
        }
        self.reply.send(self.table).expect("the program waits for it");
    }
}

fn wait(gate: &AtomicUsize) {
    // Relaxed: it orders nothing; the tables come and go through channels.
    gate.fetch_sub(1, Ordering::Relaxed);
    let mut turns = 0u32;
    while gate.load(Ordering::Relaxed) > 0 {
        turns += 1;
        if turns.is_multiple_of(256) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

struct Member {
    number: u64,
    inbox: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Member {
    fn begin() -> Member {
        let (inbox, jobs): (Sender<Job>, Receiver<Job>) = channel();
        let number = world::new_number();
        let work = move || {
            world::set_me(number);
            for job in jobs {
                if job.will {
                    return leave(When::Late, vec![Box::new(|| job.run())]);
                }
                job.run();
            }
        };
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(work);
        Member { number, inbox, thread: thread.expect("threads can be made") }
    }

    fn end(self) {
        drop(self.inbox);
        self.thread.join().expect("a panic ends the process");
        world::gone(self.number);
    }
}

/// The threads, made when they are first named.
pub(crate) struct Crew {
    members: [Option<Member>; MEMBERS],
}

impl Crew {
    /// Nobody yet.
    pub(crate) fn new() -> Crew {
        Crew { members: [const { None }; MEMBERS] }
    }

    /// Runs a program's sections.
    pub(crate) fn sections(
        &mut self,
        mut table: Table,
        bytes: &mut Bytes,
        counts: &mut Counts,
    ) -> Table {
        while !bytes.is_empty() {
            let head = bytes.number();
            let which = head / 16;
            match head % 16 {
                0..=8 => {
                    let steps = bytes.number() + 1;
                    table = self.lockstep(table, bytes.take(steps), which % (MEMBERS + 1));
                }
                9..=12 => {
                    counts.lockstep += std::mem::take(&mut table.operations);
                    table = self.burst(table, bytes, which);
                    counts.parallel += std::mem::take(&mut table.operations);
                }
                13 | 14 => {
                    if let Some(member) = self.members[which % MEMBERS].take() {
                        member.end();
                    }
                }
                _ => {
                    let steps = bytes.number() % 64 + 1;
                    table = self.last_will(table, bytes.take(steps), which % MEMBERS);
                }
            }
        }
        table
    }

    /// One thread works, all others rest; thread 0 is the one that runs the program.
    fn lockstep(&mut self, mut table: Table, bytes: &[u8], who: usize) -> Table {
        if table.trace {
            eprintln!("run of thread {who}");
        }
        let Some(member) = who.checked_sub(1) else {
            steps(&mut table, &mut Bytes::new(bytes), Company::Alone);
            return table;
        };
        let (reply, back) = channel();
        let job = Job {
            table,
            bytes: bytes.to_vec(),
            rounds: 1,
            company: Company::Alone,
            gate: None,
            reply,
            will: false,
        };
        self.send(member, job);
        back.recv().expect("a panic ends the process")
    }

    /// Several work at the same time.
    fn burst(&mut self, table: Table, bytes: &mut Bytes, which: usize) -> Table {
        let (detail, trace) = (bytes.number(), table.trace);
        let parts = 2 + which % (MEMBERS - 1);
        let rounds = [1, 4, 16, 64][which / 4 % 4];
        // Threads that all do the same, and often, meet in the same spans.
        let alike = detail & 64 != 0;
        let len = 4 * (detail % 32 + 1);
        let mut part_bytes = bytes.take(len);
        if trace {
            eprintln!("burst of {parts} threads, {rounds} rounds");
        }
        let gate = Arc::new(AtomicUsize::new(parts));
        let (reply, back) = channel();
        // Neighbours go to different threads, or stay together.
        let run = if detail & 32 == 0 { 1 } else { 64 };
        let mut own = None;
        for (part, table) in table.split(parts, run).into_iter().enumerate() {
            if part > 0 && !alike {
                part_bytes = bytes.take(len);
            }
            let job = Job {
                table,
                bytes: part_bytes.to_vec(),
                rounds,
                company: Company::Together,
                gate: Some(gate.clone()),
                reply: reply.clone(),
                will: false,
            };
            match part.checked_sub(1) {
                None => own = Some(job),
                Some(member) => self.send(member, job),
            }
        }
        drop(reply);
        own.expect("the first part is this thread's").run();
        let mut table = Table::merge(back.iter().collect());
        exchange::clear(&mut table);
        cairn::check();
        table
    }

    /// A thread ends, and works when its heap is gone already.
    fn last_will(&mut self, table: Table, bytes: &[u8], member: usize) -> Table {
        if table.trace {
            eprintln!("last will of thread {}", member + 1);
        }
        let (reply, back) = channel();
        let job = Job {
            table,
            bytes: bytes.to_vec(),
            rounds: 1,
            company: Company::Alone,
            gate: None,
            reply,
            will: true,
        };
        self.send(member, job);
        self.members[member].take().expect("it has just been sent a job").end();
        back.recv().expect("a panic ends the process")
    }

    fn send(&mut self, member: usize, job: Job) {
        let member = self.members[member].get_or_insert_with(Member::begin);
        assert!(member.inbox.send(job).is_ok(), "a panic ends the process");
    }

    /// All threads end.
    pub(crate) fn end(&mut self) {
        self.members.iter_mut().filter_map(Option::take).for_each(Member::end);
    }
}
