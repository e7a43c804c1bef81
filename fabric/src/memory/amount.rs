//! Amounts of memory in words.

use std::fmt;

/// A number of bytes, as a text with the unit that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |unit: f64| self.0 as f64 / unit;
        match self.0 {
            100_000_000.. => write!(out, "{:.2} GB", of(1e9)),
            100_000.. => write!(out, "{:.2} MB", of(1e6)),
            1000.. => write!(out, "{:.2} kB", of(1e3)),
            bytes => write!(out, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_amount_is_shown_as_nothing() {
        let shown = [0, 999, 1000, 99_999, 100_000, 5_000_000, 100_000_000, 1_500_000_000_000];
        let expected =
            ["0 bytes", "999 bytes", "1.00 kB", "100.00 kB", "0.10 MB", "5.00 MB", "0.10 GB", "1500.00 GB"];
        assert_eq!(shown.map(|bytes| Amount(bytes).to_string()), expected);
    }
}
