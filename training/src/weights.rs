//! All weights of a network, by key, and their bitwise comparison.

use std::fmt;

use anyhow::{Result, ensure};
use pbox_core::KeyId;

use super::network::Network;

/// The weights of a network: one tensor for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(Vec<Vec<f32>>);

/// The first element whose bits differ between two sets of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherBits {
    /// The key's name.
    pub key: String,
    /// The index of the element.
    pub element: usize,
    /// The value in the first set.
    pub one: f32,
    /// The value in the second set.
    pub other: f32,
}

impl fmt::Display for OtherBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OtherBits { key, element, one, other } = self;
        let (one_bits, other_bits) = (one.to_bits(), other.to_bits());
        write!(
            f,
            "key {key:?}, element {element}: {one:e} (bits {one_bits:08x}) differs from {other:e} (bits {other_bits:08x})"
        )
    }
}

impl Weights {
    /// Creates weights of zero.
    pub fn zeroed(network: &Network) -> Self {
        let elements = |key: &pbox_core::Key| key.elements().expect("a network in memory") as usize;
        Weights(network.keys().iter().map(|key| vec![0.0; elements(key)]).collect())
    }

    /// Returns the first weights of a run.
    pub fn first(network: &Network, seed: u64) -> Self {
        let mut weights = Self::zeroed(network);
        for (key, values) in weights.0.iter_mut().enumerate() {
            network.fill_weights(seed, KeyId(key as u32), values);
        }
        weights
    }

    /// Creates weights from the result of [`to_bits`](Self::to_bits) in another process.
    ///
    /// # Errors
    /// Returns an error if the bits do not have this network's shape.
    pub fn from_bits(network: &Network, bits: &[Vec<u32>]) -> Result<Self> {
        let weights =
            Weights(bits.iter().map(|key| key.iter().copied().map(f32::from_bits).collect()).collect());
        let lengths = |weights: &Weights| weights.0.iter().map(Vec::len).collect::<Vec<_>>();
        let (seen, expected) = (lengths(&weights), lengths(&Self::zeroed(network)));
        ensure!(seen == expected, "weights of {seen:?} elements by key; expected {expected:?}");
        Ok(weights)
    }

    /// Returns the bits of each element. Bits can be sent through a text pipe without a change.
    pub fn to_bits(&self) -> Vec<Vec<u32>> {
        self.0.iter().map(|key| key.iter().map(|value| value.to_bits()).collect()).collect()
    }

    /// Returns a key's weights.
    pub fn key(&self, key: KeyId) -> &[f32] {
        &self.0[key.index()]
    }

    /// Returns a key's weights for writing.
    pub fn key_mut(&mut self, key: KeyId) -> &mut [f32] {
        &mut self.0[key.index()]
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Returns a digest (FNV-1a) of all bits. People can compare it between runs and machines.
    pub fn fingerprint(&self) -> u64 {
        let bytes = self.0.iter().flatten().flat_map(|value| value.to_bits().to_le_bytes());
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Returns the first element whose bits differ; `None` if all bits are equal. Both sets of weights must have the
    /// shape of `network`.
    pub fn difference(&self, other: &Weights, network: &Network) -> Option<OtherBits> {
        network.keys().into_iter().zip(self.0.iter().zip(&other.0)).find_map(|(key, (ours, theirs))| {
            let element =
                ours.iter().zip(theirs).position(|(one, other)| one.to_bits() != other.to_bits())?;
            Some(OtherBits { key: key.name, element, one: ours[element], other: theirs[element] })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_is_a_difference_and_is_named() {
        let network = Network::new([3, 4, 2]);
        let one = Weights::first(&network, 1);
        assert_eq!(one.difference(&one.clone(), &network), None);
        let mut other = one.clone();
        let value = &mut other.key_mut(KeyId(2))[5];
        *value = f32::from_bits(value.to_bits() ^ 1);
        let difference = one.difference(&other, &network).unwrap();
        assert_eq!((difference.key.as_str(), difference.element), ("layer1.weight", 5));
        assert!(difference.to_string().contains("\"layer1.weight\", element 5"));
        assert_ne!(one.fingerprint(), other.fingerprint());
    }

    #[test]
    fn the_sign_of_zero_is_a_difference() {
        let network = Network::new([1, 1]);
        let one = Weights::zeroed(&network);
        let mut other = one.clone();
        other.key_mut(KeyId(1))[0] = -0.0;
        assert_eq!(one.difference(&other, &network).map(|difference| difference.element), Some(0));
    }

    #[test]
    fn bits_of_another_shape_are_refused() {
        let weights = Weights::first(&Network::new([3, 2]), 1);
        assert_eq!(Weights::from_bits(&Network::new([3, 2]), &weights.to_bits()).unwrap(), weights);
        assert!(Weights::from_bits(&Network::new([2, 2]), &weights.to_bits()).is_err());
    }
}
