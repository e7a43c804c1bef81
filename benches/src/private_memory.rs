//! Chunks in private memory, and passes of kernels over them without exchange. The probe measures the machine's limit
//! with such passes. The benchmark of kernels uses them, too.

use std::marker::PhantomData;

use fabric::{MapError, Slab};
use pbox_core::kernels::{Kernels, Slots};
use pbox_core::oracle::{self, Step};
use pbox_core::{Element, Optimizer, Round};
use zerocopy::{FromBytes, IntoBytes};

/// Sums and steps a part of an f32 chunk in place, with the gradients of `W` workers, weights and state.
///
/// # Panics
/// Panics if lengths differ.
pub fn step_part<const W: usize>(
    kernels: &Kernels,
    optimizer: &Optimizer,
    step: &Step,
    gradients: [&[f32]; W],
    weights: &mut [f32],
    kept: &mut [f32],
) {
    assert!(gradients.iter().all(|slot| slot.len() == weights.len()), "a part has as much of each gradient");
    let starts = gradients.map(<[f32]>::as_ptr);
    // SAFETY: each start is the start of a borrowed slice. The slice is as long as `weights`, and nobody writes it.
    let slots = unsafe { Slots::new(&starts, weights.len()) };
    kernels.run(optimizer, step, &slots, weights, kept);
}

/// The gradients, weights and state of some chunks.
#[derive(Debug)]
pub struct PrivateMemory<E> {
    /// The number of elements of each chunk.
    chunks: Vec<usize>,
    gradients: Vec<Slab>,
    weights: Slab,
    kept: Slab,
    optimizer: Optimizer,
    elements: PhantomData<E>,
}

impl<E: Element> PrivateMemory<E> {
    /// The number of elements in a cache line. Chunks start on cache lines, as in a window.
    const LINE: usize = 64 / size_of::<E>();

    /// Creates the memory of chunks with these numbers of elements, filled with small numbers.
    pub fn new(chunks: &[usize], workers: usize, optimizer: Optimizer) -> Result<Self, MapError> {
        let elements: usize = chunks.iter().map(|elements| elements.next_multiple_of(Self::LINE)).sum();
        let buffer = |what, salt: usize| {
            let mut slab = Slab::zeroed(what, (elements * size_of::<E>()).div_ceil(size_of::<f32>()))?;
            let number = |i: usize| E::from_f32(((i * 29 + salt * 17) % 127) as f32 / 61.0);
            Self::elements_mut(&mut slab).iter_mut().enumerate().for_each(|(i, value)| *value = number(i));
            Ok(slab)
        };
        let mut kept = Slab::zeroed("private state", elements * optimizer.kept_per_element(E::DTYPE))?;
        kept.as_mut_slice().iter_mut().enumerate().for_each(|(i, value)| *value = (i % 89) as f32 / 47.0);
        Ok(PrivateMemory {
            chunks: chunks.to_vec(),
            gradients: (0..workers)
                .map(|rank| buffer("private gradients", rank))
                .collect::<Result<_, _>>()?,
            weights: buffer("private weights", 100)?,
            kept,
            optimizer,
            elements: PhantomData,
        })
    }

    fn elements(slab: &Slab) -> &[E] {
        <[E]>::ref_from_bytes(slab.as_slice().as_bytes()).expect("a slab is aligned, and holds whole f32")
    }

    fn elements_mut(slab: &mut Slab) -> &mut [E] {
        let bytes = slab.as_mut_slice().as_mut_bytes();
        <[E]>::mut_from_bytes(bytes).expect("a slab is aligned, and holds whole f32")
    }

    /// Returns the hyperparameters with which each pass steps.
    pub fn step(&self) -> Step {
        Step::new(&self.optimizer, self.gradients.len() as u32, Round(1), 1e-6, 1.0, 1.0)
    }

    /// Makes one pass over every chunk.
    pub fn pass(&mut self, kernels: &Kernels) {
        let (optimizer, step) = (self.optimizer, self.step());
        self.each_chunk(|_, slots, weights, kept| kernels.run(&optimizer, &step, slots, weights, kept));
    }

    /// Calls `then` with each chunk's number, slots (the workers' gradients), weights and kept values (the state).
    pub fn each_chunk(&mut self, mut then: impl FnMut(usize, &Slots<E>, &mut [E], &mut [f32])) {
        let per_element = self.optimizer.kept_per_element(E::DTYPE);
        let mut starts = vec![std::ptr::null(); self.gradients.len()];
        let mut offset = 0;
        for (chunk, &elements) in self.chunks.iter().enumerate() {
            for (start, gradients) in starts.iter_mut().zip(&self.gradients) {
                *start = Self::elements(gradients)[offset..offset + elements].as_ptr();
            }
            // SAFETY: the starts point into slabs that outlive the call, sliced to `elements`.
            let slots = unsafe { Slots::new(&starts, elements) };
            let weights = &mut Self::elements_mut(&mut self.weights)[offset..offset + elements];
            let kept = &mut self.kept.as_mut_slice()[offset * per_element..(offset + elements) * per_element];
            then(chunk, &slots, weights, kept);
            offset += elements.next_multiple_of(Self::LINE);
        }
    }

    /// Returns the number of bytes that a pass reads and writes. Stepped state and weights count twice.
    pub fn bytes_moved(&self) -> u64 {
        let optimizer = &self.optimizer;
        let window = size_of_val(self.weights.as_slice());
        let stepped_in_place = optimizer.keeps_weights()
            && optimizer.kept_per_element(E::DTYPE) == optimizer.state_per_element();
        let windows = self.gradients.len() + 1 + usize::from(stepped_in_place);
        (windows * window + 2 * self.kept.as_slice().len() * size_of::<f32>()) as u64
    }

    /// Panics unless a pass over a chunk of this many elements gives the oracle's bits.
    pub fn check(kernels: &Kernels, optimizer: Optimizer, workers: usize, elements: usize) {
        let new = || Self::new(&[elements], workers, optimizer).expect("room for a chunk");
        let (mut seen, mut expected) = (new(), new());
        seen.pass(kernels);
        let step = expected.step();
        for i in 0..elements {
            let sum = oracle::sum(expected.gradients.iter().map(|slot| Self::elements(slot)[i].to_f32()));
            let places = (0..optimizer.kept_per_element(E::DTYPE)).map(|column| column * elements + i);
            let mut kept: Vec<f32> = places.clone().map(|place| expected.kept.as_slice()[place]).collect();
            let weight = &mut Self::elements_mut(&mut expected.weights)[i];
            oracle::step_rounded(&optimizer, &step, sum, weight, &mut kept);
            let what = format!("{kernels:?} {:?} element {i}", E::DTYPE);
            assert_eq!(Self::elements(&seen.weights)[i], *weight, "{what}");
            let seen_kept: Vec<f32> = places.map(|place| seen.kept.as_slice()[place]).collect();
            assert_eq!(seen_kept, kept, "{what}");
        }
    }
}
