//! Keys that are cut into tensors, and tensors that are joined from keys, beside a job that trains. Each tensor has the bits of its
//! place in its key or keys.

use fabric::conformance::Watchdog;
use serde_json::{Value, json};
use subscription::{Precision, SourceError, SourceSettings, SubscriptionError};

use worker_shim::{Session, SessionConfig};

use crate::job::{SGD, bytes, hub, keys, newest, step, while_stepping, worker_with};

/// The keys of the job, with their shapes.
const KEYS: [(&str, &[u64]); 9] = [
    ("in_proj", &[12, 4]),
    ("mlp.experts", &[3, 4, 5]),
    ("mlp.gate_up", &[2, 6, 5]),
    ("q", &[8, 4]),
    ("k", &[2, 4]),
    ("v", &[2, 4]),
    ("expert.0", &[4, 5]),
    ("expert.1", &[4, 5]),
    ("norm", &[7]),
];

/// A tensor: its name, its shape, and for each of its keys the index of the first element and the index after the last
/// element.
type Expected<'a> = (&'a str, &'a [usize], &'a [(usize, usize)]);

fn mapping() -> Value {
    json!({
        "in_proj": {"split": [
            {"name": "q_proj", "shape": [8, 4]},
            {"name": "k_proj", "shape": [2, 4], "dtype": "f32"},
            {"name": "v_proj", "shape": [2, 4]},
        ]},
        "mlp.experts": {"split": [
            {"name": "e.0", "shape": [4, 5]}, {"name": "e.1", "shape": [4, 5]}, {"name": "e.2", "shape": [4, 5]},
        ]},
        "mlp.gate_up": {"split": [
            {"name": "gate.0", "shape": [4, 5]}, {"name": "up.0", "shape": [2, 5]},
            {"name": "gate.1", "shape": [4, 5]}, {"name": "up.1", "shape": [2, 5]},
        ]},
        "qkv": {"join": ["q", "k", "v"], "shape": [12, 4]},
        // The order of the keys counts. Here the joined tensor has the same name as one of its keys.
        "expert.0": {"join": ["expert.1", "expert.0"], "shape": [2, 4, 5], "dtype": "f16"},
    })
}

const TENSORS: [Expected<'_>; 13] = [
    ("q_proj", &[8, 4], &[(0, 32)]),
    ("k_proj", &[2, 4], &[(32, 40)]),
    ("v_proj", &[2, 4], &[(40, 48)]),
    ("e.0", &[4, 5], &[(0, 20)]),
    ("e.1", &[4, 5], &[(20, 40)]),
    ("e.2", &[4, 5], &[(40, 60)]),
    ("gate.0", &[4, 5], &[(0, 20)]),
    ("up.0", &[2, 5], &[(20, 30)]),
    ("gate.1", &[4, 5], &[(30, 50)]),
    ("up.1", &[2, 5], &[(50, 60)]),
    ("qkv", &[12, 4], &[(0, 32), (0, 8), (0, 8)]),
    ("expert.0", &[2, 4, 5], &[(0, 20), (0, 20)]),
    ("norm", &[7], &[(0, 7)]),
];

/// Joins the job, in chunks so small that several hubs share a key.
fn worker(hubs: &str) -> Session {
    let mut config = SessionConfig::new(hubs, "job", 0, 1, keys(&KEYS), SGD);
    config.set("chunk_bytes", "64").unwrap();
    worker_with(config)
}

fn settings(hubs: &str, names: &Value) -> SourceSettings {
    let names = serde_json::from_value(names.clone()).unwrap();
    SourceSettings { precision: Precision::Bf16, names, ..SourceSettings::new(hubs, "job") }
}

#[test]
fn cut_and_joined_tensors_have_the_bits_of_their_keys_from_one_hub_and_from_two() {
    let _watchdog = Watchdog::start();
    let hubs = [hub(), hub()];
    let [one, other] = hubs.each_ref().map(|hub| hub.address().to_string());
    // If all tensors have one type, the hubs send this type.
    let of_bf16 = mapping().to_string().replace("\"f32\"", "\"bf16\"").replace("\"f16\"", "\"bf16\"");
    let of_bf16 = serde_json::from_str(&of_bf16).unwrap();
    let [one, both] = [one.clone(), format!("{one},{other}")];
    for (hubs, names) in [(&one, &mapping()), (&both, &mapping()), (&one, &of_bf16), (&both, &of_bf16)] {
        let mut session = worker(hubs);
        step(&mut session);
        let versions = newest(settings(hubs, names));
        while_stepping(&mut session, || {
            for _ in 0..3 {
                let version = versions.next_version().unwrap().unwrap();
                assert_eq!(version.weights.tensors(), TENSORS.len());
                for (name, shape, places) in TENSORS {
                    let precision = match name {
                        "k_proj" if names != &of_bf16 => Precision::F32,
                        "expert.0" if names != &of_bf16 => Precision::F16,
                        _ => Precision::Bf16,
                    };
                    assert_eq!(version.weights.form(name), Some((precision, shape)), "{name}");
                    let round = version.origin.round;
                    let of = places.iter().flat_map(|&(from, to)| bytes(from..to, round, precision));
                    assert!(version.weights.get(name).unwrap() == of.collect::<Vec<_>>(), "{name}");
                }
            }
        });
        session.leave().unwrap();
        assert_eq!(versions.next_version().unwrap(), None);
    }
}

#[test]
fn a_mapping_that_does_not_fit_is_named_by_key_and_tensor() {
    let _watchdog = Watchdog::start();
    let hub = hub();
    let address = hub.address().to_string();
    let mut session = worker(&address);
    step(&mut session);
    let part = |name: &str, rows: u32| json!({"name": name, "shape": [rows, 4]});
    let split = |parts: &[Value]| json!({"in_proj": {"split": parts}});
    let join = |keys: &[&str], shape: &[u32]| json!({"qkv": {"join": keys, "shape": shape}});
    for (names, words) in [
        (
            split(&[part("q", 8), part("k", 2), part("v", 3)]),
            r#"key "in_proj" [12, 4] of job "job" and tensor "v" [3, 4]: the part has 3 rows, and the previous parts leave room for 2"#,
        ),
        (
            split(&[part("q", 8), part("k", 2)]),
            r#"tensor "k" [2, 4]: the parts end here, and 2 rows are in no part"#,
        ),
        (
            split(&[json!({"name": "left", "shape": [12, 2]}), json!({"name": "right", "shape": [12, 2]})]),
            r#"tensor "left" [12, 2]: expected a part of shape [N, 4]; only the first dimension can be cut or joined"#,
        ),
        (
            split(&[part("x", 8), part("x", 4)]),
            r#"two tensors with the name "x", of key "in_proj" and of key "in_proj""#,
        ),
        (split(&[part("norm", 12)]), r#"the name "norm", of key "in_proj" and of key "norm""#),
        (
            json!({"out_proj": {"split": [part("o", 4)]}}),
            r#"no key "out_proj", which the mapping of names calls "o""#,
        ),
        (join(&["q", "k", "w"], &[12, 4]), r#"no key "w", which the mapping of names calls "qkv""#),
        (
            join(&["q", "k", "norm"], &[12, 4]),
            r#"key "norm" [7] of job "job" and tensor "qkv" [12, 4]: expected a part of shape [N, 4]"#,
        ),
        (
            join(&["q", "k"], &[12, 4]),
            r#"key "k" [2, 4] of job "job" and tensor "qkv" [12, 4]: the parts end here, and 2 rows"#,
        ),
        (
            join(&["q", "k", "v"], &[10, 4]),
            r#"key "v" [2, 4] of job "job" and tensor "qkv" [10, 4]: the part has 2 rows"#,
        ),
        (
            join(&["q", "q"], &[16, 4]),
            r#"key "q" of job "job" is in two entries of the mapping of names, for tensors "qkv" and "qkv""#,
        ),
        (
            json!({"a": {"join": ["q", "k"], "shape": [10, 4]}, "q": "b"}),
            r#"key "q" of job "job" is in two entries of the mapping of names, for tensors "a" and "b""#,
        ),
    ] {
        let why = newest(settings(&address, &names)).next_version().unwrap_err();
        assert!(why.to_string().contains(words), "{why}");
        assert!(matches!(
            why,
            SubscriptionError::Source(
                SourceError::Misfit(_)
                    | SourceError::NoKey { .. }
                    | SourceError::OneName { .. }
                    | SourceError::TwoEntries { .. }
            )
        ));
    }
}
