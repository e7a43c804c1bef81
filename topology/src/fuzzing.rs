//! A door for the fuzz targets: topology XML that is in no file. Not an API.

use std::path::Path;

use crate::host::Host;
use crate::read::xml::{self, XmlError};

/// The host that a text describes, by the checks and the parser of [`Host::from_xml`].
pub fn xml(text: &str) -> Result<Host, XmlError> {
    xml::parse(Path::new("fuzz.xml"), text)
}

/// The checks of a text before hwloc sees it.
pub fn xml_form(text: &str) -> bool {
    xml::check_form(text).is_ok()
}

/// A list of cpu numbers as sysfs writes them, read and written again.
pub fn cpulist(text: &str) -> Option<String> {
    crate::cpulist::parse(text).map(crate::cpulist::format)
}
