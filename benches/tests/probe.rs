//! The probe as a program, in each element type, consistency and schedule. The probe's workers compare the results bit
//! for bit with the oracle.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use crate::probe_program;
use fabric::conformance::Watchdog;
use hub_tests::program::{Program, until, write_manifest};
use pbox_core::{Credit, Dtype, Key};

/// Runs the probe for some rounds on keys of odd sizes. Returns its report.
fn report(arguments: &[&str]) -> serde_json::Value {
    report_of("5", arguments)
}

fn report_of(rounds: &str, arguments: &[&str]) -> serde_json::Value {
    report_in(Dtype::F32, rounds, arguments)
}

/// Returns the report of a run with tensors of this type.
fn report_in(dtype: Dtype, rounds: &str, arguments: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.safetensors");
    let of = |elements: u64| Key::new(dtype, format!("of {elements}"), [elements]);
    write_manifest(&model, &[1, 17, 16_385, 100_000].map(of));
    let mut command = probe_program();
    command
        .args(["--json", "--rounds", rounds])
        .args((!arguments.contains(&"--workers")).then_some(["--workers", "3"]).into_iter().flatten())
        .args(arguments)
        .arg("--manifest")
        .arg(&model);
    let output = command.stdin(Stdio::null()).output().expect("the probe starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn every_element_type_is_exact() {
    let _watchdog = Watchdog::start();
    for (dtype, bytes) in [("f32", 4), ("f16", 2), ("bf16", 2)] {
        for optimizer in ["average", "nesterov", "adamw", "lars", "lamb"] {
            let asked = ["--dtype", dtype, "--transport", "shm", "--optimizer", optimizer];
            let report = report(&asked);
            assert_eq!(report["checked"], true, "{asked:?}: {report}");
            assert_eq!(report["dtype"], dtype, "{report}");
            assert_eq!(report["model_bytes"], bytes * 116_403, "{report}");
        }
    }
}

#[test]
fn a_manifest_says_its_own_type() {
    let _watchdog = Watchdog::start();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        assert_eq!(report_in(dtype, "1", &[])["dtype"], dtype.name());
    }
    assert_eq!(report_in(Dtype::BF16, "1", &["--dtype", "f32"])["dtype"], "f32");
}

#[test]
fn machines_of_a_mesh_are_exact() {
    let _watchdog = Watchdog::start();
    for asked in [
        &["--machines", "3"][..],
        &["--machines", "3", "--dtype", "f16", "--optimizer", "adamw"],
        &["--machines", "2", "--consistency", "ssp:1"],
    ] {
        let report = report(asked);
        assert_eq!(report["checked"], true, "{asked:?}: {report}");
    }
    assert_eq!(report(&["--machines", "2", "--compress", "topk:0.1"])["workers"], 6);
}

#[test]
fn every_consistency_is_exact() {
    let _watchdog = Watchdog::start();
    for consistency in ["ssp:0", "ssp:2", "asp"] {
        for (optimizer, dtype, schedule) in [
            ("nesterov", "f32", "sliced"),
            ("adamw", "f32", "kvstore"),
            ("adam", "bf16", "layerwise"),
            ("sgd", "f16", "p3"),
        ] {
            let asked = ["--consistency", consistency, "--optimizer", optimizer, "--schedule", schedule];
            let report = report(&[&asked[..], &["--dtype", dtype, "--weights", "private"]].concat());
            assert_eq!(report["checked"], true, "{asked:?}: {report}");
            assert_eq!(report["consistency"], consistency, "{report}");
            assert!(report["limit_gb_per_s"].is_null(), "steps once a push are another job: {report}");
        }
    }
}

#[test]
fn every_schedule_is_exact_and_reported() {
    let _watchdog = Watchdog::start();
    let null = serde_json::Value::Null;
    for transport in ["tcp", "shm"] {
        for (schedule, slice_bytes, credit_bytes) in [
            ("kvstore", null.clone(), null.clone()),
            ("layerwise", null.clone(), null.clone()),
            ("sliced", 32_768.into(), null.clone()),
            ("p3", 32_768.into(), Credit::AT_FIRST.into()),
        ] {
            // Cores share a default credit, so this run has one core.
            let report = report(&["--transport", transport, "--schedule", schedule, "--cores", "1"]);
            assert_eq!(
                (&report["checked"], &report["schedule"]),
                (&true.into(), &schedule.into()),
                "{report}"
            );
            assert_eq!((&report["slice_bytes"], &report["credit_bytes"]), (&slice_bytes, &credit_bytes));
            let own = ["--slice-bytes", "9000", "--credit", "70000", "--chunk-bytes", "4096"];
            let report =
                self::report(&[&["--transport", transport, "--schedule", schedule][..], &own].concat());
            assert_eq!((&report["checked"], &report["credit"]), (&true.into(), &"70000".into()), "{report}");
            assert_eq!(report["credit_bytes"], 70_000, "{report}");
            let expected = if slice_bytes.is_null() { null.clone() } else { 9000.into() };
            assert_eq!(report["slice_bytes"], expected, "{report}");
        }
    }
}

#[test]
fn a_search_for_credit_is_reported_with_its_trials() {
    let _watchdog = Watchdog::start();
    let asked = ["--transport", "tcp", "--schedule", "p3", "--credit", "auto"];
    let first = report(&asked);
    let tried = first["credit_tried"].as_array().expect("a list");
    assert!(!tried.is_empty() && tried.len() < worker_shim::TRIALS.len(), "in few rounds few: {first}");
    let all = report_of("60", &asked);
    let tried = all["credit_tried"].as_array().expect("a list");
    let bytes: Vec<u64> = tried.iter().map(|trial| trial["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, worker_shim::TRIALS.map(|bytes| bytes as u64), "{all}");
    let time = |trial: &serde_json::Value| trial["round_ms"].as_f64().unwrap();
    let best = tried.iter().min_by(|a, b| time(a).total_cmp(&time(b))).unwrap();
    assert_eq!(all["credit_bytes"], best["bytes"], "{all}");
}

#[test]
fn a_run_without_the_limit_says_so() {
    let _watchdog = Watchdog::start();
    let report = report(&["--limit", "off"]);
    assert_eq!((&report["checked"], &report["limit_gb_per_s"]), (&true.into(), &serde_json::Value::Null));
}

/// The probe compares the weights and the last norm with the weights and the norm of the oracle. This test compares the
/// norms of several kinds of jobs.
#[test]
fn norms_come_back_and_clip() {
    let _watchdog = Watchdog::start();
    let norm = |arguments: &[&str]| {
        let report = report(arguments);
        assert_eq!(report["checked"], true, "{arguments:?}: {report}");
        report["gradient_norm"].as_f64()
    };
    let clipped = norm(&["--clip-norm", "3"]).expect("a job with a norm");
    assert!(
        (100.0..1000.0).contains(&clipped),
        "each mean of 116,403 gradients is below 1, in all {clipped}"
    );
    for other in [
        &["--clip-norm", "3", "--hubs", "2", "--transport", "tcp", "--optimizer", "adamw"][..],
        &["--clip-norm", "1e6", "--schedule", "kvstore"],
        &["--skip-nonfinite"],
        &["--skip-spikes", "2", "--clip-norm", "3"],
    ] {
        assert_eq!(norm(other), Some(clipped), "{other:?}");
    }
    for halves in ["f16", "bf16"] {
        let rounded = norm(&["--clip-norm", "3", "--dtype", halves]).expect("a job with a norm");
        assert!((rounded / clipped - 1.0).abs() < 0.01, "{halves}: {rounded} for {clipped}");
    }
    norm(&["--machines", "2", "--clip-norm", "3"]).expect("a job with a norm");
    for without in [&["--clip-norm-last", "3"][..], &[]] {
        assert_eq!(norm(without), None, "{without:?}: the norm of a round is not known at the round's end");
    }
}

/// Checks that fewer bytes cross, and that all workers have the same bits.
#[test]
fn compressed_rounds_report_their_bytes() {
    let _watchdog = Watchdog::start();
    for transport in ["tcp", "shm"] {
        let plain = report(&["--transport", transport]);
        assert_eq!(plain["compression"], serde_json::Value::Null);
        // Small keys that are sent in one post include the padding between them.
        let sent = plain["sent_bytes"].as_f64().unwrap();
        assert!((465_612.0..1.001 * 465_612.0).contains(&sent), "{sent}");
        for codec in ["bf16", "qsgd:8:512", "topk:0.01", "slim:0.2:0.1:20000:none:seeded"] {
            let report = report(&["--transport", transport, "--compress", codec]);
            assert_eq!(report["compression"], codec);
            // With Slim-DP each worker has its own weights, and two of the five rounds send whole chunks.
            assert_eq!(report["checked"], !codec.starts_with("slim"), "{report}");
            for crossed in ["sent_bytes", "received_bytes"] {
                let (crossed, whole) = (report[crossed].as_f64().unwrap(), plain[crossed].as_f64().unwrap());
                assert!(crossed > 0.0 && crossed < 0.55 * whole, "{codec}: {crossed} of {whole}");
            }
        }
    }
}

/// A test against a bug: the second run at a hub with checkpoints reported "wrong result".
#[test]
fn a_hub_with_checkpoints_takes_one_run_after_another() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = hub_tests::settings(1, hub_tests::PATIENT_S);
    settings.checkpoints = Some(dir.path().join("checkpoints"));
    settings.checkpoint_every = std::num::NonZeroU32::new(2);
    let hub = phub_server::Hub::start(&settings).unwrap();
    let address = hub.address().to_string();
    for run in 0..2 {
        let report = report(&["--hub", &address, "--workers", "1", "--rank", "0"]);
        assert_eq!(report["checked"], true, "run {run}: {report}");
    }
    let left =
        std::fs::read_dir(dir.path().join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("safetensors")).collect();
    assert!(left.is_empty(), "{left:?}");
    // A run that must outlive its hub has checkpoints, and the next run continues from there.
    for run in 0..2 {
        let asked =
            ["--hub", &address, "--workers", "1", "--rank", "0", "--job", "kept", "--hub-wait-s", "30"];
        let report = report(&asked);
        assert_eq!(report["checked"], true, "run {run}: {report}");
    }
}

/// A proxy to a hub. The hub behind it can be replaced.
struct Proxy {
    at: String,
    hub: Arc<Mutex<String>>,
}

impl Proxy {
    fn to(hub: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, hub) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(hub.to_owned())));
        let to = Arc::clone(&hub);
        std::thread::spawn(move || {
            for client in listener.incoming().map(Result::unwrap) {
                // If no hub listens, the client's connection is closed.
                let Ok(hub) = TcpStream::connect(&*to.lock().unwrap()) else { continue };
                for (mut from, mut into) in
                    [(client.try_clone().unwrap(), hub.try_clone().unwrap()), (hub, client)]
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut into);
                        let _ = into.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Proxy { at, hub }
    }
}

/// A test against a bug: after the job lost rounds by a restart of the hub, the probe reported "wrong
/// result".
#[test]
fn a_run_goes_on_with_a_hub_that_lost_rounds() {
    let _watchdog = Watchdog::start();
    ["nesterov", "lamb"].into_iter().for_each(goes_on);
}

fn goes_on(optimizer: &str) {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = probe_program();
        command.args(["--role", "hub", "--cores", "1"]).env("PHUB_CHECKPOINTS", dir.path());
        let mut hub = Program::start(command.env("PHUB_CHECKPOINT_EVERY", "20"));
        let address = hub.read_line().expect("the hub says where it is");
        (hub, address)
    };
    let (hub, first) = start();
    let proxy = Proxy::to(&first);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let asked = ["--hub", &proxy.at, "--workers", "1", "--rank", "0", "--hub-wait-s", "60"];
            report_of("3000", &[&asked[..], &["--optimizer", optimizer]].concat())
        });
        until("a checkpoint is there", || {
            hub_tests::describe(&first).jobs.iter().any(|job| job.checkpoint.is_some())
        });
        drop(hub); // dropping kills the hub
        let (_hub, second) = start();
        *proxy.hub.lock().unwrap() = second;
        let report = run.join().unwrap();
        assert_eq!(report["checked"], true, "{report}");
    });
}
