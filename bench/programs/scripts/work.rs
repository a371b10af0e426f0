// Threads hand each other strings, maps and boxes; the sum does not depend on who is first.
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::thread;

enum Message {
    Words(Vec<String>),
    Tree(BTreeMap<u64, Box<[u8]>>),
    Big(Vec<u64>),
    Shared(std::sync::Arc<Vec<String>>),
}

fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn make(seed: &mut u64) -> Message {
    let n = next(seed) % 200 + 1;
    match next(seed) % 4 {
        0 => Message::Words((0..n).map(|i| format!("{:x}", next(seed) >> (i % 60))).collect()),
        1 => Message::Tree((0..n).map(|i| (next(seed) % 1000, vec![i as u8; (next(seed) % 3000) as usize].into())).collect()),
        2 => {
            let mut grown = Vec::new();
            for i in 0..n * 50 { grown.push(i ^ next(seed)); }
            grown.shrink_to_fit();
            Message::Big(grown)
        }
        _ => Message::Shared(std::sync::Arc::new(vec!["shared".repeat(n as usize); 3])),
    }
}

fn digest(message: Message) -> u64 {
    match message {
        Message::Words(words) => {
            let mut counts: HashMap<String, u64> = HashMap::new();
            for word in words { *counts.entry(word).or_default() += 1; }
            counts.into_iter().map(|(word, n)| word.len() as u64 * n).sum()
        }
        Message::Tree(tree) => tree.into_iter().map(|(key, block)| key + block.iter().map(|&b| b as u64).sum::<u64>()).sum(),
        Message::Big(numbers) => numbers.iter().fold(0, |a, b| a ^ b),
        Message::Shared(all) => {
            let other = all.clone();
            thread::spawn(move || other.len() as u64).join().unwrap() + all[0].len() as u64
        }
    }
}

fn main() {
    let rounds: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut total = 0u64;
    for round in 0..rounds {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::sync_channel::<Message>(64)).unzip();
        let producers: Vec<_> = (0..4u64).map(|id| {
            let senders = senders.clone();
            thread::spawn(move || {
                let mut seed = (round * 4 + id + 1).wrapping_mul(0x9e3779b97f4a7c15);
                for i in 0..400 { senders[(i + id as usize) % 4].send(make(&mut seed)).unwrap(); }
            })
        }).collect();
        drop(senders);
        let consumers: Vec<_> = receivers.into_iter().map(|from| {
            thread::spawn(move || from.into_iter().map(digest).fold(0u64, u64::wrapping_add))
        }).collect();
        for producer in producers { producer.join().unwrap(); }
        for consumer in consumers { total = total.wrapping_add(consumer.join().unwrap()); }
    }
    println!("{total:x}");
}
