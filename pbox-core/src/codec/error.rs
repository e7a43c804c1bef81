//! What can be wrong with a codec's settings, and with a payload that somebody sent.

/// Settings outside their range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{codec}: {setting} is {seen}; expected {range}")]
pub struct InvalidCodec {
    pub(super) codec: &'static str,
    pub(super) setting: &'static str,
    pub(super) seen: f64,
    pub(super) range: &'static str,
}

/// A payload that no encoder of the codec makes.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // each variant is its message; the fields are what it prints
pub enum PayloadError {
    #[error(
        "a payload of {seen} bytes, but {elements} elements take {expected} as {codec}: both ends must be given \
         the same compression and chunk size"
    )]
    Length { codec: &'static str, elements: usize, expected: usize, seen: usize },
}
