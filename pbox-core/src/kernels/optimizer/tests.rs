//! Tests of refused settings, of defaults, and of powers against the standard library.

use super::*;

#[test]
fn powers_differ_from_the_library_only_by_roundings() {
    for base in [0.0, 0.5, 0.9, 0.999, f64::from(f32::from_bits(0x3f7f_ffff))] {
        for exponent in [1, 2, 3, 10, 1000, 65_537, u32::MAX] {
            let (seen, expected) = (power(base, exponent), base.powf(f64::from(exponent)));
            assert!((seen - expected).abs() <= 1e-6 * expected + 1e-300, "{base}^{exponent}: {seen}");
        }
    }
    assert_eq!(power(0.0, 0), 1.0);
}

#[test]
fn settings_out_of_range_are_named() {
    let bad = Optimizer::Nesterov { learning_rate: 0.1, weight_decay: 0.0, momentum: 1.5 };
    assert_eq!(
        bad.check().unwrap_err().to_string(),
        "nesterov: momentum is 1.5; expected a finite number from 0 to below 1"
    );
    assert!(Optimizer::Sgd { learning_rate: f32::NAN, weight_decay: 0.0 }.check().is_err());
    assert_eq!(Optimizer::Average.check(), Ok(()));
    let adam = |beta1, beta2, epsilon| {
        let (learning_rate, weight_decay) = (0.1, 0.0);
        Optimizer::AdamW { learning_rate, weight_decay, beta1, beta2, epsilon }.check()
    };
    assert_eq!(adam(0.0, 0.999, 1e-8), Ok(()));
    for (bad, words) in [
        (adam(1.0, 0.999, 1e-8), "adamw: beta1 is 1; expected a finite number from 0 to below 1"),
        (adam(0.9, -0.5, 1e-8), "adamw: beta2 is -0.5; expected a finite number from 0 to below 1"),
        (adam(0.9, 0.999, 0.0), "adamw: epsilon is 0; expected a finite number above 0"),
    ] {
        assert_eq!(bad.unwrap_err().to_string(), words);
    }
}

#[test]
fn unknown_settings_are_refused() {
    for (json, field) in [
        (r#"{"name":"average","learning_rate":0.1}"#, "learning_rate"),
        (r#"{"x":1,"name":"average"}"#, "x"),
        (r#"{"name":"sgd","learning_rate":0.1,"momentum":0.9}"#, "momentum"),
    ] {
        let error = serde_json::from_str::<Optimizer>(json).unwrap_err().to_string();
        assert!(error.starts_with(&format!("unknown field `{field}`, ")), "{json}: {error}");
    }
    assert_eq!(serde_json::from_str::<Optimizer>(r#"{"name":"average"}"#).unwrap(), Optimizer::Average);
}

#[test]
fn missing_settings_have_pytorchs_defaults() {
    let read = |json: &str| serde_json::from_str::<Optimizer>(json).unwrap();
    let (learning_rate, beta1, beta2, epsilon) = (0.5, 0.9, 0.999, 1e-8);
    assert_eq!(
        read(r#"{"name": "adam", "learning_rate": 0.5}"#),
        Optimizer::Adam { learning_rate, weight_decay: 0.0, beta1, beta2, epsilon }
    );
    assert_eq!(
        read(r#"{"name": "adamw", "learning_rate": 0.5}"#),
        Optimizer::AdamW { learning_rate, weight_decay: 0.01, beta1, beta2, epsilon }
    );
    assert_eq!(
        read(r#"{"name": "momentum", "learning_rate": 0.5, "momentum": 0.25}"#),
        Optimizer::Momentum { learning_rate, weight_decay: 0.0, momentum: 0.25 }
    );
}

#[test]
fn a_rate_is_adapted_to_a_quotient_and_to_none_that_is_0() {
    let (learning_rate, weight_decay) = (0.5, 0.25);
    let lars = Optimizer::Lars { learning_rate, weight_decay, momentum: 0.9, trust: 0.125 };
    let lamb = Optimizer::Lamb { learning_rate, weight_decay, beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };
    let rate = |optimizer: &Optimizer, wd_mult, quotient| {
        let step = Step::new(optimizer, 1, Round(1), learning_rate, 1.0, wd_mult);
        step.adapted(optimizer, quotient).learning_rate
    };
    assert_eq!(rate(&lars, 1.0, 0.25), 0.5 * 0.125 / (0.25 + 0.25), "the decay is beside the gradient");
    assert_eq!(rate(&lars, 2.0, 0.5), 0.5 * 0.125 / (0.5 + 0.5), "by its multiplier");
    assert_eq!(rate(&lamb, 1.0, 4.0), 0.5 / 4.0, "the decay is in the update");
    for optimizer in [lars, lamb] {
        assert_eq!(rate(&optimizer, 1.0, 0.0), 0.5, "{}: a norm is 0", optimizer.name());
        assert_eq!(rate(&optimizer, 0.0, 4.0), 0.5, "{}: a key without decay", optimizer.name());
    }
}
