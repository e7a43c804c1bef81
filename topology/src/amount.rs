//! Amounts in units that people read.
//!
//! This module must not depend on what is measured.

/// Writes bytes as `97.5 MiB`: three significant digits, binary units.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    // A value of 999.5 would be printed as 1000. So from 999.5 on, the next unit is used.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Writes a speed as `56 Gb/s`: three significant digits, decimal units, no trailing zeros.
pub fn bits_per_s(bits_per_s: u64) -> String {
    const UNITS: [&str; 5] = ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"];
    let mut value = bits_per_s as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = three_digits(value);
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits} {}", UNITS[unit])
}

/// Writes a count as `1 core` or `1,234 cores`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(n as u64), if n == 1 { "" } else { "s" })
}

/// Writes a number as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (102_236_160, "97.5 MiB")];
        for (n, text) in cases {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(bytes(1_047_553), "1.00 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(bits_per_s(56_000_000_000), "56 Gb/s");
        assert_eq!(bits_per_s(2_500_000_000), "2.5 Gb/s");
        assert_eq!(bits_per_s(100_000_000_000), "100 Gb/s");
        assert_eq!(bits_per_s(1_600_000_023), "1.6 Gb/s");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
    }
}
