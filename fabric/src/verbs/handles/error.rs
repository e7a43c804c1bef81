//! The errors of a device, and of the handles that are made on it.

use std::io;

use super::library::LibraryError;
use super::words;

/// The reason why a NIC with a link-local address is used only if there is no better NIC, with the advice.
pub(in crate::verbs) const LINK_LOCAL: &str = "its only RoCE v2 address is link-local, which no router forwards and which may belong to another wire: \
     give its network interface an IP address";

/// The reason why a NIC with an address of another namespace is used only if there is no better NIC, with the
/// advice.
pub(in crate::verbs) const ELSEWHERE: &str = "the network interface of its address is in another network namespace, so \
     connections may not reach the peer: move the interface (ip link set INTERFACE netns PID), or run in the host's network";

/// The error of a device, or of a device's port, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is no libibverbs.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// There is no device of this name.
    #[error(
        "there is no RDMA device {device:?}; this machine has {}",
        list(.there_are)
    )]
    Unknown {
        /// The requested name.
        device: String,
        /// The devices of this machine.
        there_are: Vec<String>,
    },
    /// The devices could not be listed.
    #[error(
        "cannot list the RDMA devices: {0}; is the module ib_uverbs loaded (modprobe ib_uverbs), and does this container have /dev/infiniband?"
    )]
    List(String),
    /// The device exists, but does not open.
    #[error(
        "cannot open the RDMA device {device}: {error}; may this user write /dev/infiniband/uverbs*, and does this container have these files (docker run --device /dev/infiniband)?"
    )]
    Open {
        /// The device.
        device: String,
        /// The kernel's answer.
        error: String,
    },
    /// The device reported its failure.
    #[error("{device} said IBV_EVENT_DEVICE_FATAL: the NIC failed, and dmesg may have its driver's messages")]
    Fatal {
        /// The device.
        device: String,
    },
    /// The device has only link-local addresses, and other devices have better addresses.
    #[error("{device}: {LINK_LOCAL}")]
    LinkLocal {
        /// The device.
        device: String,
    },
    /// A call that queries a device failed.
    #[error("{call} on {device}: {error}")]
    Call {
        /// The device.
        device: String,
        /// The name of the call.
        call: &'static str,
        /// The kernel's answer.
        error: String,
    },
    /// No port of the device is active, or the requested port is not.
    #[error(
        "{device}: expected an ACTIVE port{}, saw {}; set its network interface up, or look at cable, switch and subnet manager",
        wanted.map(|port| format!(" {port}")).unwrap_or_default(),
        .states.join(", ")
    )]
    NotActive {
        /// The device.
        device: String,
        /// The requested port.
        wanted: Option<u8>,
        /// The states of the ports.
        states: Vec<String>,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none: is the NIC's driver loaded (rdma link show)? For soft-RoCE: rdma link add rxe0 type rxe netdev eth0"
            .into()
    } else {
        names.join(", ")
    }
}

impl DeviceError {
    pub(in crate::verbs) fn list(error: io::Error) -> Self {
        DeviceError::List(error.to_string())
    }

    /// Returns the error of an `ibv_open_device` that failed just now. Its text says how a user gets the
    /// permission to open a device.
    pub(in crate::verbs) fn open(device: &str) -> Self {
        let seen = io::Error::last_os_error();
        let (device, error) = (device.into(), seen.to_string());
        match seen.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                DeviceError::Open { device, error }
            }
            _ => DeviceError::Call { device, call: "ibv_open_device", error },
        }
    }

    /// Whether the device may open later without any change by a user, for example after a reset. A device
    /// does not open later if this process has no permission for it, or if it is not in the process's
    /// container.
    pub fn may_pass(&self) -> bool {
        matches!(self, DeviceError::Call { .. } | DeviceError::Fatal { .. } | DeviceError::NotActive { .. })
    }
}

/// The error of a NIC that could not make a queue pair, a completion queue, or another object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} cannot make a {what}{size} ({error}); {advice}")]
pub struct CreateError {
    /// The object that was to be made.
    pub what: &'static str,
    /// The NIC.
    pub device: String,
    /// The requested size with the device's maximum, as text. Empty if the object has no size.
    pub size: String,
    /// The function that failed, and the kernel's error.
    pub error: String,
    /// The advice for the user.
    pub advice: &'static str,
}

/// An object that a NIC must make, and the function that makes it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Made {
    pub what: &'static str,
    pub call: &'static str,
}

impl CreateError {
    /// Creates the error. `made` has the object and the function.
    pub(in crate::verbs) fn new(made: Made, device: &str, size: String, error: io::Error) -> Self {
        let advice = match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                "memory for the NIC, or its objects of this kind, are used up: raise the limit on locked memory (ulimit -l \
                 unlimited), or use fewer connections to one NIC"
            }
            Some(libc::EINVAL) => {
                "the NIC does not take this size; use larger chunks or more cores, which make smaller queues"
            }
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                "the NIC's driver lacks this function; use larger chunks, more cores, or fewer workers on this NIC, \
                 which need fewer entries"
            }
            Some(libc::EMFILE) => "raise the number of open files (ulimit -n)",
            _ => "dmesg may have the driver's messages",
        };
        let Made { what, call } = made;
        CreateError { what, device: device.to_owned(), size, error: format!("{call}: {error}"), advice }
    }

    /// Creates the error of an object that is larger than the device's maximum.
    pub(in crate::verbs) fn too_large(made: Made, device: &str, wanted: u32, most: u32) -> Self {
        let Made { what, call } = made;
        CreateError {
            what,
            device: device.to_owned(),
            size: format!(" of {wanted} entries"),
            error: format!("{call}: the device's maximum is {most}"),
            advice: "use larger chunks, more cores, or fewer workers on this NIC, which need fewer entries",
        }
    }
}

/// The error of a queue pair that did not change to its next state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot move a queue pair of {ours} from {} to {} (ibv_modify_qp of {}: {error}); the peer is {peer}{advice}",
    words::qp_state(*from),
    words::qp_state(*to),
    words::qp_mask(*mask)
)]
pub struct ModifyError {
    /// The current state, an `ibv_qp_state`.
    pub from: u32,
    /// The requested state.
    pub to: u32,
    /// The attributes of the request, an `ibv_qp_attr_mask`.
    pub mask: u32,
    /// This end, with its port and GID index.
    pub ours: String,
    /// The other end, or "nobody yet" while it is unknown.
    pub peer: String,
    /// The error number in words.
    pub error: String,
    /// The advice, with this end's GID table if it matters.
    pub advice: String,
}

#[cfg(test)]
mod tests {
    use super::super::ffi::{IBV_QP_AV, IBV_QP_STATE, IBV_QPS_INIT, IBV_QPS_RTR};
    use super::*;

    #[test]
    fn errors_say_who_is_there_and_what_to_do() {
        let unknown = |there_are| DeviceError::Unknown { device: "mlx5_9".into(), there_are };
        assert!(unknown(vec!["mlx5_0".into(), "mlx5_1".into()]).to_string().contains("has mlx5_0, mlx5_1"));
        assert!(unknown(vec![]).to_string().contains("rdma link show"));
        let states = vec!["port 1 DOWN".into(), "port 2 ARMED".into()];
        let error = DeviceError::NotActive { device: "mlx5_0".into(), wanted: None, states }.to_string();
        assert!(error.contains("an ACTIVE port, saw port 1 DOWN, port 2 ARMED"), "{error}");
    }

    #[test]
    fn an_error_names_states_mask_and_both_ends() {
        let error = ModifyError {
            from: IBV_QPS_INIT,
            to: IBV_QPS_RTR,
            mask: IBV_QP_STATE | IBV_QP_AV,
            ours: "rxe0 (GID ::ffff:10.0.0.1) port 1 GID index 1".into(),
            peer: "rxe0 (GID ::ffff:10.0.0.2)".into(),
            error: io::Error::from_raw_os_error(libc::ETIMEDOUT).to_string(),
            advice: "; ping it".into(),
        };
        let expected = "cannot move a queue pair of rxe0 (GID ::ffff:10.0.0.1) port 1 GID index 1 from INIT to RTR \
            (ibv_modify_qp of STATE | AV: Connection timed out (os error 110)); the peer is rxe0 \
            (GID ::ffff:10.0.0.2); ping it";
        assert_eq!(error.to_string(), expected);
    }
}
