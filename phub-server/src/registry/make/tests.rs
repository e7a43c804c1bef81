//! While a job is made, its name is taken, and nobody else waits.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::registry::bed::{registry, request, runtime};

#[test]
fn others_of_the_name_wait_until_the_making_is_over_and_other_jobs_do_not() {
    let (registry, _inbox) = registry();
    runtime().block_on(async {
        let making = registry.reserve(&mut registry.lock(), "job");
        registry.join("another".into(), request()).await.unwrap();
        let mut join = pin!(registry.join("job".into(), request()));
        // Each look is one on the thread for joins.
        for _ in 0..3 {
            let look = registry.join("another".into(), request()).await;
            look.expect_err("its rank is taken");
            assert!(matches!(join.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending));
        }
        assert_eq!(registry.describe().jobs.len(), 1);
        drop(making); // it failed: the next one of the name makes the job
        join.await.unwrap();
        assert_eq!(registry.describe().jobs.len(), 2);
    });
}
