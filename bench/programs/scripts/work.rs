// Threads hand each other strings, maps and boxes; the sum does not depend on who is first.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, mpsc};
use std::thread;

/// What the receiver does with what it is given, and drops.
type Message = Box<dyn FnOnce() -> u64 + Send>;

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn make(seed: &mut u64) -> Message {
    let n = next(seed) % 200 + 1;
    match next(seed) % 4 {
        0 => {
            let words: Vec<String> = (0..n).map(|i| format!("{:x}", next(seed) >> (i % 60))).collect();
            Box::new(move || {
                let mut counts: HashMap<String, u64> = HashMap::new();
                for word in words { *counts.entry(word).or_default() += 1; }
                counts.into_iter().map(|(word, n)| word.len() as u64 * n).sum()
            })
        }
        1 => {
            let mut block = |i| vec![i as u8; (next(seed) % 3000) as usize].into_boxed_slice();
            let tree: BTreeMap<u64, Box<[u8]>> = (0..n).map(|i| (i * 7919 % 1000, block(i))).collect();
            Box::new(move || tree.into_iter().map(|(key, block)| key + block.iter().map(|&b| b as u64).sum::<u64>()).sum())
        }
        2 => {
            let mut grown = Vec::new();
            for i in 0..n * 50 { grown.push(i ^ next(seed)); }
            grown.shrink_to_fit();
            Box::new(move || grown.iter().fold(0, |a, b| a ^ b))
        }
        _ => {
            let all = Arc::new(vec!["shared".repeat(n as usize); 3]);
            let other = all.clone();
            Box::new(move || thread::spawn(move || other.len() as u64).join().unwrap() + all[0].len() as u64)
        }
    }
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut total = 0u64;
    for round in 0..rounds {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::sync_channel::<Message>(64)).unzip();
        for id in 0..4u64 {
            let senders = senders.clone();
            thread::spawn(move || {
                let mut seed = (round * 4 + id + 1).wrapping_mul(0x9e3779b97f4a7c15);
                for i in 0..400 { senders[(i + id as usize) % 4].send(make(&mut seed)).unwrap(); }
            });
        }
        drop(senders);
        let consumers: Vec<_> = receivers.into_iter().map(|from| {
            thread::spawn(move || from.into_iter().map(|message| message()).fold(0u64, u64::wrapping_add))
        }).collect();
        for consumer in consumers { total = total.wrapping_add(consumer.join().unwrap()); }
    }
    println!("{total:x}");
}
