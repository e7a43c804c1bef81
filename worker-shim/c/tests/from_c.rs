//! The example in C, compiled with warnings as errors. Two workers run it with a hub, also under valgrind,
//! and with failures. Other programs in C pass the library all wrong arguments, and read the weights of a job.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fabric::conformance::Watchdog;
use phub_server::{CoreSelection, Hub, HubSettings, IdleChoice};
use tempfile::TempDir;
use versions::{Origin, Precision, Publisher, Rules, Weights};

fn hub() -> Hub {
    let settings = HubSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        cores: Some(CoreSelection::Count(1)),
        idle: IdleChoice::Sleep,
        ..HubSettings::default()
    };
    Hub::start(&settings).unwrap()
}

/// Returns the directory where cargo has put libphub for this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors()
        .find(|folder| folder.join("libphub.so").is_file())
        .expect("cargo has built libphub")
        .into()
}

/// Compiles a source in C. Returns the program.
fn compiled(source: &str, into: &TempDir) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = into.path().join("program");
    let output = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"])
        .arg(here.join(source))
        .arg("-I")
        .arg(here.join("../include"))
        .arg("-L")
        .arg(libraries())
        .args(["-lphub", "-lm", "-lpthread", "-o"])
        .arg(&program)
        .output()
        .expect("cc is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Returns a command whose loader finds libphub.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", libraries()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_example_fits_its_line() {
    let _watchdog = Watchdog::start();
    let (hub, folder) = (hub(), TempDir::new().unwrap());
    let program = compiled("examples/fit.c", &folder);
    let start = |rank: &str| {
        command(&program).args([&hub.address().to_string(), rank, "2"]).spawn().expect("the example starts")
    };
    let workers = [start("0"), start("1")];
    for (worker, rank) in workers.into_iter().zip(0..) {
        let output = worker.wait_with_output().unwrap();
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        assert!(said.contains(&format!("worker {rank}: y = ")), "{said}");
    }
}

#[test]
fn valgrind_finds_nothing_in_the_example() {
    let _watchdog = Watchdog::start();
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("NOT RUN: valgrind is not installed");
        return;
    }
    let (hub, folder) = (hub(), TempDir::new().unwrap());
    let program = compiled("examples/fit.c", &folder);
    let output = command("valgrind")
        .args(["--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"])
        .arg(&program)
        .args([&hub.address().to_string(), "0", "1"])
        .output()
        .unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("ERROR SUMMARY: 0 errors"), "{said}");
}

#[test]
fn errors_reach_c_in_words() {
    let _watchdog = Watchdog::start();
    let folder = TempDir::new().unwrap();
    let program = compiled("examples/fit.c", &folder);
    let nobody = "127.0.0.1:1"; // a privileged port, which the system never assigns to a socket
    let output = command(&program).args([nobody, "0", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(said.contains("fit: joining: cannot reach the hub") && said.contains(nobody), "{said}");
}

#[test]
fn what_c_gives_is_checked() {
    let _watchdog = Watchdog::start();
    let (hub, folder) = (hub(), TempDir::new().unwrap());
    let program = compiled("tests/misuse.c", &folder);
    let output = command(&program).arg(hub.address().to_string()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn norms_clip_and_skip_and_come_back() {
    let _watchdog = Watchdog::start();
    let (hub, folder) = (hub(), TempDir::new().unwrap());
    let program = compiled("tests/norms.c", &folder);
    let start = |rank: &str| {
        command(&program).arg(hub.address().to_string()).arg(rank).spawn().expect("the program starts")
    };
    for worker in [start("0"), start("1")] {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
}

/// Publishes three versions of a tensor of two weights. Each weight is equal to the version's number.
fn versions_in(folder: &Path) {
    let mut publisher = Publisher::open(folder, Rules::default()).unwrap();
    for number in 1..=3u16 {
        let mut weights = Weights::default();
        weights.add("w", vec![2], &[f32::from(number); 2], Precision::F32).unwrap();
        let origin = Origin { job: "job".into(), round: 10 * u32::from(number) };
        publisher.publish(origin, weights).unwrap();
    }
}

#[test]
fn versions_have_the_bits_of_their_rounds_in_c() {
    let _watchdog = Watchdog::start();
    let (hub, folder) = (hub(), TempDir::new().unwrap());
    let program = compiled("tests/reader.c", &folder);
    let versions = folder.path().join("versions");
    versions_in(&versions);
    let output = command(&program).arg(hub.address().to_string()).arg(&versions).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}
