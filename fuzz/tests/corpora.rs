//! Runs every target on the inputs that the fuzzers kept, and on inputs that no corpus has, with a stable compiler
//! and without libFuzzer.
#![forbid(unsafe_code)]

use std::path::Path;

#[test]
fn every_target_survives_its_corpus() {
    let mut inputs = 0;
    for (name, run) in phub_fuzz::TARGETS {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let files = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{corpus:?}: {error}"));
        let before = inputs;
        for file in files.flatten() {
            // The last line of a failure names the input.
            eprintln!("{name} {}", file.file_name().display());
            run(&std::fs::read(file.path()).unwrap());
            inputs += 1;
        }
        assert!(inputs > before, "{corpus:?} has no input");
    }
}

#[test]
fn every_target_is_a_program() {
    let manifest = include_str!("../Cargo.toml");
    for (name, _) in phub_fuzz::TARGETS {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} in Cargo.toml");
    }
    assert_eq!(manifest.matches("fuzz_targets/").count(), phub_fuzz::TARGETS.len());
}

#[test]
fn every_target_survives_arbitrary_bytes() {
    // A linear congruential generator (Knuth's MMIX constants): the same bytes on every run.
    let mut state = 1u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for length in (0..200).step_by(7) {
        let bytes: Vec<u8> = (0..length).map(|_| byte()).collect();
        phub_fuzz::TARGETS.iter().for_each(|(_, run)| run(&bytes));
    }
}
