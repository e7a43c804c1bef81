//! `phub-server publish`, `pull` and `versions` beside a job that trains: each version has the bits of its round.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use pbox_core::{Key, Optimizer};
use rustix::process::{Pid, Signal, kill_process};
use safetensors::SafeTensors;
use worker_shim::{Session, SessionConfig};

use crate::support::{Serve, failure, phub_server, says};

const SGD: Optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };

fn serve(dir: &Path) -> Serve {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--insecure"];
    Serve::start(phub_server(&arguments).current_dir(dir).env("RUST_LOG", "warn"))
}

/// Returns the worker of a job whose weights begin as ones. After `steps` steps they are `1 - steps / 2`.
fn worker(address: &str, optimizer: Optimizer) -> Session {
    let keys = vec![Key::f32("a", [100]), Key::f32("b", [100, 100])];
    let mut config = SessionConfig::new(address, "job", 0, 1, keys, optimizer);
    config.idle = IdlePolicy::SHARED;
    config.hub_wait = Duration::ZERO;
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
    session
}

fn steps(session: &mut Session, count: u32) {
    for _ in 0..count {
        let keys: Vec<_> = session.keys().collect();
        for key in keys {
            session.gradient_mut(key).unwrap().fill(1.0);
            session.push(key).unwrap();
        }
        session.wait_all().unwrap();
    }
}

/// Asserts that a file has the weights after `steps` steps, and nothing else.
#[track_caller]
fn check(file: &Path, names: [&str; 2], dtype: safetensors::Dtype, steps: u32) {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut there = tensors.names();
    there.sort_unstable();
    assert_eq!(there, names);
    let weight = 1.0 - steps as f32 / 2.0;
    for (name, shape) in names.into_iter().zip([&[100][..], &[100, 100]]) {
        let tensor = tensors.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, shape));
        let of = match dtype {
            safetensors::Dtype::F32 => weight.to_le_bytes().to_vec(),
            _ => weight.to_le_bytes()[2..].to_vec(), // halves are bf16, too
        };
        assert!(tensor.data().chunks(of.len()).all(|value| value == of), "{name}: not {weight}");
    }
}

/// A running `phub-server publish`, and its output. Dropping it kills the process.
struct Publisher(Child, BufReader<ChildStdout>);

impl Publisher {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Publisher(child, lines)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn output(arguments: &[&str]) -> String {
    let output = phub_server(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn versions_have_the_bits_of_their_rounds() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let [to, names, file] = ["versions", "names.json", "weights.safetensors"].map(path);
    std::fs::write(&names, r#"{"b": "decoder.weight"}"#).unwrap();
    let hub = serve(dir.path());
    let mut session = worker(&hub.address, SGD);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (to_text, names, file_text) = (text(&to), text(&names), text(&file));
    let publish =
        ["publish", "job", &hub.address, "--to", &to_text, "--dtype", "bf16", "--names", &names, "--once"];
    for (id, more) in (1..=3).zip([1, 2, 4]) {
        steps(&mut session, more);
        let kind = if id == 1 { "whole" } else { "delta" };
        says(output(&publish), &[&format!("version 00000{id}, {kind}, before round")]);
    }
    says(output(&["versions", "list", &to_text]), &["delta on 000002", "whole"]);
    says(output(&["versions", "verify", &to_text]), &["3 versions, each with its published checksums"]);
    for (id, steps) in [("1", 1), ("2", 3), ("3", 7)] {
        output(&["versions", "export", &to_text, "--version", id, "--to", &file_text]);
        check(&file, ["a", "decoder.weight"], safetensors::Dtype::BF16, steps);
        std::fs::remove_file(&file).unwrap();
    }
    says(output(&["pull", "job", &hub.address, "--to", &file_text]), &["2 tensors, 40.4 kB, before round 8"]);
    check(&file, ["a", "b"], safetensors::Dtype::F32, 7);
    // A publisher that writes into the visible directory was killed before it wrote the index.
    std::fs::remove_file(to.join("weight_v000003/model.safetensors.index.json")).unwrap();
    let without = "weight_v000003 has no index: its publisher is still writing this version, or ended";
    std::fs::write(to.join("weight_v000007"), "a note").unwrap();
    let note = "weight_v000007 is a file; expected the directory of a version: remove the file";
    says(output(&["versions", "list", &to_text]), &["delta on 000001", without, note]);
    says(
        failure(&["versions", "verify", &to_text]),
        &[without, "remove this directory if no publisher runs"],
    );
    std::fs::remove_file(&file).unwrap();
    output(&["versions", "export", &to_text, "--to", &file_text]);
    check(&file, ["a", "decoder.weight"], safetensors::Dtype::BF16, 3);
}

#[test]
fn deltas_of_changed_bytes_and_types_of_single_tensors_are_read_back() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let [to, names, file] =
        ["versions", "names.json", "weights.safetensors"].map(|name| dir.path().join(name));
    std::fs::write(&names, r#"{"b": {"name": "decoder.weight", "dtype": "f32"}}"#).unwrap();
    let hub = serve(dir.path());
    let mut session = worker(&hub.address, SGD);
    let [to_text, names_text, file_text] = [&to, &names, &file].map(|path| path.to_str().unwrap());
    let publish =
        ["publish", "job", &hub.address, "--to", to_text, "--once", "--dtype", "bf16", "--names", names_text];
    for (delta, id) in ["xor", "overwrite", "smaller"].into_iter().zip(1..) {
        steps(&mut session, 1);
        says(output(&[&publish[..], &["--delta", delta]].concat()), &[&format!("version 00000{id}")]);
    }
    let index = |id: u32| to.join(format!("weight_v00000{id}/model.safetensors.index.json"));
    says(std::fs::read_to_string(index(2)).unwrap(), &["\"delta_encoding\": \"overwrite\"", "\"000001\""]);
    output(&["versions", "export", to_text, "--version", "2", "--to", file_text]);
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let of = |name| tensors.tensor(name).unwrap();
    assert_eq!(
        [of("a"), of("decoder.weight")].map(|tensor| tensor.dtype()),
        [safetensors::Dtype::BF16, safetensors::Dtype::F32]
    );
    // After two steps each weight is 0.
    assert!([of("a"), of("decoder.weight")].iter().all(|tensor| tensor.data().iter().all(|&byte| byte == 0)));
    says(output(&["versions", "verify", to_text]), &["3 versions, each with its published checksums"]);
    says(
        failure(&[&publish[..], &["--delta", "add"]].concat()),
        &["[possible values: xor, overwrite, smaller]"],
    );
    std::fs::write(&names, r#"{"b": {"name": "decoder.weight", "dtype": "int8"}}"#).unwrap();
    says(failure(&publish), &["key \"b\", as tensor \"decoder.weight\": dtype \"int8\": expected \"f32\""]);
}

#[test]
fn cut_and_joined_tensors_are_published_as_deltas_and_read_back() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let [to, names, file] = ["versions", "names.json", "weights.safetensors"]
        .map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let hub = serve(dir.path());
    let keys = vec![Key::f32("qkv", [12, 4]), Key::f32("gate", [3, 4]), Key::f32("up", [3, 4])];
    let mut config = SessionConfig::new(&hub.address, "job", 0, 1, keys, SGD);
    (config.idle, config.hub_wait) = (IdlePolicy::SHARED, Duration::ZERO);
    let mut session = Session::join(config).unwrap();
    let fill = |weights: &mut [f32]| weights.iter_mut().zip(0u8..).for_each(|(to, at)| *to = at.into());
    session.broadcast_weights(|_, weights| fill(weights)).unwrap();
    let publish = ["publish", "job", &hub.address, "--to", &to, "--once", "--names", &names];
    // A mapping that does not fit leaves no version.
    let mapping = |rows: u32| {
        format!(
            r#"{{"qkv": {{"split": [{{"name": "q", "shape": [8, 4]}}, {{"name": "k", "shape": [2, 4]}},
            {{"name": "v", "shape": [{rows}, 4]}}]}}, "gate_up": {{"join": ["gate", "up"], "shape": [2, 3, 4]}}}}"#
        )
    };
    std::fs::write(&names, mapping(3)).unwrap();
    steps(&mut session, 1);
    says(
        failure(&publish),
        &["key \"qkv\" [12, 4] of job \"job\" and tensor \"v\" [3, 4]: the part has 3 rows", "room for 2"],
    );
    assert!(!Path::new(&to).exists(), "nothing was published");
    std::fs::write(&names, mapping(2)).unwrap();
    says(output(&publish), &["version 000001, whole, before round 2", "4 of 4 tensors"]);
    steps(&mut session, 2);
    says(output(&publish), &["version 000002, delta, before round 4", "4 of 4 tensors"]);
    output(&["versions", "export", &to, "--to", &file]);
    let check = |file: &str| {
        let bytes = std::fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(tensors.len(), 4);
        // Each element began as its place in its key, and three steps have subtracted 1.5 in all.
        let gate_up: Vec<u8> = (0..12).chain(0..12).collect();
        for (name, shape, places) in [
            ("q", &[8, 4][..], (0..32).collect()),
            ("k", &[2, 4], (32..40).collect()),
            ("v", &[2, 4], (40..48).collect()),
            ("gate_up", &[2, 3, 4], gate_up),
        ] {
            let tensor = tensors.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::F32, shape));
            let expected = places.into_iter().flat_map(|at: u8| (f32::from(at) - 1.5).to_le_bytes());
            assert!(tensor.data() == expected.collect::<Vec<_>>(), "{name}");
        }
    };
    check(&file);
    std::fs::remove_file(&file).unwrap();
    output(&["pull", "job", &hub.address, "--to", &file, "--names", &names]);
    check(&file);
}

#[test]
fn a_publisher_waits_for_its_job_follows_it_and_ends_with_it() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("versions").to_str().unwrap().to_owned();
    let hub = serve(dir.path());
    let arguments = ["publish", "job", &hub.address, "--to", &to, "--every", "1", "--fetch-deltas"];
    let mut publisher = Publisher::start(&mut phub_server(&arguments));
    says(publisher.line(), &["waiting: ", "this hub has no job \"job\""]);
    let mut session = worker(&hub.address, SGD);
    let mut line = publisher.line();
    while line.starts_with("waiting") {
        line = publisher.line();
    }
    says(line, &["version 000001, whole"]);
    steps(&mut session, 1);
    says(publisher.line(), &["version 000002, delta, before round 2"]);
    session.leave().unwrap();
    says(publisher.line(), &["job \"job\" has ended; the last version is before round 2"]);
    assert!(publisher.0.wait().unwrap().success());
}

#[test]
fn a_signal_ends_a_publisher_and_leaves_whole_versions() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("versions").to_str().unwrap().to_owned();
    let hub = serve(dir.path());
    let _session = worker(&hub.address, SGD);
    let mut publisher = Publisher::start(&mut phub_server(&["publish", "job", &hub.address, "--to", &to]));
    says(publisher.line(), &["version 000001, whole"]);
    let second = failure(&["publish", "job", &hub.address, "--to", &to, "--once"]);
    says(second, &["another program publishes versions in this directory"]);
    kill_process(Pid::from_child(&publisher.0), Signal::INT).unwrap();
    assert!(publisher.0.wait().unwrap().success());
    says(output(&["versions", "verify", &to]), &["1 version,"]);
}

#[test]
fn a_publisher_whose_stdout_is_closed_continues() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("versions");
    let hub = serve(dir.path());
    let mut session = worker(&hub.address, SGD);
    let arguments = ["publish", "job", &hub.address, "--to", to.to_str().unwrap(), "--every", "1"];
    let mut publisher =
        phub_server(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(publisher.stdout.take().unwrap()).read_line(&mut first).unwrap(); // and closes the pipe
    says(first, &["version 000001, whole"]);
    for id in 2..=3 {
        steps(&mut session, 1);
        while !to.join(format!("weight_v00000{id}")).exists() {
            assert!(publisher.try_wait().unwrap().is_none(), "the publisher has ended");
            std::thread::yield_now();
        }
    }
    session.leave().unwrap();
    let ended = publisher.wait_with_output().unwrap();
    assert!(ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(said.matches("the reader of stdout has ended; the work continues").count(), 1, "{said}");
}

#[test]
fn other_weights_of_a_round_that_is_published_are_a_version() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("versions").to_str().unwrap().to_owned();
    let hub = serve(dir.path());
    let publish = ["publish", "job", &hub.address, "--to", &to, "--once"];
    for (id, learning_rate) in [(1, 0.5), (2, 0.25)] {
        let mut session = worker(&hub.address, Optimizer::Sgd { learning_rate, weight_decay: 0.0 });
        steps(&mut session, 1);
        says(output(&publish), &[&format!("version 00000{id}"), "before round 2"]);
        assert_eq!(output(&publish), "", "the same weights");
        session.leave().unwrap();
        says(
            failure(&["pull", "job", &hub.address, "--to", &format!("{to}.none")]),
            &["this hub has no job \"job\""],
        );
    }
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_leaves_no_file() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = serve(dir.path());
    let _session = worker(&hub.address, SGD);
    let into = dir.path().join("into");
    std::fs::create_dir(&into).unwrap();
    let path = |name: &str| into.join(name).to_str().unwrap().to_owned();
    let (file, to) = (path("weights.safetensors"), path("versions"));
    for arguments in [
        &["pull", "job", &hub.address, "--to", &file][..],
        &["publish", "job", &hub.address, "--to", &to, "--once"],
    ] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 20; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_phub-server")]);
        let ended = limited.args(arguments).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        says(String::from_utf8(ended.stderr).unwrap(), &["File too large", into.to_str().unwrap()]);
    }
    assert_eq!(std::fs::read_dir(&into).unwrap().count(), 1, "the directory of versions alone");
    says(failure(&["versions", "verify", &to]), &["has no versions"]);
}

/// Starts a false hub, which describes itself as the hub at `honest` does, and announces a state of this
/// length. Returns its address.
fn liar(honest: &str, state_bytes: u64) -> String {
    let mut hub = TcpStream::connect(honest).unwrap();
    write!(hub, "GET /v1/hub HTTP/1.1\r\nhost: {honest}\r\nconnection: close\r\n\r\n").unwrap();
    let mut described = Vec::new();
    hub.read_to_end(&mut described).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.unwrap());
            let lines: Vec<String> =
                client.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
            let state = format!("HTTP/1.1 200 OK\r\ncontent-length: {state_bytes}\r\n\r\n");
            let is_state = lines.first().is_some_and(|line| line.contains("/state"));
            client.get_mut().write_all(if is_state { state.as_bytes() } else { &described }).unwrap();
        }
    });
    address
}

#[test]
fn a_state_that_is_longer_than_its_model_is_refused_before_memory_is_reserved() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("weights.safetensors").to_str().unwrap().to_owned();
    let hub = serve(dir.path());
    let _session = worker(&hub.address, SGD);
    let liar = liar(&hub.address, 10 << 40);
    says(
        failure(&["pull", "job", &liar, "--to", &file]),
        &["the weights of job", "have 10995116277760 bytes", "model has room"],
    );
}

#[test]
fn what_cannot_be_published_is_named() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let [to, names, file] = ["versions", "names.json", "weights.safetensors"]
        .map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&names, r#"{"c": "decoder.weight"}"#).unwrap();
    let hub = serve(dir.path());
    let publish = ["publish", "job", &hub.address, "--to", &to, "--once"];
    says(failure(&publish), &["this hub has no job \"job\""]);
    assert!(!std::fs::exists(&to).unwrap(), "a new directory without versions does not stay");
    std::fs::create_dir(&to).unwrap();
    let each_rounds = |more: &[&str]| failure(&[&publish[..5], &["--each-rounds"], more].concat());
    says(each_rounds(&["0"]), &["invalid value '0'", "--each-rounds <ROUNDS>"]);
    for other in [&["8", "--once"][..], &["8", "--every", "60"]] {
        says(each_rounds(other), &["--each-rounds <ROUNDS>' cannot be used with", other[1]]);
    }
    let _session = worker(&hub.address, SGD);
    says(failure(&[&publish[..], &["--names", &names]].concat()), &["job \"job\" has no key \"c\""]);
    std::fs::write(&names, r#"{"a": "b"}"#).unwrap();
    says(
        failure(&[&publish[..], &["--names", &names]].concat()),
        &["job \"job\" would have two tensors with the name \"b\", of key \"a\" and of key \"b\""],
    );
    for (text, why) in [("{", "expected a JSON object of names"), (r#"{"a": 1}"#, "line 1 column")] {
        std::fs::write(&names, text).unwrap();
        let ended = phub_server(&[&publish[..], &["--names", &names]].concat()).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "a wrong setting: {ended:?}");
        says(String::from_utf8(ended.stderr).unwrap(), &[&names, why]);
    }
    let fifo = dir.path().join("fifo").to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (arguments, why) in [
        (&["publish", "job", &hub.address, "--to", &to, "--names", "/dev/zero"][..], "expected at most"),
        (&[&publish[..], &["--also", &fifo]].concat(), "neither a directory nor a pipe"),
        (
            &[&publish[..], &["--also", dir.path().to_str().unwrap()]].concat(),
            "neither a directory nor a pipe",
        ),
        (&["publish", "a job", &hub.address, "--to", &to], "expected 1 to 64 letters"),
        (&["publish", "job", &format!("{0},{0}", hub.address), "--to", &to], "is listed twice"),
        (&["pull", "job", "127.0.0.1:70000", "--to", &file], "127.0.0.1:70000"),
    ] {
        let ended = phub_server(arguments).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "a wrong setting: {ended:?}");
        says(String::from_utf8(ended.stderr).unwrap(), &[why]);
    }
    says(failure(&[&publish[..], &["--ema"]].concat()), &["keeps no averages of its weights"]);
    std::fs::write(&file, "").unwrap();
    says(failure(&["pull", "job", &hub.address, "--to", &file]), &["exists already"]);
    says(
        failure(&["versions", "verify", dir.path().join("nowhere").to_str().unwrap()]),
        &["nowhere", "listing versions"],
    );
    says(failure(&["versions", "export", &to, "--to", &file]), &["has no versions"]);
    says(
        failure(&["versions", "verify", &to]),
        &[&to, "has no versions; expected a directory of `phub-server publish`"],
    );
    assert_eq!(std::fs::read_dir(&to).unwrap().count(), 1, "the lock alone: nothing was published");
}
