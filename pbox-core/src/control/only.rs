//! The part of a job's state that a client asks for: `GET /v1/jobs/{job}/state?only=weights`.

use std::fmt;

use super::ParseError;

/// The longest part of a wrong query that an error repeats.
const SHOWN_CHARS: usize = 100;

/// One tensor of each key, in place of the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// The weights.
    Weights,
    /// The averages of the weights, which a job with `ema` keeps.
    Averages,
}

impl Only {
    /// Returns what the query of a request asks for.
    ///
    /// # Errors
    /// Returns an error if it is none of these words.
    pub fn of_query(query: &str) -> Result<Option<Self>, ParseError> {
        match query {
            "" => Ok(None),
            "only=weights" => Ok(Some(Only::Weights)),
            "only=averages" => Ok(Some(Only::Averages)),
            other => {
                let seen: String = other.chars().take(SHOWN_CHARS).collect();
                let reason = format!("the query is {seen:?}; expected none, only=weights or only=averages");
                Err(ParseError::Malformed { what: "state", reason })
            }
        }
    }
}

impl fmt::Display for Only {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Only::Weights => "weights",
            Only::Averages => "averages",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_it_is_written_as_or_refused() {
        for only in [Only::Weights, Only::Averages] {
            assert_eq!(Only::of_query(&format!("only={only}")), Ok(Some(only)));
        }
        assert_eq!(Only::of_query(""), Ok(None));
        for wrong in
            ["only=", "only=weight", "only=weights&only=weights", "Only=weights", "ema", &"x".repeat(9999)]
        {
            let error = Only::of_query(wrong).unwrap_err().to_string();
            assert!(error.contains("expected none, only=weights or only=averages"), "{error}");
            assert!(error.len() < 300);
        }
    }
}
