//! Runs every target with a stable compiler and without libFuzzer, on the inputs that the fuzzers kept, and
//! on changed inputs.
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
            // The last line of output before a failure names the input.
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
    // A linear congruential generator (Knuth's MMIX constants) gives the same bytes in every run.
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

/// Runs the inputs of a corpus with bytes changed, removed, repeated and joined. The test does not see new
/// coverage as libFuzzer does, but is much faster. With
/// `PHUB_FUZZ_EXECUTIONS=10000000 PHUB_FUZZ_TARGETS=tokens,control`, it runs that number of inputs on these targets.
#[test]
fn every_target_survives_mutated_inputs() {
    let executions = std::env::var("PHUB_FUZZ_EXECUTIONS").map_or(2000, |count| count.parse().unwrap());
    let chosen = std::env::var("PHUB_FUZZ_TARGETS").ok();
    let seed = std::env::var("PHUB_FUZZ_SEED").map_or(1, |seed| seed.parse().unwrap());
    let is_chosen =
        |name: &str| chosen.as_ref().is_none_or(|chosen| chosen.split(',').any(|each| each == name));
    for (name, run) in phub_fuzz::TARGETS.into_iter().filter(|(name, _)| is_chosen(name)) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let inputs: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        // Long inputs are left out, because they take long and find little more.
        let inputs: Vec<_> = inputs.into_iter().filter(|input| input.len() <= 1024).collect();
        let begun = std::time::Instant::now();
        // Targets that make sockets and windows get a tenth of the executions, because they are much slower.
        let count: u64 = if ["handshake", "rings", "topology_xml", "topology_text"].contains(&name) {
            executions / 10
        } else {
            executions
        };
        for time in 0..count {
            let input = mutated(&inputs, seed, time);
            if std::panic::catch_unwind(|| run(&input)).is_err() {
                panic!(
                    "{name} with PHUB_FUZZ_SEED={seed}, input {time}: {:?}",
                    String::from_utf8_lossy(&input)
                );
            }
        }
        eprintln!("{name}: {count} executions in {:?}", begun.elapsed());
    }
}

/// Returns one of the inputs, with up to eight changes.
fn mutated(inputs: &[Vec<u8>], seed: u64, time: u64) -> Vec<u8> {
    // SplitMix64 (Steele): the same changes for the same seed and time.
    let mut state = seed << 40 ^ time;
    let mut draw = |limit: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    };
    let mut input = inputs[draw(inputs.len())].clone();
    for _ in 0..=draw(8) {
        let (at, length) = (draw(input.len()), draw(9));
        let end = input.len().min(at + length);
        match draw(6) {
            0 if !input.is_empty() => input[at] = draw(256) as u8,
            1 if !input.is_empty() => input[at] ^= 1 << draw(8),
            2 => drop(input.drain(at..end)),
            3 => input.extend_from_within(at..end),
            4 => input.insert(at, [0, 0xff, b'9', b'@', b'.', b'"', b'{', 0x80][draw(8)]),
            _ => {
                let other = &inputs[draw(inputs.len())];
                let from = draw(other.len());
                let part = &other[from..other.len().min(from + 32)];
                drop(input.splice(at..end, part.iter().copied()));
            }
        }
    }
    input
}
