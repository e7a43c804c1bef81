//! The step: what is done with what workers have pushed of a chunk, by the place where its weights are.
//!
//! Owned by the core, as a part of its values. Knows who steps only by what it is told.
//!
//! On the `unsafe` list: the calls that read the workers' slots.

use fabric::Slab;

use crate::kernels::oracle::Step;
use crate::kernels::{Ablate, Element, Kernels, Optimizer, Slots, typed};
use crate::layout::{Dtype, Round};
use crate::wire::frame::FrameError;

use super::store::Weights;
use super::{Owned, Values};

impl Values {
    /// What worker `rank` pushes for a round of its own, where that must be looked at before it counts; false where it
    /// does not count, and must come again.
    ///
    /// # Errors
    /// When it is no frame of this chunk and round.
    #[inline]
    pub fn check_push(&self, place: usize, rank: u32, round: Round) -> Result<bool, FrameError> {
        if self.weights.checks_pushes() { self.check_frame(place, rank, round) } else { Ok(true) }
    }

    fn check_frame(&self, place: usize, rank: u32, round: Round) -> Result<bool, FrameError> {
        let Owned { span, .. } = self.owned[place];
        // SAFETY: the worker has posted this chunk, and is not answered before this returns. Whatever it writes all
        // the same is looked at as bytes, each of which is a value.
        let bytes = unsafe { self.gradients.bytes(rank, span) };
        self.weights.check_push(place, round, bytes)
    }

    /// Sum of the slots of `ranks` and step of a chunk in `round`, as the chunk's step of this `number`
    /// from 1. In round 0, where weights are kept, the first slot becomes the weights.
    ///
    /// # Safety
    /// All of `ranks` have pushed the chunk, and none of them is answered before this returns.
    #[inline]
    pub unsafe fn step(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        match self.weights {
            Weights::Window(_) => {}
            // SAFETY: the caller's word.
            Weights::Framed(_) => return unsafe { self.step_framed(kernels, place, ranks, round, number) },
            // SAFETY: the caller's word.
            Weights::Slim(_) => return unsafe { self.step_slim(kernels, place, ranks, round) },
        }
        typed!(self.owned[place].dtype, E => {
            // SAFETY: the caller's word.
            unsafe { self.step_in::<E>(kernels, place, ranks, round, number) }
        });
    }

    /// As [`step`](Self::step), of frames; and the answer.
    ///
    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_framed(
        &mut self,
        kernels: &Kernels,
        place: usize,
        mut ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        let Values { owned, weights, kept, gradients, optimizer, ablate, learning_rates, .. } = self;
        let (Weights::Framed(framed), owned) = (weights, &owned[place]) else { return };
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's word.
        let pushed = |rank| unsafe { gradients.bytes(rank, owned.span) };
        if round == Round(0) && optimizer.keeps_weights() {
            return ranks.next().map_or((), |first| framed.begin(place, pushed(first)));
        }
        let mut workers = 0;
        framed.begin_sum(place);
        for rank in ranks {
            if workers == 0 || !ablate.aggregate {
                framed.add(kernels, place, pushed(rank));
            }
            workers += 1;
        }
        if let Some(rule) = rule(optimizer, *ablate) {
            let step =
                Step::new(rule, workers, number, learning_rates.at(round), owned.lr_mult, owned.wd_mult);
            let (sum, window) = framed.step_parts(place);
            step_sum(kernels, rule, &step, sum, window, kept_mut(kept, owned, rule));
        }
        framed.answer(kernels, place, round);
    }

    /// As [`step`](Self::step), in a job with Slim-DP; and the answers.
    ///
    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_slim(
        &mut self,
        kernels: &Kernels,
        place: usize,
        mut ranks: impl Iterator<Item = u32>,
        round: Round,
    ) {
        let Values {
            owned, weights, kept, gradients, own_weights, optimizer, ablate, learning_rates, ..
        } = self;
        let (Weights::Slim(slimmed), owned) = (weights, &owned[place]) else { return };
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's word.
        let pushed = |rank| unsafe { gradients.bytes(rank, owned.span) };
        if round == Round(0) {
            if let Some(first) = ranks.next() {
                slimmed.begin(place, pushed(first));
            }
            let windows = own_weights.iter_mut().flatten();
            return windows.for_each(|own| slimmed.show_weights(place, own.elements_mut(place)));
        }
        let mut workers = 0;
        slimmed.begin_sum(place);
        for rank in ranks {
            slimmed.add(place, workers, rank, round, pushed(rank));
            workers += 1;
        }
        if let Some(rule) = rule(optimizer, *ablate) {
            let rate = learning_rates.at(round);
            let step = Step::new(rule, workers as u32, round, rate, owned.lr_mult, owned.wd_mult);
            let (sum, window) = slimmed.step_parts(place);
            step_sum(kernels, rule, &step, sum, window, kept_mut(kept, owned, rule));
        }
        slimmed.stepped(kernels, place, round, workers as u32);
        for number in 0..workers {
            if let Some(own) = &mut own_weights[slimmed.rank(number) as usize] {
                slimmed.answer(place, number, own.elements_mut(place));
            }
        }
    }

    /// # Safety
    /// As for [`step`](Self::step).
    unsafe fn step_in<E: Element>(
        &mut self,
        kernels: &Kernels,
        place: usize,
        ranks: impl Iterator<Item = u32>,
        round: Round,
        number: Round,
    ) {
        let owned = &self.owned[place];
        let elements = owned.elements;
        // SAFETY: all of them have pushed this chunk, and are answered after this function: the caller's
        // word.
        let mut slots = unsafe { self.gradients.slots::<E>(owned.span, ranks) };
        let workers = slots.workers() as u32;
        let weights = self.weights.elements_mut::<E>(place);
        let kept_elements = elements * self.optimizer.kept_per_element(E::DTYPE);
        let mut kept = &mut self.kept.as_mut_slice()[owned.kept..][..kept_elements];
        if round == Round(0) && self.optimizer.keeps_weights() {
            // The first round is the broadcast of rank 0's weights.
            weights.copy_from_slice(slots.slot(0));
            let (master, _state) = kept.split_at_mut(elements * self.optimizer.master_per_element(E::DTYPE));
            master.iter_mut().zip(weights).for_each(|(master, weight)| *master = weight.to_f32());
            return;
        }
        if self.ablate.aggregate {
            slots = slots.first();
        }
        let Some(rule) = rule(&self.optimizer, self.ablate) else { return };
        if self.ablate.optimize {
            kept = &mut [];
        }
        let learning_rate = self.learning_rates.at(round);
        let step = Step::new(rule, workers, number, learning_rate, owned.lr_mult, owned.wd_mult);
        kernels.run(rule, &step, &slots, weights, kept);
    }
}

/// What a rule keeps of a chunk whose weights are f32.
fn kept_mut<'a>(kept: &'a mut Slab, owned: &Owned, rule: &Optimizer) -> &'a mut [f32] {
    &mut kept.as_mut_slice()[owned.kept..][..owned.elements * rule.kept_per_element(Dtype::F32)]
}

/// The step of a chunk whose pushes are summed already.
fn step_sum(
    kernels: &Kernels,
    rule: &Optimizer,
    step: &Step,
    sum: &[f32],
    weights: &mut [f32],
    kept: &mut [f32],
) {
    let start = [sum.as_ptr()];
    // SAFETY: the one start is that of `sum`, which lives as long and is as long as this chunk.
    let slots = unsafe { Slots::<f32>::new(&start, sum.len()) };
    kernels.run(rule, step, &slots, weights, kept);
}

/// What is done with a sum; nothing where neither is wanted.
fn rule(optimizer: &Optimizer, ablate: Ablate) -> Option<&Optimizer> {
    match ablate {
        Ablate { optimize: true, aggregate: true } => None,
        Ablate { optimize: true, aggregate: false } => Some(&Optimizer::Average),
        _ => Some(optimizer),
    }
}
