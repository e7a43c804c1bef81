//! The probe as a program, in each element type and each consistency: its results are checked against the oracle bit for bit
//! by its own workers, over shared memory with real processes and over the simulated network.

mod support;

use std::process::Stdio;

use fabric::conformance::Watchdog;
use pbox_core::Key;
use support::program::{probe, write_manifest};

/// Runs the probe on keys of odd sizes; its report.
fn report(arguments: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.safetensors");
    let keys = [1u64, 17, 16_385, 100_000].map(|elements| Key::f32(format!("of {elements}"), [elements]));
    write_manifest(&model, &keys);
    let mut command = probe();
    command.args(["--json", "--workers", "3", "--rounds", "5"]).args(arguments).arg("--manifest").arg(&model);
    let output = command.stdin(Stdio::null()).output().expect("the probe starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn every_element_type_is_exact() {
    let _watchdog = Watchdog::new("every_element_type_is_exact");
    for (dtype, bytes) in [("f32", 4), ("f16", 2), ("bf16", 2)] {
        for transport in ["shm", "sim"] {
            for optimizer in ["average", "nesterov", "adamw"] {
                let asked = ["--dtype", dtype, "--transport", transport, "--optimizer", optimizer];
                let report = report(&asked);
                assert_eq!(report["checked"], true, "{asked:?}: {report}");
                assert_eq!(report["dtype"], dtype, "{report}");
                assert_eq!(report["model_bytes"], bytes * 116_403, "{report}");
            }
        }
    }
}

#[test]
fn every_consistency_is_exact() {
    let _watchdog = Watchdog::new("every_consistency_is_exact");
    for consistency in ["ssp:0", "ssp:2", "asp"] {
        for transport in ["shm", "sim"] {
            for (optimizer, dtype) in
                [("nesterov", "f32"), ("adamw", "f32"), ("adam", "bf16"), ("sgd", "f16")]
            {
                let asked =
                    ["--consistency", consistency, "--transport", transport, "--optimizer", optimizer];
                let report = report(&[&asked[..], &["--dtype", dtype, "--weights", "private"]].concat());
                assert_eq!(report["checked"], true, "{asked:?}: {report}");
                assert_eq!(report["consistency"], consistency, "{report}");
                assert!(report["limit_gb_per_s"].is_null(), "steps once a push are another job: {report}");
            }
        }
    }
}
