//! The terminal, as it is taken and given back.
//!
//! Owns the raw mode, the second screen, and the signals that end a process. The one idea: whatever ends the command,
//! the terminal is given back first: by a return, by a signal, by a panic. It must never be written to after that.

use anyhow::Result;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{Stdout, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// Signals that end a process, and that a terminal or a user sends.
const FATAL: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The terminal while it is taken.
pub(super) struct Screen(pub(super) Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal.
    pub(super) fn take() -> Result<Screen> {
        static PANICS: Once = Once::new();
        PANICS.call_once(|| {
            let tell = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                tell(panic);
            }));
        });
        FATAL.into_iter().for_each(|signal| handle(signal, catch as *const () as usize));
        IS_TAKEN.store(true, Ordering::Relaxed);
        let taken = enable_raw_mode().and_then(|()| execute!(stdout(), EnterAlternateScreen));
        // It is given back if this fails.
        let screen = Terminal::new(CrosstermBackend::new(stdout())).map(Screen);
        taken.and(screen).inspect_err(|_| give_back()).map_err(Into::into)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::Relaxed) {
        // A terminal that is gone has nothing to get.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        FATAL.into_iter().for_each(|signal| handle(signal, libc::SIG_DFL));
    }
}

extern "C" fn catch(signal: i32) {
    if CAUGHT.swap(signal, Ordering::Relaxed) != 0 {
        // Nobody has looked since the last one.
        // SAFETY: both may be done at any point of the program, which ends.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}

/// Waits for a key, or for anything else that there is to read; false if the terminal is gone. Asked before each look at
/// what has come: who reads from a terminal that is gone reads for ever.
pub(super) fn is_there(patience: Duration) -> bool {
    let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: one place, which is there.
    unsafe { libc::poll(&mut input, 1, patience.as_millis() as i32) };
    input.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
}

/// The signal that has come, if one has.
pub(super) fn caught() -> Option<i32> {
    Some(CAUGHT.swap(0, Ordering::Relaxed)).filter(|&signal| signal != 0)
}

/// Does what a signal does by default, when the terminal has been given back.
pub(super) fn raise(signal: i32) {
    // SAFETY: no memory is concerned.
    unsafe { libc::raise(signal) };
}

/// What happens at a signal; one that is ignored stays so.
fn handle(signal: i32, handler: usize) {
    // SAFETY: the handler stores to an atomic, which may be done at any point of the program.
    let before = unsafe { libc::signal(signal, handler) };
    if before == libc::SIG_IGN {
        // SAFETY: as above.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
