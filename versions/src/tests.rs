//! Tests of directories, as publishers leave them and readers find them.

use std::num::NonZeroU32;
use std::path::Path;

use super::*;

fn origin(round: u32) -> Origin {
    Origin { job: "job".into(), round }
}

fn rules(whole_each: u32, keep: u32) -> Rules {
    let number = |number| NonZeroU32::new(number).unwrap();
    Rules { whole_each: number(whole_each), keep: number(keep), ..Rules::default() }
}

/// Returns weights of two tensors. `a` changes with every number, and `b` with every hundred.
fn weights(number: u32) -> Weights {
    let mut weights = Weights::default();
    let values: Vec<f32> = (0..3000u16).map(|n| f32::from(n) * 0.5).collect();
    let mut a = values.clone();
    a[7] = number as f32;
    let mut b = values;
    b[1] = (number / 100) as f32;
    weights.add("a", vec![30, 100], &a, Precision::F32).unwrap();
    weights.add("b", vec![3000], &b, Precision::Bf16).unwrap();
    weights
}

fn publish(publisher: &mut Publisher, number: u32) -> Published {
    publisher.publish(origin(number), weights(number)).unwrap()
}

fn read(dir: &Path, id: u64) -> Result<At, VersionError> {
    Reader::new(dir).go_to(VersionId(id)).cloned()
}

fn ids(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().iter().map(|version| version.id.0).collect()
}

#[test]
fn each_version_comes_back_as_it_was_published() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), rules(4, 20)).unwrap();
    for number in 1..=10 {
        let published = publish(&mut publisher, number * 30);
        assert_eq!((published.id, published.is_whole), (VersionId(number.into()), number % 4 == 1));
    }
    let mut follower = Reader::new(dir.path());
    for number in 1..=10u32 {
        let at = read(dir.path(), number.into()).unwrap();
        assert_eq!((at.origin.clone(), &at.weights), (origin(number * 30), &weights(number * 30)));
        assert_eq!(follower.go_to(at.id).unwrap(), &at, "from the version before");
    }
    assert_eq!(follower.go_to(VersionId(2)).unwrap().weights, weights(60), "and back");
    let tensors: Vec<usize> = list(dir.path()).unwrap().iter().map(|version| version.tensors).collect();
    assert_eq!(tensors, [2, 1, 1, 2, 2, 1, 2, 1, 2, 2], "those that changed, or all");
}

#[test]
fn a_finite_value_that_a_type_rounds_to_infinity_is_refused() {
    let bf16 = [0x7f7f_7fff, 0x7f7f_8000].map(f32::from_bits);
    for (precision, [most, beyond], dtype) in
        [(Precision::F16, [65_519.0, 65_520.0], "f16"), (Precision::Bf16, bf16, "bf16")]
    {
        let is_finite = |value: f32| match precision {
            Precision::F16 => half::f16::from_f32(value).is_finite(),
            _ => half::bf16::from_f32(value).is_finite(),
        };
        assert_eq!([is_finite(most), is_finite(beyond)], [true, false]);
        let add = |value: f32| Weights::default().add("a", vec![2], &[f32::NAN, value], precision);
        for value in [most, -most, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(add(value), Ok(()), "{value} in {dtype}");
        }
        for value in [beyond, -beyond, f32::MAX] {
            assert_eq!(add(value), Err(NotWeights::Range { name: "a".into(), value, dtype }));
        }
    }
    assert_eq!(Weights::default().add("a", vec![1], &[f32::MAX], Precision::F32), Ok(()));
    for at in [0, 1023, 1024, 2998] {
        let mut values = vec![1.0; 3000];
        (values[at], values[2999]) = (-1e38, f32::MAX);
        let refused = Weights::default().add("a", vec![3000], &values, Precision::F16).unwrap_err();
        assert_eq!(refused, NotWeights::Range { name: "a".into(), value: values[at], dtype: "f16" });
    }
}

#[test]
fn pieces_of_any_type_are_rounded_to_the_type_of_their_tensor() {
    let values = [1.0, -2.5, 0.1, 65_504.0, f32::INFINITY];
    let all = [Precision::F32, Precision::Bf16, Precision::F16];
    let bytes = |values: &[f32], precision| {
        let mut weights = Weights::default();
        weights.add("a", vec![values.len()], values, precision).unwrap();
        weights.get("a").unwrap().to_vec()
    };
    let widened = |values: &[f32], precision| -> Vec<f32> {
        let of_bf16 = |&value: &f32| half::bf16::from_f32(value).to_f32();
        let of_f16 = |&value: &f32| half::f16::from_f32(value).to_f32();
        match precision {
            Precision::F32 => values.to_vec(),
            Precision::Bf16 => values.iter().map(of_bf16).collect(),
            Precision::F16 => values.iter().map(of_f16).collect(),
        }
    };
    for (given, wanted) in all.into_iter().flat_map(|given| all.map(|wanted| (given, wanted))) {
        // The fourth value fits bf16, but is too large for f16.
        let values = if wanted == Precision::F16 { &values[..3] } else { &values };
        let mut rest = Elements { precision: given, bytes: bytes(values, given).into() };
        let first = rest.split_to(2);
        assert_eq!((first.count(), rest.count()), (2, values.len() - 2));
        let (name, shape) = ("a".to_owned(), vec![values.len()]);
        let new = NewTensor { name, shape, pieces: vec![first, rest], precision: wanted };
        let weights = Weights::of(&[new]).unwrap();
        assert_eq!(weights.get("a").unwrap(), bytes(&widened(values, given), wanted), "{given:?} {wanted:?}");
    }
}

#[test]
fn one_piece_of_the_wanted_type_is_not_copied() {
    let piece = Elements::f32(&[1.0, 2.0]);
    let (place, name) = (piece.bytes.as_ptr(), "a".to_owned());
    let new = NewTensor { name, shape: vec![2], pieces: vec![piece], precision: Precision::F32 };
    assert_eq!(Weights::of(&[new]).unwrap().get("a").unwrap().as_ptr(), place);
}

#[test]
fn tensors_that_do_not_go_together_are_named_with_their_place() {
    let new = |name: &str, values: &[f32]| {
        let pieces = vec![Elements::f32(values)];
        NewTensor { name: name.into(), shape: vec![1], pieces, precision: Precision::F32 }
    };
    let at = |tensors: &[NewTensor]| Weights::of(tensors).unwrap_err();
    let (one, two) = ([1.0], [1.0, 2.0]);
    assert_eq!(at(&[new("a", &one), new("a", &one)]), (1, NotWeights::Twice { name: "a".into() }));
    let misshapen = NotWeights::Shape { name: "b".into(), shape: vec![1], values: 2 };
    assert_eq!(at(&[new("a", &one), new("b", &two)]), (1, misshapen));
    let name = "__metadata__";
    assert_eq!(at(&[new(name, &one)]), (0, NotWeights::Reserved { name: name.into() }));
}

#[test]
fn a_version_without_a_change_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    publish(&mut publisher, 1);
    let same = publisher.publish(origin(2), weights(1)).unwrap();
    assert_eq!((same.tensors, same.bytes, same.is_whole), (0, 0, false));
    assert_eq!(read(dir.path(), 2).unwrap(), At { id: VersionId(2), origin: origin(2), weights: weights(1) });
}

#[test]
fn old_versions_go_and_what_stays_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), rules(3, 2)).unwrap();
    for number in 1..=9 {
        publish(&mut publisher, number);
        for id in ids(dir.path()) {
            assert_eq!(read(dir.path(), id).unwrap().weights, weights(id as u32));
        }
    }
    assert_eq!(ids(dir.path()), [7, 8, 9]);
    publish(&mut publisher, 10);
    assert_eq!(ids(dir.path()), [7, 8, 9, 10], "9 is kept, and builds on 7");
    publish(&mut publisher, 11);
    assert_eq!(ids(dir.path()), [10, 11]);
    let gone = read(dir.path(), 9).unwrap_err().to_string();
    assert!(gone.contains("has no version 000009; it has 000010 to 000011"), "{gone}");
}

#[test]
fn a_publisher_that_comes_back_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    publish(&mut Publisher::open(dir.path(), rules(3, 9)).unwrap(), 1);
    std::fs::create_dir(dir.path().join(".phub-tmp-000002")).unwrap(); // left by a publisher that was killed
    let mut publisher = Publisher::open(dir.path(), rules(3, 9)).unwrap();
    assert!(!dir.path().join(".phub-tmp-000002").exists());
    assert_eq!(publisher.last(), Some(&origin(1)));
    assert!(!publish(&mut publisher, 2).is_whole);
    drop(publisher);
    let mut publisher = Publisher::open(dir.path(), rules(3, 9)).unwrap();
    assert!(!publish(&mut publisher, 3).is_whole);
    assert!(publish(&mut publisher, 4).is_whole, "the third since version 1");
    assert_eq!(read(dir.path(), 3).unwrap().weights, weights(3));
}

#[test]
fn a_file_with_the_name_of_a_version_is_named_and_hides_no_version() {
    let dir = tempfile::tempdir().unwrap();
    publish(&mut Publisher::open(dir.path(), rules(3, 9)).unwrap(), 1);
    std::fs::write(dir.path().join("weight_v000007"), "a note").unwrap();
    assert_eq!(ids(dir.path()), [1]);
    let faults: Vec<String> = without_index(dir.path()).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(faults.len(), 1);
    assert!(faults[0].contains("weight_v000007 is a file; expected the directory"), "{faults:?}");
    let mut reader = Reader::new(dir.path());
    assert_eq!(reader.newest().unwrap(), Some(VersionId(1)));
    assert_eq!(reader.go_to(VersionId(1)).unwrap().weights, weights(1));
    let mut publisher = Publisher::open(dir.path(), rules(3, 9)).unwrap();
    let published = publish(&mut publisher, 2);
    assert_eq!((published.id, published.is_whole), (VersionId(8), true));
    assert_eq!(std::fs::read(dir.path().join("weight_v000007")).unwrap(), b"a note");
}

#[test]
fn a_directory_has_one_publisher_and_one_job() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    let second = Publisher::open(dir.path(), Rules::default()).unwrap_err().to_string();
    assert!(second.contains("another program publishes"), "{second}");
    publish(&mut publisher, 1);
    let other = publisher.publish(Origin { job: "other".into(), round: 2 }, weights(2)).unwrap_err();
    assert!(other.to_string().contains("versions of job \"job\", and this is job \"other\""), "{other}");
    assert_eq!(ids(dir.path()), [1], "nothing was written");
}

#[test]
fn a_publisher_whose_directory_was_removed_takes_the_lock_again_or_ends() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("weights");
    let mut publisher = Publisher::open(&dir, Rules::default()).unwrap();
    publish(&mut publisher, 1);
    std::fs::remove_dir_all(&dir).unwrap();
    let mut other = Publisher::open(&dir, Rules::default()).unwrap();
    other.publish(Origin { job: "other".into(), round: 1 }, weights(2)).unwrap();
    let refused = publisher.publish(origin(2), weights(3)).unwrap_err();
    assert!(matches!(refused, VersionError::InUse { .. }), "{refused}");
    drop(other);
    let refused = publisher.publish(origin(2), weights(3)).unwrap_err();
    assert!(matches!(refused, VersionError::OtherJob { .. }), "{refused}");
    std::fs::remove_dir_all(&dir).unwrap();
    std::fs::create_dir(&dir).unwrap();
    assert!(publish(&mut publisher, 4).is_whole);
    assert_eq!(read(&dir, 2).unwrap().weights, weights(4), "and numbers only grow");
    assert!(matches!(Publisher::open(&dir, Rules::default()), Err(VersionError::InUse { .. })));
}

#[test]
fn a_delta_on_a_version_that_was_replaced_is_an_error() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    publish(&mut publisher, 1);
    publish(&mut publisher, 2);
    // The version 1 that replaces the first version 1 has the same `a`. Only `b` differs, which is not in the delta.
    let mut base = weights(100);
    base.0.insert("a".into(), weights(1).0["a"].clone());
    Publisher::open(other.path(), Rules::default()).unwrap().publish(origin(1), base).unwrap();
    let first = dir.path().join("weight_v000001");
    std::fs::remove_dir_all(&first).unwrap();
    std::fs::rename(other.path().join("weight_v000001"), &first).unwrap();
    let wrong = read(dir.path(), 2).unwrap_err();
    assert!(matches!(wrong, VersionError::Digest { version: VersionId(2), .. }), "{wrong}");
}

#[test]
fn weights_of_another_form_make_a_whole_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    publish(&mut publisher, 1);
    let mut more = weights(2);
    more.add("c", vec![], &[1.0], Precision::F16).unwrap();
    assert!(publisher.publish(origin(2), more.clone()).unwrap().is_whole);
    assert_eq!(read(dir.path(), 2).unwrap().weights, more);
}

#[test]
fn weights_of_which_all_bits_changed_are_a_whole_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    let noise = |seed: u32| {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(state ^ state >> 13 ^ state << 7)
        };
        let values: Vec<f32> = (0..5000).map(next).collect();
        let mut weights = Weights::default();
        weights.add("a", vec![5000], &values, Precision::F32).unwrap();
        weights
    };
    publisher.publish(origin(1), noise(1)).unwrap();
    assert!(publisher.publish(origin(2), noise(2)).unwrap().is_whole);
    assert_eq!(read(dir.path(), 2).unwrap().weights, noise(2));
}

/// Returns the text that a version's index has in this field of its metadata.
fn field(dir: &Path, id: u64, field: &str) -> Option<String> {
    let index = disk::of_version(dir, VersionId(id)).join("model.safetensors.index.json");
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(index).unwrap()).unwrap();
    index["metadata"][field].as_str().map(str::to_owned)
}

#[test]
fn deltas_have_the_form_that_is_asked_for_or_the_shorter_one() {
    // In `noise` a bit of every byte changes. In `few` two bytes among many change, and positions make the shorter delta.
    let noise = |number: u32| (0..4000u32).map(move |n| n.wrapping_mul(0x9e37_79b9) ^ (number * 0x0101_0101));
    let few =
        |number: u32| (0..4000u32).map(move |n| if n == 17 { number } else { n.wrapping_mul(0x9e37_79b9) });
    let of = |values: &mut dyn Iterator<Item = u32>| {
        let values: Vec<f32> = values.map(|bits| f32::from_bits(bits & 0x7f7f_7f7f)).collect();
        let mut weights = Weights::default();
        weights.add("a", vec![4000], &values, Precision::F32).unwrap();
        weights
    };
    for (deltas, expected) in [
        (Deltas::Xor, ["xor", "xor"]),
        (Deltas::Overwrite, ["overwrite", "overwrite"]),
        (Deltas::Smaller, ["xor", "overwrite"]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let rules = Rules { deltas, ..Rules::default() };
        let mut publisher = Publisher::open(dir.path(), rules).unwrap();
        let all = [of(&mut few(1)), of(&mut noise(2)), of(&mut noise(3)), of(&mut few(4)), of(&mut few(5))];
        let bytes: Vec<u64> = (1..)
            .zip(&all)
            .map(|(round, weights)| publisher.publish(origin(round), weights.clone()).unwrap().bytes)
            .collect();
        for (id, weights) in (1..).zip(&all) {
            assert_eq!(&read(dir.path(), id).unwrap().weights, weights, "{deltas:?}, version {id}");
        }
        assert_eq!(field(dir.path(), 1, "delta_encoding"), None, "it is whole");
        for (id, expected) in [(3, expected[0]), (5, expected[1])] {
            // If all bytes change, their positions and values are longer than the weights themselves, so this version
            // is whole.
            let is_whole = (deltas, id) == (Deltas::Overwrite, 3);
            let expected = (!is_whole).then_some(expected);
            assert_eq!(field(dir.path(), id, "delta_encoding").as_deref(), expected, "{deltas:?}, {bytes:?}");
            assert_eq!(field(dir.path(), id, "compression_format").is_some(), !is_whole);
        }
        assert_eq!(field(dir.path(), 5, "base_version").as_deref(), Some("000004"));
    }
}

#[test]
fn large_weights_have_several_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules { file_bytes: 10, ..Rules::default() }).unwrap();
    publish(&mut publisher, 1);
    assert!(dir.path().join("weight_v000001/model-00002-of-00002.safetensors").exists());
    publish(&mut publisher, 100);
    assert_eq!(read(dir.path(), 2).unwrap().weights, weights(100));
}

#[test]
fn whole_versions_have_the_files_that_an_engine_needs() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    std::fs::write(&config, "{}").unwrap();
    let to = dir.path().join("versions");
    let rules = Rules { also: vec![config], ..Rules::default() };
    let mut publisher = Publisher::open(&to, rules).unwrap();
    publish(&mut publisher, 1);
    publish(&mut publisher, 2);
    assert_eq!(std::fs::read(to.join("weight_v000001/config.json")).unwrap(), b"{}");
    assert!(!to.join("weight_v000002/config.json").exists());
}

#[test]
fn files_that_whole_versions_cannot_have_are_named_before_a_directory_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("config.json"), dir.path().join("other/config.json"));
    std::fs::create_dir(dir.path().join("other")).unwrap();
    std::fs::write(&first, "{}").unwrap();
    let to = dir.path().join("versions");
    let refused = || {
        let rules = Rules { also: vec![first.clone(), second.clone()], ..Rules::default() };
        Publisher::open(&to, rules).unwrap_err().to_string()
    };
    assert!(
        refused()
            .contains("other/config.json: opening a file to copy into the directory of each whole version"),
        "{}",
        refused()
    );
    std::fs::write(&second, "{}").unwrap();
    assert!(refused().contains("another file has this name"), "{}", refused());
    assert!(!to.exists());
}

#[test]
fn a_failed_publication_leaves_the_versions_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    let to = dir.path().join("versions");
    std::fs::write(&config, "{}").unwrap();
    let mut publisher = Publisher::open(&to, Rules { also: vec![config.clone()], ..rules(1, 9) }).unwrap();
    std::fs::remove_file(&config).unwrap();
    let failed = publisher.publish(origin(1), weights(1)).unwrap_err().to_string();
    assert!(failed.contains("config.json"), "{failed}");
    assert!(matches!(Reader::new(&to).newest(), Ok(None)));
    assert_eq!(std::fs::read_dir(&to).unwrap().count(), 2, "the lock and the job's name");
    std::fs::write(&config, "{}").unwrap();
    std::fs::create_dir(to.join(".phub-tmp-000001")).unwrap(); // left over, because it could not be removed
    assert_eq!(publish(&mut publisher, 1).id, VersionId(1));
}

#[test]
fn an_old_version_that_cannot_be_removed_is_a_warning_and_goes_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), rules(1, 1)).unwrap();
    publish(&mut publisher, 1);
    // A directory with a file in it already has the name that the removal needs.
    let taken = dir.path().join(".phub-tmp-removed-000001");
    std::fs::create_dir_all(taken.join("file")).unwrap();
    let published = publish(&mut publisher, 2);
    assert_eq!((published.id, published.removed, published.warnings.len()), (VersionId(2), 0, 1));
    assert!(published.warnings[0].contains("weight_v000001: removing a version"), "{published:?}");
    assert_eq!(publisher.last(), Some(&origin(2)));
    assert_eq!(read(dir.path(), 2).unwrap().weights, weights(2));
    std::fs::remove_dir_all(taken).unwrap();
    let published = publish(&mut publisher, 3);
    assert_eq!((published.removed, published.warnings), (2, vec![]));
    assert_eq!(ids(dir.path()), [3]);
}

#[test]
fn a_reader_of_a_directory_that_was_filled_again_keeps_no_old_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("versions");
    let fill = |numbers: [u32; 2]| {
        let mut publisher = Publisher::open(&to, Rules::default()).unwrap();
        for (round, number) in (1..).zip(numbers) {
            publisher.publish(origin(round), weights(number)).unwrap();
        }
        assert_eq!(list(&to).unwrap()[1].tensors, 1, "tensor b has the bits of version 1");
    };
    fill([100, 101]);
    let mut follower = Reader::new(&to);
    follower.go_to(VersionId(1)).unwrap();
    std::fs::remove_dir_all(&to).unwrap();
    fill([200, 201]); // the same numbers, job and rounds
    assert_eq!(follower.go_to(VersionId(2)).unwrap().weights, weights(201));
    std::fs::remove_dir_all(&to).unwrap();
    fill([300, 301]);
    assert_eq!(follower.go_to(VersionId(2)).unwrap().weights, weights(301), "the reader's own number");
}

/// Changes one byte of a file of a version.
fn damage(dir: &Path, id: u64, from_end: usize) {
    let file = dir.join(format!("weight_v{id:06}/model-00001-of-00001.safetensors"));
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn damage_is_seen_and_the_next_version_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    for number in 1..=3 {
        publish(&mut publisher, number);
    }
    drop(publisher);
    let mut follower = Reader::new(dir.path());
    follower.go_to(VersionId(2)).unwrap();
    damage(dir.path(), 3, 1);
    let error = follower.go_to(VersionId(3)).unwrap_err();
    assert!(matches!(error, VersionError::Checksum { .. } | VersionError::Faulty { .. }), "{error}");
    assert!(follower.at().is_none(), "no part of a version is shown");
    damage(dir.path(), 1, 1);
    let error = read(dir.path(), 1).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");

    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    assert!(publisher.unreadable().is_some());
    let next = publish(&mut publisher, 4);
    assert_eq!((next.id, next.is_whole), (VersionId(4), true));
    assert_eq!(follower.go_to(VersionId(4)).unwrap().weights, weights(4));
}

#[test]
fn a_directory_stays_its_jobs_whatever_of_its_versions_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    for number in 1..=2 {
        publish(&mut publisher, number);
    }
    drop(publisher);
    let refused = || {
        let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
        let other = Origin { job: "other".into(), round: 9 };
        assert!(matches!(publisher.check_job("other"), Err(VersionError::OtherJob { .. })));
        let error = publisher.publish(other, weights(9)).unwrap_err().to_string();
        assert!(error.contains("versions of job \"job\", and this is job \"other\""), "{error}");
        assert_eq!(disk::versions(dir.path()).unwrap().last(), Some(&VersionId(2)));
    };
    let index = |id: u64| disk::of_version(dir.path(), VersionId(id)).join("model.safetensors.index.json");
    std::fs::write(index(2), "{").unwrap();
    refused();
    std::fs::remove_file(dir.path().join(".phub-job")).unwrap();
    refused(); // an older directory without that file: version 1 names the job
    std::fs::write(dir.path().join(".phub-job"), "job\n").unwrap();
    std::fs::write(index(1), "{").unwrap();
    refused(); // only the file names the job
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    assert!(publish(&mut publisher, 3).is_whole);
    assert_eq!(read(dir.path(), 3).unwrap().weights, weights(3));
    drop(publisher);
    std::fs::write(dir.path().join(".phub-job"), "").unwrap();
    let error = Publisher::open(dir.path(), Rules::default()).unwrap_err().to_string();
    assert!(error.contains(".phub-job") && error.contains("the file is empty"), "{error}");
}

#[test]
fn what_a_killed_program_left_is_removed_be_it_a_file_or_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".phub-tmp-file"), "").unwrap();
    std::fs::create_dir(dir.path().join(".phub-tmp-directory")).unwrap();
    let _publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), [".phub-publisher"]);
}

#[test]
fn a_delta_whose_base_is_gone_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    for number in 1..=3 {
        publish(&mut publisher, number);
    }
    std::fs::remove_dir_all(dir.path().join("weight_v000002")).unwrap();
    let error = read(dir.path(), 3).unwrap_err().to_string();
    assert!(error.contains("version 000003 is a delta on version 000002, which was removed"), "{error}");
}

#[test]
fn a_version_whose_base_is_not_the_newest_in_the_directory_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    (1..=2).for_each(|number| assert_eq!(publish(&mut publisher, number).is_whole, number == 1));
    std::fs::remove_dir_all(dir.path().join("weight_v000002")).unwrap();
    let next = publish(&mut publisher, 3);
    assert_eq!((next.id, next.is_whole), (VersionId(3), true), "somebody removed its base");
    std::fs::create_dir(dir.path().join("weight_v000004")).unwrap();
    assert_eq!(publish(&mut publisher, 4).id, VersionId(5), "that one has no index, and stays");
    assert_eq!(read(dir.path(), 5).unwrap().weights, weights(4));
}

#[test]
fn values_are_rounded_to_the_nearest() {
    let mut weights = Weights::default();
    let values = [1.0, 1.003_906_3, -0.0, f32::INFINITY];
    weights.add("bf16", vec![4], &values, Precision::Bf16).unwrap();
    weights.add("f16", vec![4], &values, Precision::F16).unwrap();
    weights.add("f32", vec![4], &values, Precision::F32).unwrap();
    assert_eq!(weights.get("bf16").unwrap(), [0x80, 0x3f, 0x80, 0x3f, 0, 0x80, 0x80, 0x7f], "ties to even");
    assert_eq!(weights.get("f16").unwrap(), [0, 0x3c, 4, 0x3c, 0, 0x80, 0, 0x7c]);
    assert_eq!(weights.get("f32").unwrap()[..4], 1.0f32.to_le_bytes());
}

#[test]
fn tensors_that_cannot_be_weights_are_refused() {
    let mut weights = weights(1);
    let mut refused =
        |name, shape, values: &[f32]| weights.add(name, shape, values, Precision::F32).unwrap_err();
    assert!(matches!(refused("c", vec![2, 2], &[1.0; 3]), NotWeights::Shape { .. }));
    assert!(matches!(refused("c", vec![usize::MAX, 2], &[1.0; 3]), NotWeights::Shape { .. }));
    assert!(matches!(refused("a", vec![1], &[1.0]), NotWeights::Twice { .. }));
    assert!(matches!(refused("__metadata__", vec![1], &[1.0]), NotWeights::Reserved { .. }));
}

#[test]
fn a_version_without_an_index_hides_no_other_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    (1..=3).for_each(|number| drop(publish(&mut publisher, number)));
    drop(publisher);
    std::fs::remove_file(dir.path().join("weight_v000003/model.safetensors.index.json")).unwrap();
    let mut reader = Reader::new(dir.path());
    assert_eq!(reader.newest().unwrap(), Some(VersionId(2)));
    assert_eq!(ids(dir.path()), [1, 2]);
    let without: Vec<String> =
        without_index(dir.path()).unwrap().iter().map(|error| error.to_string()).collect();
    assert!(matches!(&without[..], [only] if only.contains("weight_v000003 has no index")), "{without:?}");
    let error = reader.go_to(VersionId(3)).unwrap_err();
    assert!(error.may_pass() && matches!(error, VersionError::NoIndex { .. }), "{error}");

    let mut publisher = Publisher::open(dir.path(), Rules::default()).unwrap();
    assert!(matches!(publisher.unreadable(), Some(VersionError::NoIndex { .. })));
    let next = publish(&mut publisher, 4);
    assert_eq!((next.id, next.is_whole), (VersionId(4), true), "no other version gets its number");
    assert_eq!(ids(dir.path()), [1, 2, 4]);
    assert_eq!(reader.newest().unwrap(), Some(VersionId(4)));
}
