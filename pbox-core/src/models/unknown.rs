//! The error for an unknown model name. It lists the known names and suggests the most similar one.
//!
//! This module must not depend on the keys of a model.

use super::MODELS;

/// The limit on the characters of a name that are repeated and compared: a name comes from a command line or a request.
const ECHOED_CHARS: usize = 64;

/// An error: no built-in model has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no built-in model is called {asked:?}; the models are {}{}", MODELS.join(", "), self.hint())]
pub struct UnknownModel {
    /// The name that was asked for, cut to 64 characters.
    pub asked: String,
    /// The most similar known name, if any is similar enough.
    pub nearest: Option<&'static str>,
}

impl UnknownModel {
    pub(super) fn new(asked: &str) -> Self {
        let asked: String = asked.chars().take(ECHOED_CHARS).collect();
        let nearest = nearest(&asked);
        UnknownModel { asked, nearest }
    }

    fn hint(&self) -> String {
        self.nearest.map_or_else(String::new, |name| format!("; did you mean {name}?"))
    }
}

/// Returns the known name with the fewest edits, if the edits are at most a third of its length.
fn nearest(asked: &str) -> Option<&'static str> {
    let asked = plain(asked);
    let (edits, name) = MODELS.iter().map(|&name| (distance(&asked, &plain(name)), name)).min()?;
    (edits <= name.len() / 3).then_some(name)
}

/// Returns the name without case and punctuation, so that `ResNet-50`, `resnet_50` and `resnet50` are the same.
fn plain(name: &str) -> Vec<char> {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Computes Levenshtein's edit distance, one row at a time.
fn distance(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}
