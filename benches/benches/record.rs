//! The time of a request under the lock of a hub, with and without a record of requests. With a record, the hub makes a
//! line for the request. The channel that carries the line to the writing thread is not measured.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coordinator::input::{Begin, Happened, Heard, HubOf};
use coordinator::{
    Event, Files, Hub, Input, JobSpec, Join, LateLimits, Made, MemberOf, Quotas, Request, Secret, Settings,
    Token, record,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use pbox_core::control::JoinRequest;
use pbox_core::{JobId, JobTerms, Key, Numbers, NumbersByRound, Optimizer, Round, Share};

const WORKERS: u32 = 64;
const JOB: JobId = JobId(0);

fn terms(keys: u32) -> JobTerms {
    let keys = (0..keys).map(|key| Key::f32(format!("layer{key}.weight"), [64, 64]));
    JobTerms::new(WORKERS, keys.collect(), Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 })
}

/// Returns the request that begins a job with this number of keys.
fn begin(keys: u32) -> Begin {
    let terms = Arc::new(terms(keys));
    let from = (Round(0), NumbersByRound::new(Numbers::new(terms.optimizer)));
    let hub = HubOf {
        share: Share::WHOLE,
        names: Vec::new(),
        pieces: Vec::new(),
        secret: Secret([7; 16]),
        first_round: Round(0),
        files: Files::default(),
    };
    let made = Made { cores: 4, owners: 4, ..Made::default() };
    Begin { spec: JobSpec { id: JOB, name: "job".into(), terms, made }, hub, from }
}

fn hub() -> Hub {
    let late = LateLimits { warning: Duration::from_secs(30), limit: None };
    Hub::new(Settings { jobs_limit: 4, quotas: Quotas::default(), late })
}

/// Returns a hub with a job that all workers have joined.
fn with_members() -> Hub {
    let mut hub = hub();
    hub.ask(begin(2), Instant::now());
    for rank in 0..WORKERS {
        let token = Token((1 + u128::from(rank)).to_be_bytes());
        let request = JoinRequest::new(rank, terms(2));
        hub.ask(Join::new("job", &request, token), Instant::now()).expect("its rank is free");
    }
    hub
}

/// Makes a request as the registry of a hub does. Returns the number of bytes of the request's line in the record, or 0
/// if nothing is recorded.
fn ask<R: Request + Clone>(hub: &mut Hub, request: R, is_recorded: bool) -> usize {
    let now = Instant::now();
    if !is_recorded {
        black_box(hub.ask(request, now));
        return 0;
    }
    let input: Input = request.clone().into();
    let answer = hub.ask(request, now);
    black_box(record::step(Duration::from_secs(1), &input, &answer)).len()
}

fn requests(criterion: &mut Criterion) {
    for (name, is_recorded) in [("alone", false), ("recorded", true)] {
        let mut hub = with_members();
        let heartbeat = Heard { member: MemberOf { job: JOB, rank: 3 }, latest: None };
        eprintln!("a heartbeat has a line of {} bytes", ask(&mut hub, heartbeat.clone(), is_recorded));
        criterion.bench_function(&format!("heartbeat/{name}"), |bencher| {
            bencher.iter(|| ask(&mut hub, heartbeat.clone(), is_recorded));
        });
        let sweep = Happened { job: JOB, event: Event::Swept(Duration::from_secs(3600)) };
        criterion.bench_function(&format!("sweep/{name}"), |bencher| {
            bencher.iter(|| ask(&mut hub, sweep.clone(), is_recorded));
        });
        let large = begin(1000);
        criterion.bench_function(&format!("job of 1000 keys/{name}"), |bencher| {
            let made = || (crate::hub(), large.clone());
            bencher.iter_batched(
                made,
                |(mut hub, begin)| ask(&mut hub, begin, is_recorded),
                BatchSize::SmallInput,
            );
        });
    }
}

criterion_group!(benches, requests);
criterion_main!(benches);
