//! TLS on the control port as people use it: `phub-server certificate`, and the environment of workers. Also
//! a change of the certificate while a job runs, and refused clients.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabric::conformance::Watchdog;
use pbox_core::{Key, Optimizer};
use phub_server::{ControlLimits, Hub, HubSettings};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustix::process::Signal;
use worker_shim::{Session, SessionConfig};

use crate::support::{Serve, phub_server, says};

const SECRET: &str = "a-secret-that-nobody-reads";
const KEY: &str = "a-key-that-nobody-reads";

/// A worker in a process with this environment. It joins, makes a round for each line of input, and leaves at
/// the end.
#[test]
#[ignore = "the other tests start it"]
fn a_worker() {
    let hub = std::env::var("TEST_HUB").unwrap();
    let config = SessionConfig::new(&hub, "job", 0, 1, vec![Key::f32(KEY, [100])], Optimizer::Average);
    let mut session = match Session::join(config) {
        Ok(session) => session,
        Err(error) => return println!("\nrefused: {error}"),
    };
    println!("\njoined");
    for _ in std::io::stdin().lines() {
        session.keys().try_for_each(|key| session.push(key)).unwrap();
        session.wait_all().unwrap();
        println!("round");
    }
    session.leave().unwrap();
    println!("left");
}

struct Worker {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the program with variables such as `PHUB_TLS_FINGERPRINT`.
    fn start(hub: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tls::a_worker", "--ignored", "--nocapture"]);
        command.env("TEST_HUB", hub).env("PHUB_TOKEN", SECRET).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Worker { child, said }
    }

    /// Returns the first line of output that begins with one of these texts.
    fn says(&mut self, beginnings: &[&str]) -> String {
        let mut lines = self.said.by_ref().lines().map_while(Result::ok);
        let found = lines.find(|line| beginnings.iter().any(|beginning| line.starts_with(beginning)));
        found.expect("the worker says how it goes")
    }

    fn joined(hub: &str, variables: &[(&str, &str)]) -> Self {
        let mut worker = Worker::start(hub, variables);
        assert_eq!(worker.says(&["joined", "refused"]), "joined");
        worker
    }

    fn round(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.says(&["round"]), "round");
    }

    fn leave(mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.says(&["left"]), "left");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(hub: &str, variables: &[(&str, &str)]) -> String {
    Worker::start(hub, variables).says(&["joined", "refused"])
}

/// A hub's certificate, its key, and its fingerprint.
struct Pair {
    certificate: String,
    key: String,
    fingerprint: String,
}

/// Makes a certificate and its key with `phub-server certificate`.
fn pair(directory: &Path) -> Pair {
    let output = phub_server(&["certificate", "--out", directory.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let fingerprint = text.lines().find_map(|line| line.strip_prefix("fingerprint: ")).unwrap().to_owned();
    let path = |name| directory.join(name).to_str().unwrap().to_owned();
    Pair { certificate: path("hub.crt"), key: path("hub.key"), fingerprint }
}

fn serve(pair: Option<&Pair>) -> Command {
    let mut command =
        phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--transports", "tcp"]);
    command.env("PHUB_TOKEN", SECRET);
    if let Some(pair) = pair {
        command.args(["--tls-cert", &pair.certificate, "--tls-key", &pair.key]);
    }
    command
}

#[test]
fn workers_trust_a_hub_by_fingerprint_or_certificate_and_no_other() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let (ours, other) = (pair(&home.path().join("ours")), pair(&home.path().join("other")));
    let hub = Serve::start(&mut serve(Some(&ours)));
    let by_print = [("PHUB_TLS_FINGERPRINT", &*ours.fingerprint)];
    let by_file = [("PHUB_TLS_CA", &*ours.certificate)];
    for trust in [by_print, by_file] {
        let mut worker = Worker::joined(&hub.address, &trust);
        worker.round();
        worker.leave();
    }
    says(refused(&hub.address, &[]), &["speaks only TLS", "PHUB_TLS_FINGERPRINT"]);
    let shown = |trust: &[(&str, &str)]| {
        let mut command = phub_server(&["top", "--once", &hub.address]);
        let output = command.env("PHUB_TOKEN", SECRET).envs(trust.iter().copied()).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    says(shown(&by_print), &["job"]);
    says(shown(&[]), &["speaks only TLS"]);
    // The hub is there, so the error must not say that the hub cannot be reached.
    for (trust, words) in [
        ([("PHUB_TLS_FINGERPRINT", "12")], "the TLS settings of this process"),
        ([("PHUB_TLS_CA", "/nowhere")], "/nowhere"),
        ([("PHUB_TLS_CA", &*other.certificate)], "not from an authority in PHUB_TLS_CA"),
    ] {
        let said = shown(&trust);
        says(&said, &[words]);
        assert!(!said.contains("cannot be reached"), "{said}");
    }
    // A man-in-the-middle attack: another hub that has the same secret.
    let man = Serve::start(&mut serve(Some(&other)));
    says(refused(&man.address, &by_print), &[&ours.fingerprint, &other.fingerprint, "the hub's address"]);
    says(refused(&man.address, &by_file), &["PHUB_TLS_CA", "the hub's address"]);
    let plain = Serve::start(&mut serve(None));
    says(refused(&plain.address, &by_print), &["does not speak TLS", "--tls-cert"]);
    says(refused(&plain.address, &[("PHUB_TLS_FINGERPRINT", "12")]), &["64 hexadecimal digits"]);
    says(refused(&plain.address, &[("PHUB_TLS_CA", "/nowhere")]), &["/nowhere", "PEM"]);
    let again = phub_server(&["certificate", "--out", home.path().join("ours").to_str().unwrap()]).output();
    says(String::from_utf8(again.unwrap().stderr).unwrap(), &["hub.key", "exists"]);
}

#[test]
fn a_certificate_changes_while_a_job_runs() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (pair(&home.path().join("old")), pair(&home.path().join("new")));
    let mut hub = Serve::start(serve(Some(&old)).stderr(Stdio::piped()));
    let mut log = hub.stderr();
    let mut reload = || {
        hub.signal(Signal::HUP);
        let mut lines = log.by_ref().map_while(Result::ok);
        lines.find(|line| line.contains("SIGHUP") && line.contains("certificate")).unwrap()
    };
    let both = format!("{},{}", old.fingerprint, new.fingerprint);
    let mut worker = Worker::joined(&hub.address, &[("PHUB_TLS_FINGERPRINT", &both)]);
    worker.round();
    // A new certificate without its key is not used.
    std::fs::copy(&new.certificate, &old.certificate).unwrap();
    says(reload(), &["keeps the certificate", "expected a pair"]);
    says(refused(&hub.address, &[("PHUB_TLS_FINGERPRINT", &new.fingerprint)]), &[&old.fingerprint]);
    std::fs::copy(&new.key, &old.key).unwrap();
    says(reload(), &["certificate was read again"]);
    worker.round();
    says(refused(&hub.address, &[("PHUB_TLS_FINGERPRINT", &old.fingerprint)]), &[&new.fingerprint]);
    worker.leave();
    Worker::joined(&hub.address, &[("PHUB_TLS_FINGERPRINT", &new.fingerprint)]).leave();
}

/// Forwards connections to `address`, and keeps the bytes. Returns the address of the tap.
fn tap(address: String) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, seen) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for worker in listener.incoming() {
            let (worker, hub) = (worker.unwrap(), TcpStream::connect(&address).unwrap());
            for (from, to) in [(&worker, &hub), (&hub, &worker)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        kept.lock().unwrap().extend(&bytes[..count]);
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (own, seen)
}

#[test]
fn who_reads_the_wire_sees_neither_tokens_nor_names_of_keys() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let ours = pair(&home.path().join("ours"));
    // Without TLS, the tap sees both texts. That proves that the tap works.
    for is_encrypted in [false, true] {
        let pair = is_encrypted.then_some(&ours);
        let hub = Serve::start(&mut serve(pair));
        let (address, seen) = tap(hub.address.clone());
        let print = [("PHUB_TLS_FINGERPRINT", &*ours.fingerprint)];
        let mut worker = Worker::joined(&address, if is_encrypted { &print } else { &[] });
        worker.round();
        worker.leave();
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 500, "{} bytes crossed", seen.len());
        for words in ["Phub-Proof join.job.", KEY, "/v1/jobs/job", "\"token\""] {
            let is_seen = seen.windows(words.len()).any(|part| part == words.as_bytes());
            assert_eq!(is_seen, !is_encrypted, "{words:?}");
        }
    }
}

fn written(directory: &Path, name: &str, text: String) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_hub_with_a_client_authority_wants_certificates_and_one_that_expired_is_refused() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let hub_pair = pair(&home.path().join("hub"));
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let authority = written(home.path(), "authority", issuer.pem());
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["worker".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let certificate = written(home.path(), "certificate", certificate.pem());
    let key = written(home.path(), "key", key.serialize_pem());
    let hub = Serve::start(serve(Some(&hub_pair)).args(["--tls-client-ca", &authority]));
    let print = ("PHUB_TLS_FINGERPRINT", &*hub_pair.fingerprint);
    let shown = [print, ("PHUB_TLS_CERT", &certificate), ("PHUB_TLS_KEY", &key)];
    let mut worker = Worker::joined(&hub.address, &shown);
    worker.round();
    worker.leave();
    says(refused(&hub.address, &[print]), &["--tls-client-ca", "PHUB_TLS_CERT"]);
    let foreign = [print, ("PHUB_TLS_CERT", &*hub_pair.certificate), ("PHUB_TLS_KEY", &*hub_pair.key)];
    says(refused(&hub.address, &foreign), &["--tls-client-ca"]);

    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_after = date_time_ymd(2020, 1, 1);
    let expired = params.signed_by(&key, &issuer).unwrap();
    let expired = Pair {
        certificate: written(home.path(), "expired", expired.pem()),
        key: written(home.path(), "expired-key", key.serialize_pem()),
        fingerprint: String::new(),
    };
    let hub = Serve::start(&mut serve(Some(&expired)));
    says(refused(&hub.address, &[("PHUB_TLS_CA", &authority)]), &["expired", "SIGHUP"]);
}

#[test]
fn a_handshake_that_stalls_is_closed() {
    let _watchdog = Watchdog::start();
    let home = tempfile::tempdir().unwrap();
    let pair = pair(&home.path().join("hub"));
    let settings = HubSettings::of_arguments(
        ["--listen", "127.0.0.1:0", "--cores", "1", "--tls-cert", &pair.certificate, "--tls-key", &pair.key]
            .map(Into::into),
    );
    let limits = ControlLimits { headers: Duration::from_millis(100), ..ControlLimits::default() };
    let hub = Hub::start_with(&settings.unwrap(), limits).unwrap();
    // A client that sends nothing, and a client that sends only the beginning of a handshake.
    for said in [&[][..], &[0x16, 3, 1]] {
        let mut stream = TcpStream::connect(hub.address()).unwrap();
        stream.write_all(said).unwrap();
        match stream.read(&mut [0; 16]) {
            Ok(0) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            Ok(seen) => panic!("the hub said {seen} bytes"),
        }
    }
}
