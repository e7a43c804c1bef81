//! Seeds for a test, and how to replay a failed seed.

/// The environment variable with the only seed to run.
const VARIABLE: &str = "PHUB_SIM_SEED";
/// The environment variable with the factor by which the number of seeds is multiplied.
const TIMES: &str = "PHUB_SIM_TIMES";

/// Returns the seeds `0..count`. If `PHUB_SIM_TIMES` is set, returns that many times as many seeds. If
/// `PHUB_SIM_SEED` is set, returns only that seed. When the body of the loop panics, the seed is printed:
///
/// ```should_panic
/// for seed in fabric::sim::seeds(100) {
///     assert!(seed < 17); // prints: replay with PHUB_SIM_SEED=17
/// }
/// ```
///
/// # Panics
/// Panics if a variable is not a decimal number of 64 bits.
pub fn seeds(count: u64) -> Seeds {
    Seeds::new(count.saturating_mul(number(TIMES).unwrap_or(1)), number(VARIABLE))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text:?} is not a decimal number: {error}")))
}

/// Iterator over seeds; see [`seeds`].
#[derive(Debug)]
pub struct Seeds {
    left: std::ops::RangeInclusive<u64>,
    current: Option<u64>,
}

impl Seeds {
    fn new(count: u64, replay: Option<u64>) -> Self {
        let left = match (replay, count.checked_sub(1)) {
            (Some(seed), _) => seed..=seed,
            (None, Some(last)) => 0..=last,
            #[allow(clippy::reversed_empty_ranges)] // an inclusive range can only be empty if it is reversed
            (None, None) => 1..=0,
        };
        Seeds { left, current: None }
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.current = self.left.next();
        self.current
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if let Some(seed) = self.current.filter(|_| std::thread::panicking()) {
            eprintln!("replay with {VARIABLE}={seed}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_seeds_or_the_one_to_replay() {
        assert_eq!(Seeds::new(3, None).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Seeds::new(0, None).count(), 0);
        assert_eq!(Seeds::new(3, Some(u64::MAX)).collect::<Vec<_>>(), [u64::MAX]);
    }
}
