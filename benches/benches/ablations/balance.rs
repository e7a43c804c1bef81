//! The load of the busiest core, compared with the mean, for each rule that places chunks. The
//! load is computed, not measured.

use pbox_core::models::{MODELS, model};
use pbox_core::{ChunkId, Key, Layout, Placement};

const CHUNK_BYTES: usize = 32 << 10;
const CORES: [usize; 3] = [4, 10, 20];
/// The number of random placements. Their median load and their worst load are printed.
const SEEDS: u64 = 101;

/// Prints a row for each model, number of cores and rule.
pub fn print() {
    for name in MODELS {
        let layout =
            Layout::new(model(name).expect("a published model").keys, CHUNK_BYTES).expect("a layout");
        let bytes: Vec<u64> = layout.chunks().iter().map(|chunk| chunk.span.bytes as u64).collect();
        for cores in CORES {
            let say = |rule: &str, over: f64| println!("balance,{name},{rule},{cores},{over:.4}");
            let one = |rule: &str, owners: &[usize]| say(rule, busiest(&bytes, owners, cores));
            let placement = Placement::new(&layout, cores);
            let ids = 0..bytes.len() as u32;
            one("runs", &ids.map(|id| placement.owner(ChunkId(id))).collect::<Vec<_>>());
            let lpt = topology::lpt(&bytes, cores);
            one("LPT of single chunks", &lpt.iter().map(|&core| core as usize).collect::<Vec<_>>());
            one("in turn", &(0..bytes.len()).map(|id| id % cores).collect::<Vec<_>>());
            let mut all: Vec<f64> =
                (0..SEEDS).map(|seed| busiest(&bytes, &random(bytes.len(), cores, seed), cores)).collect();
            all.sort_by(f64::total_cmp);
            say("random", all[all.len() / 2]);
            say("random at worst", all[all.len() - 1]);
            // This rule places whole keys, as a parameter server without chunks does.
            let of_keys: Vec<u64> = layout.keys().iter().filter_map(Key::bytes).collect();
            let owners: Vec<usize> =
                topology::lpt(&of_keys, cores).iter().map(|&core| core as usize).collect();
            say("LPT of whole keys", busiest(&of_keys, &owners, cores));
        }
    }
}

fn random(chunks: usize, cores: usize, seed: u64) -> Vec<usize> {
    let mut dice = seed;
    let mut roll = |_| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) as usize % cores
    };
    (0..chunks).map(&mut roll).collect()
}

fn busiest(bytes: &[u64], owners: &[usize], cores: usize) -> f64 {
    let mut loads = vec![0; cores];
    bytes.iter().zip(owners).for_each(|(bytes, &core)| loads[core] += bytes);
    let mean = loads.iter().sum::<u64>() as f64 / cores as f64;
    *loads.iter().max().expect("a core") as f64 / mean
}
