//! The kernels for each instruction set, and the slots that they sum.
//!
//! On the list of `unsafe` code (`docs/unsafe.md`): calls of functions for instruction sets that were detected, and
//! addresses that become slices for kernels.

use std::marker::PhantomData;

use super::body;
use super::element::Element;
use super::isa::{self, Converter, Work};
use super::optimizer::{Optimizer, Step};
use super::rule::{
    Adam, AdamW, AmsGrad, AmsGradW, Average, Dampened, Lamb, Lars, Lion, Momentum, Nesterov, Rule, Sgd,
};

/// The number of slots that are summed together if there are many slots. Each slot is a stream of memory.
pub(super) const GROUP: usize = 8;

/// The least number of slots that are summed in groups. With groups, 128 slots are three times as fast, but 12
/// slots would be slower (`docs/decisions/0004-sum-at-last-arrival.md`).
pub(super) const MANY: usize = 16;

/// The number of elements that are summed before the next group of slots is added: 16 KiB of f32. With 2 or 4 KiB, sums
/// of 32 slots or more have 0.75 to 0.95 of the speed.
pub(super) const TILE: usize = 4096;

/// Kernels that are compiled for one instruction set.
pub struct Kernels {
    name: &'static str,
    set: InstructionSet,
    available: fn() -> bool,
}

#[derive(Clone, Copy)]
enum InstructionSet {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Scalar,
}

/// The kernels, the best first.
static ALL: &[Kernels] = &[
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx512",
        set: InstructionSet::Avx512,
        available: || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
    },
    #[cfg(target_arch = "x86_64")]
    Kernels {
        name: "avx2",
        set: InstructionSet::Avx2,
        available: || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
    },
    #[cfg(target_arch = "aarch64")]
    Kernels { name: "neon", set: InstructionSet::Neon, available: || true },
    Kernels { name: "scalar", set: InstructionSet::Scalar, available: || true },
];

/// `by_rule!(optimizer, R => work::<R>())`: does `work` with the type in `rule` that has the arithmetic of `optimizer`.
macro_rules! by_rule {
    ($optimizer:expr, $R:ident => $work:expr) => {
        by_rule!($optimizer, $R => $work;
            Average | Sum => Average, Sgd => Sgd, Momentum => Momentum, Dampened => Dampened, Nesterov => Nesterov,
            Adam => Adam, AdamW => AdamW, AmsGrad => AmsGrad, AmsGradW => AmsGradW, Lion => Lion,
            Lars => Lars, Lamb => Lamb)
    };
    ($optimizer:expr, $R:ident => $work:expr; $($($Optimizer:ident)|+ => $Rule:ident),+) => {
        match $optimizer {
            $($(Optimizer::$Optimizer { .. })|+ => {
                type $R = $Rule;
                $work
            })+
        }
    };
}

impl Kernels {
    /// Returns the best kernels that this processor can run.
    pub fn detect() -> &'static Kernels {
        Self::available().next().expect("scalar kernels run everywhere")
    }

    /// Returns all kernels that this processor can run, the best first.
    pub fn available() -> impl Iterator<Item = &'static Kernels> {
        ALL.iter().filter(|kernels| (kernels.available)())
    }

    /// Returns the name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sums the slots in f32, steps in f32, and writes the rounded result into `window`, which is sent to workers.
    ///
    /// `kept` stays in the hub. It has [`Optimizer::kept_per_element`] f32 for each element. First come the master weights,
    /// if there are any; otherwise `window` has the weights. Then comes the optimizer's state. For Adam and AdamW, it is
    /// all first moments of the chunk, then all second moments. AMSGrad then has the highest second moments.
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn run<E: Element>(
        &self,
        optimizer: &Optimizer,
        step: &Step,
        slots: &Slots<E>,
        window: &mut [E],
        kept: &mut [f32],
    ) {
        E::run(self, optimizer, step, slots, window, kept);
    }

    pub(super) fn run_as<E: Element>(
        &self,
        optimizer: &Optimizer,
        step: &Step,
        slots: &Slots<E>,
        window: &mut [E],
        kept: &mut [f32],
    ) {
        check_lengths(optimizer, slots, window, kept);
        by_rule!(optimizer, R => self.sum::<E, R>(step, slots, window, kept));
    }

    /// Steps as [`run`](Self::run) does, on a gradient that is already summed.
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn step<E: Element>(
        &self,
        optimizer: &Optimizer,
        step: &Step,
        gradient: &[f32],
        window: &mut [E],
        kept: &mut [f32],
    ) {
        Slots::with_one(gradient, |slots| E::step(self, optimizer, step, slots, window, kept));
    }

    pub(super) fn step_as<E: Element>(
        &self,
        optimizer: &Optimizer,
        step: &Step,
        slots: &Slots,
        window: &mut [E],
        kept: &mut [f32],
    ) {
        check_lengths(optimizer, slots, window, kept);
        let elements = slots.elements();
        by_rule!(optimizer, R => self.step_on::<E, R>(step, slots, window, body::by_kind::<E, R>(kept, elements)));
    }

    /// Converts the elements to f32. The bits are those of [`Element::to_f32`], except for NaNs.
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn widen<E: Element>(&self, elements: &[E], wide: &mut [f32]) {
        E::widen_all(self, elements, wide);
    }

    pub(super) fn widen_as<E: Element>(&self, elements: &[E], wide: &mut [f32]) {
        assert_eq!(elements.len(), wide.len(), "a place for each element");
        self.work(Widen { elements, wide });
    }

    /// Converts the values to elements. The bits are those of [`Element::from_f32`], except for NaNs.
    ///
    /// # Panics
    /// Panics if lengths differ.
    pub fn narrow<E: Element>(&self, values: &[f32], elements: &mut [E]) {
        E::narrow_all(self, values, elements);
    }

    pub(super) fn narrow_as<E: Element>(&self, values: &[f32], elements: &mut [E]) {
        assert_eq!(values.len(), elements.len(), "a place for each value");
        self.work(Narrow { values, elements });
    }

    /// Sums and steps with one rule.
    fn sum<E: Element, R: Rule>(&self, step: &Step, slots: &Slots<E>, window: &mut [E], kept: &mut [f32]) {
        let kept = body::by_kind::<E, R>(kept, slots.elements());
        match slots.workers() < MANY {
            true => self.run_on::<E, R>(step, slots, window, kept),
            false => self.sum_many::<E, R>(step, slots, window, kept),
        }
    }

    /// Sums and steps [many](MANY) slots: sums a tile of elements, then steps on this sum as if it were the only slot, and so on.
    #[inline(never)] // its tile is on the stack
    fn sum_many<E: Element, R: Rule>(
        &self,
        step: &Step,
        slots: &Slots<E>,
        window: &mut [E],
        mut kept: [&mut [f32]; 4],
    ) {
        let (elements, mut sums) = (slots.elements(), [0.0; TILE]);
        for at in (0..elements).step_by(TILE) {
            let tile = at..elements.min(at + TILE);
            let sums = &mut sums[..tile.len()];
            self.work(InGroups { slots, at, sums });
            let kept =
                kept.each_mut().map(|kind| if kind.is_empty() { &mut [] } else { &mut kind[tile.clone()] });
            Slots::with_one(sums, |sum| self.step_on::<E, R>(step, sum, &mut window[tile.clone()], kept));
        }
    }

    /// Sums and steps with one rule. The function is not a [`Work`]: the slices are its parameters, so the compiler knows
    /// that they do not overlap. With the slices in a struct, a core was busy for 1.09 times as long (2 workers, shared
    /// memory).
    fn run_on<E: Element, R: Rule>(
        &self,
        step: &Step,
        slots: &Slots<E>,
        window: &mut [E],
        [master, first, second, third]: [&mut [f32]; 4],
    ) {
        match self.set {
            // SAFETY: only `available` returns kernels, after it has detected their instruction set.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => unsafe {
                isa::avx512::sum::<E, R>(step, slots, window, master, first, second, third);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => unsafe {
                isa::avx2::sum::<E, R>(step, slots, window, master, first, second, third);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => unsafe {
                isa::neon::sum::<E, R>(step, slots, window, master, first, second, third);
            },
            InstructionSet::Scalar => {
                isa::scalar::sum::<E, R>(step, slots, window, master, first, second, third);
            }
        }
    }

    /// Steps on one slot in f32, as [`run_on`](Self::run_on) does.
    fn step_on<E: Element, R: Rule>(
        &self,
        step: &Step,
        slots: &Slots,
        window: &mut [E],
        [master, first, second, third]: [&mut [f32]; 4],
    ) {
        match self.set {
            // SAFETY: only `available` returns kernels, after it has detected their instruction set.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => unsafe {
                isa::avx512::step::<E, R>(step, slots, window, master, first, second, third);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => unsafe {
                isa::avx2::step::<E, R>(step, slots, window, master, first, second, third);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => unsafe {
                isa::neon::step::<E, R>(step, slots, window, master, first, second, third);
            },
            InstructionSet::Scalar => {
                isa::scalar::step::<E, R>(step, slots, window, master, first, second, third);
            }
        }
    }

    /// Does work that is compiled for the instruction set. `codec` and `slim` define work other than sums.
    pub(crate) fn work<W: Work>(&self, work: W) -> W::Output {
        match self.set {
            // SAFETY: only `available` returns kernels, after it has detected their instruction set.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => unsafe { isa::avx512::work(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => unsafe { isa::avx2::work(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            InstructionSet::Neon => unsafe { isa::neon::work(work) },
            InstructionSet::Scalar => isa::scalar::work(work),
        }
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kernels").field(&self.name).finish()
    }
}

/// Checks that the slots, the window and the kept values have the same number of elements.
fn check_lengths<S: Element, E: Element>(
    optimizer: &Optimizer,
    slots: &Slots<S>,
    window: &[E],
    kept: &[f32],
) {
    let elements = slots.elements();
    assert_eq!(window.len(), elements, "the window and the slots have the same length");
    let expected = elements * optimizer.kept_per_element(E::DTYPE);
    assert_eq!(kept.len(), expected, "the kept values match the slots");
}

/// The work of summing [many](MANY) slots, from element `at` on.
pub(super) struct InGroups<'a, E> {
    pub slots: &'a Slots<'a, E>,
    pub at: usize,
    pub sums: &'a mut [f32],
}

impl<E: Element> Work for InGroups<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) {
        body::sum_in_groups(E::converter(isa), self.slots, self.at, self.sums);
    }
}

struct Widen<'a, E> {
    elements: &'a [E],
    wide: &'a mut [f32],
}

impl<E: Element> Work for Widen<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) {
        body::widen(E::converter(isa), self.elements, self.wide);
    }
}

struct Narrow<'a, E> {
    values: &'a [f32],
    elements: &'a mut [E],
}

impl<E: Element> Work for Narrow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Converter>(self, isa: I) {
        body::narrow(E::converter(isa), self.values, self.elements);
    }
}

/// The slots of one or more workers, in worker order. A slot is a worker's gradient of one chunk, with `elements` elements.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a, E = f32> {
    starts: &'a [*const E],
    elements: usize,
    _borrowed: PhantomData<&'a [E]>,
}

impl<'a, E: Element> Slots<'a, E> {
    /// Creates slots at these addresses.
    ///
    /// # Safety
    /// During `'a`, `elements` elements from each start must be readable, and must not be written.
    pub unsafe fn new(starts: &'a [*const E], elements: usize) -> Self {
        assert!(!starts.is_empty(), "a sum has at least one worker");
        Slots { starts, elements, _borrowed: PhantomData }
    }

    /// Calls `then` with the slot of a single worker.
    pub fn with_one(slot: &[E], then: impl FnOnce(&Slots<E>)) {
        let start = [slot.as_ptr()];
        // SAFETY: the only start is that of `slot`, which has this length. It is borrowed, so it is not written.
        then(&unsafe { Slots::new(&start, slot.len()) });
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.starts.len()
    }

    /// Returns the number of elements of each slot.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Returns the slot of the worker at this index.
    #[inline(always)]
    pub fn slot(&self, rank: usize) -> &'a [E] {
        // SAFETY: the caller of `new` guaranteed every start and `elements`.
        unsafe { std::slice::from_raw_parts(self.starts[rank], self.elements) }
    }

    /// Returns the first slots, at most `most`.
    #[inline]
    pub fn at_most(&self, most: usize) -> Slots<'a, E> {
        Slots { starts: &self.starts[..self.starts.len().min(most)], ..*self }
    }
}
