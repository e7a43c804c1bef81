//! Terms: their JSON, their bounds, combinations that exclude each other, and differences.

use super::*;
use crate::job::Consistency;
use crate::wire::Wire;

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.1, weight_decay: 0.0 };

fn terms() -> JobTerms {
    JobTerms::new(2, vec![Key::f32("a", [3])], SGD)
}

fn slim() -> JobTerms {
    let level = LevelTerms { compression: "slim:0.2:0.1".parse().ok(), ..LevelTerms::default() };
    JobTerms { level, ..terms() }
}

#[test]
fn defaults_need_not_be_written() {
    let short = r#"{"workers":2,"optimizer":{"name":"sgd","learning_rate":0.1},"keys":[{"name":"a","shape":[3],"dtype":"f32"}]}"#;
    assert_eq!(serde_json::from_str::<JobTerms>(short).unwrap(), terms());
    let said = serde_json::to_string(&slim()).unwrap();
    assert_eq!(serde_json::from_str::<JobTerms>(&said).unwrap(), slim());
    let wrong = short.replace("workers", "worker");
    assert!(serde_json::from_str::<JobTerms>(&wrong).is_err());
}

#[test]
fn terms_out_of_range_are_named() {
    assert_eq!(terms().check(), Ok(()));
    for (wrong, words) in [
        (JobTerms { workers: 0, ..terms() }, "0 workers: expected 1 to 4096"),
        (JobTerms { workers: 4097, ..terms() }, "4097 workers"),
        (JobTerms { cores: Some(0), ..terms() }, "cores is 0: expected 1 or more"),
        (JobTerms { hubs: 0, ..terms() }, "0 hubs: expected 1 to 4096"),
        (JobTerms { hubs: 4097, ..terms() }, "4097 hubs"),
        (
            JobTerms {
                level: LevelTerms { credit: Some(Credit::Bytes(0)), ..LevelTerms::default() },
                ..terms()
            },
            "credit is 0 bytes",
        ),
        (JobTerms { keys: vec![], ..terms() }, "manifest: "),
    ] {
        let error = wrong.check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let layout = Wire::of_terms(&JobTerms { chunk_bytes: 100, ..terms() }).unwrap_err().to_string();
    assert!(layout.contains("chunk size 100 bytes"), "{layout}");
}

#[test]
fn terms_that_exclude_each_other_are_refused() {
    let alone = |job: JobTerms| {
        let level = LevelTerms { consistency: Consistency::Ssp { staleness: 2 }, ..job.level };
        JobTerms { level, ..job }
    };
    let by_layer =
        |job: JobTerms| JobTerms { level: LevelTerms { schedule: Schedule::KvStore, ..job.level }, ..job };
    for (wrong, words) in [
        (JobTerms { optimizer: Optimizer::Average, ..slim() }, "Slim-DP with the optimizer average: "),
        (alone(slim()), "Slim-DP with consistency ssp:2: "),
        (by_layer(slim()), "Slim-DP with schedule kvstore: "),
        (JobTerms { on_loss: OnLoss::Continue, ..slim() }, "Slim-DP with on_loss continue: "),
        (
            alone(JobTerms { optimizer: Optimizer::Average, ..terms() }),
            "consistency ssp:2 with the optimizer average",
        ),
    ] {
        let error = wrong.check().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    for right in
        [slim(), alone(terms()), by_layer(terms()), JobTerms { on_loss: OnLoss::Continue, ..terms() }]
    {
        assert_eq!(right.check(), Ok(()));
    }
}

/// If only one term differs, the difference names it. This holds for every term.
#[test]
fn the_first_difference_is_named() {
    let level = |change: &dyn Fn(&mut LevelTerms)| {
        let mut level = LevelTerms::default();
        change(&mut level);
        JobTerms { level, ..terms() }
    };
    let others = [
        ("workers", JobTerms { workers: 3, ..terms() }),
        ("chunk_bytes", JobTerms { chunk_bytes: 64, ..terms() }),
        ("optimizer", JobTerms { optimizer: Optimizer::Average, ..terms() }),
        ("clip_norm", JobTerms { clip_norm: Some(1.0), ..terms() }),
        ("clip_norm_last", JobTerms { clip_norm_last: Some(1.0), ..terms() }),
        ("skip_nonfinite", JobTerms { skip_nonfinite: true, ..terms() }),
        ("skip_spikes", JobTerms { skip_spikes: Some(3.0), ..terms() }),
        ("ema", JobTerms { ema: Some(0.9), ..terms() }),
        ("maximize", JobTerms { maximize: true, ..terms() }),
        ("ablate", JobTerms { ablate: Ablate { optimize: true, aggregate: false }, ..terms() }),
        ("compare_every", JobTerms { compare_every: 5, ..terms() }),
        ("seed", JobTerms { seed: 1, ..terms() }),
        ("on_loss", JobTerms { on_loss: OnLoss::Continue, ..terms() }),
        ("hubs", JobTerms { hubs: 2, ..terms() }),
        ("split_above", JobTerms { split_above: 1, ..terms() }),
        ("cores", JobTerms { cores: Some(1), ..terms() }),
        ("compression", level(&|level| level.compression = "bf16".parse().ok())),
        ("consistency", level(&|level| level.consistency = Consistency::Asp)),
        ("schedule", level(&|level| level.schedule = Schedule::P3)),
        ("slice_bytes", level(&|level| level.slice_bytes = Some(1))),
        ("credit", level(&|level| level.credit = Some(Credit::Auto))),
        ("manifest", JobTerms { keys: vec![Key::f32("b", [3])], ..terms() }),
    ];
    for (what, other) in others {
        let seen = match terms().first_difference(&other).unwrap() {
            Difference::Term { what, .. } => what,
            Difference::Keys(_) => "manifest",
        };
        assert_eq!(seen, what);
    }
    assert_eq!(terms().first_difference(&terms()), None);
    assert_eq!(terms().first_difference(&JobTerms { answers_ahead: true, ..terms() }), None);
}
