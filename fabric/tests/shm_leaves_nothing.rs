//! A test that `kill -9` of either end leaves nothing in the system: no process, no thread, no descriptor, no
//! mapping, no file. The file has no other test, because this one counts the resources of its process.
#![forbid(unsafe_code)]

mod shm_bed;

use std::fs;
use std::time::Duration;

use fabric::conformance::{Bed, End, Far, HubAndWorkers, Meeting, Peer, Role, Shape, Transport, Watchdog};
use fabric::shm::{Port, group};
use fabric::{PlannedLink, Port as _, Until};
use shm_bed::Shm;

fabric::conformance_of_hub_and_workers!(@peer Shm);

/// The resources that a process can leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    descriptors: usize,
    watch_threads: usize,
    mappings: usize,
    shared_memory_files: usize,
    children: String,
}

impl Traces {
    fn look() -> Self {
        let tasks = || fs::read_dir("/proc/self/task").unwrap().flatten();
        let named = |path: &str| {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter(|entry| entry.file_name().to_string_lossy().contains("phub")).count()
        };
        let read = |task: fs::DirEntry, what| fs::read_to_string(task.path().join(what)).unwrap_or_default();
        Traces {
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            watch_threads: tasks()
                .filter(|_| true)
                .map(|task| read(task, "comm"))
                .filter(|name| name == "phub-watch\n")
                .count(),
            mappings: fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:phub-").count(),
            shared_memory_files: named("/dev/shm"),
            children: tasks().map(|task| read(task, "children")).collect(),
        }
    }

    /// Asserts that the system has these resources and no others. Checks again for a while, because /proc
    /// still shows a joined thread for a moment.
    fn is_all_there_is(&self) {
        for _ in 0..1000 {
            if Traces::look() == *self {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Traces::look(), *self);
    }
}

#[test]
fn nothing_is_left_after_kill_9() {
    let _watchdog = Watchdog::start();
    let before = Traces::look();
    let shape = Shape { peers: 3, links: 2, capacity: 8, chunks: 16, chunk_bytes: 4096 };
    for far in [Far::Process, Far::Here] {
        for near in [Role::Hub, Role::Worker, Role::Hub] {
            let Meeting { near, peers } = HubAndWorkers { transport: Shm, near, far }.meet(shape);
            assert!(Traces::look() != before, "the test sees what there is to see");
            killed_at_work(near, peers);
            before.is_all_there_is();
        }
    }
    killed_before_the_welcome(shape);
    before.is_all_there_is();
}

/// Kills all peers with posts in flight in both directions.
fn killed_at_work(mut near: End<Port>, mut peers: Vec<Box<dyn Peer>>) {
    near.attach_all();
    let links = 2 * peers.len();
    for link in 0..links {
        (0..4).for_each(|value| near.insist(link, value));
        (0..4).for_each(|value| assert_eq!(peers[link / 2].post(link % 2, value), fabric::Posted::Accepted));
    }
    near.port.flush();
    peers.into_iter().for_each(|peer| peer.die());
    let (mut seen, mut closed) = (0, 0);
    while closed < links {
        if near.port.closed().is_some() {
            closed += 1;
            continue;
        }
        seen += near.poll().len();
        near.port.wait(Until::Any, Duration::from_secs(3600));
    }
    assert_eq!(seen, 4 * links);
}

/// Kills a worker when the hub has the worker's hello and windows, but has not answered yet.
fn killed_before_the_welcome(shape: Shape) {
    let (listener, address) = Shm::listen();
    let bed = HubAndWorkers { transport: Shm, near: Role::Hub, far: Far::Process };
    let worker = bed.start_worker(&address, 0, shape);
    let hello = listener.accept().unwrap().unwrap().hello(Duration::from_secs(30)).unwrap();
    drop(worker);
    let (group, _ports) = group(1).unwrap();
    let ours = fabric::SendWindow::new(shape.window_bytes()).unwrap();
    let error = hello
        .welcome(&group, &ours, shape.window_bytes(), &PlannedLink::of_one_port(&[8]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("sending the welcome"), "{error}");
}
