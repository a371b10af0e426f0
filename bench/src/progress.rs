//! How far a run is: a line a step, and one a minute inside long ones.
//!
//! Lines go to standard error, which is not buffered: a log shows each as soon as it is said.

use std::time::{Duration, Instant};

/// Something is said at least this often while runs end.
const SILENCE: Duration = Duration::from_secs(60);

/// What has been said.
pub struct Progress {
    start: Instant,
    said: Instant,
    step: String,
    done: usize,
    total: usize,
}

impl Progress {
    /// Of this many runs; of none, steps alone are told.
    pub fn of_runs(total: usize) -> Progress {
        let now = Instant::now();
        Progress { start: now, said: now, step: String::new(), done: 0, total }
    }

    /// Begins a step: `text` says which. The same text again is the same step.
    pub fn step(&mut self, text: &str) {
        if self.step != text {
            text.clone_into(&mut self.step);
            self.say(text);
        }
    }

    /// One run begins.
    pub fn run(&mut self, text: &str) {
        if self.said.elapsed() > SILENCE {
            self.say(&format!("{} of {} runs done, now {text}", self.done, self.total));
        }
        self.done += 1;
    }

    fn say(&mut self, text: &str) {
        eprintln!("{} {text}", clock(self.start.elapsed()));
        self.said = Instant::now();
    }
}

/// Hours, minutes and seconds.
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
