//! Trace files are read, or refused with an error that names the line. Built-in traces have the published multiply-adds
//! and samples per second.

use std::path::Path;

use pbox_core::{Key, models};

use super::built_in::{at_best, network};
use super::file::parse;
use super::*;

fn multiply_adds(name: &str) -> f64 {
    let keys = models::model(name).unwrap().keys;
    (network(name).unwrap().work)(&keys).iter().map(|work| work.multiply_adds).sum()
}

#[test]
fn multiply_adds_are_the_published_ones() {
    for (name, published) in [
        ("resnet50", 4.1e9),
        ("vgg16", 15.5e9),
        ("vgg19", 19.6e9),
        ("inception3", 5.7e9),
        ("googlenet", 1.6e9),
    ] {
        let counted = multiply_adds(name);
        assert!((counted / published - 1.0).abs() < 0.02, "{name}: {counted:e}, published {published:e}");
    }
}

#[test]
fn every_key_is_in_one_layer_of_its_models_trace() {
    for name in BUILT_IN {
        let keys = models::model(name).unwrap().keys;
        let plan = built_in(name).unwrap().plan(&keys, 1.0).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut numbers: Vec<u32> = plan.steps.iter().flat_map(|step| &step.keys).map(|key| key.0).collect();
        numbers.sort();
        assert_eq!(numbers, (0..keys.len() as u32).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn a_trace_takes_as_long_as_is_stated() {
    for name in BUILT_IN {
        let (keys, trace) = (models::model(name).unwrap().keys, built_in(name).unwrap());
        let stated = network(name).unwrap().samples_per_s / f64::from(trace.batch);
        for time_scale in [1.0, 0.25] {
            let seconds = trace.plan(&keys, time_scale).unwrap().compute().as_secs_f64();
            assert!((seconds * stated / time_scale - 1.0).abs() < 1e-5, "{name}: {seconds} s");
        }
        assert!(trace.layers.iter().all(|layer| layer.backward_us == 2.0 * layer.forward_us), "{name}");
    }
}

#[test]
fn networks_of_a_kind_use_as_much_of_the_device() {
    let share = |name| {
        let (keys, network) = (models::model(name).unwrap().keys, network(name).unwrap());
        network.samples_per_s * at_best(&(network.work)(&keys))
    };
    for (name, like) in [("vgg19", "vgg16"), ("vgg19-22k", "vgg16"), ("googlenet", "inception3")] {
        let ratio: f64 = share(name) / share(like);
        assert!((ratio - 1.0).abs() < 0.01, "{name} beside {like}: {ratio}");
    }
}

#[test]
fn layers_that_are_bound_by_arithmetic_take_their_share_of_it() {
    let trace = built_in("vgg19").unwrap();
    let us = |name: &str| trace.layers.iter().find(|layer| layer.name == name).unwrap().forward_us;
    // Both layers are 3x3 from 512 to 512 channels. The first has outputs of 28x28, and the second has a quarter of
    // them, 14x14.
    let ratio = us("features.21") / us("features.30");
    assert!((ratio / 4.0 - 1.0).abs() < 0.05, "{ratio}");
    // The largest layer of the model is bound by the reading of its weights, and is not one of the slowest.
    assert!(us("classifier.0") < us("features.2"));
}

fn error_of(text: &str) -> String {
    parse(Path::new("my.trace"), text).unwrap_err().to_string()
}

const HEAD: &str = r#"{"trace": "t", "batch": 8}"#;

fn layer(name: &str, keys: &str, forward: &str, backward: &str) -> String {
    format!(r#"{{"layer": "{name}", "keys": {keys}, "forward_us": {forward}, "backward_us": {backward}}}"#)
}

#[test]
fn a_file_is_what_it_says() {
    let text = format!(
        "{HEAD}\n\n{}\n{}\n",
        layer("one", r#"["a", "b"]"#, "1.5", "3"),
        layer("two", "[]", "2", "4")
    );
    let trace = parse(Path::new("my.trace"), &text).unwrap();
    assert_eq!((&*trace.name, trace.batch, trace.layers.len()), ("t", 8, 2));
    let keys = [Key::f32("b", [1]), Key::f32("a", [1])];
    let plan = trace.plan(&keys, 2.0).unwrap();
    assert_eq!(plan.steps[0].keys, [pbox_core::KeyId(0), pbox_core::KeyId(1)]);
    assert_eq!(plan.steps[0].forward.as_nanos(), 3000);
    assert_eq!(plan.steps[1].backward.as_nanos(), 8000);
    assert_eq!(plan.compute().as_nanos(), 3000 + 6000 + 4000 + 8000);
}

#[test]
fn files_that_are_wrong_are_refused_by_line() {
    let says = |text: &str, words: &[&str]| {
        let error = error_of(text);
        for word in ["my.trace, line", "expected"].iter().chain(words) {
            assert!(error.contains(word), "expected {word:?} in: {error}");
        }
        assert!(error.len() < 400, "{error}");
    };
    says("", &["line 1", "empty", r#"{"trace""#]);
    says("hello", &["line 1", r#"{"trace""#]);
    says(r#"{"trace": "t"}"#, &["line 1", "`batch`"]);
    says(r#"{"trace": "t", "batch": 0}"#, &["line 1", "batch of 0"]);
    says(r#"{"trace": "t", "batch": -1}"#, &["line 1", "-1"]);
    let after_head =
        |line: &str, words: &[&str]| says(&format!("{HEAD}\n{line}"), &[&["line 2"], words].concat());
    after_head(&layer("l", "[]", "-1", "1"), &["\"l\"", "forward_us is -1"]);
    after_head(&layer("l", "[]", "1", "0"), &["\"l\"", "backward_us is 0"]);
    after_head(&layer("l", "[]", "NaN", "1"), &["forward_us"]);
    after_head(&layer("l", "[]", "1e999", "1"), &["out of range"]);
    after_head(r#"{"layer": "l", "keys": [], "forward_us": 1}"#, &["`backward_us`"]);
    after_head(r#"{"layer": "l", "forward_us": 1, "backward_us": 1}"#, &["`keys`"]);
    after_head(&layer("l", "[]", "1", "1").replace('}', r#", "x": 1}"#), &["`x`"]);
    let twice = [HEAD, &layer("l", "[]", "1", "1"), &layer("l", "[]", "1", "1")].join("\n");
    says(&twice, &["line 3", "second layer \"l\""]);
}

#[test]
fn traces_of_another_model_are_refused() {
    let of = |layers: &[(&str, &[&str], f64)]| Trace {
        name: "t".into(),
        batch: 1,
        layers: (layers.iter())
            .map(|&(name, keys, us)| Layer {
                name: name.into(),
                keys: keys.iter().map(|&key| key.into()).collect(),
                forward_us: us,
                backward_us: us,
            })
            .collect(),
    };
    let keys = [Key::f32("a", [1]), Key::f32("b", [1])];
    let says = |trace: Trace, time_scale: f64, words: &[&str]| {
        let error = trace.plan(&keys, time_scale).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "expected {word:?} in: {error}"));
    };
    says(of(&[("l", &["a", "b", "c"], 1.0)]), 1.0, &["\"l\"", "\"c\"", "2 keys", "\"a\"", "--model"]);
    says(of(&[("l", &["a"], 1.0)]), 1.0, &["1 of the model's keys", "\"b\""]);
    says(of(&[("l", &["a", "b"], 1.0), ("m", &["a"], 1.0)]), 1.0, &["\"a\"", "\"l\"", "\"m\"", "in one"]);
    says(of(&[]), 1.0, &["no layers"]);
    for us in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e12] {
        says(of(&[("l", &["a", "b"], us)]), 1.0, &["\"l\"", "forward_us", "above 0"]);
    }
    says(of(&[("l", &["a", "b"], 1e9)]), 10.0, &["\"l\"", "times 10", "an hour"]);
    for scale in [0.0, -2.0, f64::NAN, f64::INFINITY] {
        says(of(&[("l", &["a", "b"], 1.0)]), scale, &["time scale", "above 0"]);
    }
}

#[test]
fn files_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let missing = trace(dir.path().join("missing").to_str().unwrap()).unwrap_err().to_string();
    assert!(missing.contains("cannot read the trace") && missing.contains("vgg19-22k"), "{missing}");
    let large = dir.path().join("large");
    std::fs::write(&large, vec![b' '; (16 << 20) + 1]).unwrap();
    let error = read(&large).unwrap_err().to_string();
    assert!(error.contains("larger than 16777216 bytes"), "{error}");
    assert_eq!(trace("sockeye").unwrap(), built_in("sockeye").unwrap());
}
