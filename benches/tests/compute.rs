//! Compute that takes time, on real sessions and in the probe. No time is asserted: events show for which
//! layer a worker waits.

use std::process::Stdio;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::probe_program;
use anyhow::Result;
use benches::compute::{Clocked, ComputePlan, Iteration, Layer, Trace, Worker};
use fabric::conformance::Watchdog;
use hub_tests::program::{failure, write_manifest};
use hub_tests::{FIRST, SECOND, THIRD, config, hub, push_all, ready_all, says, small_model};
use pbox_core::{Key, KeyId};
use worker_shim::Session;

/// Returns a plan with one layer for each key of the small model.
fn plan() -> ComputePlan {
    let layer = |key: &Key| Layer {
        name: key.name.clone(),
        keys: vec![key.name.clone()],
        forward_us: 20.0,
        backward_us: 40.0,
    };
    let keys = small_model();
    Trace { name: "small".into(), batch: 2, layers: keys.iter().map(layer).collect() }
        .plan(&keys, 1.0)
        .unwrap()
}

/// A worker that reports the key for which it waits, before it waits.
struct Telling<W> {
    worker: W,
    waits: Sender<KeyId>,
}

impl<W: Worker<Error = anyhow::Error>> Worker for Telling<W> {
    type Error = anyhow::Error;

    fn now(&self) -> Duration {
        self.worker.now()
    }

    fn is_ready(&mut self, key: KeyId) -> Result<bool> {
        self.worker.is_ready(key)
    }

    fn wait(&mut self, key: KeyId) -> Result<()> {
        self.waits.send(key)?;
        self.worker.wait(key)
    }

    fn push(&mut self, key: KeyId) -> Result<()> {
        self.worker.push(key)
    }

    fn compute_until(&mut self, until: Duration) -> Result<()> {
        self.worker.compute_until(until)
    }

    fn look(&mut self) -> Result<()> {
        self.worker.look()
    }
}

/// Runs an iteration that pushes, and an iteration whose forward pass waits. Returns the stall of each layer.
fn two_iterations(session: &mut Session, waits: Sender<KeyId>) -> Vec<Duration> {
    let plan = plan();
    let look = |session: &mut Session| {
        for key in [FIRST, SECOND, THIRD] {
            let _readable: &[f32] = session.weights(key)?;
        }
        Ok(())
    };
    let mut worker = Telling { worker: Clocked::new(session, look), waits };
    let mut iteration = Iteration::new(&plan, worker.now());
    iteration.run(&mut worker).unwrap();
    assert!(iteration.stalled().iter().all(Duration::is_zero), "nothing was under way");
    iteration.run(&mut worker).unwrap();
    iteration.stalled().to_vec()
}

/// Pushes the second layer's gradient only after the other worker has reported that it waits for this layer.
fn late_in_the_second_layer(session: &mut Session, waits: &Receiver<KeyId>) {
    session.push(THIRD).unwrap();
    session.push(FIRST).unwrap();
    while waits.recv().expect("the other worker waits for the second layer") != SECOND {}
    session.push(SECOND).unwrap();
    session.wait_all().unwrap();
    push_all(session).unwrap();
    session.wait_all().unwrap();
}

#[test]
fn the_stall_is_on_the_layer_that_is_waited_for() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = ready_all(2, |rank| config(&hub, "stall", rank, 2));
    let (mut late, mut computing) = (sessions.pop().unwrap(), sessions.pop().unwrap());
    let (waits, waited) = channel();
    let waited = Mutex::new(waited);
    let stalled = std::thread::scope(|scope| {
        scope.spawn(|| late_in_the_second_layer(&mut late, &waited.lock().unwrap()));
        let stalled = two_iterations(&mut computing, waits);
        computing.wait_all().unwrap();
        stalled
    });
    assert!(!stalled[1].is_zero(), "{stalled:?}");
    computing.leave().unwrap();
    late.leave().unwrap();
}

#[test]
fn a_session_takes_answers_in_while_it_computes() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut session = ready_all(1, |rank| config(&hub, "progress", rank, 1)).pop().unwrap();
    let until = Instant::now();
    session.progress(until).unwrap();
    push_all(&mut session).unwrap();
    // Only `progress` receives answers.
    while session.weights::<f32>(FIRST).is_err() || session.weights::<f32>(THIRD).is_err() {
        session.progress(Instant::now() + Duration::from_millis(1)).unwrap();
    }
    says(session.is_ready(KeyId(7)).unwrap_err(), &["key 7 does not exist", "3 keys"]);
    hub.stop("the test is over");
    let error = loop {
        if let Err(error) = session.progress(Instant::now() + Duration::from_millis(1)) {
            break error;
        }
    };
    says(error, &["\"progress\""]);
}

/// A model of two layers, and its trace, in a directory.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = [Key::f32("a", [40_000]), Key::f32("b", [17]), Key::f32("c", [9000])];
        write_manifest(&dir.path().join("model.safetensors"), &keys);
        let lines = [
            r#"{"trace": "two layers", "batch": 4}"#,
            r#"{"layer": "one", "keys": ["a", "b"], "forward_us": 300, "backward_us": 600}"#,
            r#"{"layer": "two", "keys": ["c"], "forward_us": 100.5, "backward_us": 200}"#,
        ];
        std::fs::write(dir.path().join("trace"), lines.join("\n")).unwrap();
        Files { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn report(&self, arguments: &[&str]) -> serde_json::Value {
        let mut command = probe_program();
        command.args(["--json", "--workers", "2", "--rounds", "6", "--compute", &self.path("trace")]);
        command.args(["--manifest", &self.path("model.safetensors")]).args(arguments);
        let output = command.stdin(Stdio::null()).output().expect("the probe starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }
}

#[test]
fn the_probe_computes_and_its_results_are_exact() {
    let _watchdog = Watchdog::start();
    let files = Files::new();
    for more in [
        &["--transport", "shm", "--time-scale", "2", "--bandwidth-gbps", "0.001"][..],
        &["--transport", "tcp", "--dtype", "bf16"],
        &["--consistency", "asp"],
        &["--consistency", "ssp:1", "--optimizer", "adam", "--weights", "private"],
    ] {
        let report = files.report(more);
        assert_eq!(report["checked"], true, "{more:?}: {report}");
        let compute = &report["compute"];
        assert_eq!((&compute["trace"], &compute["batch"]), (&"two layers".into(), &4.into()), "{report}");
        assert_eq!(compute["layers"].as_array().unwrap().len(), 2, "{report}");
        assert!(compute["samples_per_s"].as_f64().unwrap() > 0.0, "{report}");
        let overlap = compute["overlap"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&overlap), "{report}");
        if more.contains(&"2") {
            assert_eq!(compute["compute_ms"], 2.401, "{report}");
            // 196 kB cross at 1 Mb/s. The link carries nothing while the second layer computes.
            let bound = 8.0 / (196_068.0 * 8.0 / 1e6 + 2.0 * 300.5e-6);
            assert!(
                (compute["bound_samples_per_s"].as_f64().unwrap() / bound - 1.0).abs() < 1e-9,
                "{report}"
            );
        } else {
            assert!(compute["bound_samples_per_s"].is_null(), "{report}");
        }
    }
}

#[test]
fn the_probe_pulls_in_batches_and_reports_its_plan() {
    let _watchdog = Watchdog::start();
    let files = Files::new();
    for (batching, transport) in [("ibatch", "tcp"), ("greedy", "shm"), ("layer", "shm"), ("all", "tcp")] {
        let arguments = ["--pull", batching, "--transport", transport, "--pull-start-up-us", "500"];
        let report = files.report(&arguments);
        assert_eq!((&report["checked"], &report["schedule"]), (&true.into(), &"kvstore".into()), "{report}");
        let pull = &report["pull"];
        assert_eq!(pull["batching"], batching, "{report}");
        let batches = pull["batches"].as_array().unwrap();
        assert_eq!(batches.iter().map(|batch| batch.as_u64().unwrap()).sum::<u64>(), 2, "{report}");
        assert!(pull["measured_ms"].as_f64().unwrap() > 0.5, "a start-up is waited for: {report}");
        let profile = &pull["profile"];
        assert_eq!(profile.is_null(), matches!(batching, "layer" | "all"), "{report}");
        if !profile.is_null() {
            let predictions = profile["predictions"].as_array().unwrap();
            let of =
                |name: &str| predictions.iter().find(|prediction| prediction["batching"] == name).unwrap();
            assert_eq!(of(batching)["to_last_layer_ms"], profile["predicted_ms"], "{report}");
            assert_eq!(of(batching)["batches"], pull["batches"], "{report}");
            assert_eq!(of("layer")["batches"], serde_json::json!([1, 1]), "{report}");
        }
    }
    assert!(files.report(&[])["pull"].is_null());
}

#[test]
fn a_network_that_is_shrunk_keeps_its_times_and_its_keys() {
    let _watchdog = Watchdog::start();
    let report = Files::new().report(&["--shrink", "10", "--exchanges", "1"]);
    assert_eq!(report["parameters"], 4000 + 2 + 900, "{report}");
    assert_eq!(report["compute"]["compute_ms"], 1.2005, "{report}");
    assert_eq!(report["checked"], true, "{report}");
}

#[test]
fn settings_that_make_no_sense() {
    let _watchdog = Watchdog::start();
    let files = Files::new();
    let trace = files.path("trace");
    let error_of = |arguments: &[&str]| failure(probe_program().args(arguments));
    says(error_of(&["--time-scale", "2"]), &["--compute", "required"]);
    says(error_of(&["--bandwidth-gbps", "2"]), &["--compute", "required"]);
    for wrong in ["0", "-1", "NaN", "inf", "fast"] {
        let words = [wrong, "number above 0"];
        says(error_of(&["--compute", "resnet50", "--time-scale", wrong]), &words);
        says(error_of(&["--compute", "resnet50", "--bandwidth-gbps", wrong]), &words);
    }
    says(error_of(&["--pull", "layer"]), &["--compute", "required"]);
    says(error_of(&["--pull-start-up-us", "5"]), &["--pull", "required"]);
    says(error_of(&["--compute", "resnet50", "--pull", "best"]), &["ibatch, greedy, layer or all"]);
    let with_p3 = ["--compute", "resnet50", "--pull", "all", "--schedule", "p3"];
    says(error_of(&with_p3), &["pull all with schedule p3", "only kvstore"]);
    for counted in ["--shrink", "--exchanges"] {
        says(error_of(&[counted, "2"]), &["--compute", "required"]);
        says(error_of(&["--compute", "resnet50", counted, "0"]), &["0 is not in", counted]);
    }
    says(error_of(&["--compute", "resnet51"]), &["cannot read the trace resnet51", "inception3"]);
    says(error_of(&["--compute", &trace]), &["\"two layers\"", "\"a\"", "161 keys", "--manifest"]);
    says(error_of(&["--compute", "vgg19", "--model", "vgg16"]), &["\"vgg19\"", "is not one of", "32 keys"]);
}
