//! Checks of settings from outside that serde does not make. These checks refuse fields of a variant that has no
//! fields, and fields that are given twice.
//!
//! This module must not depend on settings.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Parses a variant without fields of an internally tagged enum. Without this function, such a variant would accept any
/// fields, even if the enum denies unknown fields. Usage: `#[serde(deserialize_with = "strict_json::none")]`.
pub(crate) fn none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    Nothing::deserialize(deserializer).map(|Nothing {}| ())
}

/// Returns the fields of an object, and refuses a field that is given twice. A plain [`Map`] would keep the last of two
/// fields with the same name.
pub(crate) fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map<String, Value>, D::Error> {
    struct Fields;

    impl<'de> Visitor<'de> for Fields {
        type Value = Map<String, Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut given: A) -> Result<Self::Value, A::Error> {
            let mut fields = Map::new();
            while let Some((name, value)) = given.next_entry::<String, Value>()? {
                if fields.contains_key(&name) {
                    return Err(A::Error::custom(format!("duplicate field `{name}`")));
                }
                fields.insert(name, value);
            }
            Ok(fields)
        }
    }
    deserializer.deserialize_map(Fields)
}
