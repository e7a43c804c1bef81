//! The part of a job's state that a client asks for: `GET /v1/jobs/{job}/state?only=weights&dtype=bf16&before=91`.

use std::fmt;

use super::ParseError;
use crate::layout::{Dtype, Round};

/// The length limit of a wrong query in an error, in characters.
const SHOWN_CHARS: usize = 100;

/// A part of the state: one tensor of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// The weights.
    Weights,
    /// The averages of the weights, which a job with `ema` keeps.
    Averages,
}

/// The query of a request for a job's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateQuery {
    /// The one tensor that the client wants of each key. `None` for all tensors.
    pub only: Option<Only>,
    /// The round before which the client wants the state. `None` for the hub's current round.
    pub before: Option<Round>,
    /// The element type to which the hub rounds the values. The type f32 keeps the values as they are.
    pub dtype: Dtype,
}

impl StateQuery {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// Returns an error if the query has an unknown pair, or has a name twice.
    pub fn parse(query: &str) -> Result<Self, ParseError> {
        let mut parsed = StateQuery::default();
        let is_known = |pair| parsed.parse_pair(pair).is_some();
        if query.is_empty() || query.split('&').all(is_known) && parsed.is_sound() {
            return Ok(parsed);
        }
        let seen: String = query.chars().take(SHOWN_CHARS).collect();
        let reason = format!(
            "the query is {seen:?}; expected no query, or pairs joined by &: only=weights or only=averages, dtype=bf16 or \
             dtype=f16 (only together with `only`), before=ROUND; each name at most once"
        );
        Err(ParseError::Malformed { what: "state", reason })
    }

    /// Whether the query asks for no rounding, or only for one tensor of each key. A whole state is never rounded,
    /// because a job cannot continue from a rounded state.
    fn is_sound(&self) -> bool {
        self.dtype == Dtype::F32 || self.only.is_some()
    }

    /// Parses one `name=value` pair of the query. Returns `None` if the pair is invalid.
    fn parse_pair(&mut self, pair: &str) -> Option<()> {
        match pair.split_once('=')? {
            ("only", word) if self.only.is_none() => {
                self.only =
                    Some([Only::Weights, Only::Averages].into_iter().find(|only| only.word() == word)?);
            }
            ("before", round)
                if self.before.is_none() && round.bytes().all(|digit| digit.is_ascii_digit()) =>
            {
                self.before = Some(Round(round.parse().ok()?));
            }
            ("dtype", name) if self.dtype == Dtype::F32 => {
                self.dtype = [Dtype::BF16, Dtype::F16].into_iter().find(|dtype| dtype.name() == name)?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// Writes the end of a path: `?only=weights&dtype=bf16&before=91`, or nothing.
impl fmt::Display for StateQuery {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let only = self.only.map(|only| format!("only={only}"));
        let dtype = (self.dtype != Dtype::F32).then(|| format!("dtype={}", self.dtype.name()));
        let before = self.before.map(|round| format!("before={}", round.0));
        for (pair, first) in only.iter().chain(&dtype).chain(&before).zip(['?', '&', '&']) {
            write!(out, "{first}{pair}")?;
        }
        Ok(())
    }
}

impl Only {
    fn word(self) -> &'static str {
        match self {
            Only::Weights => "weights",
            Only::Averages => "averages",
        }
    }
}

impl fmt::Display for Only {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_it_is_written_as_or_refused() {
        for only in [None, Some(Only::Weights), Some(Only::Averages)] {
            for before in [None, Some(Round(0)), Some(Round(91)), Some(Round(u32::MAX))] {
                for dtype in Dtype::ALL {
                    let query = StateQuery { only, before, dtype };
                    let written = query.to_string();
                    let parsed = StateQuery::parse(written.trim_start_matches('?'));
                    assert_eq!(parsed.ok(), query.is_sound().then_some(query), "{written}");
                }
            }
        }
        assert_eq!(StateQuery::parse("before=7&only=weights"), StateQuery::parse("only=weights&before=7"));
        for wrong in [
            "only=",
            "only=weight",
            "only=weights&only=weights",
            "only=weights&",
            "Only=weights",
            "ema",
            "before=",
            "before=-1",
            "before=+1",
            "before=1.5",
            "before=4294967296",
            "before=1&before=1",
            "dtype=bf16",
            "only=weights&dtype=",
            "only=weights&dtype=f32",
            "only=weights&dtype=f64",
            "only=weights&dtype=f16&dtype=f16",
            &"x".repeat(9999),
        ] {
            let error = StateQuery::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("pairs joined by &: only=weights or only=averages"), "{error}");
            assert!(error.len() < 400);
        }
    }
}
