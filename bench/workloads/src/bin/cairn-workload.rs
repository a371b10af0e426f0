//! The workloads under whatever malloc the loader resolved.

fn main() -> Result<(), lexopt::Error> {
    cairn_workloads::command::main(None)
}
