//! The faults of a codec's settings, and of a payload from outside.

/// An error: a setting is out of its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{codec}: {setting} is {seen}; expected {expected}")]
pub struct InvalidCodec {
    pub(super) codec: &'static str,
    pub(super) setting: &'static str,
    pub(super) seen: f64,
    pub(super) expected: &'static str,
}

/// An error: no encoder of the codec makes this payload.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the message documents the variant and its fields
pub enum PayloadError {
    #[error(
        "a payload of {seen} bytes, but {elements} elements take {expected} bytes as {codec}: both ends must have the \
         same compression and chunk size"
    )]
    Length { codec: &'static str, elements: usize, expected: usize, seen: usize },

    #[error(
        "bucket {bucket} of a payload as {codec} has the scale {seen}, which must be finite and have the right \
         sign: the sender's encoder is broken"
    )]
    Scale { codec: &'static str, bucket: usize, seen: f32 },

    #[error(
        "byte {at} of a payload as terngrad is {seen}; five digits of base 3 are at most 242: the sender's encoder \
         is broken"
    )]
    Digits { at: usize, seen: u8 },

    #[error(
        "a payload as {codec} claims {seen} values; expected {least} to {most} for {elements} elements: both ends \
         must have the same compression and chunk size"
    )]
    Count { codec: &'static str, elements: usize, least: usize, most: usize, seen: usize },

    #[error(
        "index {at} of a payload is {seen}, but indices must ascend and the chunk has {elements} elements: expected \
         at least {least} and below {elements}"
    )]
    Index { at: usize, least: usize, elements: usize, seen: usize },

    #[error(
        "a payload marks {seen} of {elements} elements as sent, but has {count} values: the payload is damaged"
    )]
    Bits { elements: usize, count: usize, seen: usize },

    #[error(
        "value {at} of a payload as {codec} is {seen}, but values must be finite: the sender's encoder is broken"
    )]
    Value { codec: &'static str, at: usize, seen: f32 },
}
