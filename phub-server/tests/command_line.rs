//! The program's command line: what it says to settings that make no sense and to files that are
//! none. Each error names the setting or the object, what was seen, and what to do.

use crate::support::{failure, phub_server, says};
use fabric::conformance::Watchdog;

#[test]
fn serve_settings_out_of_range() {
    let _watchdog = Watchdog::start();
    for (arguments, words) in [
        (["--cores", "four"], ["--cores", "\"four\"", "4-7"]),
        (["--cores", "6-4"], ["--cores", "\"6-4\"", "lower number"]),
        (["--cores", "0"], ["asked for 0 cores", "at least 1", "omit"]),
        (["--cores", "100000"], ["asked for 100000 cores", "allowed", "at most"]),
        (["--cores", "9999,"], ["9999", "does not exist", "the host has cpus"]),
        (["--cores", "0-4000"], ["cpu", "does not exist", "the host has cpus"]),
        (["--cores", "0,0"], ["cpu", "0", "named twice"]),
        (["--idle", "never"], ["never", "--idle", "busy-poll"]),
        (["--listen", "localhost"], ["localhost", "--listen", "invalid"]),
        (["--heartbeat-limit-s", "0"], ["0", "--heartbeat-limit-s", "1..=3600"]),
    ] {
        let listen = if arguments[0] == "--listen" { vec![] } else { vec!["--listen", "127.0.0.1:0"] };
        says(failure(&[&["serve"][..], &listen, &arguments].concat()), &words);
    }
}

#[test]
fn settings_of_the_environment_are_named_by_it() {
    let _watchdog = Watchdog::start();
    let output = phub_server(&["serve"]).env("PHUB_HEARTBEAT_LIMIT_S", "soon").output().unwrap();
    assert!(!output.status.success());
    says(String::from_utf8_lossy(&output.stderr), &["soon", "--heartbeat-limit-s", "invalid"]);
    let output = phub_server(&["serve"]).env("RUST_LOG", "phub_server=loud").output().unwrap();
    assert!(!output.status.success());
    says(
        String::from_utf8_lossy(&output.stderr),
        &["RUST_LOG", "phub_server=loud", "warn,phub_server=debug"],
    );
}

#[test]
fn a_port_in_use() {
    let _watchdog = Watchdog::start();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = failure(&["serve", "--listen", &address]);
    says(error, &["cannot listen", &address, "in use", "choose another with --listen", "port 0"]);
}

#[test]
fn topology_of_bad_files() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.xml");
    let path = path.to_str().unwrap();
    if cfg!(not(feature = "hwloc")) {
        return says(
            failure(&["topology", "--xml", path]),
            &[path, "built without hwloc", "--features hwloc"],
        );
    }
    let next = "lstopo --of xml";
    says(failure(&["topology", "--xml", path]), &[path, "cannot be read", "No such file", next]);
    for (text, fault) in [
        ("", "empty"),
        ("not xml", "line 1"),
        ("<topology version=\"2.0\"><object type=", "line 1"),
        ("<?xml version=\"1.0\"?>\n<html>\n</html>", "topology"),
    ] {
        std::fs::write(path, text).unwrap();
        says(failure(&["topology", "--xml", path]), &[path, fault, next]);
    }
    std::fs::write(path, [0xff; 64]).unwrap();
    says(failure(&["topology", "--xml", path]), &[path]);
    std::fs::write(path, "<?xml version=\"1.0\"?>\n<topology version=\"2.0\">\n</topology>").unwrap();
    says(failure(&["topology", "--xml", path]), &[path]);
    says(failure(&["topology", "--xml", dir.path().to_str().unwrap()]), &["cannot be read", next]);
}

#[test]
fn topology_of_bad_descriptions() {
    let _watchdog = Watchdog::start();
    for (description, words) in [
        ("", ["synthetic", "expected", "sockets"]),
        ("sockets", ["synthetic", "expected", "sockets"]),
        ("sockets:0", ["synthetic", "byte 8", "\"0\""]),
        ("sockets:2 cores:x", ["synthetic", "byte 16", "\"x\""]),
        ("sockets:2 coers:8", ["synthetic", "byte 10", "\"coers\""]),
        ("sockets:65536 cores:65536", ["synthetic", "expected", "65536"]),
    ] {
        says(failure(&["topology", "--synthetic", description]), &words);
    }
    says(
        failure(&["topology", "--synthetic", "sockets:1", "--xml", "x"]),
        &["--synthetic", "cannot be used with", "--xml"],
    );
}

#[test]
fn topology_of_what_cannot_be_placed() {
    let _watchdog = Watchdog::start();
    let error = |more: &[&str]| {
        let host = ["topology", "--synthetic", "sockets:2 cores:2 nics:1", "--model", "resnet50"];
        failure(&[&host, more].concat())
    };
    says(error(&["--cores", "5"]), &["asked for 5 cores", "only 4", "at most 4"]);
    says(error(&["--cores", "0,7"]), &["cpu", "7", "does not exist", "0-3"]);
    says(error(&["--nics", "mlx5_0"]), &["\"mlx5_0\"", "nic0", "nic1"]);
    says(error(&["--except-nics", "mlx5_0"]), &["\"mlx5_0\"", "nic0", "nic1"]);
    says(error(&["--chunk-bytes", "100"]), &["chunk size 100", "multiple of 64"]);
    says(error(&["--workers", "0"]), &["0", "--workers", "1..=1024"]);
    let host = ["topology", "--synthetic", "sockets:1"];
    says(failure(&[&host[..], &["--model", "vgg-18"]].concat()), &["\"vgg-18\"", "did you mean vgg1"]);
}

#[test]
fn pictures_that_cannot_be_written() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing").join("host.svg");
    for path in [missing.as_path(), dir.path()] {
        let path = path.to_str().unwrap();
        let error = failure(&["topology", "--synthetic", "sockets:1", "--svg", path]);
        says(error, &["cannot write", path]);
    }
    let good = dir.path().join("host.svg");
    let arguments = ["topology", "--synthetic", "sockets:1 cores:2", "--svg", good.to_str().unwrap()];
    let output = phub_server(&arguments).output().unwrap();
    assert!(output.status.success());
    says(String::from_utf8_lossy(&output.stdout), &["Picture", good.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&good).unwrap().contains("<svg"));
}

#[test]
fn commands_that_do_not_exist() {
    let _watchdog = Watchdog::start();
    says(failure(&["serv"]), &["serv", "unrecognized", "serve"]);
    says(failure(&[]), &["Usage", "serve", "topology"]);
}
