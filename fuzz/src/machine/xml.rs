//! lstopo's XML: the checks that run before hwloc reads the XML, and with the feature `xml-in-hwloc` also hwloc itself.
//!
//! hwloc is C code that aborts on some inputs. Fuzzing it finds the inputs that the checks must refuse. The
//! feature is off by default, because sooner or later an abort ends every run.

/// Parses any bytes.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    topology::fuzzing::xml_form(text);
    #[cfg(feature = "xml-in-hwloc")]
    if let Ok(host) = topology::fuzzing::xml(text) {
        super::check_placement(&host);
    }
}
