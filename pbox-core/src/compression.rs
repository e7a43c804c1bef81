//! Compression: what a job's workers and its hub do so that fewer bytes cross.
//!
//! A setting, the same at all ends, said in the join. Knows codecs by name; `wire` says where their bytes lie,
//! `framed` and the worker's `coder` use them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::codec::{Codec, InvalidCodec};

/// How a job's gradients and weights are made smaller. In JSON it is the codec's: `{"codec": "bf16"}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Codec", into = "Codec")]
#[non_exhaustive]
pub enum Compression {
    /// Every push and every answer is written by a codec, all elements of a chunk in each round.
    Codec(Codec),
}

/// A text that names no compression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compression {seen:?}: {why}; expected {}", forms().join(", "))]
pub struct NotACompression {
    seen: String,
    why: String,
}

/// Each codec's name and settings, in the order in which a text gives them.
const FORMS: [(&str, &[&str]); 8] = [
    ("f16", &[]),
    ("bf16", &[]),
    ("qsgd", &["bits", "bucket"]),
    ("onebit", &[]),
    ("terngrad", &[]),
    ("topk", &["ratio"]),
    ("randomk", &["ratio"]),
    ("dgc", &["ratio", "momentum", "clip", "warmup_rounds"]),
];

/// The forms, as they are written.
fn forms() -> Vec<String> {
    FORMS.iter().map(|(name, settings)| [&[*name], *settings].concat().join(":")).collect()
}

impl Compression {
    /// The codec of pushes.
    pub fn codec(&self) -> Codec {
        match self {
            Compression::Codec(codec) => *codec,
        }
    }

    /// Checks that every setting is one that it can work with.
    pub fn check(&self) -> Result<(), InvalidCodec> {
        self.codec().check()
    }
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Self {
        Compression::Codec(codec)
    }
}

impl From<Compression> for Codec {
    fn from(compression: Compression) -> Self {
        compression.codec()
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codec = self.codec();
        f.write_str(codec.name())?;
        // By way of a text: as a value an f32 becomes an f64, with digits that nobody wrote.
        let said = serde_json::to_string(&codec).map_err(|_| fmt::Error)?;
        let said: Map<String, Value> = serde_json::from_str(&said).map_err(|_| fmt::Error)?;
        let settings = FORMS.iter().find(|(name, _)| *name == codec.name()).map_or(&[][..], |form| form.1);
        settings.iter().filter_map(|setting| said.get(*setting)).try_for_each(|value| match value {
            Value::Null => f.write_str(":none"),
            value => write!(f, ":{value}"),
        })
    }
}

/// A codec's name, and its settings in their order with colons between them: `bf16`, `qsgd:8:512`. Settings at
/// the end that have a default may be left out.
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
            let value = if given == "none" { Ok(Value::Null) } else { serde_json::from_str(given) };
            let value: Value = value.map_err(|_| not(format!("{setting} {given:?} is no number")))?;
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
        assert_eq!(FORMS.map(|(name, _)| name), Codec::NAMES);
    }

    #[test]
    fn in_json_and_on_the_command_line() {
        for (text, json) in [
            ("bf16", r#"{"codec":"bf16"}"#),
            ("qsgd:8:512", r#"{"codec":"qsgd","bits":8,"bucket":512}"#),
            ("topk:0.01", r#"{"codec":"topk","ratio":0.01}"#),
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
        for wrong in [r#""bf16""#, "{}", r#"{"codec":"zip"}"#, r#"{"codec":"qsgd","bits":8,"buckets":1}"#] {
            assert!(serde_json::from_str::<Compression>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_that_is_none_is_told_why() {
        for (wrong, why) in [
            ("", "no codec has this name"),
            ("zip", "no codec has this name"),
            ("bf16:8", "bf16 has 0 settings, not 1"),
            ("qsgd", "missing field `bits`"),
            ("qsgd:x", "bits \"x\" is no number"),
            ("qsgd:9", "bits is 9"),
            ("topk:0", "ratio is 0"),
        ] {
            let error = wrong.parse::<Compression>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("expected f16, bf16, qsgd:bits:bucket"), "{error}");
        }
    }
}
