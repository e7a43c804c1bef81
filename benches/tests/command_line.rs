//! The probe's errors for settings that make no sense. Each names the setting or the object, what was seen, and what to do.

use std::process::Command;

use crate::probe_program;
use fabric::conformance::Watchdog;
use hub_tests::program::{Program, failure, until, write_manifest};
use hub_tests::{describe, says};
use pbox_core::Key;

fn with(arguments: &[&str]) -> Command {
    let mut command = probe_program();
    command.args(arguments);
    command
}

#[test]
fn unknown_models_come_with_a_suggestion() {
    let _watchdog = Watchdog::start();
    let error = failure(&mut with(&["--model", "resnet-51"]));
    says(error, &["\"resnet-51\"", "vgg19", "did you mean resnet50?"]);
    assert_eq!(with(&["--model", "resnet-51"]).status().unwrap().code(), Some(2), "a wrong setting");
    let error = failure(&mut with(&["--model", "quicksort"]));
    says(&error, &["\"quicksort\"", "the models are", "googlenet"]);
    assert!(!error.contains("did you mean"), "{error}");
}

#[test]
fn manifests_that_cannot_be_read() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.safetensors");
    let fifo = dir.path().join("fifo.safetensors");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, why) in
        [(missing.as_path(), "cannot read"), (dir.path(), "is not a file"), (&fifo, "is not a file")]
    {
        let error = failure(with(&["--manifest"]).arg(path));
        says(error, &[why, path.to_str().unwrap(), "give a .safetensors file"]);
    }
    says(
        failure(with(&["--model", "vgg16", "--manifest"]).arg(&missing)),
        &["--model", "cannot be used with"],
    );
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.safetensors");
    write_manifest(&model, &[Key::f32("a", [100])]);
    let mut cluster = Command::new(env!("CARGO_BIN_EXE_phub-cluster"));
    cluster.args(["--compute", "googlenet", "--nodes", "2"]);
    let mut probe = with(&["--workers", "1", "--rounds", "1", "--manifest"]);
    probe.arg(&model);
    for command in [&mut probe, &mut cluster] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        says(failure(command.stdout(full)), &["writing to stdout", "No space left on device"]);
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        assert!(command.stdout(write).status().unwrap().success(), "a closed pipe is no error");
    }
}

#[test]
fn rates_and_delays_that_no_cluster_has() {
    let _watchdog = Watchdog::start();
    for (option, values) in [
        ("--gbps", ["0", "nan", "inf", "1e-300"]),
        ("--start-up-ms", ["nan", "inf", "1e300", "x"]),
        ("--latency-ms", ["nan", "inf", "1e300", "x"]),
    ] {
        for value in values {
            let mut cluster = Command::new(env!("CARGO_BIN_EXE_phub-cluster"));
            says(failure(cluster.args([option, value])), &[option, value, "expected a number from 0"]);
        }
    }
}

#[test]
fn headers_that_lie() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lying.safetensors");
    let error_of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = failure(with(&["--manifest"]).arg(&path));
        says(&error, &[path.to_str().unwrap()]);
        error
    };
    says(error_of(b""), &["first 8 bytes", "only 0 are there"]);
    says(error_of(b"\x00\x01"), &["first 8 bytes", "only 2 are there"]);
    says(error_of(&u64::MAX.to_le_bytes()), &["18446744073709551615 bytes", "not a safetensors file"]);
    says(error_of(&1000u64.to_le_bytes()), &["ends at byte 1008", "the file has 8 bytes", "cut off"]);
    let with_header = |header: &str, data: usize| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0);
        error_of(&file)
    };
    says(with_header("not json", 0), &["is not JSON"]);
    says(with_header("{}", 0), &["no key", "at least one tensor"]);
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"fc.weight":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    says(with_header(&tensor("F32", "[3]", "[0,12]"), 11), &["23", "cut off"].map(|_| "cut off"));
    says(with_header(&tensor("F32", "[4]", "[0,12]"), 12), &["\"fc.weight\"", "[4]", "16 bytes", "span 12"]);
    says(with_header(&tensor("F32", "[3]", "[4,16]"), 16), &["\"fc.weight\"", "begins at byte 4"]);
    says(with_header(&tensor("F64", "[2]", "[0,16]"), 16), &["\"fc.weight\"", "F64", "convert"]);
    says(with_header(&tensor("F32", "[0]", "[0,0]"), 0), &["\"fc.weight\"", "[0]", "omit the key"]);
    let mixed = r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    says(with_header(mixed, 8), &["\"a\" in bf16", "\"b\" in f32", "--dtype"]);
}

#[test]
fn numbers_out_of_range() {
    let _watchdog = Watchdog::start();
    for (arguments, words) in [
        (["--workers", "0"], ["0", "--workers", "1..=4096"]),
        (["--workers", "4097"], ["4097", "--workers", "1..=4096"]),
        (["--workers", "many"], ["many", "--workers", "invalid"]),
        (["--rounds", "0"], ["0", "--rounds", "1.."]),
        (["--chunk-bytes", "100"], ["chunk size 100", "multiple of 64", "32768"]),
        (["--chunk-bytes", "0"], ["chunk size 0", "multiple of 64", "32768"]),
        (["--cores", "four"], ["--cores", "\"four\"", "4-7"]),
        (["--cores", "6-4"], ["--cores", "\"6-4\"", "lower number"]),
        (["--cores", "0"], ["asked for 0 cores", "at least 1", "omit"]),
        (["--cores", "100000"], ["asked for 100000 cores", "allowed", "at most"]),
        (["--cores", "0,9999"], ["9999", "does not exist", "the host has cpus"]),
        (["--cores", "0,0"], ["named twice", "cpu", "0"]),
        (["--optimizer", "adamw2"], ["adamw2", "--optimizer", "nesterov"]),
        (["--transport", "pigeon"], ["pigeon", "--transport", "shm"]),
        (["--idle", "never"], ["never", "--idle", "busy-poll"]),
    ] {
        says(failure(&mut with(&arguments)), &words);
    }
}

#[test]
fn a_worker_alone_needs_hub_and_rank() {
    let _watchdog = Watchdog::start();
    says(failure(&mut with(&["--rank", "1"])), &["--hub", "required"]);
    says(failure(&mut with(&["--hub", "127.0.0.1:7077"])), &["--rank", "required"]);
}

#[test]
fn a_hub_that_is_not_there() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.safetensors");
    write_manifest(&model, &[Key::f32("a", [10])]);
    let mut command = with(&["--rank", "0", "--workers", "1", "--hub", hub_tests::NOWHERE, "--manifest"]);
    says(failure(command.arg(&model)), &["cannot reach", hub_tests::NOWHERE, "is phub-server running there"]);
}

#[test]
fn a_worker_that_does_not_fit_is_refused() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.safetensors");
    write_manifest(&model, &[Key::f32("a", [10])]);
    let hub = hub_tests::hub(1);
    let address = hub.address().to_string();
    let error_of = |rank: &str, workers: &str, more: &[&str]| {
        let mut command =
            with(&["--hub", &address, "--rank", rank, "--workers", workers, "--join-limit-s", "1"]);
        failure(command.args(more).arg("--manifest").arg(&model))
    };
    says(error_of("5", "2", &[]), &["rank 5 of 2", "from 0 to 1"]);
    says(error_of("0", "2", &[]), &["waited 1s", "worker(s) [1] of 2", "join limit"]);
    says(error_of("0", "2", &["--job", "no such name"]), &["job name \"no such name\"", "letters"]);
    hub_tests::join_by_hand(&hub, "probe", &hub_tests::join_request(0, 2));
    let busy = ["--hub", &address, "--rank", "0", "--workers", "2", "--job", "busy"];
    let _waits = Program::start(with(&busy).arg("--manifest").arg(&model));
    until("the first worker has joined", || describe(&address).jobs.iter().any(|job| job.name == "busy"));
    says(error_of("0", "2", &["--job", "busy"]), &["rank 0", "\"busy\"", "taken"]);
    says(error_of("1", "2", &[]), &["\"probe\"", "chunk_bytes 64", "32768"]);
    says(error_of("1", "2", &["--chunk-bytes", "64"]), &["\"probe\"", "optimizer", "Nesterov", "Sgd"]);
}

#[test]
fn consistencies_that_do_not_exist() {
    let _watchdog = Watchdog::start();
    for wrong in ["ssp", "ssp:-1", "bulk"] {
        let error = failure(&mut with(&["--consistency", wrong]));
        says(error, &["--consistency", &format!("{wrong:?}"), "expected bsp, ssp:S"]);
    }
    let error = failure(&mut with(&["--consistency", "ssp:3", "--optimizer", "average"]));
    says(error, &["consistency ssp:3 with the optimizer average", "use bsp"]);
}
