//! A headless Chromium that opens a page, clicks, types, and takes pictures, over the pipe of its own protocol.

use super::inspected::Running;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that anything takes, with others at work.
const LONGEST: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    to: PipeWriter,
    from: Receiver<Value>,
    session: Value,
    sent: u64,
    /// Addresses that the page has asked for.
    asked: Vec<String>,
    // It ends before its folder goes.
    _process: Running,
    _profile: TempDir,
}

/// A window: its size, and whether it is dark.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) is_dark: bool,
}

impl Browser {
    /// A browser with an empty page; none where there is no Chromium.
    pub(crate) fn start() -> Option<Browser> {
        if super::lacks("chromium", "chromium") {
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        let ((read, to), (from, write)) = (pipe().unwrap(), pipe().unwrap());
        let mut command = Command::new("chromium");
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-sync", "--disable-breakpad"]);
        command.arg("--remote-debugging-pipe");
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        given(&mut command, read.into(), write.into());
        let process = Running(command.spawn().unwrap());
        // What it has been given is its own now: so its end is the pipe's.
        drop(command);
        let (session, sent, asked) = (Value::Null, 0, Vec::new());
        let from = messages(from);
        let mut browser =
            Browser { to, from, session, sent, asked, _process: process, _profile: profile };
        let page = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let page = json!({"targetId": page["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", page)["sessionId"].clone();
        browser.call("Page.enable", json!({}));
        browser.call("Network.enable", json!({}));
        Some(browser)
    }

    /// Calls a method of its protocol: what it answers.
    #[track_caller]
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut answer = self.from.recv_timeout(LONGEST).unwrap();
            if answer["method"] == "Network.requestWillBeSent" {
                self.asked.push(answer["params"]["request"]["url"].to_string());
            }
            if answer["id"] == self.sent {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// Opens a file, and waits until it has been drawn.
    #[track_caller]
    pub(crate) fn open(&mut self, page: &Path, look: Look) {
        let Look { width, height, is_dark } = look;
        let scheme = if is_dark { "dark" } else { "light" };
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": feature}));
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
        self.call("Page.navigate", json!({"url": format!("file://{}", page.display())}));
        self.wait(
            "document.readyState === 'complete' && document.querySelector('canvas').height > 1",
        );
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    #[track_caller]
    pub(crate) fn wait(&mut self, expression: &str) {
        let begin = Instant::now();
        let tried = format!(
            "(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        );
        while self.value(&tried) != true {
            let error = self.value("document.documentElement?.dataset.error ?? ''");
            assert!(begin.elapsed() < LONGEST && error == "", "{expression}: not so; {error}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Clicks on a place in an element, in parts of its size.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str, [across, down]: [f64; 2]) {
        let [x, y] = self.place(selector, [across, down]);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Points at a place in an element.
    #[track_caller]
    pub(crate) fn point(&mut self, selector: &str, at: [f64; 2]) {
        let [x, y] = self.place(selector, at);
        self.call("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": x, "y": y}));
    }

    #[track_caller]
    fn place(&mut self, selector: &str, [across, down]: [f64; 2]) -> [f64; 2] {
        let script = format!(
            "(() => {{ const one = document.querySelector({selector:?}); one.scrollIntoView({{block: 'nearest'}});
             const box = one.getBoundingClientRect();
             return [box.left + {across} * box.width, box.top + {down} * box.height]; }})()"
        );
        let found = self.value(&script);
        [0, 1].map(|nth| found[nth].as_f64().unwrap())
    }

    #[track_caller]
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key}));
        }
    }

    #[track_caller]
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Keeps a picture below the target directory, of the whole page.
    #[track_caller]
    pub(crate) fn picture(&mut self, name: &str) {
        let params = json!({"captureBeyondViewport": true, "format": "png"});
        let answer = self.call("Page.captureScreenshot", params);
        let bytes = STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pages");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{name}.png")), &bytes).unwrap();
        assert!(bytes.len() > 10_000, "{name} is empty");
    }

    /// What is wrong with what is seen: it is wider than the window, or texts lie over each other.
    #[track_caller]
    pub(crate) fn assert_fits(&mut self) {
        let found = self.value(OVERLAPS);
        assert_eq!(found, json!([]), "{found}");
        let wide = self.value("document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().unwrap() <= 0, "{wide} pixels too wide");
    }

    /// Nothing but files of the test's has been asked for, and no script has failed.
    #[track_caller]
    pub(crate) fn assert_sound(&mut self) {
        assert_eq!(self.value("document.documentElement.dataset.error ?? ''"), "");
        assert!(self.asked.iter().all(|url| url.starts_with("\"file:")), "{:?}", self.asked);
    }
}

/// Pairs of texts of which one covers a part of the other.
const OVERLAPS: &str = "(() => {
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && boxes.length < 800) {
    const text = walker.currentNode;
    if (!text.data.trim() || ['SCRIPT', 'OPTION'].includes(text.parentElement.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const room = text.parentElement.getBoundingClientRect();
    for (const box of range.getClientRects()) {
      const [left, right] = [Math.max(box.left, room.left), Math.min(box.right, room.right)];
      if (right - left > 2) boxes.push({ text, left, right, top: box.top + 3, bottom: box.bottom - 3 });
    }
  }
  const over = (a, b) => a.text !== b.text && a.left + 1 < b.right && b.left + 1 < a.right && a.top < b.bottom && b.top < a.bottom;
  const pairs = boxes.flatMap((a, nth) => boxes.slice(nth + 1).filter((b) => over(a, b)).map((b) => [a.text.data, b.text.data]));
  return pairs.slice(0, 5);
})()";

/// Gives a command two ends of pipes, as its descriptors 3 and 4.
fn given(command: &mut Command, read: OwnedFd, write: OwnedFd) {
    // SAFETY: the child makes a few calls to the system, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            // First out of the way of each other.
            let ends = [&read, &write].map(|end| libc::fcntl(end.as_raw_fd(), libc::F_DUPFD, 10));
            for (end, number) in ends.into_iter().zip([3, 4]) {
                if end < 0 || libc::dup2(end, number) < 0 || libc::close(end) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

/// What comes, message by message.
fn messages(from: PipeReader) -> Receiver<Value> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(File::from(OwnedFd::from(from)));
        let mut message = Vec::new();
        while from.read_until(0, &mut message).is_ok_and(|count| count > 0) {
            message.pop();
            if send.send(serde_json::from_slice(&message).unwrap_or_default()).is_err() {
                return;
            }
            message.clear();
        }
    });
    receive
}
