//! The bytes that cross in a round, and a digest of the weights after the last round.
//!
//! A worker process sends this plain data to its parent.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use worker_shim::Traffic;

/// The bytes and the digest of one worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::probe) struct Crossed {
    /// The number of bytes to the hub in a round.
    pub sent: f64,
    /// The number of bytes from the hub in a round.
    pub received: f64,
    /// The digest of the bits of all weights.
    pub digest: u64,
}

impl Crossed {
    /// Creates the report from the traffic counts before and after `rounds` rounds.
    pub fn new(before: Traffic, after: Traffic, rounds: u32, digest: u64) -> Self {
        let of_a_round = |before: u64, after: u64| (after - before) as f64 / f64::from(rounds.max(1));
        Crossed {
            sent: of_a_round(before.sent, after.sent),
            received: of_a_round(before.received, after.received),
            digest,
        }
    }

    /// Checks that the weights of all workers have the same bits.
    pub fn check(by_worker: &[Crossed]) -> Result<()> {
        match by_worker.iter().position(|one| one.digest != by_worker[0].digest) {
            Some(rank) => bail!("workers 0 and {rank} have different weights after the last round"),
            None => Ok(()),
        }
    }

    /// Returns the bytes as text, also as a percentage of the model's bytes.
    pub fn words(&self, model_bytes: u64) -> String {
        let of = |bytes: f64| {
            format!("{:.2} MB ({:.1}% of the model)", bytes / 1e6, 100.0 * bytes / model_bytes as f64)
        };
        format!("{} to the hub, {} back; for one worker in a round", of(self.sent), of(self.received))
    }
}

/// Returns a digest of these bits (FNV-1a over the elements).
pub(in crate::probe) fn digest(start: u64, bits: impl Iterator<Item = u32>) -> u64 {
    bits.fold(start, |hash, bits| (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_with_other_bits_are_named() {
        let of = |bits: [u32; 2]| {
            Crossed::new(
                Traffic::default(),
                Traffic { sent: 10, received: 30 },
                2,
                digest(1, bits.into_iter()),
            )
        };
        assert!(Crossed::check(&[of([1, 2]), of([1, 2])]).is_ok());
        let error = Crossed::check(&[of([1, 2]), of([1, 2]), of([2, 1])]).unwrap_err().to_string();
        assert!(error.contains("workers 0 and 2"), "{error}");
        assert_eq!((of([0, 0]).sent, of([0, 0]).received), (5.0, 15.0));
    }
}
