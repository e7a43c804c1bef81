//! Settings that come from Python as text.

use std::fmt::Display;
use std::str::FromStr;

use authority::{Credential, Right};
use pyo3::prelude::*;

use crate::errors::SettingsError;

/// Parses the value of a setting, with the parser of its type.
pub fn parse<T: FromStr<Err: Display>>(setting: &str, text: &str) -> PyResult<T> {
    text.parse().map_err(|error| SettingsError::new_err(format!("{setting} {text:?}: {error}")))
}

/// Parses a secret or a token.
pub fn credential(text: &str) -> PyResult<Credential> {
    Credential::parse(text, "token").map_err(|error| SettingsError::new_err(error.to_string()))
}

/// Returns the given credential, otherwise the credential of the environment or of this user's file.
pub fn credential_of(given: Option<&str>) -> PyResult<Option<Credential>> {
    match given {
        Some(text) => Ok(Some(credential(text)?)),
        None => Credential::find_if_any().map_err(|error| SettingsError::new_err(error.to_string())),
    }
}

/// Returns the token to show for a right to a job, if this process has one. The token is made from `given`, otherwise from the
/// credential of the environment or of this user's file.
#[pyfunction]
pub fn token(right: &str, job: &str, given: Option<&str>) -> PyResult<Option<String>> {
    let right: Right = parse("right", right)?;
    Ok(credential_of(given)?.map(|found| found.token(right, job).to_string()))
}

/// Returns the value that `choices` has for a name.
pub fn choice<T: Copy>(setting: &str, text: &str, choices: &[(&str, T)]) -> PyResult<T> {
    match choices.iter().find(|(name, _)| *name == text) {
        Some(&(_, choice)) => Ok(choice),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            Err(SettingsError::new_err(format!("{setting} {text:?}: expected one of {names:?}")))
        }
    }
}
