//! Parsing of requests from bytes. The hub parses a body before it uses the content.
//!
//! The body comes from outside. The parser needs at most a small multiple of the body's size as memory, and an error
//! repeats only the beginning of a faulty text. This module must not depend on HTTP.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::known::Known;
use super::{JoinRequest, PROTOCOL, Versions};

/// The length limit of the parser's message in an error. The message may quote a string of any length.
const ECHOED_CHARS: usize = 400;

/// An error: the body is not a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The body does not have the form of the request.
    #[error("{what}: {reason}; see docs/protocol/control-port.md")]
    Malformed {
        /// The expected request.
        what: &'static str,
        /// The parser's message.
        reason: String,
    },
    /// The sender speaks no version of the protocol that this hub speaks.
    #[error(
        "this hub speaks protocol {}, and the other end protocol {}; install the same version at both ends",
        Versions::OURS,
        seen.map_or("none".to_owned(), |seen| seen.to_string())
    )]
    Protocol {
        /// The versions that the body names, if it names versions.
        seen: Option<Versions>,
    },
    /// The sender also speaks a newer version than this hub. Its request has something new that the hub cannot ignore.
    #[error(
        "{what}: {reason}; this hub speaks protocol {}, and the other end protocol {theirs}: the hub cannot ignore terms of a job \
         that only the newer version knows; leave these terms out, or install the newer version at the hub",
        Versions::OURS
    )]
    Newer {
        /// The expected request.
        what: &'static str,
        /// The parser's message.
        reason: String,
        /// The versions of the other end.
        theirs: Versions,
    },
}

/// Parses a request of any kind except a join. `what` names the kind in errors.
pub fn parse<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ParseError> {
    serde_json::from_slice(body).map_err(|error| malformed(what, &error))
}

/// Parses a join.
pub fn parse_join(body: &[u8]) -> Result<JoinRequest, ParseError> {
    parse_versioned("join", body)
}

/// Parses a request that names the versions of its sender. The versions are parsed first, because a request of another
/// version may have other fields. If the sender also speaks a newer version than this program, unknown fields are ignored,
/// except in inner objects.
pub fn parse_versioned<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ParseError> {
    #[derive(Deserialize)]
    #[serde(expecting = "an object")]
    struct Named<'a> {
        // This is not a `Value`: a tree of arbitrary JSON takes 16 times as much memory as its text.
        #[serde(borrow)]
        protocol: Option<&'a RawValue>,
        #[serde(borrow)]
        protocol_lowest: Option<&'a RawValue>,
    }
    let named: Named = serde_json::from_slice(body).map_err(|error| malformed(what, &error))?;
    let number = |named: Option<&RawValue>| named.and_then(|named| named.get().parse::<u32>().ok());
    let theirs = number(named.protocol).map(|newest| Versions::of(newest, number(named.protocol_lowest)));
    let Some(theirs) = theirs.filter(|theirs| theirs.common(Versions::OURS).is_some()) else {
        return Err(ParseError::Protocol { seen: theirs });
    };
    if theirs.highest <= PROTOCOL {
        return parse(what, body);
    }
    known(body).map_err(|error| ParseError::Newer { what, reason: excerpt(&error), theirs })
}

/// Parses a request of another hub of a job. The two hubs may have different versions, and no person has typed a wrong
/// name. So unknown fields are ignored, except in inner objects.
pub fn parse_from_hub<T: DeserializeOwned>(what: &'static str, body: &[u8]) -> Result<T, ParseError> {
    known(body).map_err(|error| malformed(what, &error))
}

fn known<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let parsed = T::deserialize(Known(&mut json))?;
    json.end().map(|()| parsed)
}

fn malformed(what: &'static str, error: &serde_json::Error) -> ParseError {
    ParseError::Malformed { what, reason: excerpt(error) }
}

fn excerpt(error: &serde_json::Error) -> String {
    let said = error.to_string();
    // The beginning of a long message is more useful than its end, which has the line and the column.
    said.chars().take(ECHOED_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::MAX_KEYS;

    fn join() -> String {
        let terms = r#"{"workers":2,"chunk_bytes":64,"optimizer":{"name":"average"},"keys":[]}"#;
        let rest = format!(r#""rank":0,"terms":{terms}"#);
        format!(r#"{{"protocol":{PROTOCOL},{rest}}}"#)
    }

    #[test]
    fn a_join_is_read() {
        let request = parse_join(join().as_bytes()).unwrap();
        assert_eq!((request.rank, request.terms.workers, request.terms.chunk_bytes), (0, 2, 64));
    }

    #[test]
    fn another_version_is_named_whatever_else_it_says() {
        let version = |body: &str| parse_join(body.as_bytes()).unwrap_err();
        let (next, seen) = (PROTOCOL + 1, Some(Versions::of(PROTOCOL + 1, None)));
        let body = format!(r#"{{"protocol": {next}, "rank": [[[]]]}}"#);
        assert_eq!(version(&body), ParseError::Protocol { seen });
        for none in [r#"{"protocol": "1"}"#, r#"{"protocol": -1}"#, r#"{"protocol": [1]}"#, "{}"] {
            assert_eq!(version(none), ParseError::Protocol { seen: None }, "{none}");
        }
    }

    /// Returns the join of a member that also speaks the next version.
    fn newer(rest: &str) -> String {
        let next = PROTOCOL + 1;
        join().replace(
            &format!(r#""protocol":{PROTOCOL}"#),
            &format!(r#""protocol":{next},"protocol_lowest":{PROTOCOL}{rest}"#),
        )
    }

    #[test]
    fn a_newer_member_may_say_more_and_not_about_the_job() {
        let plain = parse_join(join().as_bytes()).unwrap();
        let request = parse_join(newer(r#","flavour":{"of":["straw","berry"]}"#).as_bytes()).unwrap();
        assert_eq!(request.versions().common(Versions::OURS), Some(PROTOCOL));
        assert_eq!((request.rank, &request.terms), (plain.rank, &plain.terms));
        let more = newer("").replace(r#""keys":[]"#, r#""keys":[],"flavour":1"#);
        let why = parse_join(more.as_bytes()).unwrap_err();
        assert!(matches!(why, ParseError::Newer { .. }), "{why}");
        for words in [
            "unknown field `flavour`",
            "protocol 11 to 14, and the other end protocol 14 to 15",
            "cannot ignore terms",
        ] {
            assert!(why.to_string().contains(words), "{why}");
        }
        let again = newer(r#","rank":1"#);
        assert!(parse_join(again.as_bytes()).unwrap_err().to_string().contains("duplicate field"));
        assert!(parse_join(format!("{} x", newer("")).as_bytes()).is_err(), "something behind it");
    }

    #[test]
    fn ranges_that_do_not_meet_are_both_named() {
        let body = format!(r#"{{"protocol":{},"protocol_lowest":{}}}"#, PROTOCOL + 2, PROTOCOL + 1);
        let why = parse_join(body.as_bytes()).unwrap_err().to_string();
        assert!(why.contains("protocol 11 to 14, and the other end protocol 15 to 16"), "{why}");
    }

    #[test]
    fn a_field_that_is_given_twice_is_refused() {
        for (once, twice) in [
            (r#""rank":0"#, r#""rank":0,"rank":1"#),
            (r#""protocol":"#, r#""protocol":5,"protocol":"#),
            (r#""keys":[]"#, r#""keys":[],"keys":[]"#),
        ] {
            let error = parse_join(join().replace(once, twice).as_bytes()).unwrap_err().to_string();
            assert!(error.contains("duplicate field"), "{error}");
        }
    }

    #[test]
    fn a_field_that_is_unknown_is_refused_wherever_it_stands() {
        let key = r#"{"name":"w","shape":[1],"dtype":"f32""#;
        let with = |what: &str, said: &str| join().replace(what, said);
        for (body, field) in [
            (with(r#""rank":0"#, r#""rank":0,"job":"x""#), "job"),
            (with(r#""average"}"#, r#""average","momentum":0.9}"#), "momentum"),
            (with("[]", &format!(r#"[{key},"lr":0.5}}]"#)), "lr"),
            (with("[]", r#"[],"ablate":{"decode":true}"#), "decode"),
            (with("[]", r#"[],"level":{"consistency":{"ssp":{"staleness":1,"slack":2}}}"#), "slack"),
            (with("[]", r#"[],"level":{"compression":{"codec":"f16","ratio":0.1}}"#), "ratio"),
            (with("[]", r#"[],"level":{"core":1}"#), "core"),
        ] {
            let error = parse_join(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{field}`")), "{body}: {error}");
        }
    }

    #[test]
    fn an_error_repeats_little_of_what_it_complains_about() {
        let body = join().replace("rank", &"x".repeat(100_000));
        let error = parse_join(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("unknown field `xxx") && error.len() < 600, "{} bytes", error.len());
    }

    #[test]
    fn nesting_has_a_limit() {
        let deep = format!(r#"{{"protocol":{PROTOCOL},"keys":{}"#, "[".repeat(10_000));
        assert!(matches!(parse_join(deep.as_bytes()), Err(ParseError::Malformed { .. })));
        let deep = format!(r#"{{"token":{}"#, "[".repeat(10_000));
        assert!(parse::<super::super::LeaveRequest>("leave", deep.as_bytes()).is_err());
    }

    #[test]
    fn no_more_keys_are_read_than_a_manifest_has() {
        let key = r#"{"name":"k","shape":[1],"dtype":"f32"},"#.repeat(MAX_KEYS + 1);
        // The parser stops after the first key above the limit. So it does not read the last item, which is no key.
        let body = join().replace(r#""keys":[]"#, &format!(r#""keys":[{key}7]"#));
        let error = parse_join(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("262145 keys or more, at most 262144 are allowed"), "{error}");
    }
}
