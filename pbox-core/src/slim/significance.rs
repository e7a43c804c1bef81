//! The significance `|w| + c |g|` (section 3.2) of the parameters of one core's chunks. Gradients are noted when the chunks
//! are stepped. Their significance is computed and counted afterwards.
//!
//! Significances are compared by their bits: for numbers that are not negative, bits and numbers have the same order.

/// Returns the bits of a value's size. The bits are used only for comparisons: NaN counts as infinity, so that NaN is
/// sent and noticed.
fn size(value: f32) -> u32 {
    value.abs().to_bits().min(f32::INFINITY.to_bits())
}

/// Sums over one chunk, of `|w|` and of `|g|`. Only finite values are added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    pub weights: f64,
    pub gradients: f64,
}

impl Sums {
    /// Returns the sums of a chunk.
    pub fn of(weights: &[f32], gradients: &[f32]) -> Sums {
        Sums { weights: sum(weights), gradients: sum(gradients) }
    }
}

/// Adds into eight partial sums, so that the compiler uses vector instructions.
fn sum(values: &[f32]) -> f64 {
    let mut sums = [0.0; 8];
    for values in values.chunks(8) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += f64::from(if value.is_finite() { value.abs() } else { 0.0 });
        }
    }
    sums.iter().sum()
}

/// Returns the coefficient with which weights and gradients have the same influence.
pub fn balance(sums: impl IntoIterator<Item = Sums>) -> f32 {
    let add =
        |a: Sums, b: Sums| Sums { weights: a.weights + b.weights, gradients: a.gradients + b.gradients };
    let all = sums.into_iter().fold(Sums::default(), add);
    let c = (all.weights / all.gradients) as f32;
    if c.is_finite() { c } else { 0.0 }
}

/// Replaces each gradient by the significance of its parameter.
pub fn weigh(weights: &[f32], gradients: &mut [f32], c: f32) {
    for (gradient, weight) in gradients.iter_mut().zip(weights) {
        let significance = weight.abs() + c * gradient.abs();
        *gradient = f32::from_bits(size(significance));
    }
}

/// The number of buckets of a histogram: one for each value of 16 bits, which are half of the bits of a significance.
pub const BUCKETS: usize = 1 << 16;

/// Counts significances by the upper half of their bits.
pub fn count_upper(significance: &[f32], histogram: &mut [u32]) {
    significance.iter().for_each(|value| histogram[(size(*value) >> 16) as usize] += 1);
}

/// Counts the significances with this upper half by the lower half of their bits.
pub fn count_lower(significance: &[f32], upper: u32, histogram: &mut [u32]) {
    let within = significance.iter().map(|value| size(*value)).filter(|size| size >> 16 == upper);
    within.for_each(|size| histogram[(size & 0xffff) as usize] += 1);
}

/// Makes `set` the set of all elements with at least this significance.
pub fn select(significance: &[f32], least: u32, set: &mut [u64]) {
    for (word, values) in set.iter_mut().zip(significance.chunks(64)) {
        let bits = values.iter().enumerate().map(|(bit, value)| u64::from(size(*value) >= least) << bit);
        *word = bits.sum();
    }
}
