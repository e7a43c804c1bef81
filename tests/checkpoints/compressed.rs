//! Compressed jobs that continue from a checkpoint. All workers begin with the hub's weights.

use fabric::conformance::Watchdog;
use hub_tests::training::Training;
use hub_tests::values::{self, same_bits};
use hub_tests::{PATIENT_S, on_threads, push_all, settings};
use pbox_core::Round;
use phub_server::Hub;
use worker_shim::Session;

#[test]
fn a_job_goes_on_from_a_checkpoint_with_the_hubs_weights() {
    let _watchdog = Watchdog::start();
    for codec in ["bf16", "topk:0.1"] {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = settings(2, PATIENT_S);
        settings.checkpoints = Some(dir.path().to_owned());
        let training = Training::compressed("job", codec);
        let mut model = training.model(training.compression.unwrap());
        let mut done = 0;
        for life in 0..3 {
            let hub = Hub::start(&settings).unwrap();
            let address = hub.address().to_string();
            let mut expected = vec![model.all_weights()];
            for round in done..done + 4 {
                training.advance(&mut model, round);
                expected.push(model.all_weights());
            }
            on_threads(training.workers, |rank| {
                let mut session = Session::join(training.config(&address, rank)).unwrap();
                training.broadcast(&mut session, rank).unwrap();
                assert_eq!(session.next_round(), Round(done + 1));
                for (round, expected) in (done..).zip(&expected) {
                    for key in session.keys() {
                        let what = format!("{codec}, life {life}, before round {round}, key {}", key.0);
                        same_bits(what, &training.read(&session, key), &expected[key.index()]);
                        if round < done + 4 {
                            training.write(&mut session, key, |gradient| {
                                values::fill_gradient(training.seed, rank, round, key, gradient);
                            });
                        }
                    }
                    if round < done + 4 {
                        push_all(&mut session).unwrap();
                        session.wait_all().unwrap();
                    }
                }
                session.leave().unwrap();
            });
            hub.stop("the test is done with it");
            done += 4;
            model.restart();
        }
    }
}
