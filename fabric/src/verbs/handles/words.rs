//! The numbers of libibverbs in words.

use super::ffi::*;
use super::work::Work;

/// Describes the status of a work completion: the event, and its most likely meaning.
pub(in crate::verbs) fn status(status: ibv_wc_status, work: Work) -> String {
    let words = match status {
        // At the receiving end, this code means that this end refused a write of the peer.
        IBV_WC_REM_ACCESS_ERR if work == Work::Receive => {
            "remote access error: the peer wrote to memory that it may not access"
        }
        IBV_WC_SUCCESS => "success",
        IBV_WC_LOC_LEN_ERR => "local length error: a message is longer than its buffer or the port's maximum",
        IBV_WC_LOC_QP_OP_ERR => {
            "local queue pair operation error: a work request is malformed, or the interface of soft-RoCE is down"
        }
        IBV_WC_LOC_PROT_ERR => "local protection error: the window's registration does not cover the span",
        IBV_WC_WR_FLUSH_ERR => "work request flushed error: the queue pair is in the error state",
        IBV_WC_BAD_RESP_ERR => "bad response error: the peer sent an unexpected answer",
        IBV_WC_LOC_ACCESS_ERR => "local access error: the peer wrote to memory that it may not access",
        IBV_WC_REM_INV_REQ_ERR => {
            "remote invalid request error: the peer's NIC does not accept the kind of request"
        }
        IBV_WC_REM_ACCESS_ERR => {
            "remote access error: the peer's window does not cover the span, or the window's key is not valid any more"
        }
        IBV_WC_REM_OP_ERR => "remote operation error: the peer's NIC could not complete the request",
        IBV_WC_RETRY_EXC_ERR => "transport retry counter exceeded: the peer or the path to it is gone",
        IBV_WC_RNR_RETRY_EXC_ERR => {
            "receiver-not-ready retry counter exceeded: the peer posts no receive requests"
        }
        IBV_WC_REM_ABORT_ERR => "remote aborted error: the peer's NIC aborted the operation",
        IBV_WC_FATAL_ERR => "fatal error: the NIC's driver gave up",
        IBV_WC_RESP_TIMEOUT_ERR => "response timeout error: the peer's NIC did not answer",
        IBV_WC_GENERAL_ERR => "general error of the NIC",
        _ => "a status that this program does not know",
    };
    // The number stays in the text, because people search for it.
    match words.split_once(": ") {
        Some((name, meaning)) => format!("{name} ({status}): {meaning}"),
        None => format!("{words} ({status})"),
    }
}

/// Describes an asynchronous event, with its name.
pub(in crate::verbs) fn event(event: ibv_event_type) -> String {
    let words = match event {
        IBV_EVENT_CQ_ERR => "IBV_EVENT_CQ_ERR: the completion queue overran",
        IBV_EVENT_QP_FATAL => "IBV_EVENT_QP_FATAL: the queue pair failed in the NIC",
        IBV_EVENT_QP_REQ_ERR => "IBV_EVENT_QP_REQ_ERR: the peer sent an invalid request",
        IBV_EVENT_QP_ACCESS_ERR => "IBV_EVENT_QP_ACCESS_ERR: the peer wrote to memory that it may not access",
        IBV_EVENT_DEVICE_FATAL => "IBV_EVENT_DEVICE_FATAL: the NIC failed",
        IBV_EVENT_PORT_ERR => "IBV_EVENT_PORT_ERR: the NIC's port went down, and did not come back in time",
        other => return format!("asynchronous event {other}"),
    };
    words.to_owned()
}

pub(in crate::verbs) fn qp_state(state: ibv_qp_state) -> &'static str {
    match state {
        IBV_QPS_RESET => "RESET",
        IBV_QPS_INIT => "INIT",
        IBV_QPS_RTR => "RTR",
        IBV_QPS_RTS => "RTS",
        IBV_QPS_ERR => "ERR",
        _ => "an unknown state",
    }
}

/// Returns the names of the attributes in a call of `ibv_modify_qp`.
pub(in crate::verbs) fn qp_mask(mask: ibv_qp_attr_mask) -> String {
    let names = [
        (IBV_QP_STATE, "STATE"),
        (IBV_QP_ACCESS_FLAGS, "ACCESS_FLAGS"),
        (IBV_QP_PKEY_INDEX, "PKEY_INDEX"),
        (IBV_QP_PORT, "PORT"),
        (IBV_QP_AV, "AV"),
        (IBV_QP_PATH_MTU, "PATH_MTU"),
        (IBV_QP_TIMEOUT, "TIMEOUT"),
        (IBV_QP_RETRY_CNT, "RETRY_CNT"),
        (IBV_QP_RNR_RETRY, "RNR_RETRY"),
        (IBV_QP_RQ_PSN, "RQ_PSN"),
        (IBV_QP_MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
        (IBV_QP_MIN_RNR_TIMER, "MIN_RNR_TIMER"),
        (IBV_QP_SQ_PSN, "SQ_PSN"),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
        (IBV_QP_DEST_QPN, "DEST_QPN"),
    ];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name).collect();
    set.join(" | ")
}

/// Returns the name of a port's state.
pub(in crate::verbs) fn port_state(state: ibv_port_state) -> &'static str {
    match state {
        IBV_PORT_DOWN => "DOWN",
        IBV_PORT_INIT => "INIT",
        IBV_PORT_ARMED => "ARMED",
        IBV_PORT_ACTIVE => "ACTIVE",
        IBV_PORT_ACTIVE_DEFER => "ACTIVE_DEFER",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_spelled_out_with_its_number() {
        assert_eq!(
            status(IBV_WC_RETRY_EXC_ERR, Work::Send),
            "transport retry counter exceeded (12): the peer or the path to it is gone"
        );
        assert_eq!(status(99, Work::Send), "a status that this program does not know (99)");
    }

    #[test]
    fn a_mask_is_spelled_out() {
        assert_eq!(qp_mask(IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN), "STATE | AV | DEST_QPN");
    }
}
