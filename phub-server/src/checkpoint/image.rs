//! A checkpoint file that is sent to a client instead of written to a disk.
//!
//! The digest comes before the values, and sent bytes cannot be changed. So the values are read twice, the first time only
//! for the digest.
//!
//! Owned by the thread that sends. Must not know the client.

use std::io::{self, Write};

use pbox_core::{Share, Snapshot};

use super::error::UnusableKeys;
use super::format::{DIGEST_AT, DIGEST_BYTES, Plan, digest_text};
use super::write::stream;

/// The bytes of a checkpoint file.
#[derive(Debug)]
pub struct Image {
    plan: Plan,
    snapshot: Snapshot,
}

impl Image {
    /// Creates the file of a job with this name, or of a hub's part of it. A part names the job among jobs with the same name.
    pub fn new(
        job: &str,
        snapshot: Snapshot,
        share: Share,
        run: Option<String>,
    ) -> Result<Self, UnusableKeys> {
        Ok(Image { plan: Plan::new(job, &snapshot, share, run)?, snapshot })
    }

    /// Returns the length.
    pub fn bytes(&self) -> u64 {
        self.plan.file_bytes
    }

    /// Writes the image in pieces of some MiB.
    pub fn write_to(&mut self, sink: impl Write) -> io::Result<()> {
        let (hash, _) = stream(io::sink(), &self.plan, &self.snapshot)?;
        self.plan.header[DIGEST_AT..][..DIGEST_BYTES].copy_from_slice(digest_text(&hash).as_bytes());
        stream(sink, &self.plan, &self.snapshot).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fabric::Slab;
    use pbox_core::{ChunkId, Key, Layout, Numbers, Optimizer, Round, SnapshotPart};

    use super::*;
    use crate::checkpoint::CheckpointStore;

    #[test]
    fn an_image_is_the_file() {
        let optimizer = Optimizer::Momentum { learning_rate: 0.5, weight_decay: 0.0, momentum: 0.5 };
        let layout = Arc::new(Layout::new(vec![Key::f32("a", [18])], 64).unwrap());
        let mut values = Slab::zeroed("test", 36).unwrap();
        values.as_mut_slice().iter_mut().zip(1u16..).for_each(|(value, n)| *value = n.into());
        let parts = vec![SnapshotPart {
            chunks: vec![ChunkId(0), ChunkId(1)],
            values,
            steps: vec![2; 2],
            squares: None,
            norm_mean: None,
        }];
        let snapshot =
            Snapshot::new(layout, optimizer, Round(3), vec![(Round(0), Numbers::new(optimizer))], parts)
                .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(dir.path()).unwrap();
        store.save("job", Share::WHOLE, &snapshot).unwrap();
        let mut image = Image::new("job", snapshot, Share::WHOLE, None).unwrap();
        let (bytes, mut sent) = (image.bytes(), Vec::new());
        image.write_to(&mut sent).unwrap();
        assert_eq!(sent, std::fs::read(store.path("job").unwrap()).unwrap());
        assert_eq!(sent.len() as u64, bytes);
    }
}
