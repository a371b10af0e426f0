//! A command on a terminal: what it shows, keys that it gets, and how it leaves the terminal.

use super::inspected::Running;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use vt100::{Parser, Screen};

/// The longest that a screen is waited for, with others at work.
const LONGEST: Duration = Duration::from_secs(30);

pub(crate) struct Terminal {
    keys: File,
    side: OwnedFd,
    before: String,
    shown: Arc<Mutex<Parser>>,
    pub(crate) running: Running,
}

impl Terminal {
    /// Starts a command on a terminal of so many lines and columns.
    pub(crate) fn start(command: &mut Command, lines: u16, columns: u16) -> Terminal {
        let (far, open) = pair();
        let side = open().unwrap();
        tcsetwinsize(&far, winsize(lines, columns)).unwrap();
        let before = modes(&tcgetattr(&side).unwrap());
        command.stdin(open().unwrap()).stdout(open().unwrap()).stderr(open().unwrap());
        command.env("TERM", "xterm-256color");
        // SAFETY: the child makes a few calls to the system, and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // Who runs the tests in the background may have had them ignored.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                    libc::signal(signal, libc::SIG_DFL);
                }
                rustix::process::setsid()?;
                Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)
            });
        }
        let running = Running(command.spawn().unwrap());
        let shown = Arc::new(Mutex::new(Parser::new(lines, columns, 0)));
        let (screen, keys) = (Arc::clone(&shown), File::from(far));
        let mut from = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                screen.lock().unwrap().process(&bytes[..count]);
            }
        });
        Terminal { keys, side, before, shown, running }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until it shows something.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&Screen) -> bool) {
        let begin = Instant::now();
        while !is_so(self.shown.lock().unwrap().screen()) {
            assert!(begin.elapsed() < LONGEST, "{what}: not in\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        self.wait(text, |screen| screen.contents().contains(text));
    }

    pub(crate) fn text(&self) -> String {
        self.shown.lock().unwrap().screen().contents()
    }

    pub(crate) fn resize(&self, lines: u16, columns: u16) {
        self.shown.lock().unwrap().screen_mut().set_size(lines, columns);
        tcsetwinsize(&self.keys, winsize(lines, columns)).unwrap();
    }

    /// Waits until the command ends. The terminal must be as it was.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.running.0.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < LONGEST, "it runs on:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        };
        self.wait("the first screen", |screen| !screen.alternate_screen());
        self.wait("the cursor", |screen| !screen.hide_cursor());
        assert_eq!(modes(&tcgetattr(&self.side).unwrap()), self.before);
        status
    }
}

/// The far side of a new terminal, and what opens the near one.
pub(crate) fn pair() -> (OwnedFd, impl Fn() -> rustix::io::Result<OwnedFd>) {
    let far = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&far).unwrap();
    unlockpt(&far).unwrap();
    let name = ptsname(&far, Vec::new()).unwrap();
    (far, move || rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()))
}

fn winsize(lines: u16, columns: u16) -> Winsize {
    Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// How a terminal treats what is typed and written.
fn modes(known: &Termios) -> String {
    let Termios { input_modes, output_modes, control_modes, local_modes, .. } = known;
    format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?}")
}

/// The line that begins with a number, if it is there.
pub(crate) fn line_of(screen: &Screen, number: u32) -> Option<u16> {
    let (_, columns) = screen.size();
    let begins = |line: &String| {
        line.split_whitespace().next().is_some_and(|word| word == number.to_string())
    };
    screen.rows(0, columns).position(|line| begins(&line)).map(|nth| nth as u16)
}

/// Whether a text is shown on that line, in reverse.
pub(crate) fn is_marked(screen: &Screen, line: u16, text: &str) -> bool {
    let (_, columns) = screen.size();
    let all = screen.rows(0, columns).nth(line.into()).unwrap_or_default();
    let Some(at) = all.find(text) else { return false };
    screen.cell(line, at as u16).is_some_and(vt100::Cell::inverse)
}
