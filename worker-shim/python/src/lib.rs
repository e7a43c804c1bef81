//! `phub._phub`: the native part of the Python package `phub`. It has sessions on their own threads, a hub in this process, and
//! an exception for each cause. NumPy reads and writes windows (gradients and weights) in place.
//!
//! Defaults, names, environments of launchers, and docstrings are in `../package/phub`. No `unsafe`: NumPy
//! gets the address of a window through its array interface, and the memory is held while the array exists.

#![forbid(unsafe_code)]

mod ask;
mod errors;
mod follow;
mod hub;
mod session;
mod setting;
mod state;
mod window;

use pyo3::prelude::*;

/// Runs `phub-server` with these arguments. The first argument is the program's name. Returns its exit
/// status.
#[pyfunction]
fn run_server(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| phub_cli::status(arguments))
}

/// Adds the classes and functions of the native part of `phub`.
#[pymodule]
fn _phub(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<window::Window>()?;
    module.add_class::<hub::Hub>()?;
    module.add_function(wrap_pyfunction!(session::refused_below, module)?)?;
    module.add_function(wrap_pyfunction!(session::places, module)?)?;
    module.add_function(wrap_pyfunction!(run_server, module)?)?;
    module.add_function(wrap_pyfunction!(setting::token, module)?)?;
    module.add_function(wrap_pyfunction!(ask::answers, module)?)?;
    module.add_function(wrap_pyfunction!(ask::is_done, module)?)?;
    module.add_function(wrap_pyfunction!(ask::above, module)?)?;
    module.add_function(wrap_pyfunction!(ask::machine_below, module)?)?;
    module.add_function(wrap_pyfunction!(ask::fetch_state, module)?)?;
    module.add_class::<ask::StateBytes>()?;
    module.add_function(wrap_pyfunction!(state::check_digest, module)?)?;
    module.add_class::<follow::Follower>()?;
    module.add_class::<follow::Version>()?;
    module.add_class::<follow::Tensor>()?;
    errors::add_to(module)
}
