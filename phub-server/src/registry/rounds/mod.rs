//! Rounds of running jobs: they are stopped, looked at, and stepped with other numbers.
//!
//! | file | what it does |
//! | --- | --- |
//! | `compare` | compares the workers' weights |
//! | `cut` | stops a running job between two rounds |
//! | `late` | checks whether rounds continue |
//! | `numbers` | changes an optimizer's numbers |
//! | `pace` | asks the cores how fast rounds go, and who is late in them |
//! | `timeline` | a timeline of the last rounds |
//! | `waits` | waits for a cut, for a last state, and for answers of cores |

pub(super) mod compare;
pub(super) mod cut;
pub(super) mod late;
pub(super) mod numbers;
pub(super) mod pace;
pub(super) mod timeline;
pub(super) mod waits;
