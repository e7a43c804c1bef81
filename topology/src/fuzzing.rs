//! Entry points for the fuzz targets: topology XML that is not in a file. Not an API.

use std::path::Path;

use crate::host::Host;
use crate::read::xml::{self, XmlError};

/// Returns the host that an XML text describes. The checks and the parser are those of [`Host::from_xml`].
pub fn xml(text: &str) -> Result<Host, XmlError> {
    xml::parse(Path::new("fuzz.xml"), text)
}

/// Whether a text passes the checks that this crate makes before hwloc parses the text.
pub fn xml_form(text: &str) -> bool {
    xml::check_form(text).is_ok()
}

/// Parses a list of cpu numbers as sysfs writes it, and formats it again.
pub fn cpulist(text: &str) -> Option<String> {
    crate::cpulist::parse(text).map(crate::cpulist::format)
}
