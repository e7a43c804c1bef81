//! The text of `phub-server --version`: the commit, the features and the instruction set of this build on this machine.

use std::sync::LazyLock;

use pbox_core::control::Versions;
use pbox_core::kernels::Kernels;

/// One line with the version and its commit.
pub static SHORT: LazyLock<String> =
    LazyLock::new(|| format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("COMMIT_OF_BUILD")));

/// The facts that a bug report needs, one per line.
pub static LONG: LazyLock<String> = LazyLock::new(|| {
    let features =
        if cfg!(feature = "hwloc") { "hwloc" } else { "none (without hwloc, sysfs describes the machine)" };
    let Versions { lowest, highest } = Versions::OURS;
    format!(
        "{}\nfeatures: {features}\ninstruction set: {}\nprotocol: {highest}, and with older hubs and workers {lowest}",
        *SHORT,
        Kernels::detect().name()
    )
});
