//! A hub in this process.

use std::net::SocketAddr;
use std::sync::Mutex;

use phub_server::{HubSettings, IdleChoice};
use pyo3::prelude::*;

use crate::errors::{HubStartError, chain};
use crate::setting::{choice, credential, parse};

/// A running hub. A drop stops it, except in a child of `fork`, which has none of its threads.
#[pyclass(frozen, module = "phub._phub")]
pub struct Hub {
    hub: Mutex<Option<phub_server::Hub>>,
    address: SocketAddr,
    owner: u32,
}

/// The default of `phub-server serve`.
const ABOVE_LIMIT_S: u64 = 30;
/// After how many seconds the hub names a worker that holds a round up, as the program does.
const LATE_WARNING_S: u64 = 30;
/// As above.
const JOBS_LIMIT: u32 = 256;

const IDLE: [(&str, IdleChoice); 4] = [
    ("auto", IdleChoice::Auto),
    ("spin", IdleChoice::Spin),
    ("sleep", IdleChoice::Sleep),
    ("busy-poll", IdleChoice::BusyPoll),
];

#[pymethods]
impl Hub {
    /// Starts a hub; when it returns, workers can join.
    #[new]
    #[pyo3(signature = (listen, transports, data_listen, nics, cores, idle, heartbeat_limit_s, checkpoints,
                        checkpoint_every, above, machine, interface, token, insecure))]
    #[allow(clippy::too_many_arguments)] // one for each setting; Python names them
    fn new(
        py: Python<'_>,
        listen: &str,
        transports: Option<Vec<String>>,
        data_listen: Option<&str>,
        nics: Option<&str>,
        cores: Option<&str>,
        idle: &str,
        heartbeat_limit_s: u64,
        checkpoints: Option<std::path::PathBuf>,
        checkpoint_every: Option<std::num::NonZeroU32>,
        above: Option<String>,
        machine: Option<&str>,
        interface: Option<&str>,
        token: Option<&str>,
        insecure: bool,
    ) -> PyResult<Self> {
        let named = |names: Vec<String>| names.iter().map(|name| parse("transport", name)).collect();
        let settings = HubSettings {
            listen: parse("address", listen)?,
            transports: transports.map(named).transpose()?,
            data_listen: data_listen.map(|text| parse("data_listen", text)).transpose()?,
            nics: nics.map(|text| parse("nics", text)).transpose()?,
            cores: cores.map(|text| parse("cores", text)).transpose()?,
            idle: choice("idle", idle, &IDLE)?,
            heartbeat_limit_s,
            checkpoints,
            checkpoint_every,
            checkpoint_keep: phub_server::checkpoint::KEEP,
            above,
            machine: machine.map(|text| parse("machine", text)).transpose()?,
            interface: interface.map(|text| parse("interface", text)).transpose()?,
            above_limit_s: ABOVE_LIMIT_S,
            jobs_limit: JOBS_LIMIT,
            unused_limit_s: None,
            token_file: None,
            insecure,
            token: token.map(credential).transpose()?,
            late_warning_s: LATE_WARNING_S,
            late_limit_s: None,
        };
        let hub = py
            .detach(|| phub_server::Hub::start(&settings))
            .map_err(|error| HubStartError::new_err(chain(&error)))?;
        Ok(Hub { address: hub.address(), hub: Mutex::new(Some(hub)), owner: std::process::id() })
    }

    /// `host:port` of its control port.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Writes checkpoints, tells the workers, and ends all threads.
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
