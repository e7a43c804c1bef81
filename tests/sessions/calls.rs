//! Wrong calls, which a session survives. A call uses or pushes a key that is in flight, or pushes before there
//! are weights. A call names a key that does not exist, or sets a learning rate that is not finite.

use std::time::Duration;

use fabric::IdlePolicy;
use fabric::conformance::Watchdog;
use half::bf16;
use hub_tests::{
    FIRST, SECOND, SGD, THIRD, config, hub, join_all, join_by_hand, join_request, on_threads, push_all,
    ready_all, refusal_of_member, says,
};
use pbox_core::{JobTerms, KeyId, Optimizer, Round};
use worker_shim::{Session, SessionError};

/// Returns a worker and a peer that has pushed nothing. The pushes of the first worker remain in flight.
fn pair(hub: &phub_server::Hub) -> [Session; 2] {
    ready_all(2, |rank| config(hub, "job", rank, 2)).try_into().map_err(|_| "two workers").unwrap()
}

/// Ends the job normally. With gradients of 1 and a learning rate of 0.5, the weights change from 1 to 0.5.
fn go_on(mut sessions: [Session; 2], under_way: &[KeyId]) {
    for (rank, session) in sessions.iter_mut().enumerate() {
        for key in session.keys().filter(|key| rank == 1 || !under_way.contains(key)) {
            session.gradient_mut(key).unwrap().fill(1.0);
            session.push(key).unwrap();
        }
    }
    let [first, second] = sessions;
    for mut session in [first, second] {
        session.wait_all().unwrap();
        for key in session.keys() {
            assert!(session.weights::<f32>(key).unwrap().iter().all(|&weight| weight == 0.5), "{key:?}");
        }
        session.leave().unwrap();
    }
}

#[test]
fn a_key_has_one_type() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [mut session, peer] = pair(&hub);
    let words = ["\"first.weight\"", "has type f32", "asked for as bf16"];
    says(session.gradient_mut::<bf16>(FIRST).unwrap_err(), &words);
    says(session.weights::<bf16>(FIRST).unwrap_err(), &words);
    says(session.tensors::<bf16>(FIRST).unwrap_err(), &words);
    go_on([session, peer], &[]);
}

#[test]
fn a_key_under_way_belongs_to_the_hub() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let [mut session, peer] = pair(&hub);
    session.gradient_mut(FIRST).unwrap().fill(1.0);
    session.push(FIRST).unwrap();
    let words = ["\"first.weight\"", "in flight", "round 1", "wait for it before"];
    for (error, doing) in [
        (session.push(FIRST).unwrap_err(), "pushing it again"),
        (session.gradient_mut::<f32>(FIRST).map(|_| ()).unwrap_err(), "writing its gradient"),
        (session.weights::<f32>(FIRST).map(|_| ()).unwrap_err(), "reading its weights"),
        (session.set_learning_rate(0.1).unwrap_err(), "changing the learning rate"),
    ] {
        says(&error, &words);
        says(&error, &[doing]);
    }
    // The worker can still read and write the other keys.
    assert_eq!(session.weights::<f32>(SECOND).unwrap(), [1.0]);
    session.gradient_mut::<f32>(THIRD).unwrap();
    go_on([session, peer], &[FIRST]);
}

#[test]
fn keys_that_do_not_exist_are_named() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [mut session, peer] = pair(&hub);
    for key in [KeyId(3), KeyId(u32::MAX)] {
        for error in [
            session.push(key).unwrap_err(),
            session.wait(key).unwrap_err(),
            session.weights::<f32>(key).map(|_| ()).unwrap_err(),
            session.gradient_mut::<f32>(key).map(|_| ()).unwrap_err(),
        ] {
            says(error, &[&format!("key {}", key.0), "does not exist", "3 keys", "from 0"]);
        }
    }
    go_on([session, peer], &[]);
}

#[test]
fn a_push_before_the_broadcast_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = join_all(2, |rank| config(&hub, "job", rank, 2));
    for session in &mut sessions {
        says(session.push(FIRST).unwrap_err(), &["push", "no weights yet", "broadcast the weights once"]);
    }

    std::thread::scope(|scope| {
        for session in &mut sessions {
            scope.spawn(move || session.broadcast_weights(|_, weights| weights.fill(1.0)).unwrap());
        }
    });
    go_on(sessions.try_into().map_err(|_| "two workers").unwrap(), &[]);
}

/// Formerly the second broadcast returned without an error, although it did not change the weights.
#[test]
fn a_broadcast_after_a_push_is_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut session = ready_all(1, |rank| config(&hub, "job", rank, 1)).remove(0);
    session.broadcast_weights(|_, weights| weights.fill(7.0)).unwrap(); // as of a script that is started again
    push_all(&mut session).unwrap();
    session.wait_all().unwrap();
    let late = session.broadcast_weights(|_, weights| weights.fill(7.0));
    says(late.unwrap_err(), &["a broadcast before round 2 would change nothing", "push_weights"]);
    push_all(&mut session).unwrap();
    session.wait_all().unwrap();
    session.leave().unwrap();
}

#[test]
fn waiting_for_nothing_returns_at_once() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [mut session, peer] = pair(&hub);
    session.wait(FIRST).unwrap();
    session.wait_all().unwrap();
    assert_eq!(session.next_round(), Round(1), "round 0 was the broadcast");
    go_on([session, peer], &[]);
}

/// Formerly the wait went on until the wait limit, and its error blamed another worker.
#[test]
fn a_wait_for_a_norm_of_keys_that_are_not_pushed_is_an_error() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let terms: [fn(&mut JobTerms); 3] = [
        |terms| terms.clip_norm = Some(1e9),
        |terms| terms.skip_nonfinite = true,
        |terms| terms.skip_spikes = Some(1e9),
    ];
    for (job, terms) in ["clip", "finite", "spikes"].into_iter().zip(terms) {
        let [mut session, peer]: [Session; 2] =
            ready_all(2, |rank| config(&hub, job, rank, 2).with_terms(terms)).try_into().ok().unwrap();
        session.gradient_mut(FIRST).unwrap().fill(1.0);
        session.push(FIRST).unwrap();
        for error in [session.wait(FIRST).unwrap_err(), session.wait_all().unwrap_err()] {
            says(
                error,
                &["first.weight", "waits for the push of key", "second.bias", "push every key of a round"],
            );
        }
        go_on([session, peer], &[FIRST]);
    }
}

/// Momentum may have any value from 0 to below 1. Another optimizer is refused.
#[test]
fn numbers_of_another_optimizer_are_refused() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [mut session, peer] = pair(&hub);
    let (learning_rate, weight_decay, momentum) = (0.5, 0.0, 0.9);
    let nesterov = Optimizer::Nesterov { learning_rate, weight_decay, momentum };
    let keys = session.keys().count();
    for (optimizer, of_keys, words) in [
        (nesterov, None, "the job's optimizer is sgd, and the new hyperparameters are of nesterov"),
        (Optimizer::Sgd { learning_rate, weight_decay: -1.0 }, None, "sgd: weight_decay is -1"),
        (SGD, Some(vec![[1.0; 2]; keys + 1]), "pairs of multipliers; expected one for each of the job's"),
        (SGD, Some(vec![[1.0, f32::NAN]; keys]), "wd_mult of key"),
    ] {
        says(
            session.set_optimizer(optimizer, of_keys).unwrap_err(),
            &["the optimizer's hyperparameters: ", words],
        );
    }
    let mut request = join_request(0, 1);
    request.terms.workers = 1;
    let reply = join_by_hand(&hub, "other", &request);
    let sgd = r#"{"name":"sgd","learning_rate":0.5}"#;
    let keys = request.terms.keys.len();
    let ask = |optimizer: &str, rest: String| {
        let body = format!(r#"{{"optimizer":{optimizer}{rest}}}"#);
        refusal_of_member(&hub, "other", "optimizer", &reply.token, body)
    };
    for (optimizer, rest, words) in [
        (r#"{"name":"average"}"#, r#","from_round":1"#.to_owned(), "hyperparameters are of average"),
        (sgd, r#","from_round":4294967295"#.to_owned(), "4294967295 is not a round"),
        (sgd, r#","from_round":1,"keys":[]"#.to_owned(), "0 pairs of multipliers"),
        (sgd, format!(r#","from_round":1,"keys":{:?}"#, vec![[1e38, 1e39]; keys]), "number out of range"),
        (
            r#"{"name":"sgd","learning_rate":1e39}"#,
            r#","from_round":1"#.to_owned(),
            "learning rate inf: expected",
        ),
    ] {
        let (status, error) = ask(optimizer, rest);
        assert_eq!(status, 400, "{error}");
        says(error, &[words]);
    }
    session.set_optimizer(SGD, None).unwrap();
    go_on([session, peer], &[]);
}

#[test]
fn learning_rates_are_finite_and_not_negative() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [mut session, peer] = pair(&hub);
    for rate in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -5.0] {
        let error = session.set_learning_rate(rate).unwrap_err();
        says(error, &[&format!("learning rate {rate}"), "expected a finite number"]);
    }
    // The request is plain HTTP: JSON has no NaN, but it has numbers beyond f32.
    let mut request = join_request(0, 1);
    request.terms.workers = 1;
    let reply = join_by_hand(&hub, "other", &request);
    for rate in ["null", "1e39", "-1e39", "-5"] {
        let body = format!(r#"{{"learning_rate":{rate},"from_round":1}}"#);
        let (status, error) = refusal_of_member(&hub, "other", "learning-rate", &reply.token, body);
        assert_eq!(status, 400, "{rate}: {error}");
        says(error, &["learning"]);
    }
    // Zero is a valid rate. A rate whose product with a key's multiplier overflows is not valid.
    session.set_learning_rate(0.0).unwrap();
    session.set_learning_rate(0.5).unwrap();
    request.terms.keys[1].lr_mult = 10.0;
    let reply = join_by_hand(&hub, "third", &request);
    let body = r#"{"learning_rate":3e38,"from_round":1}"#;
    let (status, error) = refusal_of_member(&hub, "third", "learning-rate", &reply.token, body);
    assert_eq!(status, 400, "{error}");
    says(error, &["3000", "lr_mult 10", "second.bias", "beyond f32"]);
    go_on([session, peer], &[]);
}

#[test]
fn a_hub_that_makes_no_steps_takes_no_learning_rate() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    for optimizer in [Optimizer::Average, Optimizer::Sum] {
        let terms = |terms: &mut JobTerms| terms.optimizer = optimizer;
        let job = optimizer.name();
        let mut session = join_all(1, |rank| config(&hub, job, rank, 1).with_terms(terms)).remove(0);
        says(session.set_learning_rate(0.5).unwrap_err(), &["\"learning_rate\", \"0.5\"", "makes no steps"]);
        push_all(&mut session).unwrap();
        session.leave().unwrap();
    }
}

#[test]
fn priorities_are_one_for_each_key() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let [mut session, peer] = pair(&hub);
    let reply = join_by_hand(&hub, "other", &join_request(0, 1));
    for keys in ["[]", "[1]", "[0,1,2,3]"] {
        let body = format!(r#"{{"keys":{keys}}}"#);
        let (status, error) = refusal_of_member(&hub, "other", "priorities", &reply.token, body);
        assert_eq!(status, 400, "{keys}: {error}");
        says(error, &["priorities", "expected one for each of the 3 keys", "\"other\""]);
    }
    says(session.need(&[KeyId(9)]).unwrap_err(), &["9"]);
    session.need(&[KeyId(2)]).unwrap();
    go_on([session, peer], &[]);
}

/// A session waits for a living worker that does not push. At the limit, its error names the key.
#[test]
fn a_key_that_the_peer_does_not_push_is_named_at_the_limit() {
    let _watchdog = Watchdog::start();
    let hub = hub(2);
    let policies = [IdlePolicy::SHARED, IdlePolicy::DEDICATED, IdlePolicy::BUSY_POLL];
    // The limit is long, because a broadcast takes long on a busy machine. To save time, the jobs wait together.
    on_threads(3, |job| {
        let (name, idle) = (format!("job-{job}"), policies[job as usize]);
        let mut sessions = ready_all(2, |rank| {
            let mut config = config(&hub, &name, rank, 2);
            config.wait_limit = Duration::from_secs(3);
            config.idle = idle;
            config
        });
        sessions[0].push(FIRST).unwrap();
        let error = sessions[0].wait(FIRST).unwrap_err();
        says(&error, &[&name, "round 1", "\"first.weight\"", "8 of 8 chunks", "wait limit"]);
        assert!(matches!(error, SessionError::Stalled { .. }));
    });
}

/// The broadcast was once ignored, and each worker kept the mean of its first round.
#[test]
fn a_broadcast_after_an_average_is_an_error() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    for optimizer in [Optimizer::Average, Optimizer::Sum] {
        let terms = |terms: &mut JobTerms| terms.optimizer = optimizer;
        let mut session =
            join_all(1, |rank| config(&hub, optimizer.name(), rank, 1).with_terms(terms)).remove(0);
        push_all(&mut session).unwrap();
        session.wait_all().unwrap();
        let error = session.broadcast_weights(|_, weights: &mut [f32]| weights.fill(3.0)).unwrap_err();
        says(error, &["before round 1", "broadcast once, before the first push"]);
        session.leave().unwrap();
    }
}

#[test]
fn an_average_needs_no_broadcast() {
    let _watchdog = Watchdog::start();
    let hub = hub(1);
    let mut sessions = join_all(2, |rank| {
        let mut config = config(&hub, "job", rank, 2);
        config.terms.optimizer = Optimizer::Average;
        config
    });
    for (session, value) in sessions.iter_mut().zip([1.0, 2.0]) {
        for key in session.keys() {
            session.gradient_mut(key).unwrap().fill(value);
        }
        push_all(session).unwrap();
    }
    for mut session in sessions {
        session.wait_all().unwrap();
        assert_eq!(session.weights::<f32>(SECOND).unwrap(), [1.5]);
        session.leave().unwrap();
    }
}
