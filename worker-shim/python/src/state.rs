//! A reader over a state that a Python iterator yields piece by piece, so that memory never holds the whole
//! state twice. This file also checks the digest of a checkpoint.
//!
//! The session's thread reads the state, and takes the GIL for each piece.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::SettingsError;

/// Compares the digest in a checkpoint's file with the bytes of the file.
#[pyfunction]
pub fn check_digest(py: Python<'_>, path: PathBuf) -> PyResult<()> {
    let checked = py.detach(|| {
        let file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        io::Result::Ok(checkpoint_file::check_digest(file, bytes))
    })?;
    checked.map_err(|error| {
        SettingsError::new_err(format!("{}: not a whole checkpoint of a hub: {error}", path.display()))
    })
}

/// A reader of the pieces of `bytes` that an iterator yields.
pub struct Pieces {
    iterator: Py<PyAny>,
    piece: Py<PyBytes>,
    read: usize,
}

impl Pieces {
    /// Creates a reader of any iterable.
    pub fn new(pieces: &Bound<'_, PyAny>) -> PyResult<Self> {
        let iterator = pieces.try_iter()?.into_any().unbind();
        Ok(Pieces { iterator, piece: PyBytes::new(pieces.py(), &[]).unbind(), read: 0 })
    }
}

impl Read for Pieces {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            while self.read == self.piece.bind(py).as_bytes().len() {
                let mut iterator = self.iterator.bind(py).try_iter().map_err(io::Error::other)?;
                let Some(piece) = iterator.next() else { return Ok(0) };
                let piece = piece.and_then(|piece| Ok(piece.cast_into::<PyBytes>()?));
                (self.piece, self.read) = (piece.map_err(io::Error::other)?.unbind(), 0);
            }
            let left = &self.piece.bind(py).as_bytes()[self.read..];
            let count = left.len().min(room.len());
            room[..count].copy_from_slice(&left[..count]);
            self.read += count;
            Ok(count)
        })
    }
}
