//! A hub in a control group that limits its memory refuses jobs that do not fit, and keeps running. The test
//! makes a group below its own. If it has no permission for that, the test is skipped with a message. The
//! code that reads the limits has its own tests, with files that imitate control groups.

use std::fs;
use std::path::{Path, PathBuf};

use crate::processes::hub::start_hub;
use fabric::conformance::Watchdog;
use hub_tests::program::Program;
use hub_tests::training::Training;
use hub_tests::{config_at, describe, refused, says};
use pbox_core::{Key, Optimizer};
use worker_shim::{Session, SessionConfig};

const LIMIT_MIB: u64 = 1024;

/// A control group that is removed when it is dropped.
struct Group(PathBuf);

impl Group {
    /// Creates a group with this limit below the group of this process.
    fn new(name: &str, limit: u64) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |named: &str| groups.lines().find_map(|line| line.split_once(named)?.1.strip_prefix('/'));
        let places = [
            (
                of(":memory:").map(|path| Path::new("/sys/fs/cgroup/memory").join(path)),
                "memory.limit_in_bytes",
            ),
            (of("0::").map(|path| Path::new("/sys/fs/cgroup").join(path)), "memory.max"),
        ];
        let made = places.into_iter().find_map(|(above, file)| {
            let group = Group(above?.join(format!("phub-{name}-{}", std::process::id())));
            fs::create_dir(&group.0).ok()?;
            fs::write(group.0.join(file), limit.to_string()).ok()?;
            Some(group)
        });
        if made.is_none() {
            println!("skipped: this process may not make a control group with a limit on memory");
        }
        made
    }

    fn take(&self, program: &Program) {
        fs::write(self.0.join("cgroup.procs"), program.pid().to_string()).expect("our own child");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group is empty, because the hub was created after it and has ended.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns the settings of the only worker of a job, whose window and weights have this size.
fn of_mib(address: &str, job: &str, mib: u64) -> SessionConfig {
    let mut config = config_at(address, job, 0, 1);
    config.terms.keys = vec![Key::f32("large", [mib << 18])];
    config.terms.optimizer = Optimizer::Average;
    config.terms.chunk_bytes = 1 << 20;
    config
}

#[test]
fn a_job_beyond_the_limit_is_refused_and_the_hub_lives() {
    let _watchdog = Watchdog::start();
    let Some(group) = Group::new("limit", LIMIT_MIB << 20) else { return };
    let (hub, address) = start_hub(&[]);
    group.take(&hub);
    let innocent = Session::join(of_mib(&address, "innocent", 1)).unwrap();
    let why = refused(of_mib(&address, "large", LIMIT_MIB));
    says(why, &["\"large\"", "2.15 GB of memory", "the control group's limit of 1.07 GB", "memory."]);
    assert_eq!(describe(&address).jobs.len(), 1, "a refused job is none");
    innocent.leave().unwrap();
    Training::small("after").run(&address);
}

/// Memory promised to one job is not given to another. Before a worker connects, its job has not touched the
/// worker's window.
#[test]
fn what_one_job_was_promised_another_does_not_get() {
    let _watchdog = Watchdog::start();
    let Some(group) = Group::new("promise", LIMIT_MIB << 20) else { return };
    let (hub, address) = start_hub(&[]);
    group.take(&hub);
    let join = |job: &str| {
        let mut terms = of_mib(&address, job, 200).terms;
        terms.workers = 2;
        let request = hub_tests::join_request(0, 2);
        let body = serde_json::to_vec(&pbox_core::control::JoinRequest { terms, ..request }).unwrap();
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let post = agent.post(format!("http://{address}/v1/jobs/{job}/join"));
        let mut answer = post.header("authorization", hub_tests::authorization()).send(&body[..]).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    assert_eq!(join("first").0, 200);
    let (status, why) = join("second");
    assert_eq!(status, 507, "{why}");
    says(why, &["0.63 GB of memory", "control group", "promised to other jobs"]);
    assert_eq!(describe(&address).jobs.len(), 1);
}
