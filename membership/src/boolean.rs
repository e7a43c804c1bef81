//! Environment variables that are on or off. All programs use the same rule.

/// An error: the value of a variable is not a boolean.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {seen:?}; expected 1, true, yes or on, or 0, false, no or off")]
pub struct NotABoolean {
    name: String,
    seen: String,
}

/// Whether an environment variable of this process is on. An empty variable counts as not set.
///
/// # Errors
/// Returns an error if the value is not a boolean.
pub fn boolean(name: &str) -> Result<Option<bool>, NotABoolean> {
    of(name, &std::env::var(name).unwrap_or_default())
}

fn of(name: &str, text: &str) -> Result<Option<bool>, NotABoolean> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "1" | "t" | "true" | "y" | "yes" | "on" => Ok(Some(true)),
        "0" | "f" | "false" | "n" | "no" | "off" => Ok(Some(false)),
        _ => Err(NotABoolean { name: name.to_owned(), seen: text.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_on_or_off_and_others_are_named() {
        let is = |text: &str| of("X", text).unwrap();
        assert_eq!(["1", "true", "YES", "on", "t", "y"].map(is), [Some(true); 6]);
        assert_eq!(["0", "False", "no", "off", "f", "n"].map(is), [Some(false); 6]);
        assert_eq!(of("X", " "), Ok(None));
        let error = of("PHUB_CHECKSUM", "maybe").unwrap_err().to_string();
        assert!(error.contains("PHUB_CHECKSUM") && error.contains("maybe"), "{error}");
    }
}
