//! The parts of libibverbs' types that are used here.
//!
//! This file is on the `unsafe` list. Names, types and numbers are those of `infiniband/verbs.h` of rdma-core
//! 44. All versions of libibverbs.so.1 have them. Unused fields are joined into arrays. In structures that
//! the library allocates, all fields after the last used one are left out. They may contain a
//! `pthread_mutex_t`, whose size depends on the processor.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};

pub type ibv_port_state = c_uint;
pub const IBV_PORT_DOWN: ibv_port_state = 1;
pub const IBV_PORT_INIT: ibv_port_state = 2;
pub const IBV_PORT_ARMED: ibv_port_state = 3;
pub const IBV_PORT_ACTIVE: ibv_port_state = 4;
pub const IBV_PORT_ACTIVE_DEFER: ibv_port_state = 5;

/// The flag of a port that needs a GRH.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

pub type ibv_event_type = c_uint;
pub const IBV_EVENT_CQ_ERR: ibv_event_type = 0;
pub const IBV_EVENT_QP_FATAL: ibv_event_type = 1;
pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = 2;
pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = 3;
pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = 8;
pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = 9;
pub const IBV_EVENT_PORT_ERR: ibv_event_type = 10;

pub type ibv_wc_status = c_uint;
pub const IBV_WC_SUCCESS: ibv_wc_status = 0;
pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = 1;
pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = 2;
pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = 4;
pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = 5;
pub const IBV_WC_BAD_RESP_ERR: ibv_wc_status = 7;
pub const IBV_WC_LOC_ACCESS_ERR: ibv_wc_status = 8;
pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = 9;
pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = 10;
pub const IBV_WC_REM_OP_ERR: ibv_wc_status = 11;
pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = 12;
pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = 13;
pub const IBV_WC_REM_ABORT_ERR: ibv_wc_status = 16;
pub const IBV_WC_FATAL_ERR: ibv_wc_status = 19;
pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = 20;
pub const IBV_WC_GENERAL_ERR: ibv_wc_status = 21;

pub type ibv_wc_opcode = c_uint;
pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = 129;

pub type ibv_access_flags = c_uint;
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 2;
/// The first of the optional flags, which a driver may ignore.
pub const IBV_ACCESS_RELAXED_ORDERING: ibv_access_flags = 1 << 20;

pub type ibv_qp_type = c_uint;
pub const IBV_QPT_RC: ibv_qp_type = 2;

pub type ibv_qp_attr_mask = c_uint;
pub const IBV_QP_STATE: ibv_qp_attr_mask = 1;
pub const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = 8;
pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = 16;
pub const IBV_QP_PORT: ibv_qp_attr_mask = 32;
pub const IBV_QP_AV: ibv_qp_attr_mask = 128;
pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = 256;
pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = 512;
pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = 1024;
pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = 2048;
pub const IBV_QP_RQ_PSN: ibv_qp_attr_mask = 4096;
pub const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = 8192;
pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = 32768;
pub const IBV_QP_SQ_PSN: ibv_qp_attr_mask = 65536;
pub const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = 131072;
pub const IBV_QP_DEST_QPN: ibv_qp_attr_mask = 1048576;

pub type ibv_qp_state = c_uint;
pub const IBV_QPS_RESET: ibv_qp_state = 0;
pub const IBV_QPS_INIT: ibv_qp_state = 1;
pub const IBV_QPS_RTR: ibv_qp_state = 2;
pub const IBV_QPS_RTS: ibv_qp_state = 3;
pub const IBV_QPS_ERR: ibv_qp_state = 6;

pub type ibv_wr_opcode = c_uint;
pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = 1;
pub const IBV_WR_SEND: ibv_wr_opcode = 2;

pub type ibv_send_flags = c_uint;
pub const IBV_SEND_SIGNALED: ibv_send_flags = 2;

#[repr(C)]
pub struct ibv_device {
    pub _opaque: [u8; 0],
}

#[repr(C)]
pub struct ibv_pd {
    pub _opaque: [u8; 0],
}

#[repr(C)]
pub struct ibv_context {
    pub _device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub _cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// The functions of the data path, which the device's driver fills in.
#[repr(C)]
pub struct ibv_context_ops {
    pub _control: [usize; 11],
    pub poll_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int>,
    pub _queues: [usize; 12],
    pub post_send: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int,
    >,
    pub _others: [usize; 5],
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_device_attr {
    pub _identity: [u64; 12],
    pub _version: [u32; 3],
    pub _max_qp: c_int,
    pub max_qp_wr: c_int,
    pub _until_cq: [c_int; 4],
    pub max_cqe: c_int,
    pub _limits: [c_int; 22],
    pub _max_pkeys: u16,
    pub _local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub _max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub _limits: [u32; 5],
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub _subnet: [u8; 7],
    pub active_width: u8,
    pub active_speed: u8,
    pub _phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub _later: [u8; 4],
}

#[repr(C)]
pub struct ibv_async_event {
    pub element: ibv_event_element,
    pub event_type: ibv_event_type,
}

/// The object that an event concerns. The kind of the event says which field is valid.
#[repr(C)]
pub union ibv_event_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub port_num: c_int,
}

#[repr(C)]
pub struct ibv_mr {
    pub _made_from: [usize; 4],
    pub _handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub _context: *mut ibv_context,
    pub fd: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub _made_from: [usize; 3],
    pub _handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Big-endian.
    pub imm_data: u32,
    pub _of_datagrams: [u32; 5],
}

#[repr(C)]
pub struct ibv_qp {
    pub _made_from: [usize; 6],
    pub _handle: u32,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// A GID. The header has a union of its bytes and two words of 64 bits.
#[repr(C, align(8))]
#[derive(Default)]
pub struct ibv_gid {
    pub raw: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// A send request. Of the unions in its header, only the fields of RDMA writes are here.
#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: c_uint,
    /// Big-endian.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub _of_other_operations: [u64; 9],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

macro_rules! zeroed {
    ($($type:ident),*) => {$(
        impl Default for $type {
            fn default() -> Self {
                // SAFETY: the structure has only numbers and raw pointers, for which zero is a valid value.
                unsafe { MaybeUninit::zeroed().assume_init() }
            }
        }
    )*};
}
zeroed!(ibv_async_event, ibv_qp_init_attr, ibv_send_wr, ibv_recv_wr);

// The offsets of the used fields in the C structures of 64-bit Linux. They are equal on x86-64 and Arm.
const _: () = {
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_recv_wr>() == 32);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(
        offset_of!(ibv_send_wr, num_sge) == 24
            && offset_of!(ibv_send_wr, remote_addr) == 40
            && offset_of!(ibv_send_wr, rkey) == 48
    );
    assert!(size_of::<ibv_wc>() == 48 && offset_of!(ibv_wc, imm_data) == 24);
    assert!(size_of::<ibv_port_attr>() == 52 && offset_of!(ibv_port_attr, lid) == 34);
    assert!(offset_of!(ibv_port_attr, active_width) == 43 && offset_of!(ibv_port_attr, active_speed) == 44);
    assert!(offset_of!(ibv_port_attr, flags) == 47);
    assert!(size_of::<ibv_device_attr>() == 232 && offset_of!(ibv_device_attr, max_qp_wr) == 112);
    assert!(offset_of!(ibv_device_attr, max_cqe) == 132 && offset_of!(ibv_device_attr, phys_port_cnt) == 227);
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
