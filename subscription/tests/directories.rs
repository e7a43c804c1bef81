//! Readers of a directory, which get the newest version or each k-th version. A damaged version is an error, and the
//! next call continues with the next version.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use fabric::conformance::Watchdog;
use subscription::{Origin, Precision, Subscription, SubscriptionError, VersionError, Wanted, Weights};
use versions::{Publisher, Rules};

fn weights(round: u32) -> Weights {
    let mut weights = Weights::default();
    let values: Vec<f32> = (0..100).map(|element: u16| f32::from(element) + round as f32).collect();
    weights.add("a", vec![100], &values, Precision::F32).unwrap();
    weights
}

/// Publishes versions. The number of each version is the number of its round.
fn publish(publisher: &mut Publisher, rounds: std::ops::RangeInclusive<u32>) {
    for round in rounds {
        let origin = Origin { job: "job".into(), round };
        assert_eq!(publisher.publish(origin, weights(round)).unwrap().id.0, u64::from(round));
    }
}

fn publisher(dir: &Path) -> Publisher {
    let whole_each = NonZeroU32::new(4).unwrap();
    Publisher::open(dir, Rules { whole_each, keep: NonZeroU32::new(100).unwrap(), ..Rules::default() })
        .unwrap()
}

fn subscribe(dir: &Path, wanted: Wanted) -> Subscription {
    Subscription::to_directory(dir, wanted).with_timeout(Duration::from_millis(100))
}

/// Returns the number of the next version, and how many versions were skipped before it.
#[track_caller]
fn next(versions: &Subscription) -> (u64, u64) {
    let version = versions.next_version().unwrap().unwrap();
    assert_eq!((version.origin.job.as_str(), &version.weights), ("job", &weights(version.origin.round)));
    assert_eq!(version.id.unwrap().0, u64::from(version.origin.round));
    (version.id.unwrap().0, version.skipped)
}

#[test]
fn a_reader_gets_the_newest_version_or_each_kth_one() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let newest = subscribe(dir.path(), Wanted::Newest { every: Duration::ZERO });
    let each = |each| subscribe(dir.path(), Wanted::Each(NonZeroU32::new(each).unwrap()));
    let (all, second) = (each(1), each(2));
    for versions in [&newest, &all] {
        let why = versions.next_version().unwrap_err().to_string();
        assert!(why.contains("there is none"), "{why}");
    }
    let mut publisher = publisher(dir.path());
    publish(&mut publisher, 1..=5);
    assert_eq!(next(&newest), (5, 0));
    assert_eq!([(); 5].map(|()| next(&all)), [1, 2, 3, 4, 5].map(|id| (id, 0)));
    assert_eq!([(); 2].map(|()| next(&second)), [(2, 0), (4, 0)]);
    let why = second.next_version().unwrap_err().to_string();
    assert!(why.contains("no version within the timeout: none is newer than 000004"), "{why}");
    publish(&mut publisher, 6..=9);
    for id in 6..=8 {
        fs::remove_dir_all(dir.path().join(format!("weight_v00000{id}"))).unwrap();
    }
    publish(&mut publisher, 10..=10);
    assert_eq!((next(&newest), next(&second)), ((10, 4), (10, 2)), "6 and 8 were removed");
    assert_eq!([(); 2].map(|()| next(&all)), [(9, 3), (10, 0)]);
}

#[test]
fn a_directory_that_was_emptied_and_filled_again_is_read_from_its_new_begin() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let newest = subscribe(dir.path(), Wanted::Newest { every: Duration::ZERO });
    let all = subscribe(dir.path(), Wanted::Each(NonZeroU32::MIN));
    let empty = || {
        for entry in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    };
    publish(&mut publisher(dir.path()), 1..=3);
    assert_eq!((next(&newest), [(); 3].map(|()| next(&all))), ((3, 0), [1, 2, 3].map(|id| (id, 0))));
    empty();
    assert!(newest.next_version().is_err(), "there is no version");
    publish(&mut publisher(dir.path()), 1..=2);
    assert_eq!((next(&newest), next(&all), next(&all)), ((2, 0), (1, 0), (2, 0)));
    empty();
    publish(&mut publisher(dir.path()), 1..=1);
    let origin = Origin { job: "job".into(), round: 7 };
    publisher(dir.path()).publish(origin, weights(7)).unwrap();
    let other = newest.next_version().unwrap().unwrap();
    assert_eq!((other.id.unwrap().0, other.origin.round, other.skipped), (2, 7, 0), "another version 2");
    assert!(newest.next_version().is_err(), "there is no newer one");
}

#[test]
fn a_damaged_version_is_an_error_and_the_next_call_goes_on() {
    let _watchdog = Watchdog::start();
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = publisher(dir.path());
    publish(&mut publisher, 1..=1);
    let file = dir.path().join("weight_v000001/model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let all = subscribe(dir.path(), Wanted::Each(NonZeroU32::MIN));
    let why = all.next_version().unwrap_err();
    let SubscriptionError::Directory(VersionError::Checksum { tensor, .. }) = &why else { panic!("{why:?}") };
    assert_eq!(tensor, "a");
    publish(&mut publisher, 2..=5);
    // Version 5 is the next whole version. Versions 2 to 4 are differences from the damaged version 1, so they are
    // errors, too.
    for _ in 2..5 {
        assert!(matches!(all.next_version(), Err(SubscriptionError::Directory(_))));
    }
    assert_eq!(next(&all), (5, 0));
}
