//! A container whose seccomp profile refuses memfd_create. No memory is shared there, so hub and workers meet
//! over TCP.

use std::io::ErrorKind;
use std::process::Command;

use fabric::any::Transport;
use fabric::conformance::{Watchdog, rerun};
use hub_tests::{PATIENT_S, config, describe, push_all, ready_all, says, settings};
use phub_server::{Hub, HubSettings};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

const VARIABLE: &str = "PHUB_TEST_NO_MEMFD";

/// A Python script that becomes the given program, for which memfd_create fails with EPERM.
const REFUSE: &str = r#"
import ctypes, os, platform, struct, sys
number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x00050001), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(4, ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP
os.execv(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn where_memfd_create_is_refused_hub_and_workers_meet_over_tcp() {
    if std::env::var_os(VARIABLE).is_some() {
        return in_the_container();
    }
    let again = rerun(where_memfd_create_is_refused_hub_and_workers_meet_over_tcp);
    let mut command = Command::new("python3");
    command.args(["-c", REFUSE]).arg(again.get_program()).args(again.get_args()).env(VARIABLE, "1");
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return eprintln!("skipped: there is no python3, which sets the filter");
        }
        output => output.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{}\n{said}\n{error}", output.status);
}

fn in_the_container() {
    let _watchdog = Watchdog::start();
    assert_eq!(memfd_create("test", MemfdFlags::CLOEXEC).unwrap_err(), Errno::PERM);
    let with = |transports| Hub::start(&HubSettings { transports, ..settings(1, PATIENT_S) });
    for transports in [None, Some(vec![Transport::Tcp]), Some(vec![Transport::Shm, Transport::Tcp])] {
        let hub = with(transports).unwrap();
        let mut sessions = ready_all(2, |rank| config(&hub, "job", rank, 2));
        sessions.iter_mut().for_each(|session| push_all(session).unwrap());
        sessions.iter_mut().for_each(|session| session.wait_all().unwrap());
        let job = describe(&hub.address().to_string()).jobs.remove(0);
        assert!(job.members.iter().all(|member| member.transport.as_deref() == Some("tcp")), "{job:?}");
        sessions.into_iter().for_each(|session| session.leave().unwrap());
    }
    // The error is about this process, not about a worker, and says what to do.
    let error = with(Some(vec![Transport::Shm])).map(drop).unwrap_err();
    says(error, &["this process may not make shared memory (memfd_create: ", "seccomp", "TCP alone"]);
}
