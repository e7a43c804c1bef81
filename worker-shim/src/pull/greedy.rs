//! The two greedy algorithms of iBatch's paper as printed, with rules for the cases that the paper leaves open.
//!
//! Both algorithms look for batches whose pulls are longer than the computing that hides them (constraint 5
//! of the paper). Batch `k + 1` is pulled while batch `k` is computed. Here `a..b` are layers counted from 0;
//! the paper counts from 1.
//!
//! The paper leaves open:
//! - *Ties.* Line 5 of algorithm 1 determines `l1`, but not `l2`. Of the pairs that are left, we take the pair with the
//!   smallest `l2`. Its pull exceeds the computing by the least, which is the rule of lines 7 to 13. In algorithm 2 we
//!   take the largest `l(N-2)`; the candidates differ only in layers that take no time. In later steps of both
//!   algorithms we take the smaller batch.
//! - *No choice satisfies the constraint*: every pull that is left is shorter than the computing. Then we take the
//!   choice that is nearest to the constraint. In the first step of algorithm 1 the batches are the first layer and all
//!   other layers. In the first step of algorithm 2 the batch before the last has one layer, which may be any layer
//!   except the last. In later steps the batch has all layers that are left (algorithm 1), or only the layer before the
//!   previous choice (algorithm 2).
//! - *One layer* is one batch; the algorithms below get at least two layers.

use std::ops::Range;

use super::timeline::{Profile, Sums, Timeline};

/// Returns the batches of the algorithm with the shorter makespan. If both makespans are equal, returns the
/// batches of algorithm 1.
pub(super) fn better(profile: &Profile) -> Vec<Range<usize>> {
    let sums = Sums::new(profile);
    let [front, back] = [front(&sums), back(&sums)];
    let makespan = |batches| Timeline::new(profile, batches).makespan;
    if makespan(&back) < makespan(&front) { back } else { front }
}

/// Runs algorithm 1, from the first layer on.
pub(super) fn front(sums: &Sums) -> Vec<Range<usize>> {
    let layers = sums.forward.len() - 1;
    let pairs = (1..layers).flat_map(|l1| (l1 + 1..=layers).map(move |l2| (l1, l2)));
    let satisfying = pairs.filter(|&(l1, l2)| sums.pull(l1..l2) > sums.forward(0..l1));
    let first = satisfying.min_by(|a, b| {
        let longest = sums.forward(0..b.0).total_cmp(&sums.forward(0..a.0));
        longest.then(sums.pull(0..a.0).total_cmp(&sums.pull(0..b.0))).then(a.cmp(b))
    });
    let (l1, l2) = first.unwrap_or((1, layers));
    let mut batches = vec![0..l1, l1..l2];
    while let Some(last) = batches.last().filter(|last| last.end < layers).cloned() {
        let computing = sums.forward(last.clone());
        let satisfying = (last.end + 1..=layers).filter(|&end| sums.pull(last.end..end) > computing);
        // The computing is fixed, so the shortest pull has the least excess.
        let chosen = satisfying
            .min_by(|&a, &b| sums.pull(last.end..a).total_cmp(&sums.pull(last.end..b)).then(a.cmp(&b)));
        batches.push(last.end..chosen.unwrap_or(layers));
    }
    batches
}

/// Runs algorithm 2, from the last layer back.
pub(super) fn back(sums: &Sums) -> Vec<Range<usize>> {
    let layers = sums.forward.len() - 1;
    // Batch N - 1 is `a..b`, and batch N begins with layer `b`.
    let pairs = || (1..layers).flat_map(|b| (0..b).map(move |a| (a, b)));
    let excess = |a, b| sums.pull(b..layers) - sums.forward(a..b);
    let satisfying = pairs().filter(|&(a, b)| excess(a, b) > 0.0);
    let last = satisfying.min_by(|&(a, b), &(c, d)| {
        let longest = sums.forward(c..d).total_cmp(&sums.forward(a..b));
        longest.then(sums.forward(b..layers).total_cmp(&sums.forward(d..layers))).then((d, c).cmp(&(b, a)))
    });
    let nearest = || pairs().max_by(|&(a, b), &(c, d)| excess(a, b).total_cmp(&excess(c, d)));
    let (a, b) = last.or_else(nearest).expect("two layers have a pair");
    let mut batches = vec![b..layers, a..b];
    while let Some(next) = batches.last().filter(|next| next.start > 0).cloned() {
        let (pull, end) = (sums.pull(next.clone()), next.start);
        let satisfying = (0..end).filter(|&begin| pull > sums.forward(begin..end));
        // The pull is fixed, so the longest computing has the least excess.
        let chosen =
            satisfying.min_by(|&x, &y| sums.forward(y..end).total_cmp(&sums.forward(x..end)).then(y.cmp(&x)));
        batches.push(chosen.unwrap_or(end - 1)..end);
    }
    batches.reverse();
    batches
}
