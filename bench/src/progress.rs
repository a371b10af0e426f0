//! How far a run is: a bar where there is a terminal, a line a step where there is none.
//!
//! Lines go to standard error, which is not buffered: a log shows each as soon as it is said.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Without a terminal, something is said at least this often while runs end.
const SILENCE: Duration = Duration::from_secs(60);

/// One bar, or the lines that stand for it.
pub struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// When the last line was said, and what it was; none where the bar is seen.
    lines: Option<(Instant, String)>,
}

impl Progress {
    /// Of steps that are not counted.
    pub fn uncounted() -> Progress {
        Progress::of(ProgressBar::new_spinner())
    }

    /// Of this many runs.
    pub fn of_runs(total: usize) -> Progress {
        let style = "{elapsed_precise} {wide_bar} {pos}/{len}, {eta} left  {msg}";
        let bar = ProgressBar::new(total as u64)
            .with_style(ProgressStyle::with_template(style).expect("a valid template"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress::of(bar)
    }

    fn of(bar: ProgressBar) -> Progress {
        let now = Instant::now();
        let lines = bar.is_hidden().then(|| (now, String::new()));
        Progress { bar, start: now, lines }
    }

    /// Begins a step: `text` says which. The same text again is the same step.
    pub fn step(&mut self, text: &str) {
        if self.lines.as_ref().is_some_and(|(_, last)| last != text) {
            self.say(text);
        }
    }

    /// What is being done inside the step.
    pub fn doing(&mut self, text: String) {
        if self.lines.as_ref().is_some_and(|(said, _)| said.elapsed() > SILENCE) {
            let (_, step) = self.lines.clone().expect("lines");
            let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
            eprintln!("{} {done} of {all} runs done, now {text}", clock(self.start.elapsed()));
            self.lines = Some((Instant::now(), step));
        }
        self.bar.set_message(text);
        self.bar.tick();
    }

    /// One run has ended.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }

    fn say(&mut self, text: &str) {
        eprintln!("{} {text}", clock(self.start.elapsed()));
        self.lines = Some((Instant::now(), text.to_owned()));
    }
}

/// Hours, minutes and seconds.
fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_have_three_parts() {
        assert_eq!(clock(Duration::from_secs(3725)), "1:02:05");
        assert_eq!(clock(Duration::from_millis(59_999)), "0:00:59");
    }

    #[test]
    fn a_step_is_said_once() {
        let mut progress = Progress::of(ProgressBar::hidden());
        progress.step("one");
        let first = progress.lines.clone();
        progress.step("one");
        assert_eq!(progress.lines, first);
        progress.step("two");
        assert_eq!(progress.lines.unwrap().1, "two");
    }
}
