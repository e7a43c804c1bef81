//! Linux's list format for cpu numbers: `0-3,8,10-11`.
//!
//! This module must not depend on which file has the list.

/// The most numbers of a list. No real machine has more cpus. The limit keeps a typo such as `0-4000000000` from using
/// up the memory.
const CPU_LIMIT: u32 = 65_536;

/// Parses the numbers of a list, in ascending order and without repeats. Empty text is an empty list. Returns
/// `None` if the text is not a list.
pub fn parse(text: &str) -> Option<Vec<u32>> {
    let text = text.trim();
    let mut cpus = Vec::new();
    if text.is_empty() {
        return Some(cpus);
    }
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        cpus.extend(first..=last);
        // A list may name a cpu twice, so the limit must hold during the loop, not only at the end.
        if cpus.len() > CPU_LIMIT as usize {
            return None;
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Returns the shortest list of these numbers, which must be ascending.
pub fn format(cpus: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if cpu == *last + 1 => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let words: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    words.join(",")
}

fn number(text: &str) -> Option<u32> {
    // `u32::from_str` would accept a leading '+'.
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten().filter(|&cpu| cpu < CPU_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("\n"), Some(vec![]));
        assert_eq!(parse("5,5,4"), Some(vec![4, 5]));
    }

    #[test]
    fn refuses_what_is_no_list() {
        for text in ["x", "1-", "-1", "3-1", "1,,2", "0-4000000000", "99999999999999999999", "+1", "0-1-2"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn parse_undoes_format(set in proptest::collection::btree_set(0u32..5000, 0..50)) {
            let cpus: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(parse(&format(cpus.iter().copied())), Some(cpus));
        }

        #[test]
        fn parse_never_panics(text in "\\PC*") {
            let _ = parse(&text);
        }
    }
}
