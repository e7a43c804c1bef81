//! lstopo's XML: the checks that stand before hwloc, and with the feature `hwloc` hwloc itself.
//!
//! hwloc is C that asserts what it takes for granted; it is fuzzed to find what the checks must refuse,
//! and not by default: it would end every run sooner or later (docs/testing.md).

/// Any bytes.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    topology::fuzzing::xml_form(text);
    #[cfg(feature = "hwloc")]
    if let Ok(host) = topology::fuzzing::xml(text) {
        crate::planned::check(&host);
    }
}
