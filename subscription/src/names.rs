//! A mapping from a job's keys to the names of tensors, in the form in which files of names and callers from other
//! languages write it.
//!
//! ```text
//!   {"the job's key": "the tensor's name", "another key": {"name": "a name", "dtype": "f32"}, "a third": {"dtype": "bf16"},
//!    "a key that is cut": {"split": [{"name": "a name", "shape": [2, 3]}, {"name": "another", "shape": [1, 3], "dtype": "f32"}]},
//!    "the name of a tensor": {"join": ["a key", "another key"], "shape": [5, 3], "dtype": "f32"}}
//! ```
//!
//! Plain data.

use std::collections::BTreeMap;
use std::fmt;

use pbox_core::manifest::{MAX_DIMENSIONS, MAX_TOTAL_BYTES};
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use versions::Precision;

/// The most elements of a tensor: as many as the largest job has.
const MAX_ELEMENTS: u64 = MAX_TOTAL_BYTES / size_of::<f32>() as u64;

/// The tensors of a job's keys. Keys that are not here keep their names, and have the type of all tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub(crate) BTreeMap<String, Entry>);

impl Names {
    /// Whether all tensors have the type `of_all`. Tensors without a type in the mapping have this type.
    pub(crate) fn have_only(&self, of_all: Precision) -> bool {
        let is_other = |precision: Option<Precision>| precision.is_some_and(|of| of != of_all);
        !self.0.values().any(|entry| match entry {
            Entry::Whole(tensor) => is_other(tensor.precision),
            Entry::Split(parts) => parts.iter().any(|part| is_other(part.precision)),
            Entry::Join { tensor, .. } => is_other(tensor.precision),
        })
    }
}

/// An entry of the mapping: the tensor or tensors of a key, or the keys of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Whole(Tensor),
    /// The tensors that have the key's values, one tensor after another. At least one.
    Split(Vec<Shaped>),
    /// The keys whose values the tensor has, one key after another. At least one. The entry's place in the mapping has the tensor's
    /// name.
    Join {
        keys: Vec<String>,
        tensor: Shaped,
    },
}

/// The one tensor of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// The tensor's name. `None` for the key's own name.
    name: Option<String>,
    /// The tensor's element type. `None` for the type of all tensors.
    pub precision: Option<Precision>,
}

/// A tensor of known shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shaped {
    pub name: String,
    pub shape: Vec<usize>,
    /// The tensor's element type. `None` for the type of all tensors.
    pub precision: Option<Precision>,
}

/// An error: an entry of a mapping that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // each variant is its message
pub enum NamesError {
    #[error(
        "key {key:?}: {seen} describes no tensor; expected the tensor's name, or an object such as {{\"name\": \"NAME\", \"dtype\": \
         \"f32\"}}, or an object with \"split\" or \"join\""
    )]
    Line { key: String, seen: String },

    #[error(
        "key {key:?}: {error}; expected {{\"split\": [{{\"name\": \"NAME\", \"shape\": [ROWS, ...]}}, ...]}}"
    )]
    Split { key: String, error: String },

    #[error("tensor {name:?}: {error}; expected {{\"join\": [\"KEY\", ...], \"shape\": [ROWS, ...]}}")]
    Join { name: String, error: String },

    #[error(
        "key {key:?}, as tensor {name:?}: shape {seen:?}: expected at most {MAX_DIMENSIONS} numbers from 1, and at most {MAX_ELEMENTS} \
         elements"
    )]
    Shape { key: String, name: String, seen: Vec<u64> },

    #[error("key {key:?}: the name of its tensor is empty; expected at least one letter, or only \"dtype\"")]
    Empty { key: String },

    #[error("key {key:?} has two entries; expected one")]
    Twice { key: String },

    #[error("key {key:?}, as tensor {name:?}: dtype {seen}: expected \"f32\", \"bf16\" or \"f16\"")]
    Precision { key: String, name: String, seen: String },
}

/// An entry for a key that is cut, in the form of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SplitLine {
    split: Vec<ShapedLine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapedLine {
    name: String,
    shape: Vec<u64>,
    dtype: Option<Value>,
}

/// An entry for a tensor of several keys, in the form of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinLine {
    join: Vec<String>,
    shape: Vec<u64>,
    dtype: Option<Value>,
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
        formatter.write_str(
            "an object with an entry for each key that gets another name or type, is cut, or is joined",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut lines: A) -> Result<Names, A::Error> {
        let mut names = Names::default();
        while let Some((key, line)) = lines.next_entry::<String, Value>()? {
            let entry = entry(&key, line).map_err(A::Error::custom)?;
            if names.0.insert(key.clone(), entry).is_some() {
                return Err(A::Error::custom(NamesError::Twice { key }));
            }
        }
        Ok(names)
    }
}

fn entry(key: &str, line: Value) -> Result<Entry, NamesError> {
    let own = || key.to_owned();
    if line.get("split").is_some() {
        let SplitLine { split } = read(line).map_err(|error| NamesError::Split { key: own(), error })?;
        if split.is_empty() {
            return Err(NamesError::Split { key: own(), error: "no tensor".to_owned() });
        }
        return split.into_iter().map(|line| shaped(key, line)).collect::<Result<_, _>>().map(Entry::Split);
    }
    if line.get("join").is_some() {
        let line = read(line).map_err(|error| NamesError::Join { name: own(), error })?;
        let JoinLine { join: keys, shape, dtype } = line;
        let Some(first) = keys.first() else {
            return Err(NamesError::Join { name: own(), error: "no key".to_owned() });
        };
        let tensor = shaped(first, ShapedLine { name: own(), shape, dtype })?;
        return Ok(Entry::Join { keys, tensor });
    }
    tensor(key, &line).map(Entry::Whole)
}

fn read<T: DeserializeOwned>(line: Value) -> Result<T, String> {
    serde_json::from_value(line).map_err(|error| error.to_string())
}

fn shaped(key: &str, line: ShapedLine) -> Result<Shaped, NamesError> {
    let ShapedLine { name, shape, dtype } = line;
    if name.is_empty() {
        return Err(NamesError::Empty { key: key.to_owned() });
    }
    let elements = shape.iter().try_fold(1u64, |all, &of| all.checked_mul(of));
    if shape.len() > MAX_DIMENSIONS || !elements.is_some_and(|all| (1..=MAX_ELEMENTS).contains(&all)) {
        return Err(NamesError::Shape { key: key.to_owned(), name, seen: shape });
    }
    let precision = dtype.map(|dtype| precision(key, &name, &dtype)).transpose()?;
    Ok(Shaped { name, shape: shape.into_iter().map(|of| of as usize).collect(), precision })
}

fn tensor(key: &str, line: &Value) -> Result<Tensor, NamesError> {
    let no_line = || NamesError::Line { key: key.to_owned(), seen: line.to_string() };
    let (name, dtype) = match line {
        Value::String(name) => (Some(name.clone()), None),
        Value::Object(fields) if fields.keys().all(|field| field == "name" || field == "dtype") => {
            let name = match fields.get("name") {
                None => None,
                Some(Value::String(name)) => Some(name.clone()),
                Some(_) => return Err(no_line()),
            };
            (name, fields.get("dtype"))
        }
        _ => return Err(no_line()),
    };
    let shown = name.as_deref().unwrap_or(key);
    let precision = dtype.map(|dtype| precision(key, shown, dtype)).transpose()?;
    match name.as_deref() {
        Some("") => Err(NamesError::Empty { key: key.to_owned() }),
        _ => Ok(Tensor { name, precision }),
    }
}

fn precision(key: &str, name: &str, dtype: &Value) -> Result<Precision, NamesError> {
    let (key, name, seen) = (key.to_owned(), name.to_owned(), dtype.to_string());
    let named = dtype.as_str().and_then(|dtype| dtype.parse().ok());
    named.ok_or(NamesError::Precision { key, name, seen })
}

impl Names {
    /// Adds a key's tensor.
    pub fn with(mut self, key: &str, name: &str, precision: Option<Precision>) -> Self {
        let tensor = Tensor { name: Some(name.to_owned()), precision };
        self.0.insert(key.to_owned(), Entry::Whole(tensor));
        self
    }
}

impl Entry {
    /// Returns the name of the first tensor of the entry for `of`.
    pub fn first_tensor<'a>(&'a self, of: &'a str) -> &'a str {
        match self {
            Entry::Whole(tensor) => tensor.name.as_deref().unwrap_or(of),
            Entry::Split(parts) => parts.first().map_or(of, |part| &part.name),
            Entry::Join { .. } => of,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_name_or_a_type_or_both() {
        let text = r#"{"a": "x", "b": {"name": "y", "dtype": "f16"}, "c": {"dtype": "bf16"}, "d": {}}"#;
        let names: Names = serde_json::from_str(text).unwrap();
        let of =
            |name: Option<&str>, precision| Entry::Whole(Tensor { name: name.map(str::to_owned), precision });
        let expected = [
            ("a", of(Some("x"), None)),
            ("b", of(Some("y"), Some(Precision::F16))),
            ("c", of(None, Some(Precision::Bf16))),
            ("d", of(None, None)),
        ];
        assert_eq!(names.0, expected.map(|(key, entry)| (key.to_owned(), entry)).into());
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
            (r#"{"split": []}"#, r#"key "b": no tensor; expected {"split": [{"name": "NAME""#),
            (r#"{"split": [{"name": "y"}]}"#, r#"key "b": missing field `shape`; expected"#),
            (r#"{"split": ["y"]}"#, r#"key "b": invalid type: string "y""#),
            (r#"{"split": [{"name": "", "shape": [1]}]}"#, r#"key "b": the name of its tensor is empty"#),
            (r#"{"split": [{"name": "y", "shape": [1]}], "dtype": "f32"}"#, "unknown field `dtype`"),
            (r#"{"split": [{"name": "y", "shape": [-1]}]}"#, r#"key "b": invalid value: integer `-1`"#),
            (
                r#"{"split": [{"name": "y", "shape": [0, 2]}]}"#,
                r#"key "b", as tensor "y": shape [0, 2]: expected at most 64 numbers from 1"#,
            ),
            (
                r#"{"join": ["k"], "shape": [4294967296, 4294967296]}"#,
                r#"key "k", as tensor "b": shape [4294967"#,
            ),
            (r#"{"join": ["k"], "shape": [274877906945]}"#, "at most 274877906944 elements"),
            (r#"{"join": [], "shape": [1]}"#, r#"tensor "b": no key; expected {"join": ["KEY""#),
            (r#"{"join": ["k"]}"#, r#"tensor "b": missing field `shape`; expected"#),
            (
                r#"{"join": ["k"], "shape": [1], "dtype": "int8"}"#,
                r#"key "k", as tensor "b": dtype "int8": expected"#,
            ),
        ] {
            let error = serde_json::from_str::<Names>(&format!("{{\"b\": {line}}}")).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let deep = format!(r#"{{"b": {{"join": ["k"], "shape": [{}1]}}}}"#, "1,".repeat(64));
        let deep = serde_json::from_str::<Names>(&deep).unwrap_err().to_string();
        assert!(deep.contains("expected at most 64 numbers"), "{deep}");
        let twice = serde_json::from_str::<Names>(r#"{"b": "x", "b": "y"}"#).unwrap_err().to_string();
        assert!(twice.contains(r#"key "b" has two entries"#), "{twice}");
    }
}
