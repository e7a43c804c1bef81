//! Gradients, weights and the hub's state, and passes of kernels over them.

use pbox_core::kernels::{Kernels, Slots};
use pbox_core::oracle::{self, Step};
use pbox_core::{Element, Optimizer, Round};

use crate::CHUNK_BYTES;

/// Some chunks of one job; buffers start on pages, as windows do.
pub struct Memory<E> {
    gradients: Vec<Pages<E>>,
    window: Pages<E>,
    kept: Pages<f32>,
}

/// Values that start on a page of 4 KiB.
struct Pages<T> {
    values: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Pages<T> {
    fn new(len: usize, value: impl Fn(usize) -> T) -> Self {
        const PAGE: usize = 4096;
        let mut values = vec![T::default(); len + PAGE / size_of::<T>()];
        let start = values.as_ptr().align_offset(PAGE);
        (values[start..start + len].iter_mut().enumerate()).for_each(|(i, place)| *place = value(i));
        Pages { values, start, len }
    }

    fn get(&self, at: usize, len: usize) -> &[T] {
        &self.values[self.start..][..self.len][at..at + len]
    }

    fn get_mut(&mut self, at: usize, len: usize) -> &mut [T] {
        &mut self.values[self.start..][..self.len][at..at + len]
    }
}

impl<E: Element> Memory<E> {
    const CHUNK: usize = CHUNK_BYTES / size_of::<E>();

    /// The memory of `chunks` chunks from `workers` workers.
    pub fn new(optimizer: &Optimizer, workers: usize, chunks: usize) -> Self {
        let elements = chunks * Self::CHUNK;
        let values = |salt: usize| {
            Pages::new(elements, move |i| E::from_f32(((i * 29 + salt * 17) % 127) as f32 / 61.0))
        };
        Memory {
            gradients: (0..workers).map(values).collect(),
            window: values(100),
            kept: Pages::new(elements * optimizer.kept_per_element(E::DTYPE), |i| (i % 89) as f32 / 47.0),
        }
    }

    /// Bytes that a pass reads and writes. State and weights that are stepped count twice.
    pub fn bytes_moved(&self, optimizer: &Optimizer) -> u64 {
        let window = self.window.len * size_of::<E>();
        let stepped_in_place = optimizer.keeps_weights()
            && optimizer.kept_per_element(E::DTYPE) == optimizer.state_per_element();
        let windows = self.gradients.len() + 1 + usize::from(stepped_in_place);
        (windows * window + 2 * self.kept.len * size_of::<f32>()) as u64
    }

    /// Makes one pass over every chunk.
    pub fn pass(&mut self, kernels: &Kernels, optimizer: &Optimizer) {
        let step = Self::step(optimizer, self.gradients.len());
        let mut starts = vec![std::ptr::null(); self.gradients.len()];
        let kept = Self::CHUNK * optimizer.kept_per_element(E::DTYPE);
        for chunk in 0..self.window.len / Self::CHUNK {
            let at = chunk * Self::CHUNK;
            for (start, gradients) in starts.iter_mut().zip(&self.gradients) {
                *start = gradients.get(at, Self::CHUNK).as_ptr();
            }
            // SAFETY: the starts are slices of CHUNK elements that nobody writes meanwhile.
            let slots = unsafe { Slots::new(&starts, Self::CHUNK) };
            let window = self.window.get_mut(at, Self::CHUNK);
            kernels.run(optimizer, &step, &slots, window, self.kept.get_mut(chunk * kept, kept));
        }
    }

    fn step(optimizer: &Optimizer, workers: usize) -> Step {
        Step::new(optimizer, workers as u32, Round(1), 1e-6, 1.0, 1.0)
    }

    /// Panics unless a pass over one chunk gives the oracle's bits.
    pub fn check(kernels: &Kernels, optimizer: &Optimizer, workers: usize) {
        let [mut memory, mut expected] = [(); 2].map(|()| Self::new(optimizer, workers, 1));
        memory.pass(kernels, optimizer);
        let per_element = optimizer.kept_per_element(E::DTYPE);
        for i in 0..Self::CHUNK {
            let sum = oracle::sum(expected.gradients.iter().map(|slot| slot.get(i, 1)[0].to_f32()));
            let places = (0..per_element).map(|column| column * Self::CHUNK + i);
            let mut kept: Vec<f32> = places.clone().map(|place| expected.kept.get(place, 1)[0]).collect();
            let window = &mut expected.window.get_mut(i, 1)[0];
            oracle::step_rounded(optimizer, &Self::step(optimizer, workers), sum, window, &mut kept);
            assert_eq!(memory.window.get(i, 1)[0], *window, "{kernels:?} {:?} element {i}", E::DTYPE);
            for (place, kept) in places.zip(kept) {
                assert_eq!(memory.kept.get(place, 1)[0], kept, "{kernels:?} {:?} element {i}", E::DTYPE);
            }
        }
    }
}
