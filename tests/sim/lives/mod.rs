//! Lives of jobs. Workers and hubs die, hang, leave, lose links and come back at any moment, at one hub,
//! several hubs, in trees and meshes.
//!
//! Other events are drawn, too. Workers die again before they take part. There are snapshots, files and
//! clients. Hubs do not reach each other, stop, and come back from a checkpoint. Messages between hubs, and
//! between a hub and its cores, are late.
//!
//! All workers push ones, and the mean of ones is one, for any set of workers. With a learning rate of 1, a
//! weight after round `r` is `-r`, plus the number of rounds that were left out. If the norm has a bound,
//! rounds have other numbers, and the oracle computes their scale. Workers that step alone (SSP, ASP) push
//! ones in their own elements, so a weight shows the number of its worker's pushes.
//!
//! | what must hold | what checks it |
//! | --- | --- |
//! | a rank has one owner, and a taken rank and other terms are refused | the control of a hub, after each event; [`Life::refuses`] |
//! | a token is valid for one member, and for none after the job is forgotten | the control of a hub, at each join and at the end |
//! | a round is stepped once, or left out with a notice, also in a job that comes back | [`ledger::Together`]: weights of workers, parts of snapshots |
//! | each push of a worker that steps alone is stepped once, even if it is repeated over new links | [`ledger::Alone`] |
//! | no worker is further ahead of another than the staleness, and each has the pushes that it waited for | [`ledger::Alone`] |
//! | a worker that steps alone and comes back has the same lead as before | [`ledger::Alone`], [`Life::come_back`] |
//! | no event is lost: each waiting task is woken, and gets news by their version | simulated members, which use nothing else |
//! | every wait ends | [`Life::until`], at any moment of a life |
//! | a job that fails at a hub fails at all hubs, closes all links, and leaves nothing on a core | [`Life::end`] |
//! | the test has harmed each lost member in the way that the hub reports, and a job fails in the words of this loss | `blame` of the control |
//! | an incomplete checkpoint names the hub whose disk has failed | [`disks::Disks`] |
//! | a worker that only sends heartbeats is lost when all other workers wait for it, and no other worker is lost | [`Life::hold_up`] |
//! | a hub that was suspended blames no member for its own silence | the control of a hub |
//! | a new learning rate is used from its round on, also in a job that comes back and below other hubs | [`ledger::Together`] |
//! | a job begins with the state that rank 0 brings | [`ledger`], [`Life::come_back`] |
//! | a link has the bytes that its core has measured last, and a new link has none | the control of a hub |
//! | each input of a coordinator occurs | [`check_counts`] |
//! | a worker that hangs is lost, and one that is silent for a shorter time is not | [`Life::until`] |
//! | a state that was reported as written at all hubs exists, unless a disk damages it; a lost answer reports nothing | [`Life::step`], [`Life::come_back`] |
//! | each request for a state is answered, and never too early with a timeout; one client reads at a time | the files of a hub, [`Life::until`] |
//! | after the loss of a hub a worker comes back as its state machine says; after the end of the job it does not | [`Life::end`] |
//! | a job that comes back reports the number of lost rounds | [`Life::come_back`] |
//! | all hubs save the same last state of a failed job, unless a hub, a disk or a request between hubs fails; it has every push that was answered | [`Life::end`], [`ledger`] |
//! | each question of another hub about a failed job is answered, and the name is free in the end | [`Life::end`] |
//! | a hub that stops cleanly waits until its job is saved, or for its limit; if the job is saved, no round is lost | the stop of a hub, [`Life::come_back`] |
//! | below other hubs each round, or each push of a machine that steps alone, is stepped once, too, whatever is lost, comes back or makes new links | [`Tree`] |
//! | if the hubs above are lost, or a machine in a job that then stops, all jobs below end so that sessions wait, and all hubs report the number of lost rounds | [`Tree::end`], [`Tree::come_back`] |
//! | terms that exclude each other are refused by name | [`Tree::new`] |
//! | a hub below ends only with the hub above, or if no worker is left who could push a round that the hub above waits for | [`Tree`] |

mod above;
mod disks;
mod ends;
mod ledger;
mod life;
mod stops;
mod tree;

use coordinator::Input;
use fabric::sim::seeds;
use life::Life;
use sim_tests::counts;
use tree::Tree;

/// The inputs that occur only in jobs with a hub below other hubs.
const BELOW_OTHERS: [&str; 6] =
    ["Reserve", "Ready", "MissMachines", "MachinesReached", "TellAbove", "ToldAbove"];

/// Checks that each event in `least` has happened more often than its number. Does nothing if one seed is replayed.
fn check_counts(least: impl IntoIterator<Item = (&'static str, usize)>) {
    let counts = counts::take();
    eprintln!("{counts:?}");
    let is_seldom = |(what, least): &(&str, usize)| counts.get(what).copied().unwrap_or(0) <= *least;
    let seldom = least.into_iter().find(is_seldom).filter(|_| std::env::var_os("PHUB_SIM_SEED").is_none());
    assert!(seldom.is_none(), "{seldom:?} hardly happens: {counts:?}");
}

#[test]
fn whoever_comes_and_goes_each_round_is_stepped_once() {
    seeds(2_000).for_each(|seed| Life::new(seed).live());
    let is_here = |input: &&&str| !BELOW_OTHERS.contains(*input);
    let inputs = Input::NAMES.iter().filter(is_here).map(|input| (*input, 0));
    check_counts(inputs.chain([
        ("deaths", 1000),
        ("hangs", 100),
        ("stalls", 30),
        ("stalls that were too long", 30),
        ("leaves", 100),
        ("snapshots", 1000),
        ("files not written", 200),
        ("files wanted", 200),
        ("states read", 200),
        ("weights read alone", 80),
        ("states read before a round", 50),
        ("rounds passed before they were read", 20),
        ("states wanted for too long", 200),
        ("snapshots that were none", 200),
        ("checkpoints not whole", 20),
        ("refusals", 1000),
        ("joins in vain", 100),
        ("requests of hubs given up", 100),
        ("parts without an answer", 200),
        ("jobs failed", 100),
        ("jobs that all workers left", 300),
        ("jobs gone on from a checkpoint", 50),
        ("hubs lost again before workers had weights", 5),
        ("stops in order", 40),
        ("jobs saved at a stop", 10),
        ("jobs not saved at a stop", 5),
        ("stops broken", 10),
        ("steps wait for their key", 10),
        ("scaled", 10),
        ("clipped by the last norm", 20),
        ("scaled by a round that some chunks passed", 2),
        ("rates changed", 100),
        ("states brought", 20),
        ("last states saved", 100),
        ("last states of several hubs", 20),
    ]));
}

#[test]
fn whoever_comes_and_goes_below_other_hubs_each_round_is_stepped_once() {
    seeds(10_000).for_each(|seed| Tree::new(seed).live());
    check_counts(BELOW_OTHERS.map(|input| (input, 100)).into_iter().chain([
        ("workers lost", 300),
        ("workers back", 300),
        ("workers without links", 300),
        ("hubs lost", 300),
        ("hubs back", 300),
        ("hubs without links", 300),
        ("snapshots", 1000),
        ("coded", 100),
        ("steps wait for the norm", 150),
        ("steps wait for their key", 20),
        ("scaled", 50),
        ("all hubs without links", 300),
        ("machines step alone", 100),
        ("refused by name", 100),
        ("hubs above lost", 100),
        ("hubs above lost again before all had weights", 20),
        ("machines lost, and the job with them", 10),
        ("gone on from a file", 50),
        ("stops in order", 30),
        ("states read", 100),
        ("rates changed", 1000),
        ("orders of keys", 1000),
        ("hubs drained", 1000),
    ]));
}
