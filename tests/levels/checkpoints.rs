//! Only the hubs at the top write checkpoints, and a job on several machines continues from them.

use fabric::conformance::Watchdog;
use hub_tests::{PATIENT_S, settings};
use phub_server::{Hub, HubSettings};
use worker_shim::Session;

use super::{Machines, on_machines};
use crate::checkpoints::checkpoint::{rounds, weights_are};

/// Returns a mesh of two machines. Each hub has a directory of checkpoints.
pub fn mesh(dirs: &[tempfile::TempDir]) -> Machines {
    let hub = |dir: &tempfile::TempDir| {
        let checkpoints = Some(dir.path().to_owned());
        Hub::start(&HubSettings { checkpoints, ..settings(1, PATIENT_S) }).unwrap()
    };
    Machines { below: dirs.iter().map(hub).collect(), top: Vec::new(), is_mesh: true }
}

#[test]
fn a_mesh_goes_on_from_its_checkpoint() {
    let _watchdog = Watchdog::start();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let life = |first: u32, asks: bool| {
        let machines = mesh(&dirs);
        on_machines(2, 2, |machine, rank, barrier| {
            let mut session = Session::join(machines.config(machine, "job", rank, 2)).unwrap();
            if first == 0 {
                session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap();
            }
            assert_eq!(session.next_round().0, first + 1);
            rounds(&mut session, 4).unwrap();
            weights_are(&session, 1.0 - (first + 4) as f32 / 2.0);
            barrier.wait();
            if asks && machine == 1 && rank == 0 {
                assert_eq!(session.checkpoint().unwrap().round.0, first + 5);
            }
            barrier.wait();
            session.leave().unwrap();
        });
    };
    life(0, true);
    life(4, false);
    for dir in &dirs {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        let of_jobs = || names.iter().filter(|name| name.ends_with(".safetensors"));
        assert!(of_jobs().all(|name| name.starts_with("job.above@")), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("job.above@9")), "{names:?}");
    }
}
