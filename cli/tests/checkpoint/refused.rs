//! Files that are damaged, foreign, or from another job. Each is refused, with a helpful text.

use checkpoint_file::{DecodeError, decode};
use pbox_core::{Key, Optimizer, Round, Share};
use phub_server::checkpoint::CheckpointStore;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::snapshots::{ADAM, Job, SGD, says};

/// The byte range of the digest in a file.
const DIGEST: std::ops::Range<usize> = 35..67;

fn decoded(bytes: &[u8]) -> Result<(), DecodeError> {
    decode(bytes, bytes.len() as u64).map(drop)
}

/// Returns a file with this header, these values, and the matching digest.
fn file(header: &str, values: &[u8]) -> Vec<u8> {
    let mut bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), values].concat();
    bytes[DIGEST].fill(b'0');
    let digest = format!("{:032x}", xxh3_128(&bytes));
    bytes[DIGEST].copy_from_slice(digest.as_bytes());
    bytes
}

/// Returns the header and the values of a file.
fn taken_apart(bytes: &[u8]) -> (String, Vec<u8>) {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    (String::from_utf8(bytes[8..8 + length].to_vec()).unwrap(), bytes[8 + length..].to_vec())
}

/// Returns why a file from a faulty program is refused. In its header, `from` is replaced by `to`.
#[track_caller]
fn forged(from: &str, to: &str) -> String {
    let (header, values) = taken_apart(&Job::small(SGD).bytes());
    assert!(header.contains(from), "{from:?} is not in {header}");
    decoded(&file(&header.replace(from, to), &values)).expect_err("it must be refused").to_string()
}

#[test]
fn a_file_made_here_is_as_good_as_the_hubs() {
    let bytes = Job::small(SGD).bytes();
    let (header, values) = taken_apart(&bytes);
    assert_eq!(file(&header, &values), bytes);
    decoded(&bytes).unwrap();
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = Job::small(ADAM).bytes();
    for length in 0..bytes.len() {
        assert!(decoded(&bytes[..length]).is_err(), "cut to {length} of {} bytes", bytes.len());
        // The length is that of the whole file, as if the file was cut while a program read it.
        let late = decode(&bytes[..length], bytes.len() as u64);
        assert!(late.is_err(), "cut to {length} of {} bytes", bytes.len());
    }
    let longer = [&bytes[..], &[0; 4]].concat();
    says(decoded(&longer).unwrap_err(), &["cut off or padded"]);
    let late = decode(&bytes[..bytes.len() - 1], bytes.len() as u64).unwrap_err();
    says(late, &["ends after", "was"]);
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let mut bytes = Job::small(SGD).bytes();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            bytes[place] ^= 1 << bit;
            let result = decoded(&bytes);
            assert!(result.is_err(), "bit {bit} of byte {place}");
            bytes[place] ^= 1 << bit;
        }
    }
    decoded(&bytes).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    says(decoded(&bytes).unwrap_err(), &["altered or damaged", "digest", "copy the original file again"]);
}

#[test]
fn other_safetensors_files_are_refused() {
    let values = [0; 8];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, vec![4], &values).unwrap();
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    let bytes = safetensors::serialize([("a", view)], metadata).unwrap();
    says(decoded(&bytes).unwrap_err(), &["not a checkpoint that a parameter hub wrote", "__metadata__"]);
    says(decoded(b"").unwrap_err(), &["safetensors header"]);
    says(decoded(&[0xff; 100]).unwrap_err(), &["not a safetensors file"]);
}

#[test]
fn another_version_is_named_with_the_program_that_reads_it() {
    let error = forged(r#""phub_checkpoint":"1""#, r#""phub_checkpoint":"2","more":"things""#);
    says(error, &["format \"2\"", "reads format 1", "phub-server"]);
}

#[test]
fn values_of_another_type_are_refused() {
    let error = forged(r#""dtype":"F32","shape":[20]"#, r#""dtype":"F16","shape":[40]"#);
    says(error, &["is f16, and a checkpoint has f32"]);
}

#[test]
fn faulty_metadata_is_named() {
    says(forged(r#""round":"5""#, r#""round":"-5""#), &["round is \"-5\""]);
    says(forged(r#""round":"5","#, ""), &["missing field `round`"]);
    says(forged(r#"\"name\":\"sgd\""#, r#"\"name\":\"new\""#), &["file's optimizer is", "unknown variant"]);
    says(forged(r#"\"weight_decay\":0.0"#, r#"\"weight_decay\":-1"#), &["weight_decay is -1"]);
    for rates in ["[]", "[[1,0.5],[1,0.5]]", "[[2,0.5],[1,0.5]]", "[[0,1e99]]", "7"] {
        let error = forged(r#""learning_rates":"[[0,0.5]]""#, &format!(r#""learning_rates":"{rates}""#));
        says(error, &["learning_rates is", rates]);
    }
    let rates = r#""learning_rates":"[[0,0.5]]""#;
    let forged_entry = |entry: &str, value: &str| forged(rates, &format!(r#"{rates},"{entry}":"{value}""#));
    for steps in ["[]", r#"{\"scale\":-1}"#, r#"{\"scale\":4294967296}"#, r#"{\"scale\":1.5}"#] {
        says(forged_entry("steps", steps), &["file's steps is"]);
    }
    says(forged_entry("steps", r#"{\"other\":1}"#), &["file's steps is", "no key \"other\""]);
    let sgd = r#"{\"name\":\"sgd\",\"learning_rate\":0.5}"#;
    for optimizers in ["[]", "7", &format!("[[0,{sgd}]]"), &format!("[[1,{sgd},null],[1,{sgd},null]]")] {
        says(forged_entry("optimizers", optimizers), &["file's optimizers is"]);
    }
    for squares in ["7", "[1]", "[-1,0,0,0,0,0,0,0,0,0,0]", "[0,0,0,0,0,0,0,0,0,0,0,0]", ""] {
        says(forged_entry("last_squares", squares), &["last_squares is"]);
    }
    let negative = "[0,0,0,0,0,0,0,0,0,0,13830554455654793216]"; // the bits of -1.0
    says(forged_entry("last_squares", negative), &["expected the numbers of an exact sum"]);
    for mean in ["7", "[1.5]", "[-1,3]", "[1e999,3]", "[1.5,0]", "[1.5,-3]"] {
        says(forged_entry("norm_mean", mean), &["norm_mean is"]);
    }
    for groups in ["7", r#"[[1,[],{\"scale\":256}]]"#, "[[1,[],{}]]"] {
        says(forged_entry("groups", groups), &["file's groups is"]);
    }
    says(forged(r#""multipliers":"{}""#, r#""multipliers":"{3}""#), &["multipliers is \"{3}\""]);
    let long = "x".repeat(10_000);
    let error = forged(r#""round":"5""#, &format!(r#""round":"{long}""#));
    assert!(error.len() < 300, "{error}");
}

#[test]
fn sizes_that_lie_are_refused() {
    says(forged("data_offsets\":[0,", "data_offsets\":[4,"), &["fc.weight"]);
    says(forged("\"shape\":[20]", "\"shape\":[5000000000]"), &["fc.bias", "5000000000"]);
    let huge = 90_000_000u64;
    let bytes = [&huge.to_le_bytes()[..], &Job::small(SGD).bytes()[8..]].concat();
    says(decoded(&bytes).unwrap_err(), &["ends at byte 90000008"]);
    // A wrong length from the caller allocates no memory either, because the header must match the length.
    let bytes = Job::small(SGD).bytes();
    says(decode(&bytes[..], u64::MAX).unwrap_err(), &["cut off or padded"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(decoded(&bytes).is_err());
    }

    /// Checks mutated headers. They have the matching digest, so that the checks after the digest are
    /// reached.
    #[test]
    fn a_mutated_header_never_panics(
        place in 67usize..900,
        cut in 0usize..20,
        insert in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let (header, values) = taken_apart(&Job::small(ADAM).bytes());
        let mut header = header.into_bytes();
        let place = place.min(header.len());
        header.splice(place..header.len().min(place + cut), insert);
        let _ = decoded(&file(&String::from_utf8_lossy(&header), &values));
    }
}

#[test]
fn another_jobs_checkpoint_is_refused_with_the_difference() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    let saved = Job::small(SGD);
    store.save("job", Share::WHOLE, &saved.snapshot(Round(5))).unwrap();
    let refusal = |change: fn(&mut Job)| {
        let mut job = saved.clone();
        change(&mut job);
        let error = job.refusal(&store, "job");
        says(&error, &["job.safetensors", "move the file away, or give the job another name"]);
        error
    };
    says(refusal(|job| job.optimizer = ADAM), &[r#""name":"sgd""#, r#""name":"adam""#]);
    let rate = Optimizer::Sgd { learning_rate: 0.25, weight_decay: 0.0 };
    assert_ne!(rate, SGD);
    let error = refusal(|job| job.optimizer = Optimizer::Sgd { learning_rate: 0.25, weight_decay: 0.0 });
    says(error, &["\"learning_rate\":0.5", "\"learning_rate\":0.25", "ask for the optimizer of the file"]);
    says(refusal(|job| job.keys.push(Key::f32("new", [3]))), &["no tensor \"new\""]);
    says(refusal(|job| job.keys[0].shape = vec![20, 4]), &["\"fc.weight\"", "[4, 20]", "[20, 4]"]);
    says(refusal(|job| drop(job.keys.pop())), &["3 tensors", "the job has only 2"]);
    says(refusal(|job| job.keys[1].lr_mult = 0.5), &["\"scale\"", "[1.0, 1.0]", "[0.5, 1.0]"]);
    saved.check(&saved.load(&store, "job").unwrap(), Round(5));
}

#[test]
fn keys_that_collide_with_the_files_own_names_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::open(dir.path()).unwrap();
    for name in ["__metadata__", "optimizer/momentum_buffer/a", "optimizer/"] {
        let job = Job::new(vec![Key::f32("a", [1]), Key::f32(name, [1])], SGD);
        let saved = store.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap_err();
        says(saved, &["job \"job\"", name, "rename the key"]);
        says(job.refusal(&store, "job"), &["job \"job\"", name, "rename the key"]);
    }
    // The name is short enough for a key, but too long with the prefix of an optimizer's tensor.
    let job = Job::new(vec![Key::f32("x".repeat(1010), [1])], ADAM);
    says(job.refusal(&store, "job"), &["optimizer's state", "shorten the name"]);
    let job = Job::new(vec![Key::f32("optimizer.exp_avg", [1])], ADAM);
    store.save("job", Share::WHOLE, &job.snapshot(Round(1))).unwrap();
    job.check(&job.load(&store, "job").unwrap(), Round(1));
}
