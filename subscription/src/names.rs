//! A mapping from a job's keys to the names of tensors, as files of names and callers from other languages write it.
//!
//! ```text
//!   {"the job's key": "the tensor's name", "another key": {"name": "a name", "dtype": "f32"}, "a third": {"dtype": "bf16"}}
//! ```
//!
//! Plain data.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use versions::Precision;

/// The tensor of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensor {
    /// The tensor's name. `None` for the key's own name.
    pub name: Option<String>,
    /// The tensor's element type. `None` for the type of all tensors.
    pub precision: Option<Precision>,
}

/// The tensors of a job's keys. Keys that are not here keep their names, and have the type of all tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub BTreeMap<String, Tensor>);

/// An error: an entry of a mapping that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum NamesError {
    #[error(
        "key {key:?}: {seen} describes no tensor; expected the tensor's name, or an object such as {{\"name\": \"NAME\", \"dtype\": \"f32\"}}"
    )]
    Line { key: String, seen: String },

    #[error("key {key:?}: the name of its tensor is empty; expected at least one letter, or only \"dtype\"")]
    Empty { key: String },

    #[error("key {key:?} has two entries; expected one")]
    Twice { key: String },

    #[error("key {key:?}, as tensor {name:?}: dtype {seen}: expected \"f32\", \"bf16\" or \"f16\"")]
    Precision { key: String, name: String, seen: String },
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Lines)
    }
}

/// The visitor of a mapping's entries. Serde's own map would keep the last of two entries for one key,
/// without an error.
struct Lines;

impl<'de> Visitor<'de> for Lines {
    type Value = Names;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with an entry for each key that gets another name or type")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut lines: A) -> Result<Names, A::Error> {
        let mut names = Names::default();
        while let Some((key, line)) = lines.next_entry::<String, Value>()? {
            let tensor = tensor(&key, line).map_err(A::Error::custom)?;
            if tensor.name.as_deref() == Some("") {
                return Err(A::Error::custom(NamesError::Empty { key }));
            }
            if names.0.insert(key.clone(), tensor).is_some() {
                return Err(A::Error::custom(NamesError::Twice { key }));
            }
        }
        Ok(names)
    }
}

fn tensor(key: &str, line: Value) -> Result<Tensor, NamesError> {
    let no_line = |seen: &Value| NamesError::Line { key: key.to_owned(), seen: seen.to_string() };
    let fields = match &line {
        Value::String(name) => return Ok(Tensor { name: Some(name.clone()), precision: None }),
        Value::Object(fields) if fields.keys().all(|field| field == "name" || field == "dtype") => fields,
        other => return Err(no_line(other)),
    };
    let name = match fields.get("name") {
        None => None,
        Some(Value::String(name)) => Some(name.clone()),
        Some(_) => return Err(no_line(&line)),
    };
    let Some(seen) = fields.get("dtype") else { return Ok(Tensor { name, precision: None }) };
    match seen.as_str().and_then(|dtype| dtype.parse().ok()) {
        Some(precision) => Ok(Tensor { name, precision: Some(precision) }),
        None => {
            let (name, seen) = (name.as_deref().unwrap_or(key).to_owned(), seen.to_string());
            Err(NamesError::Precision { key: key.to_owned(), name, seen })
        }
    }
}

impl Names {
    /// Adds a key's tensor.
    pub fn with(mut self, key: &str, name: &str, precision: Option<Precision>) -> Self {
        self.0.insert(key.to_owned(), Tensor { name: Some(name.to_owned()), precision });
        self
    }

    /// Returns the name of a key's tensor, and its type.
    pub(crate) fn of<'a>(&'a self, key: &'a str, of_all: Precision) -> (&'a str, Precision) {
        let tensor = self.0.get(key);
        let name = tensor.and_then(|tensor| tensor.name.as_deref()).unwrap_or(key);
        (name, tensor.and_then(|tensor| tensor.precision).unwrap_or(of_all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_name_or_a_type_or_both() {
        let text = r#"{"a": "x", "b": {"name": "y", "dtype": "f16"}, "c": {"dtype": "bf16"}, "d": {}}"#;
        let names: Names = serde_json::from_str(text).unwrap();
        let of = |key| names.of(key, Precision::F32);
        assert_eq!([of("a"), of("b")], [("x", Precision::F32), ("y", Precision::F16)]);
        assert_eq!([of("c"), of("d"), of("e")].map(|(name, _)| name), ["c", "d", "e"]);
        assert_eq!(of("c").1, Precision::Bf16);
    }

    #[test]
    fn a_wrong_line_is_named_by_its_key_and_its_tensor() {
        for (line, words) in [
            ("7", r#"key "b": 7 describes no tensor; expected the tensor's name"#),
            (r#"{"name": 7}"#, r#"key "b": {"name":7} describes no tensor"#),
            (r#"{"name": "y", "type": "f32"}"#, r#""type":"f32"} describes no tensor"#),
            (
                r#"{"name": "y", "dtype": "int8"}"#,
                r#"key "b", as tensor "y": dtype "int8": expected "f32", "bf16" or "f16""#,
            ),
            (r#""""#, r#"key "b": the name of its tensor is empty"#),
            (r#"{"dtype": 16}"#, r#"key "b", as tensor "b": dtype 16: expected"#),
        ] {
            let error = serde_json::from_str::<Names>(&format!("{{\"b\": {line}}}")).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let twice = serde_json::from_str::<Names>(r#"{"b": "x", "b": "y"}"#).unwrap_err().to_string();
        assert!(twice.contains(r#"key "b" has two entries"#), "{twice}");
    }
}
