//! The command line.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod command;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> anyhow::Result<()> {
    command::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("cairn-scaling: not applicable, it steps x86-64 instructions on Linux");
}
