//! Random programs of operations, over one thread and over several, against an oracle; see
//! `machine`. The programs run in processes of their own, so that whatever one does to its process
//! is seen from outside: a failure is written to a file, made short, and told with the command
//! that repeats it. Before them, the fuzzers' corpus is run.
//!
//! ```text
//! cargo test -p cairn-malloc --test operations -- --nocapture
//!     CAIRN_FUZZ_SECONDS=600          for so long, or
//!     CAIRN_FUZZ_OPERATIONS=1000000   until so many operations are done
//!     CAIRN_FUZZ_SEED=1               the same programs as in another run
//!     CAIRN_FUZZ_REPLAY=FILE          one program, ten times; its folder names its kind
//!     CAIRN_FUZZ_TRACE=1              and each of its steps printed
//! ```

mod machine;
mod report;
mod supervisor;

use machine::Kind;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};
use supervisor::{Goal, Supervisor};

/// The fuzzers' programs, compressed: on each line a kind's name, and the bytes in hexadecimal.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus.gz");
/// The fuzz targets' names, which are also the folders' in which their programs lie.
const KINDS: [(Kind, &str); 3] =
    [(Kind::Single, "single"), (Kind::Threads, "threads"), (Kind::Watched, "watched")];
/// How often a program is replayed: what it meets differs with what ran before, and with time.
const REPLAYS: usize = 10;

#[test]
fn operations_agree_with_the_oracle() {
    if let Some(path) = std::env::var_os("CAIRN_FUZZ_REPLAY") {
        return replay(&PathBuf::from(path));
    }
    if let Ok(order) = std::env::var("CAIRN_FUZZ_WORKER") {
        return work(&order);
    }
    let seed = number("CAIRN_FUZZ_SEED")
        .unwrap_or_else(|| UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
    let seconds = number("CAIRN_FUZZ_SECONDS").unwrap_or(3);
    if !supervisor::can_start() {
        // On a simulator: here, then, and the first failure ends it all.
        println!("seed {seed}");
        return work(&format!("{seed} 0 {}", seconds * 1000));
    }
    let goal = match number("CAIRN_FUZZ_OPERATIONS") {
        Some(operations) => Goal::Operations(operations),
        None => Goal::Time(Duration::from_secs(seconds)),
    };
    let supervisor = Supervisor::new(seed, goal);
    let failure = supervisor.run();
    println!("\n{}", supervisor.summary());
    if let Some(failure) = failure {
        panic!("{}", report::tell(&failure));
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// A panic anywhere ends the process: no thread waits for one that has failed.
fn abort_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        std::process::abort();
    }));
}

/// Runs one program again and again, for people and for shrinking.
fn replay(path: &Path) {
    abort_on_panic();
    let folder = path.parent().and_then(Path::file_name);
    let kind = KINDS.into_iter().find(|&(_, name)| folder.is_some_and(|folder| folder == name));
    let (kind, _) = kind.expect("the folder of a program is called single, threads or watched");
    let program = std::fs::read(path).expect("the program can be read");
    let trace = std::env::var_os("CAIRN_FUZZ_TRACE").is_some();
    for _ in 0..REPLAYS {
        machine::run(kind, &program, trace);
    }
}

/// A worker's order: `corpus`, or a seed, the first program's number, and for how long at most.
fn work(order: &str) {
    abort_on_panic();
    // Straight to the descriptor: the supervisor reads along, the harness does not.
    let say = |line: String| {
        std::io::stdout().lock().write_all(line.as_bytes()).expect("the supervisor reads");
    };
    let run = |name: &str, kind: Kind, program: &[u8]| {
        say(format!("\n@begin {name}\n"));
        let counts = machine::run(kind, program, false);
        say(format!("\n@end {} {}\n", counts.lockstep, counts.parallel));
    };
    let numbers: Vec<u64> = order.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [seed, first, milliseconds] = numbers[..] else {
        for (line, (kind, program)) in corpus().into_iter().enumerate() {
            run(&format!("corpus {line}"), kind, &program);
        }
        return;
    };
    // Every other worker has little room: what is told apart by addresses modulo the reservation's size meets more often.
    if first / supervisor::PROGRAMS % 2 == 1 {
        cairn::set_address_space(4 << 30);
    }
    let until = Instant::now() + Duration::from_millis(milliseconds);
    for index in first..first + supervisor::PROGRAMS {
        let (kind, program) = random_program(seed, index);
        run(&index.to_string(), kind, &program);
        if Instant::now() >= until {
            return;
        }
    }
}

fn folder_of(kind: Kind) -> &'static str {
    KINDS.into_iter().find(|&(listed, _)| listed == kind).map_or("", |(_, name)| name)
}

/// The committed programs of these kinds.
fn corpus() -> Vec<(Kind, Vec<u8>)> {
    let Ok(file) = std::fs::File::open(CORPUS) else { return Vec::new() };
    let text = std::io::read_to_string(flate2::read::GzDecoder::new(file)).expect("gzip's text");
    let program = |line: &str| {
        let (name, digits) = line.split_once(' ').expect("a kind and bytes");
        // Other targets' programs are not run here.
        let (kind, _) = KINDS.into_iter().find(|&(_, listed)| listed == name)?;
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<_>>();
        Some((kind, bytes.expect("hexadecimal digits")))
    };
    text.lines().filter_map(program).collect()
}

/// Program `index` of `seed`: as many random bytes as another random number says.
fn random_program(seed: u64, index: u64) -> (Kind, Vec<u8>) {
    let mut state = (seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let mut random = || {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    random();
    let len = 16usize << (random() >> 32 & 7);
    let (kind, _) = KINDS[(random() >> 33) as usize % KINDS.len()];
    let mut program = Vec::with_capacity(len);
    while program.len() < len {
        program.extend_from_slice(&random().to_le_bytes());
    }
    (kind, program)
}
