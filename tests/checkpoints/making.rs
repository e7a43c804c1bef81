//! Making a job with a large checkpoint takes long, and delays no other job.

use std::path::Path;

use fabric::conformance::Watchdog;
use hub_tests::{PATIENT_S, config, describe, join_request, post_json, ready_all, says, settings};
use pbox_core::Key;
use phub_server::Hub;

/// The number of requests to the hub, of which at least one must be answered while the job is made.
const TRIES: usize = 50;

/// Whether this process, which is the hub, has a file open.
fn reads(file: &Path) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path == file))
}

#[test]
fn the_hub_answers_while_a_checkpoint_is_read() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = settings(1, PATIENT_S);
    settings.checkpoints = Some(dir.path().to_owned());
    let hub = Hub::start(&settings).unwrap();
    let session = ready_all(1, |rank| {
        let mut config = config(&hub, "job", rank, 1);
        (config.terms.keys, config.terms.chunk_bytes) = (vec![Key::f32("large", [16 << 20])], 1 << 20);
        config
    })
    .remove(0);
    session.leave().unwrap(); // the hub writes a checkpoint
    let file = dir.path().join("job.safetensors").canonicalize().unwrap();
    let answered_meanwhile = || {
        std::thread::scope(|scope| {
            // After it has read the whole file, the hub refuses the join, because the file is of another
            // model.
            let joining = scope.spawn(|| post_json(&hub, "/v1/jobs/job/join", &join_request(0, 1)));
            while !joining.is_finished() && !reads(&file) {}
            describe(&hub.address().to_string());
            let meanwhile = reads(&file);
            let (status, said) = joining.join().unwrap();
            assert_eq!(status, 409, "{said}");
            says(said, &["job.safetensors"]);
            meanwhile
        })
    };
    assert!((0..TRIES).any(|_| answered_meanwhile()), "no answer came while a checkpoint was read");
}
