//! Terms that exclude each other because of their meaning. Only the tables of this file refuse a combination.
//!
//! | term | with | why |
//! | --- | --- | --- |
//! | Slim-DP | `average` | a parameter that is not sent keeps the worker's own value, but no worker has its own value of a mean |
//! | Slim-DP | SSP, ASP | the significant set is selected after a round that all workers have pushed |
//! | Slim-DP | schedules by layer | a worker may have to push one chunk of a layer again, and each worker has its own answers |
//! | Slim-DP | `continue` | a selection would wait for rounds that a lost worker did not push |
//! | SSP, ASP | `average` | a mean needs the gradients of all workers in one round |
//! | `clip_norm`, `skip_nonfinite`, `skip_spikes` | SSP, ASP | each push is a step, so no step has a whole gradient |
//! | `clip_norm`, `skip_nonfinite`, `skip_spikes` | Slim-DP | values that are not sent are in no norm |
//! | `skip_nonfinite`, `skip_spikes` | codecs other than `f16` and `bf16` | a value that is not finite counts as zero in their frames |
//! | `clip_norm`, `skip_nonfinite`, `skip_spikes` | `ablate` | work that is left out has no norm |
//! | `clip_norm_last` | `clip_norm`, `skip_nonfinite`, `skip_spikes` | with them, the norm of the round itself is known |
//! | `clip_norm_last` | SSP, ASP | each push is a step, so no round has a whole gradient |
//! | `clip_norm_last` | Slim-DP, `ablate` | values that are not sent, and work that is left out, have no norm |
//! | `clip_norm_last` | `lars`, `lamb` | their steps use norms of the same round |
//! | `lars`, `lamb` | SSP, ASP | each push is a step, so no step has the mean of a whole key |
//! | `lars`, `lamb` | `clip_norm`, `skip_nonfinite`, `skip_spikes` | the norm of an update would wait for the norm of the whole gradient |
//! | `lars`, `lamb` | Slim-DP | values that are not sent are in no norm |
//! | `lars`, `lamb` | `ablate` | work that is left out has no norm |
//! | `maximize` | `average`, `sum`, `ablate` | the hub makes no step that could go up the gradient |
//! | `ema` | `average`, `sum`, `ablate` | the hub keeps no weights, or the weights are wrong |
//! | `compare_every` | SSP, ASP, Slim-DP | workers have different weights |
//! | hubs as members | Slim-DP | Slim-DP needs the steps of each worker |
//! | hubs as members | `kvstore` | a hub has no forward pass for which it could pull |
//!
//! A second table has the terms of workers that have a hub below other hubs:
//!
//! | term | why |
//! | --- | --- |
//! | Slim-DP | Slim-DP needs the steps of each worker |
//! | a codec, if members are hubs | frames would be decoded and encoded again, with an error at each level |
//! | SSP, ASP, if members are hubs | SSP and ASP work between at most two levels of hubs |
//! | several hubs | the workers of a machine have one hub |

use super::compression::Compression;
use super::on_loss::OnLoss;
use super::terms::JobTerms;
use crate::kernels::Ablate;

/// An error: two terms of a job exclude each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{one} with {other}: {why}")]
pub struct Refused {
    one: String,
    other: String,
    why: &'static str,
}

/// A term that excludes some other terms.
#[derive(Clone, Copy)]
enum Term {
    SlimDp,
    Average,
    StepsAlone,
    ByLayer,
    Continue,
    HubsBelow,
    CodedSums,
    AloneBetween,
    Pulls,
    SeveralHubs,
    WholeGradient,
    LastNorm,
    Maximize,
    Ema,
    Compare,
    ByKey,
    Skips,
    FiniteFrames,
    Ablate,
}

const TABLE: &[(Term, Term, &str)] = &[
    (
        Term::SlimDp,
        Term::Average,
        "a parameter that is not sent keeps the worker's own value, but no worker has its own value of a mean; \
         use sgd with learning rate 1, and push the change that the worker's own step makes",
    ),
    (
        Term::SlimDp,
        Term::StepsAlone,
        "the significant set is selected after a round that all workers have pushed; use bsp",
    ),
    (
        Term::SlimDp,
        Term::ByLayer,
        "pushes may have to be repeated, and each worker has its own answers; use sliced or p3",
    ),
    (
        Term::SlimDp,
        Term::Continue,
        "a selection would wait for rounds that a lost worker did not push; use on_loss stop",
    ),
    (
        Term::StepsAlone,
        Term::Average,
        "a mean needs all workers' gradients of one round; use bsp, or an optimizer that keeps weights",
    ),
    (
        Term::WholeGradient,
        Term::StepsAlone,
        "each push is a separate step, and no step has the gradients of all keys; use bsp",
    ),
    (
        Term::WholeGradient,
        Term::SlimDp,
        "values that are not sent are in no norm; use a codec, or clip before you push",
    ),
    (
        Term::Skips,
        Term::FiniteFrames,
        "the codec sends a value that is not finite as zero, so that no round would be skipped; use f16 or bf16",
    ),
    (
        Term::WholeGradient,
        Term::Ablate,
        "the hub computes no norm of work that ablate leaves out; leave ablate out",
    ),
    (
        Term::LastNorm,
        Term::WholeGradient,
        "the hub would wait for the norm of the same round anyway; use clip_norm alone",
    ),
    (
        Term::LastNorm,
        Term::StepsAlone,
        "each push is a separate step, and no round has the gradients of all keys; use bsp",
    ),
    (Term::LastNorm, Term::SlimDp, "values that are not sent are in no norm; use a codec"),
    (
        Term::LastNorm,
        Term::Ablate,
        "the hub computes no norm of work that ablate leaves out; leave ablate out",
    ),
    (Term::LastNorm, Term::ByKey, "lars and lamb use the norms of this round; leave clip_norm_last out"),
    (
        Term::ByKey,
        Term::StepsAlone,
        "each push is a separate step, and no step has the mean of the whole key; use bsp",
    ),
    (
        Term::ByKey,
        Term::WholeGradient,
        "the norm of a key's update would wait for the norm of the whole gradient; leave clip_norm, skip_nonfinite \
         and skip_spikes out",
    ),
    (Term::ByKey, Term::SlimDp, "values that are not sent are in no norm; use a codec"),
    (Term::ByKey, Term::Ablate, "the hub computes no norm of work that ablate leaves out; leave ablate out"),
    (Term::Maximize, Term::Average, "there is no step that could go up or down; leave maximize out"),
    (Term::Maximize, Term::Ablate, "there is no step that could go up or down; leave maximize out"),
    (
        Term::Ema,
        Term::Average,
        "the hub keeps no weights that it could average; average weights at the workers",
    ),
    (
        Term::Ema,
        Term::Ablate,
        "`ablate` skips steps, which then change no weights, so an average of the weights is useless; leave the average out",
    ),
    (
        Term::Compare,
        Term::StepsAlone,
        "workers have different weights, so there is nothing to compare; leave compare_every out",
    ),
    (
        Term::Compare,
        Term::SlimDp,
        "workers have different weights, so there is nothing to compare; leave compare_every out",
    ),
    (Term::HubsBelow, Term::SlimDp, "Slim-DP needs each worker's own steps; use a level without Slim-DP"),
    (
        Term::HubsBelow,
        Term::Pulls,
        "a hub has no forward pass, for which it would pull weights; use sliced or p3",
    ),
];

const BELOW: &[(Term, &str)] = &[
    (
        Term::AloneBetween,
        "with SSP or ASP between machines, only two levels of hubs are possible; use bsp, or fewer levels",
    ),
    (Term::SlimDp, "Slim-DP needs each worker's own steps; use a hub without hubs above"),
    (
        Term::CodedSums,
        "compressed sums can cross only one level of hubs; leave out the compression, or use fewer levels",
    ),
    (Term::SeveralHubs, "the workers of a machine have one hub; name only that hub"),
];

/// Checks the terms of workers that have a hub below other hubs.
pub(super) fn check_below(terms: &JobTerms) -> Result<(), Refused> {
    let refused = |&(other, why): &(Term, &'static str)| {
        Some(Refused { one: "a hub below other hubs".to_owned(), other: other.spoken(terms)?, why })
    };
    BELOW.iter().find_map(refused).map_or(Ok(()), Err)
}

/// Checks that no two terms of a job exclude each other.
pub(super) fn check(terms: &JobTerms) -> Result<(), Refused> {
    let refused = |&(one, other, why): &(Term, Term, &'static str)| {
        Some(Refused { one: one.spoken(terms)?, other: other.spoken(terms)?, why })
    };
    TABLE.iter().find_map(refused).map_or(Ok(()), Err)
}

/// Returns the name of the term that makes the job skip rounds.
fn skip_term(terms: &JobTerms) -> &'static str {
    if terms.skip_nonfinite { "skip_nonfinite" } else { "skip_spikes" }
}

impl Term {
    /// Describes the job's value of this term; `None` if the job does not use this term.
    fn spoken(self, terms: &JobTerms) -> Option<String> {
        let JobTerms { optimizer, ablate, on_loss, level, .. } = terms;
        let (has, spoken) = match self {
            Term::SlimDp => (matches!(level.compression, Some(Compression::Slim(_))), "Slim-DP".to_owned()),
            Term::Average => (!optimizer.keeps_weights(), format!("the optimizer {}", optimizer.name())),
            Term::StepsAlone => {
                (level.consistency.steps_alone(), format!("consistency {}", level.consistency))
            }
            Term::ByLayer => (level.schedule.by_layer(), format!("schedule {}", level.schedule)),
            Term::Continue => (*on_loss == OnLoss::Continue, "on_loss continue".to_owned()),
            Term::HubsBelow => (level.members.are_hubs(), "members hubs".to_owned()),
            Term::CodedSums => {
                let coded = matches!(level.compression, Some(Compression::Codec(_)));
                (coded && level.members.are_hubs(), "a codec from hubs below".to_owned())
            }
            Term::AloneBetween => {
                let alone = level.consistency.steps_alone() && level.members.are_hubs();
                (alone, format!("consistency {} from hubs below", level.consistency))
            }
            Term::WholeGradient => {
                let name = if terms.clip_norm.is_some() { "clip_norm" } else { skip_term(terms) };
                (terms.waits_for_all(), name.to_owned())
            }
            Term::LastNorm => (terms.clip_norm_last.is_some(), "clip_norm_last".to_owned()),
            Term::Compare => (terms.compare_every > 0, format!("compare_every {}", terms.compare_every)),
            Term::Ema => (terms.ema.is_some(), "ema".to_owned()),
            Term::ByKey => (optimizer.adapts_keys(), format!("the optimizer {}", optimizer.name())),
            Term::Maximize => (terms.maximize, "maximize".to_owned()),
            Term::Skips => (terms.skips(), skip_term(terms).to_owned()),
            Term::FiniteFrames => match level.compression {
                Some(Compression::Codec(codec)) => {
                    (!codec.carries_all(), format!("the codec {}", Compression::Codec(codec)))
                }
                _ => return None,
            },
            Term::Ablate => (*ablate != Ablate::default(), "ablate".to_owned()),
            Term::SeveralHubs => (terms.hubs > 1, format!("{} hubs", terms.hubs)),
            Term::Pulls => (level.schedule.pulls(), format!("schedule {}", level.schedule)),
        };
        has.then_some(spoken)
    }
}
