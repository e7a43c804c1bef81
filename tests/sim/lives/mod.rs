//! Lives of jobs: workers that die, hang, leave, lose their links, come back and die again before they take part; snapshots; hubs that do not hear
//! each other, stop, die, and come back from a checkpoint; all at any moment, at one hub or several, whose control is late.
//!
//! All workers push ones, and the mean of ones is one, whoever takes part: at a learning rate of 1 a weight after round `r` is `-r`, less
//! the rounds that all who took part left behind. Workers that step alone (SSP, ASP) push ones in elements of their own, so that a weight
//! says how many pushes of its worker it has.
//!
//! | what must be so | who looks |
//! | --- | --- |
//! | a rank has one owner, and a taken rank and other terms are refused | the control of a hub, after each event; [`Life::refuses`] |
//! | a token serves one member, and nobody when the job is forgotten | the control of a hub, at each join and at the end |
//! | a round is stepped once, or left out and named, also by a job that comes back | [`ledger::Together`]: weights of workers, parts of snapshots |
//! | each push of those who step alone is stepped once, also if it is made again over other links | [`ledger::Alone`] |
//! | nobody is further ahead of a worker than the staleness, and everybody has the pushes that it waited for | [`ledger::Alone`] |
//! | who steps alone and comes back is as far ahead as before | [`ledger::Alone`], [`Life::come_back`] |
//! | no event is lost: whoever waits is woken, and hears news by their version | simulated members, who look at nothing else |
//! | every wait ends | [`Life::until`], at any moment of a life |
//! | a job that fails at a hub fails at all hubs, closes all links, and leaves nothing on a core | [`Life::end`] |
//! | a worker that hangs is lost, and one that is silent for a shorter time is not | [`Life::until`] |
//! | a state that all hubs were said to have written is there, unless a disk damages it | [`Life::come_back`] |
//! | a worker comes back as its machine says, if a hub is lost; it does not if the job is over | [`Life::end`] |
//! | a job that comes back says how many rounds are lost | [`Life::come_back`] |

mod disks;
mod ends;
mod ledger;
mod life;

use fabric::sim::seeds;
use life::Life;

/// The things that happened in lives.
#[derive(Debug, Default)]
struct Counts {
    deaths: usize,
    hangs: usize,
    leaves: usize,
    snapshots: usize,
    /// The files that were not written.
    failures: usize,
    refusals: usize,
    /// The requests of hubs to each other that were given up.
    given_up: usize,
    /// The jobs that failed.
    ends: usize,
    /// The jobs that went on from a checkpoint.
    returns: usize,
    /// The workers that lost a hub again before they had its weights.
    lost_again: usize,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        let Counts {
            deaths,
            hangs,
            leaves,
            snapshots,
            failures,
            refusals,
            given_up,
            ends,
            returns,
            lost_again,
        } = other;
        self.deaths += deaths;
        self.hangs += hangs;
        self.leaves += leaves;
        self.snapshots += snapshots;
        self.failures += failures;
        self.refusals += refusals;
        self.given_up += given_up;
        self.ends += ends;
        self.returns += returns;
        self.lost_again += lost_again;
    }
}

#[test]
fn whoever_comes_and_goes_each_round_is_stepped_once() {
    let mut counts = Counts::default();
    for seed in seeds(500) {
        Life::new(seed).live(&mut counts);
    }
    eprintln!("{counts:?}");
    if std::env::var_os("PHUB_SIM_SEED").is_none() {
        let often = counts.deaths > 1000 && counts.snapshots > 1000 && counts.refusals > 1000;
        let seldom = counts.failures > 200
            && counts.given_up > 100
            && counts.ends > 100
            && counts.returns > 50
            && counts.hangs > 100
            && counts.leaves > 100
            && counts.lost_again > 10;
        assert!(often && seldom, "some of it hardly happens: {counts:?}");
    }
}
