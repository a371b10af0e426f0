//! See the library.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> anyhow::Result<()> {
    cairn_scaling::command::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {
    println!("cairn-scaling: not applicable, it steps x86-64 instructions on Linux");
}
