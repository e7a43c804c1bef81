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

/// Those of [`FORMS`] that there are, as they are written.
fn forms() -> Vec<String> {
    let there = |(name, _): &&(&str, &[&str])| Codec::NAMES.contains(name);
    FORMS.iter().filter(there).map(|(name, settings)| [&[*name], *settings].concat().join(":")).collect()
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
        let Ok(Value::Object(said)) = serde_json::to_value(codec) else { return Err(fmt::Error) };
        let settings = FORMS.iter().find(|(name, _)| *name == codec.name()).map_or(&[][..], |form| form.1);
        settings.iter().filter_map(|setting| said.get(*setting)).try_for_each(|value| write!(f, ":{value}"))
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
        let there = |form: &&(&str, &[&str])| form.0 == name && Codec::NAMES.contains(&name);
        let (_, settings) = FORMS.iter().find(there).ok_or_else(|| not("no codec has this name".into()))?;
        let given: Vec<&str> = parts.collect();
        if given.len() > settings.len() {
            return Err(not(format!("{name} has {} settings, not {}", settings.len(), given.len())));
        }
        let mut said = Map::from_iter([("codec".to_owned(), Value::from(name))]);
        for (setting, given) in settings.iter().zip(given) {
            let number: Value =
                serde_json::from_str(given).map_err(|_| not(format!("{setting} {given:?} is no number")))?;
            said.insert((*setting).to_owned(), number);
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
        let formed: Vec<&str> = FORMS.iter().map(|(name, _)| *name).collect();
        assert!(Codec::NAMES.iter().all(|name| formed.contains(name)), "{:?} of {formed:?}", Codec::NAMES);
    }

    #[test]
    fn in_json_and_on_the_command_line() {
        let bf16 = Compression::Codec(Codec::Bf16);
        assert_eq!(serde_json::to_string(&bf16).unwrap(), r#"{"codec":"bf16"}"#);
        assert_eq!(serde_json::from_str::<Compression>(r#"{"codec":"bf16"}"#).unwrap(), bf16);
        assert_eq!(("bf16".parse(), bf16.to_string().as_str()), (Ok(bf16), "bf16"));
        for wrong in [r#""bf16""#, "{}", r#"{"codec":"zip"}"#] {
            assert!(serde_json::from_str::<Compression>(wrong).is_err(), "{wrong}");
        }
        for (wrong, why) in [
            ("", "no codec has this name"),
            ("zip", "no codec has this name"),
            ("bf16:8", "bf16 has 0 settings, not 1"),
        ] {
            let error = wrong.parse::<Compression>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("expected f16, bf16"), "{error}");
        }
    }
}
