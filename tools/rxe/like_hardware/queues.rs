//! Queues of completions, and queue pairs.

use std::ffi::{c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::net::Ipv6Addr;

use crate::devices::partition_keys;
use crate::events::{has_failed, with_real_events};
use crate::ffi::*;
use crate::functions::Argument as _;
use crate::infiniband::really;
use crate::kinds::kind;
use crate::{EINVAL, EIO, EOPNOTSUPP, fail, log};

pub fn create_cq(
    go_on: impl Fn() -> *mut ibv_cq,
    (context, entries, _, _, vector): (*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int),
) -> *mut ibv_cq {
    // SAFETY: the caller's open context.
    log(format!("queue vector={vector} of {}", unsafe { (*context).num_comp_vectors }));
    if has_failed(context) {
        return fail(EIO);
    }
    if kind().is_some_and(|kind| entries > kind.max_cqe) {
        fail(EINVAL)
    } else {
        with_real_events(context, go_on)
    }
}

pub fn resize_cq(go_on: impl Fn() -> c_int, (_, entries): (*mut ibv_cq, c_int)) -> c_int {
    log(format!("resize entries={entries}"));
    match kind() {
        Some(kind) if !kind.resizes => EOPNOTSUPP,
        Some(kind) if entries > kind.max_cqe => EINVAL,
        _ => go_on(),
    }
}

pub fn create_qp(
    go_on: impl Fn() -> *mut ibv_qp,
    (pd, init): (*mut ibv_pd, *mut ibv_qp_init_attr),
) -> *mut ibv_qp {
    // SAFETY: the caller's structure.
    let ibv_qp_cap { max_send_wr, max_recv_wr, .. } = unsafe { &(*init).cap };
    let too_many = kind().is_some_and(|kind| *max_send_wr > kind.sends || *max_recv_wr > kind.max_qp_wr);
    log(format!(
        "make max_send_wr={max_send_wr} max_recv_wr={max_recv_wr}{}",
        if too_many { " refused" } else { "" }
    ));
    let context = pd.context().unwrap();
    if too_many { fail(EINVAL) } else { with_real_events(context, go_on) }
}

pub fn modify_qp(
    go_on: impl Fn() -> c_int,
    (qp, attr, mask): (*mut ibv_qp, *mut ibv_qp_attr, c_int),
) -> c_int {
    // SAFETY: the caller's structures.
    let (number, attr) = unsafe { ((*qp).qp_num, &mut *attr) };
    let mut line = format!("modify qp={number}");
    let path = &attr.ah_attr;
    let fields: [(c_uint, &str, u32); 18] = [
        (IBV_QP_STATE, "state", attr.qp_state),
        (IBV_QP_ACCESS_FLAGS, "access", attr.qp_access_flags),
        (IBV_QP_PKEY_INDEX, "pkey_index", attr.pkey_index.into()),
        (IBV_QP_PORT, "port", attr.port_num.into()),
        (IBV_QP_AV, "global", path.is_global.into()),
        (IBV_QP_AV, "dlid", path.dlid.into()),
        (IBV_QP_AV, "sl", path.sl.into()),
        (IBV_QP_AV, "sgid_index", path.grh.sgid_index.into()),
        (IBV_QP_AV, "hop_limit", path.grh.hop_limit.into()),
        (IBV_QP_AV, "traffic_class", path.grh.traffic_class.into()),
        (IBV_QP_PATH_MTU, "path_mtu", attr.path_mtu),
        (IBV_QP_TIMEOUT, "timeout", attr.timeout.into()),
        (IBV_QP_RETRY_CNT, "retries", attr.retry_cnt.into()),
        (IBV_QP_RNR_RETRY, "rnr_retries", attr.rnr_retry.into()),
        (IBV_QP_MIN_RNR_TIMER, "rnr_timer", attr.min_rnr_timer.into()),
        (IBV_QP_MAX_QP_RD_ATOMIC, "reads", attr.max_rd_atomic.into()),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "reads_of_peer", attr.max_dest_rd_atomic.into()),
        (IBV_QP_DEST_QPN, "peer", attr.dest_qp_num),
    ];
    for (bit, name, value) in fields {
        if mask as c_uint & bit != 0 {
            let _ = write!(line, " {name}={value}");
        }
    }
    let dgid = Ipv6Addr::from(path.grh.dgid.raw);
    if mask as c_uint & IBV_QP_AV != 0 && path.is_global != 0 {
        let _ = write!(line, " dgid={dgid}");
    }
    log(line);
    let (said, key) = (std::mem::take(&mut attr.ah_attr), attr.pkey_index);
    attr.ah_attr = really(qp, &said, dgid);
    if partition_keys().is_some() {
        attr.pkey_index = 0;
    }
    let answer = go_on();
    (attr.ah_attr, attr.pkey_index) = (said, key);
    answer
}
