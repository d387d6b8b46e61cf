//! Packs the page and the description of the API: in the program they take a third of their size.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// As small as it gets.
const LEVEL: u8 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("Cargo sets OUT_DIR")?);
    println!("cargo:rerun-if-changed=page");
    pack(Path::new("openapi.json"), &out)?;
    for entry in fs::read_dir("page")? {
        pack(&entry?.path(), &out)?;
    }
    Ok(())
}

fn pack(file: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={}", file.display());
    let name = file.file_name().ok_or("a file has a name")?;
    let packed = miniz_oxide::deflate::compress_to_vec(&fs::read(file)?, LEVEL);
    fs::write(out.join(name), packed)?;
    Ok(())
}
