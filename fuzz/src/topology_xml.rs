//! lstopo's XML. hwloc is C and not instrumented here: what it does with a text shows only when it
//! crashes or when the machine that it gives is none.

use crate::planned;

/// Any bytes.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(host) = topology::fuzzing::xml(text) {
        planned::check(&host);
    }
}
