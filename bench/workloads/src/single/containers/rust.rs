//! A service: sessions by name, an index by their last use, a queue of records, and answers
//! that are put together from strings. What ordinary Rust code does.

use crate::case::{Results, Settings};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;
use std::hash::BuildHasherDefault;
use std::time::Instant;

const ROUNDS: usize = 8;
const REQUESTS: u64 = 40_000;
const SESSIONS: usize = 8_000;
const RECORDS: usize = 4_000;
const ITEMS: usize = 40;
/// What the answers of one life add up to.
const ANSWERS: u64 = 13_367_627_120_466_194_770;

pub(crate) fn run(settings: &Settings) -> Results {
    live(REQUESTS / 20);
    let rounds = settings.scaled(ROUNDS);
    let start = Instant::now();
    for _ in 0..rounds {
        assert_eq!(live(REQUESTS), ANSWERS, "wrong answers");
    }
    Results::ns(start.elapsed(), rounds * REQUESTS as usize)
}

/// Serves requests from an empty start; returns the checksum of the answers.
fn live(requests: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut service = Service::default();
    // A hash of bytes (Fowler, Noll and Vo), the same with every version of Rust.
    let mut checksum: u64 = 0xcbf2_9ce4_8422_2325;
    for now in 0..requests {
        // Some users come often, most of them rarely.
        let user = rng.u32(0..20_000) >> rng.u32(0..4);
        let request = match rng.u32(0..10) {
            0..5 => format!("/users/{user}/items?add={}&note=n{}", rng.u32(..), rng.u8(..)),
            5..9 => format!("/users/{user}/items?page={}", rng.u8(0..4)),
            _ => format!("/users/{user}?forget=1"),
        };
        for byte in service.answer(now, &request).bytes() {
            checksum = (checksum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    service.check();
    checksum
}

#[derive(Default)]
struct Session {
    items: Vec<String>,
    notes: BTreeMap<String, u32>,
    last_use: u64,
}

struct Record {
    path: Vec<String>,
    size: usize,
}

#[derive(Default)]
struct Service {
    /// With a hasher that is not seeded: the same work in every run.
    sessions: HashMap<String, Session, BuildHasherDefault<DefaultHasher>>,
    by_use: BTreeMap<u64, String>,
    records: VecDeque<Record>,
}

impl Service {
    /// Serves one request; `now` never repeats.
    fn answer(&mut self, now: u64, request: &str) -> String {
        let (path, query) = request.split_once('?').unwrap_or((request, ""));
        let path: Vec<String> = path.split('/').skip(1).map(str::to_owned).collect();
        let fields: BTreeMap<&str, &str> =
            query.split('&').filter_map(|field| field.split_once('=')).collect();
        let user = &path[1];
        if fields.contains_key("forget") {
            let found = self.sessions.remove(user);
            let found = found.map(|session| self.by_use.remove(&session.last_use));
            return format!("{{\"forgotten\":{}}}", found.is_some());
        }
        let session = self.session(user, now);
        if let Some(item) = fields.get("add") {
            session.items.push(format!("item {item} of user {user}"));
            if session.items.len() > ITEMS {
                session.items.drain(..ITEMS / 2);
            }
        }
        if let Some(&note) = fields.get("note") {
            *session.notes.entry(note.to_owned()).or_default() += 1;
        }
        let page = fields.get("page").and_then(|page| page.parse().ok()).unwrap_or(0);
        let answer = session.answer(user, page);
        self.records.push_back(Record { path, size: answer.len() });
        if self.records.len() > RECORDS {
            self.records.pop_front();
        }
        answer
    }

    /// The user's session, now used; the one unused for longest goes when there are too many.
    fn session(&mut self, user: &str, now: u64) -> &mut Session {
        let known = self.sessions.get(user).map(|session| session.last_use);
        if let Some(last_use) = known {
            self.by_use.remove(&last_use);
        } else if self.sessions.len() == SESSIONS {
            let (_, oldest) = self.by_use.pop_first().expect("every session is in it");
            self.sessions.remove(&oldest);
        }
        self.by_use.insert(now, user.to_owned());
        let session = self.sessions.entry(user.to_owned()).or_default();
        session.last_use = now;
        session
    }

    fn check(&self) {
        assert_eq!(self.sessions.len(), self.by_use.len());
        for (last_use, user) in &self.by_use {
            assert_eq!(self.sessions[user].last_use, *last_use, "{user}");
        }
        let whole = |record: &Record| record.path[0] == "users" && record.size > 0;
        assert!(self.records.iter().all(whole));
    }
}

impl Session {
    fn answer(&self, user: &str, page: usize) -> String {
        let items: Vec<String> =
            self.items.iter().skip(page * 10).take(10).map(|item| format!("{item:?}")).collect();
        let mut answer = format!("{{\"user\":{user},\"items\":[{}],\"notes\":{{", items.join(","));
        for (at, (note, count)) in self.notes.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(answer, "{comma}\"{note}\":{count}").expect("strings take all");
        }
        answer.push_str("}}");
        answer
    }
}
