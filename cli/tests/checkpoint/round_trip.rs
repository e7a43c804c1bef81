//! A saved state is read back bit for bit, and is a safetensors file for other programs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pbox_core::{ExactSum, Groups, Key, KeyId, NormMean, Numbers, Optimizer, Round, Share, Tensor};
use phub_server::checkpoint::{CheckpointStore, FileMode};
use proptest::prelude::*;
use safetensors::SafeTensors;

use super::snapshots::{ADAM, Job, SGD, files, value};

fn jobs() -> impl Strategy<Value = Job> {
    let keys = proptest::collection::vec((proptest::collection::vec(1u64..20, 0..4), 0.0f32..2.0), 1..6);
    let settings = (0..Optimizer::NAMES.len(), any::<u32>(), 0.0f32..0.9999);
    let rates = proptest::collection::btree_map(0u32..1000, 0.0f32..1e3, 1..4);
    let all = (keys, settings, 1usize..20, 1usize..5, rates);
    all.prop_map(|(keys, (which, rate, momentum), chunk_lines, cores, rates)| {
        // A learning rate is any finite number that is not negative.
        let rate = Some(f32::from_bits(rate).abs()).filter(|rate| *rate < 1e30);
        let (learning_rate, weight_decay) = (rate.unwrap_or(0.1), momentum / 7.0);
        let (beta1, beta2, epsilon) = (f64::from(momentum), f64::from(momentum) / 3.0, 1e-8);
        let optimizer = match Optimizer::NAMES[which] {
            "average" => Optimizer::Average,
            "sum" => Optimizer::Sum,
            "sgd" => Optimizer::Sgd { learning_rate, weight_decay },
            "momentum" => Optimizer::Momentum { learning_rate, weight_decay, momentum },
            "dampened" => Optimizer::Dampened { learning_rate, weight_decay, momentum, dampening: momentum },
            "nesterov" => Optimizer::Nesterov { learning_rate, weight_decay, momentum },
            "adam" => Optimizer::Adam { learning_rate, weight_decay, beta1, beta2, epsilon },
            "adamw" => Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon },
            "amsgrad" => Optimizer::AmsGrad { learning_rate, weight_decay, beta1, beta2, epsilon },
            "amsgradw" => Optimizer::AmsGradW { learning_rate, weight_decay, beta1, beta2, epsilon },
            "lion" => Optimizer::Lion { learning_rate, weight_decay, beta1, beta2 },
            "lars" => Optimizer::Lars { learning_rate, weight_decay, momentum, trust: 0.25 },
            "lamb" => Optimizer::Lamb { learning_rate, weight_decay, beta1, beta2, epsilon },
            other => unreachable!("{other} has no strategy"),
        };
        let key = |(i, (shape, lr_mult)): (usize, (Vec<u64>, f32))| {
            let name = format!("layer{i} \"weight\"\\\n\u{e9}");
            Key { lr_mult, ..Key::f32(name, shape) }
        };
        let keys = keys.into_iter().enumerate().map(key).collect();
        let ema = Some(f64::from(momentum)).filter(|&decay| decay > 0.5 && optimizer.keeps_weights());
        let job = Job { ema, chunk_bytes: chunk_lines * 64, cores, ..Job::new(keys, optimizer) };
        job.with_rates(rates)
    })
}

/// Asserts that the safetensors library finds exactly the tensors of `job` in `bytes`.
fn check_with_the_library(job: &Job, bytes: &[u8], round: Round) {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let mut names = BTreeSet::new();
    for (key, id) in job.keys.iter().zip(0..).map(|(key, id)| (key, KeyId(id))) {
        for tensor in job.tensors().all() {
            let name = match (tensor, &job.optimizer) {
                (Tensor::State(which), _) if which == job.optimizer.state_per_element() => {
                    format!("optimizer/ema/{}", key.name)
                }
                (Tensor::Weights, _) => key.name.clone(),
                (
                    Tensor::State(0),
                    Optimizer::Momentum { .. }
                    | Optimizer::Dampened { .. }
                    | Optimizer::Nesterov { .. }
                    | Optimizer::Lars { .. },
                ) => format!("optimizer/momentum_buffer/{}", key.name),
                (Tensor::State(0), _) => format!("optimizer/exp_avg/{}", key.name),
                (Tensor::State(1), _) => format!("optimizer/exp_avg_sq/{}", key.name),
                (Tensor::State(_), _) => format!("optimizer/max_exp_avg_sq/{}", key.name),
            };
            let view = file.tensor(&name).unwrap();
            assert_eq!(view.dtype(), safetensors::Dtype::F32);
            assert!(view.shape().iter().map(|&extent| extent as u64).eq(key.shape.iter().copied()), "{name}");
            let elements = 0..key.elements().unwrap() as usize;
            let expected: Vec<u8> =
                elements.flat_map(|element| value(round, id, tensor, element).to_le_bytes()).collect();
            assert_eq!(view.data(), expected, "{name}");
            names.insert(name);
        }
    }
    assert_eq!(file.names().into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), names);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_bit_comes_back(job in jobs(), round in 1000u32..1 << 31) {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        let bytes = store.save("job", Share::WHOLE, &job.snapshot(Round(round))).unwrap();
        job.check(&job.load(&store, "job").unwrap(), Round(round));
        let file = std::fs::read(store.path("job").unwrap()).unwrap();
        prop_assert_eq!(file.len() as u64, bytes);
        check_with_the_library(&job, &file, Round(round));
    }
}

#[test]
fn pieces_of_the_file_do_not_show() {
    // Each key has three tensors of odd lengths. They span several of the pieces in which files are read and
    // written.
    let keys = vec![Key::f32("a", [1_300_001]), Key::f32("b", [3, 7]), Key::f32("c", [777_777])];
    let job = Job { chunk_bytes: 32 * 1024, cores: 3, ..Job::new(keys, ADAM) };
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    store.save("job", Share::WHOLE, &job.snapshot(Round(9))).unwrap();
    job.check(&job.load(&store, "job").unwrap(), Round(9));
    check_with_the_library(&job, &std::fs::read(store.path("job").unwrap()).unwrap(), Round(9));
}

#[test]
fn the_metadata_is_for_people_too() {
    let mut job = Job::small(SGD);
    job.keys[2].wd_mult = 0.0;
    let bytes = job.with_rates([(0, 0.5), (30, 0.05)]).bytes();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata = header.metadata().clone().unwrap();
    assert_eq!(metadata.remove("digest").unwrap().len(), 32);
    let expected = [
        ("phub_checkpoint", "1"),
        ("job", "job"),
        ("round", "5"),
        ("optimizer", r#"{"name":"sgd","learning_rate":0.5,"weight_decay":0.0}"#),
        ("learning_rates", "[[0,0.5],[30,0.05]]"),
        ("multipliers", r#"{"fc.bias":[1.0,0.0]}"#),
        ("program", concat!("phub-server ", env!("CARGO_PKG_VERSION"))),
    ];
    assert_eq!(metadata, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

/// Checks the metadata for hyperparameters and steps, which only newer programs know. A job that does not
/// need this metadata does not write it, so that older programs can read the job's file.
#[test]
fn other_numbers_and_steps_stand_in_the_metadata() {
    let mut job = Job::small(SGD).with_rates([(0, 0.5), (6, 0.25)]);
    let metadata = |job: &Job| {
        let (_, header) = SafeTensors::read_metadata(&job.bytes()).unwrap();
        header.metadata().clone().unwrap()
    };
    assert!(
        ["optimizers", "groups", "steps", "last_squares", "norm_mean"]
            .iter()
            .all(|entry| !metadata(&job).contains_key(*entry))
    );
    let decayed = Optimizer::Sgd { learning_rate: 0.25, weight_decay: 0.5 };
    let of_keys = vec![[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]].into();
    let groups = Groups { optimizers: vec![SGD], of_keys: vec![0, 0, 1] };
    let numbers = Numbers { optimizer: decayed, multipliers: Some(of_keys), groups: Some(groups.into()) };
    job.numbers.push((Round(9), numbers));
    (job.last_norm, job.norm_mean) = (Some(0.1), NormMean::new(0.3, 12));
    job.steps = BTreeMap::from([("fc.bias".to_owned(), 2), ("scale".to_owned(), 4)]);
    let seen = metadata(&job);
    assert_eq!(seen["steps"], r#"{"fc.bias":2}"#, "round 5 is after 4 steps");
    let mut squares = ExactSum::default();
    squares.add(f64::from(0.1f32) * f64::from(0.1f32));
    let squares = serde_json::to_string(&squares.to_words()).unwrap();
    assert_eq!([&seen["last_squares"], &seen["norm_mean"]], [&squares, "[0.3,12]"]);
    assert_eq!(seen["learning_rates"], "[[0,0.5],[6,0.25],[9,0.25]]", "for older programs");
    let sgd = |rate, decay| format!(r#"{{"name":"sgd","learning_rate":{rate},"weight_decay":{decay}}}"#);
    let (first, second, third) = (sgd("0.5", "0.0"), sgd("0.25", "0.0"), sgd("0.25", "0.5"));
    let expected = format!(r#"[[0,{first},null],[6,{second},null],[9,{third},{{"scale":[1.0,0.0]}}]]"#);
    assert_eq!(seen["optimizers"], expected);
    assert_eq!(seen["groups"], format!(r#"[[9,[{first}],{{"fc.bias":1}}]]"#));
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    store.save("job", Share::WHOLE, &job.snapshot(Round(5))).unwrap();
    job.check(&job.load(&store, "job").unwrap(), Round(5));
}

#[test]
fn a_job_continues_from_its_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    let (sgd, adam) = (Job::small(SGD), Job::small(ADAM));
    assert!(sgd.load(&store, "sgd").is_none());
    for round in [Round(1), Round(2)] {
        store.save("sgd", Share::WHOLE, &sgd.snapshot(round)).unwrap();
        store.save("a..", Share::WHOLE, &adam.snapshot(round.next())).unwrap();
    }
    sgd.check(&sgd.load(&store, "sgd").unwrap(), Round(2));
    adam.check(&adam.load(&store, "a..").unwrap(), Round(3));
    assert_eq!(
        files(dir.path()),
        ["a...safetensors", "a..@2.safetensors", "sgd.safetensors", "sgd@1.safetensors"]
    );
}

#[test]
fn checkpoints_are_the_hubs_users_alone_unless_the_hub_is_told_otherwise() {
    let parent = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for (asked, of_file, of_directory) in [("600", 0o600, 0o700), ("640", 0o640, 0o750)] {
        let dir = parent.path().join(asked);
        let store = CheckpointStore::open_for(&dir, asked.parse().unwrap()).unwrap();
        let job = Job::small(SGD);
        for round in [Round(1), Round(2)] {
            store.save("job", Share::WHOLE, &job.snapshot(round)).unwrap();
        }
        assert_eq!(mode(&dir), of_directory, "{asked}");
        for name in files(&dir) {
            assert_eq!(mode(&dir.join(&name)), of_file, "{asked}: {name}");
        }
        assert_eq!(mode(&dir.join(".phub-lock")), 0o600, "{asked}");
    }
    assert_eq!(FileMode::default().to_string(), "600");
    // An existing directory keeps its mode.
    let dir = parent.path().join("shared");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    CheckpointStore::open(&dir).unwrap();
    assert_eq!(mode(&dir), 0o755);
}

#[test]
fn a_copy_under_another_name_is_that_jobs_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    let mut job = Job::small(ADAM);
    store.save("old", Share::WHOLE, &job.snapshot(Round(7))).unwrap();
    std::fs::copy(store.path("old").unwrap(), store.path("new").unwrap()).unwrap();
    job.check(&job.load(&store, "new").unwrap(), Round(7));
    // Other chunks and cores make no difference to the file.
    (job.chunk_bytes, job.cores) = (128, 4);
    job.check(&job.load(&store, "new").unwrap(), Round(7));
}
