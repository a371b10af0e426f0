//! The lab's workloads with the chosen peer as Rust's global allocator.

include!(concat!(env!("OUT_DIR"), "/peer.rs"));

#[global_allocator]
static ALLOCATOR: peer::Allocator = peer::ALLOCATOR;

fn main() -> impl std::process::Termination {
    cairn_workloads::command::main(Some(env!("PEER")))
}
