//! A server with a heap for each request: what a request needs lies in its heap, and goes with it at once. A
//! request that wants too much meets the heap's limit, and no other notices.
//!
//! ```sh
//! cargo run --release -p cairn-malloc --features allocator-api2 --example requests
//! ```

use allocator_api2::vec::Vec;
use cairn::Heap;
use hashbrown::{DefaultHashBuilder, HashMap};

#[global_allocator]
static ALLOCATOR: cairn::Cairn = cairn::Cairn;

/// No request may hold more.
const LIMIT_BYTES: usize = 8 << 20;

/// Words of a text, which is read so many times.
struct Request {
    text: &'static str,
    times: usize,
}

/// There is no memory left for the request.
struct TooLarge;

/// How often the most frequent word comes; all that is needed for that is in the heap.
fn handle(heap: &Heap, request: &Request) -> Result<usize, TooLarge> {
    let mut words: Vec<&str, &Heap> = Vec::new_in(heap);
    let mut counts = HashMap::with_hasher_in(DefaultHashBuilder::default(), heap);
    for _ in 0..request.times {
        for word in request.text.split(' ') {
            words.try_reserve(1).map_err(|_| TooLarge)?;
            words.push(word);
        }
    }
    for &word in &words {
        counts.try_reserve(1).map_err(|_| TooLarge)?;
        *counts.entry(word).or_insert(0) += 1;
    }
    Ok(counts.values().copied().max().unwrap_or(0))
}

fn main() {
    let requests = [
        Request { text: "the quick brown fox jumps over the lazy dog", times: 100 },
        Request { text: "a request that nobody should have sent", times: 10_000_000 },
        Request { text: "and one more for which there is memory", times: 1000 },
    ];
    let (mut served, mut refused, mut most, mut peak) = (0, 0, 0, 0);
    for request in requests.iter().cycle().take(60) {
        let Some(mut heap) = Heap::new() else {
            refused += 1;
            continue;
        };
        heap.set_limits(0, LIMIT_BYTES, None, [0; 2]);
        match handle(&heap, request) {
            Ok(count) => (served, most) = (served + 1, most.max(count)),
            Err(TooLarge) => refused += 1,
        }
        peak = peak.max(heap.stats().peak);
        heap.destroy();
    }
    assert!(served == 40 && refused == 20 && peak <= LIMIT_BYTES);
    println!(
        "served {served}, refused {refused}, most frequent {most}, largest heap {} KiB",
        peak / 1024
    );
}
