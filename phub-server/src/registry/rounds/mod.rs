//! The rounds of running jobs: stopping them, checking their progress, and changing the optimizer's hyperparameters.
//!
//! | file | what it does |
//! | --- | --- |
//! | `compare` | compares the workers' weights |
//! | `cut` | stops a running job between two rounds |
//! | `late` | checks whether rounds continue |
//! | `numbers` | changes an optimizer's hyperparameters |
//! | `pace` | asks the cores how fast rounds are, and which worker is late |
//! | `timeline` | a timeline of the last rounds |
//! | `waits` | waits for a cut, a last state or answers of cores |

pub(super) mod compare;
pub(super) mod cut;
pub(super) mod late;
pub(super) mod numbers;
pub(super) mod pace;
mod priorities;
pub(super) mod timeline;
pub(super) mod waits;
