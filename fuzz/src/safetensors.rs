//! The header of a model file. The first eight bytes are the length of the file, and the rest is the start of
//! the file.
//!
//! An accepted header is a valid manifest, and its data fills the file exactly.

use pbox_core::manifest::{check, from_safetensors, header_bytes};

/// Parses the bytes as a length, and the start of a file.
pub fn run(bytes: &[u8]) {
    let Some((length, header)) = bytes.split_first_chunk() else { return };
    // Most lengths are wrong. Half of them are corrected to a length at which the header fills the input.
    let claimed = u64::from_le_bytes(*length);
    let (file, file_bytes) = if claimed & 1 == 0 {
        (header.to_vec(), claimed >> 1)
    } else {
        let file = [&(header.len() as u64).to_le_bytes(), header].concat();
        let file_bytes = (claimed >> 1).saturating_add(file.len() as u64);
        (file, file_bytes)
    };
    if let Some(first8) = file.first_chunk()
        && let Ok(end) = header_bytes(*first8, file_bytes)
    {
        assert!(end <= file_bytes);
    }
    match from_safetensors(&file, file_bytes) {
        Ok(keys) => {
            check(&keys).expect("an accepted header is a valid manifest");
            let data: u64 = keys.iter().map(|key| key.bytes().expect("checked")).sum();
            let first8 = file.first_chunk().expect("accepted");
            assert_eq!(header_bytes(*first8, file_bytes).expect("accepted") + data, file_bytes);
        }
        Err(error) => assert!(error.to_string().len() < 20_000, "an error that repeats its input"),
    }
}
