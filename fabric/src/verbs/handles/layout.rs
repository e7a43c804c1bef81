//! Where the used fields lie, compared with what bindgen wrote, at compile time.
//!
//! The figures are those of the C structures of 64-bit Linux, on x86-64 and Arm alike. A `pthread_mutex_t`
//! has its own size on each, so that nothing behind one is used.

use std::mem::{offset_of, size_of};

use super::ffi::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_context_ops, ibv_cq, ibv_device_attr, ibv_mr,
    ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};

const _: () = {
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, num_sge) == 24 && offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_wc>() == 48 && offset_of!(ibv_wc, qp_num) == 28);
    assert!(size_of::<ibv_port_attr>() == 52 && offset_of!(ibv_port_attr, lid) == 34);
    assert!(size_of::<ibv_device_attr>() == 232 && offset_of!(ibv_device_attr, max_qp_wr) == 112);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_qp_attr>() == 144 && offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(size_of::<ibv_async_event>() == 16);
    assert!(offset_of!(ibv_mr, lkey) == 36 && offset_of!(ibv_mr, rkey) == 40);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(offset_of!(ibv_cq, cqe) == 28);
    assert!(offset_of!(ibv_comp_channel, fd) == 8);
    assert!(size_of::<ibv_context_ops>() == 256 && offset_of!(ibv_context_ops, poll_cq) == 88);
    assert!(offset_of!(ibv_context_ops, post_send) == 200 && offset_of!(ibv_context_ops, post_recv) == 208);
    assert!(offset_of!(ibv_context, ops) == 8 && offset_of!(ibv_context, async_fd) == 268);
};
