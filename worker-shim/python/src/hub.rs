//! A hub in this process.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Mutex;

use phub_server::HubSettings;
use pyo3::prelude::*;

use crate::errors::{HubStartError, SettingsError, chain};
use crate::setting::credential;

/// A running hub. A drop stops the hub, except in a child of `fork`, which has none of the hub's threads.
#[pyclass(frozen, module = "phub._phub")]
pub struct Hub {
    hub: Mutex<Option<phub_server::Hub>>,
    address: SocketAddr,
    owner: u32,
}

#[pymethods]
impl Hub {
    /// Starts a hub with the arguments of `phub-server serve`; when it returns, workers can join.
    #[new]
    fn new(py: Python<'_>, arguments: Vec<OsString>, token: Option<&str>) -> PyResult<Self> {
        let settings =
            HubSettings::of_arguments(arguments.iter().cloned()).map_err(SettingsError::new_err)?;
        let settings = HubSettings { token: token.map(credential).transpose()?, ..settings };
        // A fault in the settings of the log does not stop the hub.
        let _ = phub_server::program::log("warn", settings.log_format);
        let hub = py.detach(|| phub_server::Hub::start(&settings)).map_err(|error| {
            let why = chain(&error);
            let variables = HubSettings::variables_in(&why, &arguments);
            HubStartError::new_err(std::iter::once(why).chain(variables).collect::<Vec<_>>().join("; "))
        })?;
        Ok(Hub { address: hub.address(), hub: Mutex::new(Some(hub)), owner: std::process::id() })
    }

    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Writes checkpoints, notifies the workers, and ends all threads.
    fn stop(&self, py: Python<'_>, reason: &str) {
        if std::process::id() != self.owner {
            return;
        }
        let hub = self.hub.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(hub) = hub {
            py.detach(|| hub.stop(reason));
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let hub = self.hub.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if std::process::id() != self.owner {
            std::mem::forget(hub);
        }
    }
}
