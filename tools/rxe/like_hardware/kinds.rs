//! Kinds of NICs, with their limits.

/// The limits of a kind of NIC.
pub struct Kind {
    pub name: &'static str,
    /// The depth that a device reports for both queues of a queue pair.
    pub max_qp_wr: u32,
    /// The depth of the send queues that a device makes.
    pub sends: u32,
    pub max_cqe: i32,
    pub max_mr: i64,
    pub resizes: bool,
}

/// Kinds with the limits that `ibv_devinfo -v` shows in public reports. The limits of mlx5 are from openucx/ucx
/// issue 8229 and ofiwg/libfabric pull request 9940. On mlx5, a send request of a reliable connection
/// has 256 bytes, and a queue 2 MiB. The limits of mlx4 are from a ConnectX-3 with firmware 2.42.5000. The limits of
/// bnxt_re are from a Thor in uccl-project/uccl issue 250, which has no figure for regions. In 2023, linux-rdma/rdma-core
/// pull request 1315 added `ibv_resize_cq` to bnxt_re.
const KINDS: [Kind; 3] = [
    Kind {
        name: "mlx5",
        max_qp_wr: 32768,
        sends: 8192,
        max_cqe: 4_194_303,
        max_mr: 16_777_216,
        resizes: true,
    },
    Kind { name: "mlx4", max_qp_wr: 16351, sends: 16351, max_cqe: 4_194_303, max_mr: 524_032, resizes: true },
    Kind {
        name: "bnxt_re",
        max_qp_wr: 4351,
        sends: 4351,
        max_cqe: 8_388_607,
        max_mr: i64::MAX,
        resizes: false,
    },
];

pub fn kind() -> Option<&'static Kind> {
    let name = std::env::var("LIKE_AS").ok()?;
    let found = KINDS.iter().find(|kind| kind.name == name);
    Some(found.unwrap_or_else(|| panic!("LIKE_AS is {name:?}; expected mlx5, mlx4 or bnxt_re")))
}
