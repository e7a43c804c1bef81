//! Settings that come from Python as text.

use std::fmt::Display;
use std::str::FromStr;

use pyo3::PyResult;

use crate::errors::SettingsError;

/// The value of `text`, by the type's own parser.
pub fn parse<T: FromStr<Err: Display>>(setting: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error| SettingsError::new_err(format!("{setting} {text:?}: {error}")))
}

/// One of several names.
pub fn choice<T: Copy>(setting: &str, text: &str, choices: &[(&str, T)]) -> PyResult<T> {
    match choices.iter().find(|(name, _)| *name == text) {
        Some(&(_, choice)) => Ok(choice),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            Err(SettingsError::new_err(format!("{setting} {text:?}: expected one of {names:?}")))
        }
    }
}
