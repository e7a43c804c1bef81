//! A version of weights for Python, with its tensors by name. NumPy reads them by address, without a copy.

use std::sync::Arc;

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use subscription::{Origin, Precision, VersionId, Weights};

/// All weights of one round.
#[pyclass(frozen, module = "phub._phub")]
pub struct Version {
    origin: Origin,
    id: Option<VersionId>,
    #[pyo3(get)]
    skipped: u64,
    weights: Arc<Weights>,
}

/// A tensor of a version. `numpy.asarray(tensor)` is an array over its memory, which this object keeps alive.
#[pyclass(frozen, module = "phub._phub")]
pub struct Tensor {
    weights: Arc<Weights>,
    name: String,
}

impl Version {
    pub(super) fn new(version: subscription::Version) -> Self {
        let subscription::Version { origin, id, skipped, weights } = version;
        Version { origin, id, skipped, weights: Arc::new(weights) }
    }
}

#[pymethods]
impl Version {
    #[getter]
    fn job(&self) -> &str {
        &self.origin.job
    }

    #[getter]
    fn round(&self) -> u32 {
        self.origin.round
    }

    #[getter]
    fn id(&self) -> Option<u64> {
        self.id.map(|id| id.0)
    }

    #[getter]
    fn names(&self) -> Vec<String> {
        self.weights.names().map(str::to_owned).collect()
    }

    fn tensor(&self, name: &str) -> PyResult<Tensor> {
        match self.weights.form(name) {
            Some(_) => Ok(Tensor { weights: Arc::clone(&self.weights), name: name.to_owned() }),
            None => Err(PyKeyError::new_err(name.to_owned())),
        }
    }
}

impl Tensor {
    fn form(&self) -> (Precision, &[usize]) {
        self.weights.form(&self.name).expect("checked when it was made")
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn dtype(&self) -> &'static str {
        self.form().0.name()
    }

    /// Returns NumPy's array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (precision, shape) = self.form();
        let bytes = self.weights.get(&self.name).expect("checked when it was made");
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, shape)?)?;
        // NumPy has no bf16, so the array has the 16 bits as integers.
        let kind = match precision {
            Precision::F32 => "<f4",
            Precision::F16 => "<f2",
            Precision::Bf16 => "<u2",
        };
        interface.set_item("typestr", kind)?;
        interface.set_item("data", (bytes.as_ptr().addr(), true))?;
        Ok(interface)
    }
}
