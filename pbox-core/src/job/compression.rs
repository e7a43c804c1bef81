//! Compression: the ways in which a job's workers and its hub send fewer bytes.
//!
//! It is a setting, the same at all ends, which a worker states in its join. This module names the codecs. `wire`
//! defines the positions of the encoded bytes; the hub's `weights` and the worker's `coder` use the codecs.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::codec::{Codec, InvalidCodec};
use crate::layout::Layout;
use crate::slim::{InvalidSlimDp, SlimDp};
use crate::strict_json;

/// The compression of a job's gradients and weights. In JSON, a codec is `{"codec": "bf16"}` with the codec's settings, and
/// Slim-DP is `{"codec": "slim", "alpha": 0.2, "beta": 0.1}`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compression {
    /// A codec encodes every push and every answer. In each round, the codec gets all values of a chunk.
    Codec(Codec),
    /// Slim-DP. Workers send the values of the most significant elements and of some random elements unchanged, and
    /// no other values.
    Slim(SlimDp),
}

/// An error: no job can have this compression.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidCompression {
    /// Invalid settings of a codec.
    #[error(transparent)]
    Codec(#[from] InvalidCodec),
    /// Invalid settings of Slim-DP.
    #[error(transparent)]
    Slim(#[from] InvalidSlimDp),
}

/// An error: the text names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compression {seen:?}: {why}; expected {}", forms().join(", "))]
pub struct NotACompression {
    seen: String,
    why: String,
}

/// The name of each codec, and its settings in the order in which a text gives them.
const FORMS: [(&str, &[&str]); 9] = [
    ("f16", &[]),
    ("bf16", &[]),
    ("qsgd", &["bits", "bucket"]),
    ("onebit", &[]),
    ("terngrad", &[]),
    ("topk", &["ratio"]),
    ("randomk", &["ratio"]),
    ("dgc", &["ratio", "momentum", "clip", "warmup_rounds"]),
    (SLIM, &["alpha", "beta", "q", "c", "explorer"]),
];

const SLIM: &str = "slim";

/// Returns the forms, as a user writes them.
fn forms() -> Vec<String> {
    FORMS.iter().map(|(name, settings)| [&[*name], *settings].concat().join(":")).collect()
}

impl Compression {
    /// Returns the compression's name in the settings.
    pub fn name(&self) -> &'static str {
        match self {
            Compression::Codec(codec) => codec.name(),
            Compression::Slim(_) => SLIM,
        }
    }

    /// Whether each worker gets its own answers, in its own weights window.
    pub fn has_own_answers(&self) -> bool {
        matches!(self, Compression::Slim(_))
    }

    /// Checks that every setting has a valid value.
    pub fn check(&self) -> Result<(), InvalidCompression> {
        match self {
            Compression::Codec(codec) => Ok(codec.check()?),
            Compression::Slim(slim) => Ok(slim.check()?),
        }
    }

    /// Checks that a model with this layout can be sent with this compression.
    pub fn check_layout(&self, layout: &Layout) -> Result<(), InvalidCompression> {
        match self {
            Compression::Codec(_) => Ok(()),
            Compression::Slim(slim) => Ok(slim.check_chunks(layout.max_chunk_elements())?),
        }
    }
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Self {
        Compression::Codec(codec)
    }
}

impl From<SlimDp> for Compression {
    fn from(slim: SlimDp) -> Self {
        Compression::Slim(slim)
    }
}

impl Serialize for Compression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// A wrapper that adds the field `codec` to Slim-DP's settings, so that their JSON has the form of a codec's
        /// JSON.
        #[derive(Serialize)]
        struct Named<'a> {
            codec: &'a str,
            #[serde(flatten)]
            slim: &'a SlimDp,
        }
        match self {
            Compression::Codec(codec) => codec.serialize(serializer),
            Compression::Slim(slim) => Named { codec: SLIM, slim }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Compression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut said = strict_json::fields(deserializer)?;
        if said.get("codec").is_some_and(|name| name == SLIM) {
            said.remove("codec");
            return SlimDp::deserialize(Value::Object(said)).map(Compression::Slim).map_err(D::Error::custom);
        }
        Codec::deserialize(Value::Object(said)).map(Compression::Codec).map_err(D::Error::custom)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        // The settings are first written as text and then parsed: a direct conversion to `Value` would give an f32
        // more digits than the user wrote.
        let said = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        let said: Map<String, Value> = serde_json::from_str(&said).map_err(|_| fmt::Error)?;
        let settings = FORMS.iter().find(|(name, _)| *name == self.name()).map_or(&[][..], |form| form.1);
        settings.iter().filter_map(|setting| said.get(*setting)).try_for_each(|value| match value {
            Value::Null => f.write_str(":none"),
            Value::String(word) => write!(f, ":{word}"),
            value => write!(f, ":{value}"),
        })
    }
}

/// Parses a codec's name and its settings in their order, separated by colons: `bf16`, `qsgd:8:512`. Settings at the
/// end that have a default may be left out.
impl FromStr for Compression {
    type Err = NotACompression;

    fn from_str(text: &str) -> Result<Self, NotACompression> {
        let not = |why: String| NotACompression { seen: text.to_owned(), why };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let form = FORMS.iter().find(|form| form.0 == name);
        let (_, settings) = form.ok_or_else(|| not("no codec has this name".into()))?;
        let given: Vec<&str> = parts.collect();
        if given.len() > settings.len() {
            return Err(not(format!("{name} has {} settings, not {}", settings.len(), given.len())));
        }
        let mut said = Map::from_iter([("codec".to_owned(), Value::from(name))]);
        for (setting, given) in settings.iter().zip(given) {
            let value = match given {
                "none" => Ok(Value::Null),
                word if *setting == "explorer" => Ok(Value::from(word)),
                number => serde_json::from_str(number),
            };
            let value: Value = value.map_err(|_| not(format!("{setting} {given:?} is not a number")))?;
            said.insert((*setting).to_owned(), value);
        }
        let compression: Compression =
            serde_json::from_value(Value::Object(said)).map_err(|error| not(error.to_string()))?;
        compression.check().map_err(|error| not(error.to_string()))?;
        Ok(compression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_codec_has_a_form() {
        let codecs: Vec<&str> = FORMS.iter().map(|(name, _)| *name).filter(|name| *name != SLIM).collect();
        assert_eq!(codecs, Codec::NAMES);
    }

    #[test]
    fn in_json_and_on_the_command_line() {
        for (text, json) in [
            ("bf16", r#"{"codec":"bf16"}"#),
            ("qsgd:8:512", r#"{"codec":"qsgd","bits":8,"bucket":512}"#),
            ("topk:0.01", r#"{"codec":"topk","ratio":0.01}"#),
            (
                "slim:0.2:0.1:50:none:keys",
                r#"{"codec":"slim","alpha":0.2,"beta":0.1,"q":50,"c":null,"explorer":"keys"}"#,
            ),
            (
                "dgc:0.01:0.9:none:4",
                r#"{"codec":"dgc","ratio":0.01,"momentum":0.9,"clip":null,"warmup_rounds":4}"#,
            ),
        ] {
            let compression: Compression = text.parse().unwrap();
            assert_eq!(compression.to_string(), text);
            assert_eq!(serde_json::to_string(&compression).unwrap(), json);
            assert_eq!(serde_json::from_str::<Compression>(json).unwrap(), compression);
        }
        assert_eq!("qsgd:4".parse::<Compression>().unwrap().to_string(), "qsgd:4:512");
        for wrong in [r#""bf16""#, "{}", r#"{"codec":"zip"}"#, r#"{"codec":"slim","alpha":1}"#] {
            assert!(serde_json::from_str::<Compression>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_that_it_does_not_have_are_refused() {
        for codec in Codec::NAMES.into_iter().chain([SLIM]) {
            let settings = match codec {
                "qsgd" => r#""bits":8,"#,
                "topk" | "randomk" | "dgc" => r#""ratio":0.1,"#,
                SLIM => r#""alpha":0.2,"beta":0.1,"#,
                _ => "",
            };
            let read = |more: &str| {
                serde_json::from_str::<Compression>(&format!(r#"{{"codec":"{codec}",{settings}{more}}}"#))
            };
            let error = read(r#""buckets":1"#).unwrap_err().to_string();
            assert!(error.starts_with("unknown field `buckets`, "), "{codec}: {error}");
            let error = read(&format!(r#""codec":"{codec}""#)).unwrap_err().to_string();
            assert!(error.starts_with("duplicate field `codec`"), "{codec}: {error}");
        }
    }

    #[test]
    fn a_text_that_is_none_is_told_why() {
        for (wrong, why) in [
            ("", "no codec has this name"),
            ("zip", "no codec has this name"),
            ("bf16:8", "bf16 has 0 settings, not 1"),
            ("qsgd", "missing field `bits`"),
            ("qsgd:x", "bits \"x\" is not a number"),
            ("qsgd:9", "bits is 9"),
            ("topk:0", "ratio is 0"),
            ("slim:0.2:0.3", "beta is 0.3 with alpha 0.2"),
            ("slim:0.2:0.1:50:none:some", "unknown variant `some`"),
        ] {
            let error = wrong.parse::<Compression>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("expected f16, bf16, qsgd:bits:bucket"), "{error}");
        }
    }
}
