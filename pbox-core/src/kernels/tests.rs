//! Tests of every instruction set, element type and optimizer against the oracle, bit for bit.
//!
//! The bits of NaNs are not compared, because the compiler chooses which operand's NaN becomes the result.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::kernels::oracle;
use crate::layout::Round;

fn optimizers() -> impl Strategy<Value = Optimizer> {
    let (rate, fraction) = (0.0f32..1.0, 0.0f32..0.99);
    let decay = prop_oneof![1 => Just(0.0f32), 3 => 0.0f32..0.1];
    let epsilon = prop_oneof![Just(f32::MIN_POSITIVE / 8.0), Just(1e-8f32), Just(0.1f32)];
    let all = (0..Optimizer::NAMES.len(), rate, decay, fraction, 0.0f32..1.0, epsilon);
    all.prop_map(|(which, learning_rate, weight_decay, momentum, beta2, epsilon)| {
        let (beta1, beta2) = (f64::from(momentum), f64::from(beta2));
        match Optimizer::NAMES[which] {
            "average" => Optimizer::Average,
            "sum" => Optimizer::Sum,
            "sgd" => Optimizer::Sgd { learning_rate, weight_decay },
            "momentum" => Optimizer::Momentum { learning_rate, weight_decay, momentum },
            "dampened" => Optimizer::Dampened { learning_rate, weight_decay, momentum, dampening: epsilon },
            "nesterov" => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
            "adam" => Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon },
            "adamw" => Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon },
            "amsgrad" => Optimizer::AmsGrad { learning_rate, weight_decay, beta1, beta2, epsilon },
            "amsgradw" => Optimizer::AmsGradW { learning_rate, weight_decay, beta1, beta2, epsilon },
            "lion" => Optimizer::Lion { learning_rate, weight_decay, beta1, beta2 },
            "lars" => Optimizer::Lars { learning_rate, weight_decay, momentum, trust: epsilon },
            "lamb" => Optimizer::Lamb { learning_rate, weight_decay, beta1, beta2, epsilon },
            other => unreachable!("{other} has no strategy"),
        }
    })
}

/// Draws ordinary numbers, zeros of both signs, and numbers around the smallest normal number and around the limits of
/// f16 (2^-25, 2^-14, 65520). Also draws arbitrary bits, which may be infinities, NaNs or numbers that overflow.
fn numbers() -> impl Strategy<Value = f32> {
    let signed = |bits: std::ops::Range<u32>| {
        (any::<bool>(), bits).prop_map(|(negative, bits)| f32::from_bits(u32::from(negative) << 31 | bits))
    };
    prop_oneof![
        16 => -1e3f32..1e3,
        2 => Just(0.0f32),
        2 => Just(-0.0f32),
        4 => signed(0..0x0100_0000),
        2 => signed(0x3300_0000 - 9..0x3300_0000 + 9),
        2 => signed(0x3300_0000..0x3880_2000),
        2 => signed(0x477f_e000..0x4780_0001),
        1 => signed(0..0x8000_0000),
    ]
}

/// The input of one call of a kernel.
#[derive(Clone, Debug)]
struct Case {
    optimizer: Optimizer,
    round: u32,
    workers: usize,
    elements: usize,
    values: Vec<f32>,
}

fn cases() -> impl Strategy<Value = Case> {
    let round = prop_oneof![1u32..30, 1u32..u32::MAX];
    let values = proptest::collection::vec(numbers(), 64);
    // Some cases have many slots, and more elements than a tile.
    let size = prop_oneof![9 => (1usize..9, 1usize..300), 1 => (9usize..40, 1usize..9000)];
    (optimizers(), round, size, values).prop_map(|(optimizer, round, (workers, elements), values)| Case {
        optimizer,
        round,
        workers,
        elements,
        values,
    })
}

impl Case {
    fn value(&self, salt: usize, i: usize) -> f32 {
        self.values[(salt * 31 + i * 7) % self.values.len()]
    }

    /// Returns `elements` elements of each worker.
    fn slots<E: Element>(&self) -> Vec<Vec<E>> {
        let slot = |w| (0..self.elements).map(|i| E::from_f32(self.value(w, i))).collect();
        (0..self.workers).map(slot).collect()
    }

    fn window<E: Element>(&self) -> Vec<E> {
        (0..self.elements).map(|i| E::from_f32(self.value(77, i))).collect()
    }

    /// Returns the kept values that the optimizer has: master weights, first moments, second moments, highest second
    /// moments.
    fn kept<E: Element>(&self) -> Vec<f32> {
        let (state, per_element) =
            (self.optimizer.state_per_element(), self.optimizer.kept_per_element(E::DTYPE));
        let mut kept = Vec::new();
        let column = |salt| (0..self.elements).map(move |i| self.value(salt, i));
        if per_element > state {
            kept.extend(column(33));
        }
        kept.extend(column(99));
        // A mean of squares has no sign.
        kept.extend(column(55).chain(column(41)).map(f32::abs));
        kept.truncate(self.elements * per_element);
        kept
    }

    /// Checks that every instruction set gives the oracle's window and kept values, means and their squares.
    fn check<E: Element>(&self) -> Result<(), TestCaseError> {
        let Case { optimizer, workers, elements, .. } = self;
        let slots = self.slots::<E>();
        let starts: Vec<*const E> = slots.iter().map(|slot| slot.as_ptr()).collect();
        // SAFETY: `slots` outlives the kernels' calls and has `elements` in each.
        let view = unsafe { Slots::new(&starts, *elements) };
        let rate = optimizer.learning_rate();
        let step = Step::new(optimizer, *workers as u32, Round(self.round), rate, 2.0, 0.5);
        let (window, kept) = (self.window::<E>(), self.kept::<E>());

        let (mut expected, mut expected_kept) = (window.clone(), kept.clone());
        let (mut squares, mut not_finite) = (0.0, 0);
        for i in 0..*elements {
            let sum = oracle::sum(slots.iter().map(|slot| slot[i].to_f32()));
            match sum.is_finite() {
                true => squares += (f64::from(sum) / *workers as f64).powi(2),
                false => not_finite += 1,
            }
            let places = || (i..kept.len()).step_by(*elements);
            let mut own: Vec<f32> = places().map(|place| kept[place]).collect();
            oracle::step_rounded(optimizer, &step, sum, &mut expected[i], &mut own);
            places().zip(own).for_each(|(place, own)| expected_kept[place] = own);
        }
        if optimizer.adapts_keys() {
            self.check_squares(&step)?;
        }
        let from = *elements / 3;
        let mean = |i: usize| oracle::sum(slots.iter().map(|slot| slot[i].to_f32())) * step.rescale;
        let expected_means: Vec<f32> = (from..*elements).map(mean).collect();
        for kernels in Kernels::available() {
            let (mut window, mut kept) = (window.clone(), kept.clone());
            kernels.run(optimizer, &step, &view, &mut window, &mut kept);
            prop_assert_eq!(bits(&window), bits(&expected), "{:?} {:?} window", kernels, E::DTYPE);
            prop_assert_eq!(bits(&kept), bits(&expected_kept), "{:?} {:?} kept", kernels, E::DTYPE);
            let seen = kernels.magnitude(&view, *workers as u32);
            prop_assert_eq!(seen.not_finite, not_finite, "{:?} {:?}", kernels, E::DTYPE);
            let near = (seen.squares - squares).abs() <= 1e-9 * squares;
            prop_assert!(near, "{:?} {:?}: {:?}, and not {}", kernels, E::DTYPE, seen, squares);
            let mut means = vec![7.0; elements - from];
            let seen = kernels.mean(&view, step.rescale, from, &mut means);
            prop_assert_eq!(bits(&means), bits(&expected_means), "{:?} {:?} means", kernels, E::DTYPE);
            if seen.not_finite == 0 {
                let squares = oracle::squares(&expected_means);
                prop_assert_eq!(
                    seen.squares.to_bits(),
                    squares.to_bits(),
                    "{:?} {:?} squares",
                    kernels,
                    E::DTYPE
                );
            }
        }
        Ok(())
    }
}

impl Case {
    /// Checks that every instruction set gives the oracle's squares of a key's weights, and of its gradient or update.
    fn check_squares(&self, step: &Step) -> Result<(), TestCaseError> {
        let Case { optimizer, elements, .. } = self;
        let column = |salt| (0..*elements).map(|i| self.value(salt, i)).collect::<Vec<f32>>();
        let [mean, weights, first] = [3, 33, 99].map(column);
        let second: Vec<f32> = column(55).into_iter().map(f32::abs).collect();
        let second = &second[..elements * (optimizer.state_per_element() - 1)];
        let of = |i: usize| {
            let state = [first[i], second.get(i).copied().unwrap_or(0.0)];
            oracle::measured(optimizer, step, mean[i], weights[i], &state)
        };
        let expected = [weights.clone(), (0..*elements).map(of).collect()].map(|all| oracle::squares(&all));
        let bits =
            |squares: [f64; 2]| squares.map(|square| if square.is_nan() { 0 } else { square.to_bits() });
        for kernels in Kernels::available() {
            let before = Before { mean: &mean, weights: &weights, states: [&first, second] };
            prop_assert_eq!(bits(kernels.squares(optimizer, step, before)), bits(expected), "{:?}", kernels);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_instruction_set_gives_the_oracles_bits(case in cases()) {
        case.check::<f32>()?;
        case.check::<f16>()?;
        case.check::<bf16>()?;
    }
}

/// Returns the bits of the numbers in f32, which differ for zeros of different signs. All NaNs get the same bits.
fn bits<E: Element>(values: &[E]) -> Vec<u32> {
    let bits = |value: f32| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
    values.iter().map(|value| bits(value.to_f32())).collect()
}

#[test]
fn every_16_bit_number_is_unchanged() {
    check_unchanged(&(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>());
    check_unchanged(&(0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>());
}

/// Checks that the mean of one worker's gradients equals these gradients.
fn check_unchanged<E: Element>(all: &[E]) {
    let starts = [all.as_ptr()];
    // SAFETY: `all` outlives the kernels' calls.
    let view = unsafe { Slots::new(&starts, all.len()) };
    let step = Step::new(&Optimizer::Average, 1, Round(1), 0.0, 1.0, 1.0);
    for kernels in Kernels::available() {
        let mut window = vec![E::default(); all.len()];
        kernels.run(&Optimizer::Average, &step, &view, &mut window, &mut []);
        assert!(bits(&window) == bits(all), "{kernels:?} {:?}", E::DTYPE);
    }
}

#[test]
fn a_sum_of_whole_numbers_is_exact_where_a_mean_is_not() {
    let gradients = [[1.0f32], [2.0], [4.0]];
    let starts = gradients.each_ref().map(|each| each.as_ptr());
    // SAFETY: `gradients` outlive the kernels' calls.
    let view = unsafe { Slots::new(&starts, 1) };
    for (optimizer, expected) in [(Optimizer::Sum, 7.0), (Optimizer::Average, 7.0 * (1.0 / 3.0))] {
        let step = Step::new(&optimizer, 3, Round(1), 0.0, 1.0, 1.0);
        for kernels in Kernels::available() {
            let mut window = [0.0f32];
            kernels.run(&optimizer, &step, &view, &mut window, &mut []);
            assert_eq!(window, [expected], "{kernels:?}");
        }
    }
    assert_ne!(7.0 * (1.0f32 / 3.0) * 3.0, 7.0);
}

#[test]
fn any_number_of_elements_is_converted() {
    check_conversions(&(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>());
    check_conversions(&(0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>());
    check_conversions(&[0.1f32, -0.0, f32::MAX, f32::INFINITY, 1e-40].repeat(16));
}

/// Converts all elements, and also the last 0 to 70 of them, so that every number of elements after the last whole
/// vector occurs. The memory is not aligned to vectors.
fn check_conversions<E: Element>(all: &[E]) {
    for kernels in Kernels::available() {
        for from in [0].into_iter().chain(all.len() - 70..=all.len()) {
            let all = &all[from..];
            let mut wide = vec![7.0; all.len() + 1];
            kernels.widen(all, &mut wide[1..]);
            assert!(bits(&wide[1..]) == bits(all), "{kernels:?} {:?} from {from}", E::DTYPE);
            let mut narrow = vec![E::from_f32(7.0); all.len() + 1];
            kernels.narrow(&wide[1..], &mut narrow[1..]);
            assert!(bits(&narrow[1..]) == bits(all), "{kernels:?} {:?} from {from}", E::DTYPE);
            assert_eq!((wide[0], narrow[0]), (7.0, E::from_f32(7.0)), "no other element is written");
        }
    }
}

#[test]
fn every_tie_is_rounded_to_even() {
    check_ties::<f16>();
    check_ties::<bf16>();
}

/// Makes steps of size zero, from master weights just below, at and just above the middle between two numbers.
fn check_ties<E: Element>() {
    const LOW: [u32; 12] =
        [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let master: Vec<f32> = (0..=u32::from(u16::MAX))
        .flat_map(|high| LOW.map(|low| f32::from_bits(high << 16 | low)))
        .filter(|value| value.is_finite())
        .collect();
    let expected: Vec<E> = master.iter().map(|&value| E::from_f32(value)).collect();
    let zeros = vec![E::default(); master.len()];
    let starts = [zeros.as_ptr()];
    // SAFETY: `zeros` outlives the kernels' calls.
    let view = unsafe { Slots::new(&starts, master.len()) };
    let optimizer = Optimizer::Sgd { learning_rate: 0.0, weight_decay: 0.0 };
    let step = Step::new(&optimizer, 1, Round(1), 0.0, 1.0, 1.0);
    for kernels in Kernels::available() {
        let (mut window, mut kept) = (zeros.clone(), master.clone());
        kernels.run(&optimizer, &step, &view, &mut window, &mut kept);
        assert!(bits(&window) == bits(&expected), "{kernels:?} {:?} window", E::DTYPE);
        assert!(bits(&kept) == bits(&master), "{kernels:?} {:?} master weights", E::DTYPE);
        kernels.narrow(&master, &mut window);
        assert!(bits(&window) == bits(&expected), "{kernels:?} {:?} narrowed", E::DTYPE);
    }
}
