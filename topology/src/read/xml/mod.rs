//! A machine from an XML file. The file is checked before a C library parses it.
//!
//! This module checks the form itself, because hwloc reports every fault as "invalid argument", and its XML
//! library writes to stderr. This module must not depend on what the elements mean.

mod object;

use crate::host::Host;
use object::Objects;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The largest file that is read. The largest machines have about 10 MB of lstopo's XML.
const FILE_BYTES_LIMIT: u64 = 64 << 20;

/// The error for an XML file from which no [`Host`] can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XmlError {
    /// The crate was built without hwloc.
    #[error("topology XML {path}: built without hwloc; rebuild with --features hwloc")]
    WithoutHwloc {
        /// The file asked for.
        path: PathBuf,
    },
    /// The file cannot be opened or read.
    #[error("topology XML {path}: cannot be read: {source}; give a file written by `lstopo --of xml FILE`")]
    Unreadable {
        /// The file asked for.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has no bytes.
    #[error("topology XML {path}: the file is empty; write it again with `lstopo --of xml FILE`")]
    Empty {
        /// The file asked for.
        path: PathBuf,
    },
    /// The file is too large to be a topology.
    #[error("topology XML {path}: more than {limit} bytes; is the file a topology?")]
    TooLarge {
        /// The file asked for.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// The text is not well-formed XML with a `topology` in it.
    #[error("topology XML {path}, line {line}: {fault}; write it again with `lstopo --of xml FILE`")]
    Malformed {
        /// The file asked for.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The fault in that line.
        fault: String,
    },
    /// The file has the form of hwloc 1 or 3.
    #[error(
        "topology XML {path}: written by hwloc {version}, expected the format of hwloc 2; write it again with `lstopo --of xml FILE` of \
         hwloc 2 (`lstopo --version`)"
    )]
    OfAnotherHwloc {
        /// The file asked for.
        path: PathBuf,
        /// The version of hwloc.
        version: &'static str,
    },
    /// hwloc refuses to load the file.
    #[error(
        "topology XML {path}: well-formed, but hwloc refuses it: {reason}; expected the format of hwloc 2 (`lstopo --version` shows the version that wrote it)"
    )]
    Refused {
        /// The file asked for.
        path: PathBuf,
        /// The reason that hwloc gave.
        reason: String,
    },
}

/// Returns the host that the file describes.
pub(crate) fn read(path: &Path) -> Result<Host, XmlError> {
    if cfg!(not(feature = "hwloc")) {
        return Err(XmlError::WithoutHwloc { path: path.to_owned() });
    }
    let unreadable = |source| XmlError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES_LIMIT + 1).read_to_string(&mut text).map_err(unreadable)?; // the length of a pipe is unknown
    if bytes as u64 > FILE_BYTES_LIMIT {
        return Err(XmlError::TooLarge { path: path.to_owned(), limit: FILE_BYTES_LIMIT });
    }
    parse(path, &text)
}

/// Parses the host that a file's text describes.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Host, XmlError> {
    if text.trim().is_empty() {
        return Err(XmlError::Empty { path: path.to_owned() });
    }
    if let Some(version) = other_version(text) {
        return Err(XmlError::OfAnotherHwloc { path: path.to_owned(), version });
    }
    check_form(text).map_err(|(line, fault)| XmlError::Malformed { path: path.to_owned(), line, fault })?;
    load(path, text)
}

#[cfg(feature = "hwloc")]
fn load(path: &Path, text: &str) -> Result<Host, XmlError> {
    let refused = |reason| XmlError::Refused { path: path.to_owned(), reason };
    Ok(crate::read::hwloc::read_xml(path, text).map_err(refused)?.into_host())
}

#[cfg(not(feature = "hwloc"))]
fn load(path: &Path, _: &str) -> Result<Host, XmlError> {
    Err(XmlError::WithoutHwloc { path: path.to_owned() })
}

/// Returns the version of hwloc that wrote a file, if the version is not 2. A file of version 1 has the document type
/// `hwloc.dtd`; version 2 would read wrong objects from it. A file of version 3 has other types of devices, and its
/// root element names the version.
fn other_version(text: &str) -> Option<&'static str> {
    let says = |tag: &str, what: &str| {
        let tag = text.find(tag).and_then(|at| text[at..].split('>').next());
        tag.is_some_and(|tag| tag.contains(what))
    };
    if says("<!DOCTYPE", "\"hwloc.dtd\"") {
        Some("1.x")
    } else {
        says("<topology", "version=\"3.").then_some("3")
    }
}

/// Checks that tags are nested, attributes are quoted, and the root is `topology`. If not, returns the line and the
/// fault.
pub(crate) fn check_form(text: &str) -> Result<(), (usize, String)> {
    let line_at = |offset: usize| text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1;
    let mut open: Vec<(&str, usize)> = Vec::new();
    let mut objects = Objects::default();
    let mut root = None;
    let mut at = 0;
    while let Some(found) = text[at..].find('<') {
        let start = at + found;
        let fault = |what: String| Err((line_at(start), what));
        if (open.is_empty() && !text[at..start].trim().is_empty()) || text[at..start].contains('\0') {
            return fault("text outside the topology element".into());
        }
        let rest = &text[start..];
        if rest.starts_with("<!--") {
            match rest.find("-->") {
                Some(end) => at = start + end + 3,
                None => return fault("a comment is never closed".into()),
            }
            continue;
        }
        let Some(length) = tag_length(rest) else { return fault("a tag is never closed".into()) };
        let tag = &rest[1..length - 1];
        at = start + length;
        if tag.starts_with('?') || tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            match open.pop() {
                Some((opened, _)) if opened == name.trim() => {
                    if opened == "object"
                        && let Err(what) = objects.end()
                    {
                        return fault(what);
                    }
                }
                Some((opened, from)) => {
                    let from = line_at(from);
                    return fault(format!("</{}> closes <{opened}> of line {from}", name.trim()));
                }
                None => return fault(format!("</{}> closes nothing", name.trim())),
            }
            continue;
        }
        let name = tag.trim_end_matches('/').split_whitespace().next().unwrap_or("");
        if open.is_empty() && root.replace(name).is_some() {
            return fault(format!("a second root element <{name}>"));
        }
        if open.is_empty() && name != "topology" {
            return fault(format!("the root element is <{name}>, expected <topology>"));
        }
        if name == "object"
            && let Err(what) = objects.begin(tag)
        {
            return fault(what);
        }
        if !tag.ends_with('/') {
            open.push((name, start));
        }
    }
    match (open.last(), root) {
        (Some((name, from)), _) => {
            Err((line_at(*from), format!("<{name}> is never closed: is the file cut short?")))
        }
        (None, None) => Err((1, "no <topology> element".into())),
        (None, Some(_)) if !text[at..].trim().is_empty() => {
            Err((line_at(at), "text after the topology element".into()))
        }
        (None, Some(_)) => Ok(()),
    }
}

/// Returns the number of bytes from `<` to `>` inclusive. A quoted `>` does not end the tag.
fn tag_length(text: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match (quote, byte) {
            (None, b'>') => return Some(at + 1),
            (None, b'<') => return None,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_the_line_of_the_fault() {
        let cases = [
            ("<topology>\n<info>\n</topology>", 3),
            ("<topology>\n<info>\n", 2),
            ("<topology>\n\n<object/></topology>", 3),
            ("<topology", 1),
            ("\n<html></html>", 2),
            ("hello", 1),
            ("<topology/>\n<topology/>", 2),
            ("<topology>\n<a b=\"</topology>", 2),
            ("</topology>", 1),
            ("<topology/> tail", 1),
        ];
        for (text, line) in cases {
            assert_eq!(check_form(text).unwrap_err().0, line, "{text}");
        }
    }

    #[test]
    fn accepts_what_lstopo_writes() {
        let text = "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<!-- > --><topology version=\"2.0\">\n\
                    <info name=\"a>b\"><info/></info></topology>\n";
        assert_eq!(check_form(text), Ok(()));
    }

    proptest! {
        #[test]
        fn never_panics(text in "[<>/!?a-z\" \n\u{e9}-]*") {
            let _ = check_form(&text);
        }
    }
}
