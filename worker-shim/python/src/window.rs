//! A key's part of a window (gradients or weights) for NumPy, which reads it by address, without a copy.

use std::sync::Arc;

use pbox_core::{Dtype, Key};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use worker_shim::Memory;

/// One key's gradient or weights. `numpy.asarray(window)` is an array over the window itself. The array keeps
/// this object alive, and this object keeps the memory mapped.
#[pyclass(frozen, module = "phub._phub")]
pub struct Window {
    address: usize,
    shape: Vec<u64>,
    dtype: Dtype,
    readonly: bool,
    _memory: Arc<Memory>,
}

impl Window {
    /// Creates the window of `key` at `address`.
    pub fn new(key: &Key, address: usize, readonly: bool, memory: &Arc<Memory>) -> Self {
        let _memory = Arc::clone(memory);
        Window { address, shape: key.shape.clone(), dtype: key.dtype, readonly, _memory }
    }
}

#[pymethods]
impl Window {
    /// Returns NumPy's array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        // NumPy has no bf16, so the array has the 16 bits as integers.
        let kind = match self.dtype {
            Dtype::F32 => "<f4",
            Dtype::F16 => "<f2",
            Dtype::BF16 => "<u2",
        };
        interface.set_item("typestr", kind)?;
        interface.set_item("data", (self.address, self.readonly))?;
        Ok(interface)
    }
}
