//! The header in the source tree equals the header that is generated from the source.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_source() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["status.rs", "entry.rs", "config.rs", "session.rs", "plan.rs", "subscription.rs"] {
        builder = builder.with_src(here.join("src").join(file));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    // Rust's heading is replaced by a heading for C.
    let made = String::from_utf8(made).unwrap().replace("// # Safety\n", "// What must hold:\n");
    let path = here.join("../include/phub.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == checked_in,
        "worker-shim/include/phub.h is not what the source makes; UPDATE_HEADER=1 cargo test -p phub-c writes it"
    );
}

#[test]
fn the_header_has_every_setting() {
    let mut config = worker_shim::SessionConfig::new("", "", 0, 1, Vec::new(), pbox_core::Optimizer::Average);
    let unknown = config.set("no such", "").unwrap_err().to_string();
    let names = unknown.split_once("there are ").unwrap().1;
    let header = include_str!("../../include/phub.h");
    let missing: Vec<&str> =
        names.split(", ").filter(|name| !header.contains(&format!("\"{name}\""))).collect();
    assert!(missing.is_empty(), "phub_config_set of the header lacks {missing:?}");
}
