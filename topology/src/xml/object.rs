//! What hwloc takes for granted of an object: it reads a null pointer where an object lacks one of its sets,
//! and trusts that an object lies within the one around it. Found by fuzzing (`fuzz/src/topology_xml.rs`).
//!
//! Must not know what hwloc makes of it.

use std::collections::HashSet;

/// Types that have no cpus of their own.
const WITHOUT_SETS: [&str; 4] = ["Bridge", "PCIDev", "OSDev", "Misc"];
const WITH_SETS: [&str; 17] = [
    "Machine", "Package", "Die", "Group", "NUMANode", "MemCache", "Core", "PU", "L1Cache", "L2Cache",
    "L3Cache", "L4Cache", "L5Cache", "L1iCache", "L2iCache", "L3iCache", "System",
];
const SETS: [&str; 4] = ["cpuset", "complete_cpuset", "nodeset", "complete_nodeset"];
/// 65,536 cpus: no machine that this crate should believe in has more.
const WORDS_LIMIT: usize = 2048;

/// An object's sets, in the order of [`SETS`]; none for a device.
pub(super) type Sets = Option<[Vec<u32>; 4]>;

/// Checks an `object` tag that stands within an object of these sets; else what is wrong.
pub(super) fn check(tag: &str, around: Option<&Sets>) -> Result<Sets, String> {
    let kind = attribute(tag, "type").ok_or("an object without a type")?;
    if around.is_none() != (kind == "Machine") {
        return Err(format!(
            "an object of type {kind} at this depth: the Machine is the outermost, and only it"
        ));
    }
    if let Some(index) = attribute(tag, "os_index")
        && !index.parse::<usize>().is_ok_and(|index| index < 32 * WORDS_LIMIT || index == usize::MAX >> 32)
    {
        return Err(format!("an object {kind} with os_index {index:?}: expected a number below 65536"));
    }
    if WITHOUT_SETS.contains(&kind) {
        return Ok(None);
    }
    if !WITH_SETS.contains(&kind) {
        return Err(format!("an object of type {:?}", kind.chars().take(40).collect::<String>()));
    }
    let mut sets: [Vec<u32>; 4] = Default::default();
    for (name, set) in SETS.iter().zip(&mut sets) {
        let text = attribute(tag, name).ok_or_else(|| format!("an object {kind} without {name}"))?;
        *set = words(text).ok_or_else(|| format!("an object {kind} whose {name} is no set of numbers"))?;
    }
    match around {
        None => {}
        Some(None) => return Err(format!("an object {kind} within a device")),
        Some(Some(around)) => {
            for ((name, inner), outer) in SETS.iter().zip(&sets).zip(around) {
                if !within(inner, outer) {
                    return Err(format!(
                        "an object {kind} whose {name} is not within that of the object around it"
                    ));
                }
            }
        }
    }
    if !within(&sets[0], &sets[1]) || !within(&sets[2], &sets[3]) {
        return Err(format!("an object {kind} whose set is not within its complete set"));
    }
    if sets[1].iter().all(|&word| word == 0) && kind != "NUMANode" {
        return Err(format!("an object {kind} without cpus"));
    }
    let itself =
        |set: &[u32]| only(set).is_some_and(|index| attribute(tag, "os_index") == Some(&index.to_string()));
    if (kind == "PU" && !(itself(&sets[0]) && itself(&sets[1]))) || (kind == "NUMANode" && !itself(&sets[3]))
    {
        return Err(format!("an object {kind} whose set is not its os_index alone"));
    }
    Ok(Some(sets))
}

/// Notes an object's number, which hwloc asserts to be nobody else's: one that has none is given the next, which
/// another may have.
pub(super) fn number(tag: &str, numbers: &mut HashSet<u64>) -> Result<(), String> {
    let text = attribute(tag, "gp_index").ok_or("an object without gp_index")?;
    match text.parse() {
        Ok(number) if number > 0 && numbers.insert(number) => Ok(()),
        _ => Err(format!("gp_index {text:?}: expected a number of this object alone")),
    }
}

/// The value of a tag's attribute.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = tag.split_once(char::is_whitespace)?.1;
    loop {
        let (key, after) = rest.split_once('=')?;
        let quote = after.chars().next().filter(|&c| c == '"' || c == '\'')?;
        let (value, after) = after[1..].split_once(quote)?;
        if key.trim() == name {
            return Some(value);
        }
        rest = after;
    }
}

/// A finite set as hwloc writes it, the highest word first: `0x1,0xffffffff` or `0x1,,0x3`; here the lowest first.
fn words(text: &str) -> Option<Vec<u32>> {
    if text.is_empty() || text.len() > 11 * WORDS_LIMIT {
        return None;
    }
    let word = |word: &str| match word.strip_prefix("0x") {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u32::from_str_radix(hex, 16).ok(),
        None if word.is_empty() => Some(0),
        _ => None,
    };
    text.rsplit(',').map(word).collect()
}

/// The number in a set of one.
fn only(set: &[u32]) -> Option<u32> {
    let numbers = set.iter().map(|word| word.count_ones()).sum::<u32>();
    let word = set.iter().position(|&word| word != 0)?;
    (numbers == 1).then(|| word as u32 * 32 + set[word].trailing_zeros())
}

fn within(inner: &[u32], outer: &[u32]) -> bool {
    inner.iter().enumerate().all(|(at, word)| word & !outer.get(at).copied().unwrap_or(0) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: &str =
        r#"object type="Core" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1""#;

    fn machine() -> Sets {
        check(&CORE.replace("Core", "Machine").replace("0x3", "0x1,0x0000000f"), None).unwrap()
    }

    /// hwloc 2.9 reads through a null pointer for the first of these.
    #[test]
    fn an_object_that_lacks_a_set_never_reaches_hwloc() {
        assert!(check(CORE, Some(&machine())).is_ok());
        for set in SETS {
            let error = check(&CORE.replace(&format!(" {set}="), " x="), Some(&machine())).unwrap_err();
            assert!(error.contains("Core") && error.contains(set), "{error}");
        }
    }

    #[test]
    fn an_object_lies_within_the_one_around_it() {
        let error = check(&CORE.replace("0x3", "0x30"), Some(&machine())).unwrap_err();
        assert!(error.contains("cpuset is not within"), "{error}");
        assert!(check(CORE, None).unwrap_err().contains("the Machine is the outermost"));
        assert!(check(CORE, Some(&None)).unwrap_err().contains("within a device"));
    }

    /// hwloc 2.9 aborts on one that is another.
    #[test]
    fn a_cpu_is_itself() {
        let cpu = r#"object type="PU" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x1" complete_nodeset="0x1""#;
        assert!(check(cpu, Some(&machine())).is_ok());
        for other in [cpu.replace("\"3\"", "\"2\""), cpu.replace("0x8", "0xc"), cpu.replace("os_index", "x")]
        {
            assert!(check(&other, Some(&machine())).unwrap_err().contains("PU whose set"), "{other}");
        }
    }

    /// hwloc 2.9 aborts on the second, and on one without a number.
    #[test]
    fn two_objects_of_one_number_never_reach_hwloc() {
        let mut numbers = HashSet::new();
        assert_eq!(number(r#"object gp_index="7""#, &mut numbers), Ok(()));
        assert!(number(r#"object gp_index="07""#, &mut numbers).unwrap_err().contains("this object alone"));
        assert!(number(r#"object gp_index="x""#, &mut numbers).is_err());
        assert!(number("object", &mut numbers).unwrap_err().contains("without gp_index"));
    }

    #[test]
    fn sets_are_finite_lists_of_words() {
        assert_eq!(words("0x1,,0x3"), Some(vec![3, 0, 1]));
        for text in ["", "0xf...f", "0xf...f,0x1", "3", "0x1 ", "0x123456789", "0x+1", "x"] {
            assert_eq!(words(text), None, "{text}");
        }
        assert_eq!(words(&"0x1,".repeat(20_000)), None);
    }
}
