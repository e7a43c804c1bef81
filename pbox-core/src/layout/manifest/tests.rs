//! Tests of the manifest: one for each wrong field of a list of keys or of a safetensors header, and one for random bytes.
//! Every input must give a result.

use ::safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use proptest::prelude::*;

use super::*;
use crate::models;

/// Returns the start of a safetensors file with this header, and the file's length.
fn file(json: &str, data_bytes: u64) -> (Vec<u8>, u64) {
    let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    let file_bytes = bytes.len() as u64 + data_bytes;
    (bytes, file_bytes)
}

fn read(json: &str, data_bytes: u64) -> Result<Vec<Key>, ManifestError> {
    let (bytes, file_bytes) = file(json, data_bytes);
    from_safetensors(&bytes, file_bytes)
}

/// Returns a header with one F32 tensor `a`.
fn one(shape: &str, offsets: &str) -> String {
    format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

/// Returns a header with the F32 vectors `a` and `b`, of two and three elements.
fn two(a: &str, b: &str) -> String {
    let tensor = |name, n, at| format!(r#""{name}":{{"dtype":"F32","shape":[{n}],"data_offsets":{at}}}"#);
    format!("{{{},{}}}", tensor("b", 3, b), tensor("a", 2, a))
}

macro_rules! refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {{
        let result = $result;
        let message = result.as_ref().err().map_or_else(String::new, ToString::to_string);
        assert!(matches!(&result, Err($pattern) $(if $guard)?), "{result:?}: {message}");
        message
    }};
}

#[test]
fn keys_stand_in_the_order_of_their_bytes() {
    let json = r#"{"__metadata__":{"format":"pt"},
        "z":{"shape":[2,3],"dtype":"F32","data_offsets":[0,24]},
        "a":{"dtype":"F32","shape":[],"data_offsets":[24,28]}}   "#;
    assert_eq!(read(json, 28).unwrap(), [Key::f32("z", [2, 3]), Key::f32("a", [])]);
    assert_eq!(read(&two("[0,8]", "[8,20]"), 20).unwrap(), [Key::f32("a", [2]), Key::f32("b", [3])]);
    assert_eq!(read(&two("[12,20]", "[0,12]"), 20).unwrap(), [Key::f32("b", [3]), Key::f32("a", [2])]);
}

#[test]
fn a_file_of_the_library_is_read_from_its_header_alone() {
    let data = vec![0; 64 * 4];
    let view = |shape: &[usize]| {
        let bytes = 4 * shape.iter().product::<usize>();
        TensorView::new(Dtype::F32, shape.to_vec(), &data[..bytes]).unwrap()
    };
    let tensors = [("conv.weight", view(&[4, 2, 3, 1])), ("conv.bias", view(&[4])), ("scale", view(&[]))];
    let bytes = serialize(tensors, None).unwrap();
    let file_bytes = bytes.len() as u64;
    let needed = header_bytes(*bytes.first_chunk().unwrap(), file_bytes).unwrap() as usize;
    let keys = from_safetensors(&bytes[..needed], file_bytes).unwrap();
    let expected = [Key::f32("conv.bias", [4]), Key::f32("conv.weight", [4, 2, 3, 1]), Key::f32("scale", [])];
    assert_eq!(keys, expected);
    assert_eq!(from_safetensors(&bytes, file_bytes).unwrap(), expected);
}

#[test]
fn a_wrong_length_prefix_is_refused() {
    refused!(header_bytes([0xff; 8], u64::MAX), ManifestError::HeaderTooLarge { seen: u64::MAX });
    refused!(header_bytes(100_000_001u64.to_le_bytes(), 1 << 40), ManifestError::HeaderTooLarge { .. });
    assert_eq!(header_bytes(100_000_000u64.to_le_bytes(), 1 << 40).unwrap(), 100_000_008);
    refused!(
        header_bytes(100u64.to_le_bytes(), 107),
        ManifestError::HeaderPastFile { end: 108, file_bytes: 107 }
    );
    let (bytes, file_bytes) = file(&one("[2]", "[0,8]"), 8);
    refused!(
        from_safetensors(&bytes[..7], file_bytes),
        ManifestError::HeaderIncomplete { needed: 8, seen: 7 }
    );
    let cut = &bytes[..bytes.len() - 1];
    refused!(from_safetensors(cut, file_bytes), ManifestError::HeaderIncomplete { .. });
    refused!(from_safetensors(&[], 0), ManifestError::HeaderIncomplete { .. });
    refused!(from_safetensors(&[0; 8], 8), ManifestError::HeaderNotJson { .. });
}

#[test]
fn a_header_that_is_not_json_of_tensors_is_refused() {
    let (mut bytes, file_bytes) = file(&one("[2]", "[0,8]"), 8);
    bytes[8 + 2] = 0xff;
    refused!(from_safetensors(&bytes, file_bytes), ManifestError::HeaderNotUtf8 { valid_up_to: 2 });
    for json in ["", "{", "[]", "null", "{} {}", r#"{"a":1}"#, r#"{"__metadata__":{"a":1}}"#, r#"{"a":{}}"#] {
        refused!(read(json, 0), ManifestError::HeaderNotJson { .. });
    }
    for (shape, offsets) in [
        ("[2]", "[-8,0]"),
        ("[2]", "[0,8.5]"),
        ("[2]", "[0]"),
        ("[2]", "[0,4,8]"),
        ("[-2]", "[0,8]"),
        ("[2.0]", "[0,8]"),
        ("[18446744073709551616]", "[0,8]"),
        ("2", "[0,8]"),
    ] {
        let message = refused!(read(&one(shape, offsets), 8), ManifestError::HeaderNotJson { .. });
        assert!(message.contains("tensor \"a\""), "{message}");
    }
    let loud = one("[2]", "[0,8]").replace("F32", &"\\u001b".repeat(10_000));
    let message = refused!(read(&loud, 8), ManifestError::HeaderNotJson { .. });
    assert!(message.len() < 600 && !message.contains(char::is_control), "{message:?}");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    refused!(read(&one(&deep, "[0,8]"), 8), ManifestError::HeaderNotJson { .. });
    let flat = format!("[{}1]", "1,".repeat(100_000));
    refused!(read(&one(&flat, "[0,4]"), 4), ManifestError::HeaderNotJson { .. });
}

#[test]
fn other_types_are_refused_with_advice() {
    for (dtype, next) in
        [("F64", "convert"), ("F8_E4M3", "without the tensor"), ("I64", "without the tensor")]
    {
        let message =
            refused!(read(&one("[2]", "[0,8]").replace("F32", dtype), 8), ManifestError::Dtype { .. });
        assert!(message.contains(dtype) && message.contains("\"a\"") && message.contains(next), "{message}");
    }
    refused!(read(&one("[2]", "[0,8]").replace("F32", "Q4"), 8), ManifestError::HeaderNotJson { .. });
}

#[test]
fn wrong_offsets_are_refused() {
    refused!(read(&one("[2]", "[8,0]"), 8), ManifestError::OffsetsReversed { begin: 8, end: 0, .. });
    refused!(
        read(&two("[0,8]", "[4,16]"), 16),
        ManifestError::OffsetsOverlap { begin: 4, previous_end: 8, .. }
    );
    refused!(
        read(&two("[0,8]", "[12,24]"), 24),
        ManifestError::OffsetsHole { begin: 12, previous_end: 8, .. }
    );
    refused!(read(&one("[2]", "[4,12]"), 12), ManifestError::OffsetsHole { begin: 4, previous_end: 0, .. });
    refused!(
        read(&one("[2]", "[0,12]"), 12),
        ManifestError::ShapeAgainstOffsets { expected: 8, seen: 12, .. }
    );
    refused!(read(&one("[2]", "[0,18446744073709551615]"), 8), ManifestError::ShapeAgainstOffsets { .. });
}

#[test]
fn a_file_of_another_length_is_refused() {
    for data_bytes in [0, 7, 9, 1 << 40] {
        refused!(read(&one("[2]", "[0,8]"), data_bytes), ManifestError::FileLength { .. });
    }
}

#[test]
fn shapes_names_and_counts_are_checked_in_a_header_as_well() {
    refused!(read("{}", 0), ManifestError::NoKeys);
    refused!(read(r#"{"__metadata__":{}}"#, 0), ManifestError::NoKeys);
    refused!(read(&one("[0]", "[0,0]"), 0), ManifestError::NoElements { .. });
    refused!(read(&one("[4294967296,4294967296]", "[0,0]"), 0), ManifestError::ShapeOverflow { .. });
    refused!(read(&one("[4611686018427387904]", "[0,0]"), 0), ManifestError::ShapeOverflow { .. });
    refused!(
        read(&one("[4611686018427387903]", "[0,18446744073709551612]"), 0),
        ManifestError::TooManyBytes { .. }
    );
    refused!(read(&one("[2]", "[0,8]").replace("\"a\"", "\"\""), 8), ManifestError::EmptyName { index: 0 });
    refused!(
        read(&two("[0,8]", "[8,20]").replace("\"b\"", "\"a\""), 20),
        ManifestError::DuplicateName { first: 0, second: 1, .. }
    );
}

#[test]
fn check_refuses_each_fault() {
    let good = || vec![Key::f32("a", [2, 3]), Key::f32("b", [])];
    check(&good()).unwrap();
    let with = |change: fn(&mut Key)| {
        let mut keys = good();
        change(&mut keys[1]);
        check(&keys)
    };
    refused!(check(&[]), ManifestError::NoKeys);
    refused!(check(&vec![good().remove(0); MAX_KEYS + 1]), ManifestError::TooManyKeys { .. });
    refused!(with(|key| key.name.clear()), ManifestError::EmptyName { index: 1 });
    refused!(with(|key| key.name = "n".repeat(1025)), ManifestError::NameTooLong { index: 1, seen: 1025 });
    refused!(with(|key| key.name = "a".into()), ManifestError::DuplicateName { first: 0, second: 1, .. });
    refused!(with(|key| key.shape = vec![1; 65]), ManifestError::TooManyDimensions { seen: 65, .. });
    refused!(with(|key| key.shape = vec![u64::MAX, 2, 0]), ManifestError::NoElements { .. });
    refused!(with(|key| key.shape = vec![u64::MAX, 2]), ManifestError::ShapeOverflow { .. });
    refused!(with(|key| key.shape = vec![1 << 38]), ManifestError::TooManyBytes { .. });
    with(|key| key.shape = vec![(1 << 38) - 6]).unwrap();
    refused!(with(|key| key.lr_mult = f32::NAN), ManifestError::Multiplier { multiplier: "lr_mult", .. });
    refused!(
        with(|key| key.wd_mult = f32::INFINITY),
        ManifestError::Multiplier { multiplier: "wd_mult", .. }
    );
    let message = refused!(
        check(&[Key::f32("a\u{1b}[2J\n", []), Key::f32("a\u{1b}[2J\n", [])]),
        ManifestError::DuplicateName { .. }
    );
    assert!(!message.contains(char::is_control), "{message:?}");
}

/// Returns a complete file with zeros as data, small enough for the library.
fn whole_file(model: &str, keys: usize) -> Vec<u8> {
    let keys: Vec<_> = models::model(model).unwrap().keys.into_iter().take(keys).collect();
    let data = vec![0; keys.iter().filter_map(Key::bytes).max().unwrap() as usize];
    let view = |key: &Key| {
        let shape: Vec<_> = key.shape.iter().map(|&extent| extent as usize).collect();
        TensorView::new(Dtype::F32, shape, &data[..key.bytes().unwrap() as usize]).unwrap()
    };
    serialize(keys.iter().map(|key| (key.name.as_str(), view(key))), None).unwrap()
}

/// Draws bytes; digits and the characters of JSON are more frequent than other bytes.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), prop::sample::select(&b"0123456789-.,:[]{}\" F"[..])]
}

/// A text that resembles a header. Random bytes never resemble a header.
const LIKE_A_HEADER: &str = concat!(
    r#"\{("(a|b|__metadata__)":\{"dtype":"(F32|F16|X)","shape":\[[0-9]{1,20}(,[0-9]{1,3})?\],"#,
    r#""data_offsets":\[-?[0-9]{1,2},[0-9]{1,20}\]\},?){0,3}\}?"#
);

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), file_bytes in any::<u64>()) {
        let _ = from_safetensors(&bytes, file_bytes);
        let _ = read(&String::from_utf8_lossy(&bytes), file_bytes % 1000);
    }

    #[test]
    fn random_headers_never_panic(json in LIKE_A_HEADER, data_bytes in 0u64..100) {
        let _ = read(&json, data_bytes);
    }

    /// A changed file never causes a panic. If it is accepted, the library accepts it, too, with the same tensors.
    #[test]
    fn a_mutated_file_is_read_as_the_library_reads_it(
        changes in prop::collection::vec((any::<prop::sample::Index>(), byte()), 0..3),
        longer in prop_oneof![8 => Just(0i64), 1 => -20i64..20],
    ) {
        let mut bytes = whole_file("googlenet", 4);
        let header = header_bytes(*bytes.first_chunk().unwrap(), bytes.len() as u64).unwrap() as usize;
        let unchanged = changes.is_empty() && longer == 0;
        for (at, byte) in changes {
            bytes[at.index(header)] = byte;
        }
        bytes.resize((bytes.len() as i64 + longer) as usize, 0);
        let ours = from_safetensors(&bytes, bytes.len() as u64);
        prop_assert!(!unchanged || ours.is_ok());
        if let Ok(keys) = ours {
            let (_, theirs) = SafeTensors::read_metadata(&bytes).unwrap();
            let names: Vec<_> = keys.iter().map(|key| key.name.clone()).collect();
            prop_assert_eq!(&names, &theirs.offset_keys());
            for key in &keys {
                let shape = theirs.info(&key.name).unwrap().shape.iter().map(|&extent| extent as u64);
                prop_assert_eq!(&key.shape, &shape.collect::<Vec<_>>());
            }
        }
    }
}
