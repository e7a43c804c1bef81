//! `phub._phub`: the native part of the Python package `phub`. Sessions on their own threads, windows that NumPy reads
//! and writes in place, a hub in this process, one exception for each cause.
//!
//! Defaults, names, launchers' environments and docstrings are in `../package/phub`. No `unsafe`: a window is passed as an
//! address by NumPy's array interface, and its memory is held while the array lives.

#![forbid(unsafe_code)]

mod errors;
mod hub;
mod session;
mod setting;
mod state;
mod window;

use pyo3::prelude::*;

/// The native part of `phub`.
#[pymodule]
fn _phub(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<window::Window>()?;
    module.add_class::<hub::Hub>()?;
    errors::add_to(module)
}
