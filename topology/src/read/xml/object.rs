//! Checks of objects that hwloc itself does not make. If an object lacks one of its sets, hwloc follows a null pointer.
//! Also, hwloc assumes without a check that an object lies within its parent. Fuzzing found both faults
//! (`fuzz/src/machine/xml.rs`).
//!
//! This module must not depend on what hwloc does with the object.

use std::collections::HashSet;

/// The types of objects without cpus.
const WITHOUT_SETS: [&str; 4] = ["Bridge", "PCIDev", "OSDev", "Misc"];
const WITH_SETS: [&str; 17] = [
    "Machine", "Package", "Die", "Group", "NUMANode", "MemCache", "Core", "PU", "L1Cache", "L2Cache",
    "L3Cache", "L4Cache", "L5Cache", "L1iCache", "L2iCache", "L3iCache", "System",
];
const SETS: [&str; 4] = ["cpuset", "complete_cpuset", "nodeset", "complete_nodeset"];
/// The most words of a set: 65,536 cpus. No real machine has more.
const WORDS_LIMIT: usize = 2048;

/// The objects of a file, tag by tag.
#[derive(Debug, Default)]
pub(super) struct Objects {
    open: Vec<Object>,
    numbers: HashSet<u64>,
}

impl Objects {
    /// Handles the opening tag of an object, or a tag that opens and closes an object. The error names the
    /// fault.
    pub fn begin(&mut self, tag: &str) -> Result<(), String> {
        let name_and_attributes = tag.trim_end_matches('/');
        let object = check(name_and_attributes, self.open.last_mut())?;
        check_number(name_and_attributes, &mut self.numbers)?;
        if !tag.ends_with('/') {
            self.open.push(object);
        }
        Ok(())
    }

    /// Handles the closing tag of the innermost object. The error names the fault.
    pub fn end(&mut self) -> Result<(), String> {
        self.open.pop().map_or(Ok(()), Object::close)
    }
}

/// An object whose closing tag was not read yet.
#[derive(Debug)]
struct Object {
    /// The sets, in the order of [`SETS`], or `None` for a device.
    sets: Option<[Vec<u32>; 4]>,
    /// The cpus of the object's children so far, without memory objects. `None` if the object has no children yet.
    covered: Option<Vec<u32>>,
}

impl Object {
    /// Checks that a child lies within this object, and shares no cpu with an earlier child. Memory objects may share
    /// cpus: they have the same cpus as their neighbours.
    fn check_child(&mut self, kind: &str, sets: &[Vec<u32>; 4]) -> Result<(), String> {
        let Some(own) = &self.sets else { return Err(format!("an object {kind} within a device")) };
        for ((name, inner), outer) in SETS.iter().zip(sets).zip(own) {
            if !within(inner, outer) {
                return Err(format!("an object {kind} whose {name} is not within that of its parent"));
            }
        }
        if !["NUMANode", "MemCache"].contains(&kind) && !self.add_child_cpus(&sets[0]) {
            return Err(format!("an object {kind} with cpus of another child of its parent"));
        }
        Ok(())
    }

    /// Adds a child's cpus. Returns false if another child has any of them.
    fn add_child_cpus(&mut self, cpus: &[u32]) -> bool {
        let covered = self.covered.get_or_insert_default();
        covered.resize(covered.len().max(cpus.len()), 0);
        let free = cpus.iter().zip(&*covered).all(|(new, old)| new & old == 0);
        covered.iter_mut().zip(cpus).for_each(|(old, new)| *old |= new);
        free
    }

    /// Checks that the object's children, if it has any, have all of its cpus.
    fn close(self) -> Result<(), String> {
        match (self.sets, self.covered) {
            (Some([cpus, ..]), Some(covered)) if !within(&cpus, &covered) => {
                Err("an object whose children do not have all of its cpus".into())
            }
            _ => Ok(()),
        }
    }
}

/// Checks an `object` tag within its parent. The error names the fault.
fn check(tag: &str, parent: Option<&mut Object>) -> Result<Object, String> {
    let kind = attribute(tag, "type").ok_or("an object without a type")?;
    if parent.is_none() != (kind == "Machine") {
        return Err(format!(
            "an object of type {kind} at this depth: the outermost object is the Machine, and no other object is"
        ));
    }
    if let Some(index) = attribute(tag, "os_index")
        && !index.parse::<usize>().is_ok_and(|index| index < 32 * WORDS_LIMIT || index == usize::MAX >> 32)
    {
        return Err(format!("an object {kind} with os_index {index:?}: expected a number below 65536"));
    }
    if WITHOUT_SETS.contains(&kind) {
        return Ok(Object { sets: None, covered: None });
    }
    if !WITH_SETS.contains(&kind) {
        return Err(format!("an object of type {:?}", kind.chars().take(40).collect::<String>()));
    }
    let mut sets: [Vec<u32>; 4] = Default::default();
    for (name, set) in SETS.iter().zip(&mut sets) {
        let text = attribute(tag, name).ok_or_else(|| format!("an object {kind} without {name}"))?;
        *set = words(text).ok_or_else(|| format!("an object {kind} whose {name} is not a set of numbers"))?;
    }
    if let Some(parent) = parent {
        parent.check_child(kind, &sets)?;
    }
    if !within(&sets[0], &sets[1]) || !within(&sets[2], &sets[3]) {
        return Err(format!("an object {kind} whose set is not within its complete set"));
    }
    if sets[1].iter().all(|&word| word == 0) && kind != "NUMANode" {
        return Err(format!("an object {kind} without cpus"));
    }
    let is_own_index = |set: &[u32]| {
        single_number(set).is_some_and(|index| attribute(tag, "os_index") == Some(&index.to_string()))
    };
    if (kind == "PU" && !(is_own_index(&sets[0]) && is_own_index(&sets[1])))
        || (kind == "NUMANode" && !is_own_index(&sets[3]))
    {
        return Err(format!("an object {kind} whose set has another number than its os_index"));
    }
    Ok(Object { sets: Some(sets), covered: None })
}

/// Checks that an object has a number (`gp_index`), and that the number is unique, because hwloc aborts otherwise. To
/// an object without a number hwloc would give the next number, which another object may have.
fn check_number(tag: &str, numbers: &mut HashSet<u64>) -> Result<(), String> {
    let text = attribute(tag, "gp_index").ok_or("an object without gp_index")?;
    match text.parse() {
        Ok(number) if number > 0 && numbers.insert(number) => Ok(()),
        _ => Err(format!("gp_index {text:?}: expected a number that no other object has")),
    }
}

/// Returns the value of a tag's attribute.
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

/// Parses a finite set. hwloc writes the highest word first: `0x1,0xffffffff` or `0x1,,0x3`. The result has
/// the lowest word first.
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

/// Returns the number in a set that has exactly one number.
fn single_number(set: &[u32]) -> Option<u32> {
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

    fn machine() -> Object {
        check(&CORE.replace("Core", "Machine").replace("0x3", "0x1,0x0000000f"), None).unwrap()
    }

    fn within_machine(tag: &str) -> Result<Object, String> {
        check(tag, Some(&mut machine()))
    }

    /// A test against a crash: hwloc 2.9 reads through a null pointer if the first set is missing.
    #[test]
    fn an_object_that_lacks_a_set_never_reaches_hwloc() {
        assert!(within_machine(CORE).is_ok());
        for set in SETS {
            let error = within_machine(&CORE.replace(&format!(" {set}="), " x=")).unwrap_err();
            assert!(error.contains("Core") && error.contains(set), "{error}");
        }
    }

    #[test]
    fn an_object_lies_within_its_parent() {
        let error = within_machine(&CORE.replace("0x3", "0x30")).unwrap_err();
        assert!(error.contains("cpuset is not within"), "{error}");
        let mut device = Object { sets: None, covered: None };
        assert!(check(CORE, None).unwrap_err().contains("the outermost object is the Machine"));
        assert!(check(CORE, Some(&mut device)).unwrap_err().contains("within a device"));
    }

    /// A test against a crash: hwloc 2.9 aborts if two children share a cpu, and if the children lack a cpu of their
    /// parent.
    #[test]
    fn children_share_no_cpu_and_leave_none_over() {
        let mut machine = machine();
        assert!(check(CORE, Some(&mut machine)).is_ok());
        let error = check(CORE, Some(&mut machine)).unwrap_err();
        assert!(error.contains("Core with cpus of another child"), "{error}");
        assert!(machine.close().unwrap_err().contains("do not have all of its cpus"));
        assert_eq!(within_machine(CORE).unwrap().close(), Ok(()), "without children");
    }

    /// A test against a crash: hwloc 2.9 aborts if a PU's set names another PU.
    #[test]
    fn the_set_of_a_cpu_is_its_own_number() {
        let cpu = r#"object type="PU" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x1" complete_nodeset="0x1""#;
        assert!(within_machine(cpu).is_ok());
        for other in [cpu.replace("\"3\"", "\"2\""), cpu.replace("0x8", "0xc"), cpu.replace("os_index", "x")]
        {
            assert!(within_machine(&other).unwrap_err().contains("PU whose set"), "{other}");
        }
    }

    /// A test against a crash: hwloc 2.9 aborts on a repeated number, and on an object without a number.
    #[test]
    fn two_objects_with_the_same_number_never_reach_hwloc() {
        let mut numbers = HashSet::new();
        assert_eq!(check_number(r#"object gp_index="7""#, &mut numbers), Ok(()));
        assert!(
            check_number(r#"object gp_index="07""#, &mut numbers)
                .unwrap_err()
                .contains("no other object has")
        );
        assert!(check_number(r#"object gp_index="x""#, &mut numbers).is_err());
        assert!(check_number("object", &mut numbers).unwrap_err().contains("without gp_index"));
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
