//! `phub-server doctor` as a process, on any machine: its verdicts, its exit status, and its output for
//! scripts. Tests in virtual machines check its output about RDMA devices
//! (`tools/rxe/checks/hub/10-doctor.sh`).

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use crate::support::{Serve, failure, phub_server, says};
use fabric::conformance::Watchdog;
use serde_json::Value;

fn doctor(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = phub_server(&[&["doctor"], arguments].concat()).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(errors, "", "after\n{text}");
    (status.code(), text.into_owned())
}

/// Returns the lines of one check.
#[track_caller]
fn check<'a>(text: &'a str, name: &str) -> &'a str {
    let is = |line: &str| line.get(6..).is_some_and(|rest| rest.starts_with(&format!("{name} ")));
    let mut at = 0;
    let mut begin = None;
    for line in text.split_inclusive('\n') {
        match begin {
            None if is(line) => begin = Some(at),
            Some(begin) if !line.starts_with("      ") => return &text[begin..at],
            _ => {}
        }
        at += line.len();
    }
    panic!("no check {name:?} in\n{text}");
}

/// Whether the kernel has RDMA devices. The doctor's output depends on that.
fn has_rdma() -> bool {
    let devices = Path::new("/sys/class/infiniband").read_dir();
    let has = devices.is_ok_and(|mut devices| devices.next().is_some());
    if has {
        eprintln!("skipped: this machine has RDMA devices");
    }
    has
}

#[test]
fn a_machine_without_rdma_is_well() {
    let _watchdog = Watchdog::start();
    if has_rdma() {
        return;
    }
    let (status, text) = doctor(&["--listen", "127.0.0.1:0"]);
    assert_eq!(status, Some(0), "{text}");
    says(&text, &["resnet50 with 4 workers", "Well: nothing is in the way"]);
    assert!(!text.contains("FAIL") && !text.contains('\x1b'), "{text}");
    for (name, word) in [
        ("memlock", "note"),
        ("control port", "pass"),
        ("shared memory", "pass"),
        ("TCP data path", "pass"),
        ("open files", "pass"),
    ] {
        assert!(check(&text, name).starts_with(word), "{text}");
    }
    for name in [
        "huge pages of windows",
        "NUMA and NICs",
        "NUMA balancing",
        "core isolation",
        "cpu governor",
        "libibverbs",
    ] {
        check(&text, name);
    }
}

#[test]
fn verbs_that_are_asked_for_and_not_there_are_a_failure_with_the_fix() {
    let _watchdog = Watchdog::start();
    if has_rdma() {
        return;
    }
    for arguments in [["--transports", "verbs"], ["--nics", "mlx5"]] {
        let (status, text) = doctor(&[&["--listen", "127.0.0.1:0"], &arguments[..]].concat());
        assert_eq!(status, Some(1), "{text}");
        let library = check(&text, "libibverbs");
        if library.starts_with("FAIL") {
            says(library, &["libibverbs.so.1", "fix: apt-get install libibverbs1"]);
        } else {
            let devices = check(&text, "RDMA devices");
            says(devices, &["FAIL", "none", "fix: ", "rdma link", "type rxe"]);
        }
        says(&text, &["Not well: 1 failure"]);
    }
}

#[test]
fn transports_that_are_not_offered_are_not_judged() {
    let _watchdog = Watchdog::start();
    let (status, text) = doctor(&["--listen", "127.0.0.1:0", "--transports", "shm"]);
    assert_eq!(status, Some(0), "{text}");
    says(check(&text, "RDMA"), &["note", "does not name verbs"]);
    assert!(!text.contains("TCP data path"), "{text}");
}

#[test]
fn a_port_that_another_program_has_is_a_failure() {
    let _watchdog = Watchdog::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (status, text) = doctor(&["--listen", &address.to_string(), "--transports", "shm"]);
    assert_eq!(status, Some(1), "{text}");
    let fix = format!("ss -ltnp 'sport = :{}'", address.port());
    says(check(&text, "control port"), &["FAIL", &address.to_string(), "in use", "no hub answers", &fix]);
}

#[test]
fn an_address_of_another_machine_is_a_failure() {
    let _watchdog = Watchdog::start();
    // TEST-NET-1: no host has this address.
    let (status, text) = doctor(&["--listen", "192.0.2.1:7077", "--transports", "shm"]);
    assert_eq!(status, Some(1), "{text}");
    says(check(&text, "control port"), &["FAIL", "192.0.2.1:7077", "ip -brief address"]);
}

#[test]
fn a_hub_that_runs_is_asked_how_it_is() {
    let _watchdog = Watchdog::start();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--transports", "shm,tcp", "--cores", "1"];
    let hub = Serve::start(phub_server(&serve).env("RUST_LOG", "warn"));
    let (status, text) = doctor(&["--listen", &hub.address, "--transports", "shm,tcp"]);
    assert_eq!(status, Some(0), "{text}");
    let version = concat!("version ", env!("CARGO_PKG_VERSION"));
    let words = ["pass", &hub.address, "healthy", version, "1 cores", "0 jobs", "transports shm, tcp"];
    says(check(&text, "control port"), &words);
}

#[test]
fn the_way_to_a_hub_is_measured() {
    let _watchdog = Watchdog::start();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--transports", "shm,tcp", "--cores", "1"];
    let hub = Serve::start(phub_server(&serve).env("RUST_LOG", "warn"));
    let here = ["--listen", "127.0.0.1:0", "--transports", "shm"];
    // The doctor connects to hubs directly, whatever the proxy settings. Nothing listens at this proxy's
    // address.
    let nowhere = "http://127.0.0.1:1";
    let proxies =
        ["http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"].map(|name| (name, nowhere));
    let asked =
        phub_server(&[&["doctor"], &here[..], &["--peer", &hub.address]].concat()).envs(proxies).output();
    let asked = asked.unwrap();
    let (status, text) = (asked.status.code(), String::from_utf8(asked.stdout).unwrap());
    assert_eq!(status, Some(0), "{text}");
    for (name, words) in [
        ("way to", ["pass", "with 1 cores"]),
        ("path MTU to", ["pass", "bytes: a packet of this size arrived at the peer"]),
        ("RDMA to", ["note", "the peer's hub offers no RDMA"]),
    ] {
        says(check(&text, &format!("{name} {}", hub.address)), &words);
    }
    drop(hub);
    let (status, text) = doctor(&[&here[..], &["--peer", "127.0.0.1:1"]].concat());
    assert_eq!(status, Some(1), "{text}");
    says(check(&text, "way to 127.0.0.1:1"), &["FAIL", "start phub-server serve on the peer"]);
}

#[test]
fn scripts_read_one_object() {
    let _watchdog = Watchdog::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, text) = doctor(&["--json", "--listen", &address, "--transports", "shm"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, report["verdict"].as_str()), (Some(1), Some("fail")));
    let checks = report["checks"].as_array().unwrap();
    let port = checks.iter().find(|check| check["name"] == "control port").unwrap();
    assert_eq!(port["verdict"], "fail");
    assert!(port["fix"].as_str().unwrap().contains("--listen"), "{port}");
    let well = checks.iter().find(|check| check["name"] == "shared memory").unwrap();
    assert_eq!((&well["verdict"], well.get("fix")), (&Value::from("pass"), None));
}

#[test]
fn settings_that_make_no_sense() {
    let _watchdog = Watchdog::start();
    says(failure(&["doctor", "--model", "vgg-18"]), &["\"vgg-18\"", "did you mean vgg1"]);
    says(failure(&["doctor", "--workers", "0"]), &["--workers", "1..=4096"]);
    for peer in ["", "127.0.0.1:70000", "a:b:c"] {
        let ended = phub_server(&["doctor", "--peer", peer]).output().unwrap();
        assert_eq!((ended.status.code(), ended.stdout.len()), (Some(2), 0), "{ended:?}");
        says(String::from_utf8_lossy(&ended.stderr), &["--peer", "expected a host and a port"]);
    }
    says(failure(&["doctor", "--nics", "mlx5_0:x"]), &["--nics", "port that is not a number"]);
    let (status, text) = doctor(&["--cores", "100000", "--listen", "127.0.0.1:0", "--transports", "shm"]);
    assert_eq!(status, Some(1), "{text}");
    says(check(&text, "cores"), &["FAIL", "asked for 100000 cores", "fix: phub-server topology"]);
}

#[test]
fn help_teaches() {
    let _watchdog = Watchdog::start();
    let output = phub_server(&["doctor", "--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&output.stdout);
    says(&help, &["--transports verbs --nics mlx5", "Exit status: 0", "--workers", "--manifest", "--json"]);
}

/// Checks mistakes that stopped `serve` although the doctor reported no fault.
#[test]
fn what_stops_serve_is_a_failure() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("file"), "").unwrap();
    for (settings, name) in [
        (vec!["--tls-cert".to_owned(), at("none.crt"), "--tls-key".into(), at("none.key")], "certificate"),
        (vec!["--token-file".into(), at("none")], "secret"),
        (vec!["--interface".into(), "nowhere7".into()], "interface"),
        (vec!["--checkpoints".into(), at("no/where")], "checkpoints"),
        (vec!["--checkpoints".into(), at("file")], "checkpoints"),
        (vec!["--trace".into(), at("no/trace.json")], "timeline"),
        (vec!["--late-limit-s".into(), "3".into()], "settings"),
        (vec!["--data-listen".into(), "127.0.0.1:7999".into()], "settings"),
    ] {
        let listen = if name == "settings" { "127.0.0.1:7999" } else { "127.0.0.1:0" };
        let settings: Vec<&str> =
            ["--listen", listen].into_iter().chain(settings.iter().map(String::as_str)).collect();
        let (status, text) = doctor(&settings);
        assert_eq!(status, Some(1), "{settings:?}\n{text}");
        assert!(check(&text, name).starts_with("FAIL"), "{settings:?}\n{text}");
        says(failure(&[&["serve"][..], &settings].concat()), &["phub-server: "]);
    }
}

#[test]
fn a_job_that_does_not_fit_is_a_failure() {
    let _watchdog = Watchdog::start();
    let (status, text) = doctor(&["--listen", "127.0.0.1:0", "--model", "vgg19-22k", "--workers", "1024"]);
    assert_eq!(status, Some(1), "{text}");
    says(check(&text, "memory"), &["FAIL", "vgg19-22k with 1024 workers needs", "GB"]);
    let (_, text) = doctor(&["--listen", "127.0.0.1:0"]);
    assert!(check(&text, "threads").starts_with("pass"), "{text}");
}

/// Checks that no thread panics if the system refuses new threads. Root has no such limit, so an unprivileged
/// user runs the doctor.
#[test]
fn threads_that_cannot_be_made_are_a_failure() {
    let _watchdog = Watchdog::start();
    let place = tempfile::tempdir().unwrap();
    let everybody = || std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(place.path(), everybody()).unwrap();
    let program = place.path().join("phub-server");
    std::fs::copy(env!("CARGO_BIN_EXE_phub-server"), &program).unwrap();
    for command in ["doctor", "serve"] {
        let script =
            format!("ulimit -u 3 && exec {} {command} --listen 127.0.0.1:0 --cores 1", program.display());
        let mut shell = std::process::Command::new("setpriv");
        shell.args(["--reuid", "61234", "--regid", "61234", "--clear-groups", "bash", "-c", &script]);
        let shell = shell.env("HOME", place.path()).env_remove("PHUB_TOKEN").env("RUST_LOG", "error");
        let Ok(output) = shell.output() else {
            eprintln!("skipped: there is no setpriv");
            return;
        };
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        if said.contains("setpriv: ") {
            eprintln!("skipped: only root becomes another user");
            return;
        }
        assert_eq!(output.status.code(), Some(1), "{said}");
        says(&said, &["this hub needs 17 threads", "ulimit -u", "TasksMax="]);
        assert!(!said.contains("panicked"), "{said}");
    }
}
