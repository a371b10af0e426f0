//! Finds the source file of the chosen peer.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/peers");
    let directory = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("src/peers");
    let mut chosen = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let feature = name.to_uppercase().replace('-', "_");
        if env::var_os(format!("CARGO_FEATURE_{feature}")).is_some() {
            chosen.push((name, path));
        }
    }
    let [(name, path)] = &*chosen else {
        return Err("choose one peer: --features NAME".into());
    };
    println!("cargo:rustc-env=PEER={name}");
    let module = format!("#[path = {path:?}]\nmod peer;\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("peer.rs"), module)?;
    Ok(())
}
