//! `phub-server serve` as a process. On SIGINT and SIGTERM the hub ends well even if a job is in the middle
//! of a round. The hub notifies its workers, and leaves nothing behind.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Serve, failure, phub_server, says};
use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use pbox_core::{Key, Optimizer};
use rustix::process::{Pid, Signal, kill_process_group};
use worker_shim::{Session, SessionConfig, SessionError};

/// Returns a hub that runs in an empty directory.
fn serve(dir: &Path, more: &[&str]) -> Serve {
    let arguments = [&["serve", "--listen", "127.0.0.1:0", "--cores", "1"], more].concat();
    Serve::start(phub_server(&arguments).current_dir(dir).env("RUST_LOG", "warn").process_group(0))
}

/// Returns the two workers of a job in the middle of a round: only rank 0 has pushed.
fn in_the_middle_of_a_round(address: &str) -> Vec<Session> {
    let mut sessions: Vec<Session> = std::thread::scope(|scope| {
        let join = |rank| {
            let keys = vec![Key::f32("a", [100]), Key::f32("b", [10_000])];
            let mut config = SessionConfig::new(address, "job", rank, 2, keys, Optimizer::Average);
            config.idle = IdlePolicy::SHARED;
            config.hub_wait = Duration::ZERO;
            Session::join(config).unwrap()
        };
        let threads: Vec<_> = (0..2).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    push_all(&mut sessions[0]).unwrap();
    sessions
}

fn push_all(session: &mut Session) -> Result<(), SessionError> {
    session.keys().try_for_each(|key| session.push(key))
}

/// Returns the sockets of a process that have abstract names.
fn named_sockets(pid: u32) -> Vec<String> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let own: Vec<String> = links.map(|link| link.display().to_string()).collect();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    // The columns are "Num RefCount Protocol Flags Type St Inode Path".
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let named = fields.filter(|fields| {
        fields.get(7).is_some_and(|name| name.starts_with("@phub-"))
            && own.contains(&format!("socket:[{}]", fields[6]))
    });
    named.map(|fields| fields[7].to_owned()).collect()
}

/// Returns what a process with this id and these sockets has left in the system. The process was started in its own group.
fn left_behind(pid: u32, dir: &Path, names: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let is_left = |name: &&String| sockets.lines().any(|line| line.ends_with(&format!(" {name}")));
    left.extend(names.iter().filter(is_left).cloned());
    for place in [Path::new("/dev/shm"), dir] {
        let files = std::fs::read_dir(place).into_iter().flatten().flatten().map(|file| file.path());
        let ours = files.filter(|path| place == dir || path.to_string_lossy().contains("phub"));
        left.extend(ours.map(|path| path.display().to_string()));
    }
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The line is "pid (name) state parent group ...". Keeps the lines of the process and of its descendants. The parent of
        // a descendant may have ended.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        if fields.get(2) == Some(&&*pid.to_string()) {
            left.push(stat);
        }
    }
    left
}

#[test]
fn a_child_whose_parent_has_ended_counts_as_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh").args(["-c", "sleep 1000 &"]).process_group(0).spawn().unwrap();
    assert!(shell.wait().unwrap().success());
    let left = left_behind(shell.id(), dir.path(), &[]);
    kill_process_group(Pid::from_child(&shell), Signal::KILL).unwrap();
    assert!(left.iter().any(|line| line.contains("(sleep)") || line.contains("(sh)")), "{left:?}");
}

fn a_signal_ends_it_well(signal: Signal, name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = serve(dir.path(), &[]);
    let mut sessions = in_the_middle_of_a_round(&hub.address);
    let names = named_sockets(hub.pid());
    assert!(
        left_behind(hub.pid(), dir.path(), &names).len() > names.len(),
        "the test sees what there is to see"
    );
    assert!(!names.is_empty(), "the hub's, and the one by which it wakes each worker");
    let told = ["\"job\" failed", "the hub was stopped", name];
    std::thread::scope(|scope| {
        let (waiting, other) = sessions.split_at_mut(1);
        let waiting = scope.spawn(|| waiting[0].wait_all().unwrap_err());
        hub.signal(signal);
        says(waiting.join().unwrap(), &told);
        // The notice may arrive before the cores have dropped the job. So the round that rank 0 has pushed
        // may still complete, but the next round cannot.
        let mut round = || push_all(&mut other[0]).and_then(|()| other[0].wait_all());
        says(round().and_then(|()| round()).unwrap_err(), &told);
    });
    let (status, said) = hub.end();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    drop(sessions);
    assert_eq!(left_behind(hub.pid(), dir.path(), &names), [""; 0]);
}

#[test]
fn an_interrupt_ends_it_well() {
    let _watchdog = Watchdog::start();
    a_signal_ends_it_well(Signal::INT, "SIGINT");
}

#[test]
fn a_termination_ends_it_well() {
    let _watchdog = Watchdog::start();
    a_signal_ends_it_well(Signal::TERM, "SIGTERM");
}

/// Checks that a stop waits some seconds for each job in the middle of a round, because checkpoints wait for
/// the round.
#[test]
fn a_second_signal_ends_it_at_once_and_says_what_was_not_written() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut command = phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--checkpoints"]);
    let mut hub = Serve::start(command.arg(dir.path()).stderr(Stdio::piped()));
    let mut log = hub.stderr();
    let names: Vec<String> = (0..10).map(|job| format!("job-{job}")).collect();
    let sessions: Vec<Session> = names.iter().map(|name| between_two_keys(&hub.address, name)).collect();
    hub.signal(Signal::TERM);
    let said = |line: &String| line.contains("SIGTERM") && line.contains("another signal");
    assert!(log.by_ref().map_while(Result::ok).any(|line| said(&line)), "the first signal says so");
    // After this line, there are checkpoints to write.
    assert!(log.by_ref().map_while(Result::ok).any(|line| line.contains("no checkpoint at the stop")));
    hub.signal(Signal::INT);
    let (status, _) = hub.end();
    let words = log.map_while(Result::ok).find(|line| line.starts_with("phub-server: ")).unwrap();
    assert_eq!(status.code(), Some(1), "{words}");
    says(&words, &["ended at once by SIGINT", "did not write"]);
    let has_file = |name: &String| dir.path().join(format!("{name}.safetensors")).exists();
    for name in names.iter().filter(|name| !has_file(name)) {
        says(&words, &[name]);
    }
    drop(sessions);
}

/// Checks the exit status if a checkpoint was not written. In earlier versions it was 0, so a supervisor took every
/// checkpoint for written.
#[test]
fn a_last_checkpoint_that_cannot_be_written_ends_it_with_an_error() {
    let _watchdog = Watchdog::start();
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("checkpoints");
    let mut command = phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--checkpoints"]);
    let mut hub = Serve::start(command.arg(&dir).stderr(Stdio::piped()));
    let log = hub.stderr();
    let mut session = between_two_keys(&hub.address, "job");
    let last = session.keys().last().unwrap();
    session.push(last).unwrap();
    session.wait(last).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::write(&dir, "no directory").unwrap();
    hub.signal(Signal::TERM);
    let (status, _) = hub.end();
    let words = log.map_while(Result::ok).find(|line| line.starts_with("phub-server: ")).unwrap_or_default();
    assert_eq!(status.code(), Some(1), "{words}");
    let file = dir.join("job.safetensors").display().to_string();
    says(
        &words,
        &[
            "job \"job\"",
            "last checkpoint was not written",
            &file,
            "ot a directory",
            "its earlier checkpoint",
        ],
    );
}

/// Returns the only worker of a job, which has pushed one of two keys.
fn between_two_keys(address: &str, job: &str) -> Session {
    let keys = vec![Key::f32("a", [100]), Key::f32("b", [100])];
    let optimizer = Optimizer::Sgd { learning_rate: 0.5, weight_decay: 0.0 };
    let mut config = SessionConfig::new(address, job, 0, 1, keys, optimizer);
    config.idle = IdlePolicy::SHARED;
    config.hub_wait = Duration::ZERO;
    let mut session = Session::join(config).unwrap();
    session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
    let first = session.keys().next().unwrap();
    session.push(first).unwrap();
    session.wait(first).unwrap();
    session
}

#[test]
fn a_job_beyond_the_limit_on_file_sizes_is_refused_and_other_jobs_continue() {
    let _watchdog = Watchdog::start();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 20000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_phub-server")]);
    limited.args(["serve", "--listen", "127.0.0.1:0", "--cores", "1"]).env("RUST_LOG", "error");
    let mut hub = Serve::start(&mut limited);
    let mut small = between_two_keys(&hub.address, "small");
    let keys = vec![Key::f32("large", [20_000_000])];
    let large = SessionConfig::new(&hub.address, "large", 0, 1, keys, Optimizer::Average);
    says(Session::join(large).map(drop).unwrap_err(), &["File too large"]);
    let second = small.keys().nth(1).unwrap();
    small.push(second).unwrap();
    small.wait(second).unwrap();
    small.leave().unwrap();
    hub.signal(Signal::TERM);
    assert_eq!(hub.end().0.code(), Some(0));
}

#[test]
fn without_a_job_it_ends_well_too() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut hub = serve(dir.path(), &[]);
    let names = named_sockets(hub.pid());
    hub.signal(Signal::TERM);
    assert_eq!(hub.end().0.code(), Some(0));
    assert_eq!(left_behind(hub.pid(), dir.path(), &names), [""; 0]);
}

#[test]
fn a_kill_leaves_nothing_behind() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut hub = serve(dir.path(), &[]);
    let mut sessions = in_the_middle_of_a_round(&hub.address);
    let names = named_sockets(hub.pid());
    hub.signal(Signal::KILL);
    says(sessions[0].wait_all().unwrap_err(), &["\"job\"", "lost the hub", &hub.address, "was killed"]);
    assert!(!hub.end().0.success());
    assert_eq!(left_behind(hub.pid(), dir.path(), &names), [""; 0]);
}

/// Checks that a hub that is silent beyond the limit is given up, although its links are open.
#[test]
fn a_hub_stopped_beyond_the_limit_is_given_up() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let hub = serve(dir.path(), &["--heartbeat-limit-s", "1"]);
    let mut sessions = in_the_middle_of_a_round(&hub.address);
    hub.signal(Signal::STOP);
    says(
        sessions[0].wait_all().unwrap_err(),
        &["\"job\"", "lost the hub", &hub.address, "no answer came within"],
    );
}

#[test]
fn its_log_is_plain_text_in_a_file() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--cores", "1"];
    let mut hub = Serve::start(phub_server(&arguments).stderr(std::fs::File::create(&log).unwrap()));
    hub.signal(Signal::TERM);
    assert_eq!(hub.end().0.code(), Some(0));
    let log = std::fs::read_to_string(&log).unwrap();
    says(&log, &["hub is up", &hub.address, "cpu=", "hub stops", "SIGTERM", "hub stopped"]);
    assert_eq!(log.contains("windows have small pages"), !fabric::shared_huge_pages(), "{log}");
    assert!(!log.contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn a_second_hub_takes_another_port() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let first = serve(dir.path(), &[]);
    let error = failure(&["serve", "--cores", "1", "--listen", &first.address]);
    says(error, &["cannot listen", &first.address, "in use", "--listen"]);
    let second = serve(dir.path(), &[]);
    assert_ne!(first.address, second.address);
    let sessions = [&first, &second].map(|hub| in_the_middle_of_a_round(&hub.address));
    drop(sessions);
}

/// Checks that a drained hub ends with the status that tells its systemd unit not to start it again.
#[test]
fn a_drained_hub_ends_with_its_last_job() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut hub = serve(dir.path(), &[]);
    let mut sessions = in_the_middle_of_a_round(&hub.address);
    hub.signal(Signal::USR1);
    push_all(&mut sessions[1]).unwrap();
    sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
    sessions.into_iter().for_each(|session| session.leave().unwrap());
    let (status, said) = hub.end();
    assert_eq!((status.code(), said.as_str()), (Some(i32::from(phub_cli::exit::DRAINED)), ""));
}

/// Checks that `timeout 8 phub-server serve` works: `timeout` sends SIGTERM to the hub, and then to the hub's
/// group.
#[test]
fn a_second_sigterm_at_once_is_the_first() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut command = phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--checkpoints"]);
    let mut hub = Serve::start(command.arg(dir.path()).stderr(Stdio::piped()));
    let mut log = hub.stderr();
    let session = between_two_keys(&hub.address, "job");
    hub.signal(Signal::TERM);
    // The hub waits for the second key. From now on, another signal would end it at once.
    assert!(log.by_ref().map_while(Result::ok).any(|line| line.contains("SIGTERM: the hub stops")));
    hub.signal(Signal::TERM);
    let (status, _) = hub.end();
    let said: Vec<String> = log.map_while(Result::ok).collect();
    assert_eq!(status.code(), Some(0), "{said:?}");
    drop(session);
}

#[test]
fn nobody_need_read_what_it_says() {
    let _watchdog = Watchdog::start();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command =
        phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--unused-limit-s", "0"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    says(log, &["writing to stdout", "hub stopped"]);
}

/// Checks the end of commands if the reader of stdout has ended, and if the disk under stdout is full.
#[test]
fn what_nobody_reads_ends_no_command_in_a_panic() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let (path, record) = (dir.path().to_str().unwrap(), dir.path().join("hub.record"));
    let record = record.to_str().unwrap();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--insecure", "--idle", "sleep"];
    let recorded = [&serve[..], &["--unused-limit-s", "0", "--record", record]].concat();
    assert!(phub_server(&recorded).output().unwrap().status.success());
    let hub = Serve::start(phub_server(&serve).stderr(Stdio::null()));
    for arguments in [
        &["token", "--new"][..],
        &["checkpoint", "list", path],
        &["topology"],
        &["top", "--once", &hub.address],
        &["doctor", "--listen", &hub.address],
        &["doctor", "--listen", &hub.address, "--json"],
        &["replay", record],
    ] {
        let end = |stdout: Stdio| {
            let output = phub_server(arguments).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        assert_eq!(end(write.into()), end(Stdio::null()), "{arguments:?}");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, error) = end(full.into());
        assert_eq!(code, Some(1), "{arguments:?}: {error}");
        says(error, &["writing to stdout", "No space left on device"]);
    }
}

/// Checks commands whose exit status is their result, as in `phub-server checkpoint verify FILE | grep -q x`.
#[test]
fn a_fault_that_nobody_reads_is_in_the_exit_status() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let [record, none] =
        ["hub.record", "none"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--cores", "1", "--insecure", "--idle", "sleep"];
    let recorded = [&serve[..], &["--unused-limit-s", "0", "--record", &record]].concat();
    assert!(phub_server(&recorded).output().unwrap().status.success());
    let other = std::fs::read_to_string(&record).unwrap().replace("\"answer\":\"", "\"answer\":\"another ");
    std::fs::write(&record, other).unwrap();
    std::fs::create_dir(dir.path().join("weight_v000001")).unwrap();
    for arguments in [
        &["checkpoint", "verify", &none][..],
        &["versions", "verify", dir.path().to_str().unwrap()],
        &["replay", &record],
    ] {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        let ended = phub_server(arguments).stdout(write).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {ended:?}");
    }
}

/// Checks that the log, `status`, `stop` and `drain` name who joins, who is refused, and who stops the hub.
#[test]
fn who_joins_who_is_refused_and_who_stops_is_named() {
    let _watchdog = Watchdog::start();
    let secret = "0123456789abcdef0123456789abcdef";
    let mut hub = Serve::start(
        phub_server(&["serve", "--listen", "127.0.0.1:0", "--cores", "1"])
            .env("PHUB_TOKEN", secret)
            .stderr(Stdio::piped()),
    );
    let log = hub.stderr();
    let address = hub.address.clone();
    let said = |arguments: &[&str]| {
        let output = phub_server(arguments).env("PHUB_TOKEN", secret).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    };
    let keys = vec![Key::f32("a", [100])];
    let mut config = SessionConfig::new(&address, "job", 0, 1, keys, Optimizer::Average);
    config.token = Some(worker_shim::Credential::parse(secret, "the test").unwrap());
    config.idle = IdlePolicy::SHARED;
    config.hub_wait = Duration::ZERO;
    let session = Session::join(config.clone()).unwrap();
    assert!(Session::join(config.clone()).is_err(), "the rank is taken");
    config.token =
        Some(worker_shim::Credential::parse("another-secret-of-32-letters-...", "the test").unwrap());
    assert!(Session::join(config).is_err(), "it is another secret");

    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let place = format!("127.0.0.1 ({})", host.trim());
    let status = said(&["status", &format!("http://{address}/")]);
    says(
        &status,
        &[
            "job job:",
            &format!("rank    0  {place}"),
            "refused of late",
            "rank 0 of job \"job\" is taken",
            "not made with the hub's secret",
        ],
    );
    assert!(status.matches(&place).count() >= 3, "{status}");
    let json: serde_json::Value = serde_json::from_str(&said(&["status", "--json", &address])).unwrap();
    assert_eq!(json["jobs"][0]["members"][0]["address"], "127.0.0.1");
    says(said(&["stop", "job", &address]), &["job \"job\" was stopped"]);
    says(said(&["drain", &address]), &["takes no more jobs"]);
    drop(session);
    assert_eq!(hub.end().0.code(), Some(i32::from(phub_cli::exit::DRAINED)));
    let log: Vec<String> = log.map_while(Result::ok).collect();
    let made = log.iter().find(|line| line.contains("new job")).expect("the hub says so");
    says(made, &["optimizer=\"average\"", "cores=\"0\""]);
    let settings = log.iter().find(|line| line.contains("settings: control 127.0.0.1:0")).expect("one line");
    says(settings, &["wants tokens", "checkpoints off", "cores 1"]);
    assert!(!log.iter().any(|line| line.contains("Some(")), "Rust's own words: {log:#?}");
    for words in ["worker joined", "refused", "an operator stops a job", "the hub takes no more jobs"] {
        let line = log.iter().find(|line| line.contains(words));
        assert!(line.is_some_and(|line| line.contains("127.0.0.1")), "{words}: {log:#?}");
    }
}

/// Checks that `stop` prints why it waits. In earlier versions, it waited five minutes for a hub that hung, and printed
/// nothing.
#[test]
fn a_stop_says_that_it_waits_and_for_what() {
    let _watchdog = Watchdog::start();
    let hub = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hub.local_addr().unwrap().to_string();
    let mut stop = phub_server(&["stop", "resnet", &address]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(stop.stderr.take().unwrap()).lines();
    let words = lines.next().unwrap().unwrap();
    stop.kill().unwrap();
    stop.wait().unwrap();
    says(
        words,
        &[&address, "has not answered for", "of at most 300 s", "asked for the time, no answer came"],
    );
}
