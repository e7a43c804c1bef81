//! The links of a job to the hubs above, while they are lost and made again. Owned by the job.

use std::time::{Duration, Instant};

use membership::Relinks;
use pbox_core::AnswersAbove;

/// A job's links to the hubs above.
#[derive(Debug, Default)]
pub(crate) struct RelinksAbove {
    /// The cores that have not dropped the former links yet, by number, and the answers that had come by the dropped ones; while links
    /// are made again.
    unlinked: Option<(usize, AnswersAbove)>,
    relinks: Relinks,
}

impl RelinksAbove {
    /// Whether links are lost, and others are made.
    pub fn are_lost(&self) -> bool {
        self.unlinked.is_some()
    }

    /// Notes that this number of cores is to drop its links.
    pub fn begin(&mut self, cores: usize) {
        self.unlinked = Some((cores, AnswersAbove::default()));
    }

    /// Notes that a core has dropped its links.
    pub fn core_unlinked(&mut self, of_core: AnswersAbove) {
        if let Some((cores, answers)) = &mut self.unlinked {
            *cores -= 1;
            answers.came += of_core.came;
            answers.awaited += of_core.awaited;
        }
    }

    /// Returns whether links may be made again, once all cores have dropped theirs.
    pub fn unlinked(&mut self, limit: Duration) -> Option<Result<(), String>> {
        let (0, AnswersAbove { came, awaited }) = self.unlinked? else { return None };
        let now = Instant::now();
        self.relinks.lost(now, came, awaited > 0, limit);
        Some(self.relinks.may_try(now, limit))
    }

    /// Notes that all links are made again.
    pub fn end(&mut self) {
        self.unlinked = None;
        self.relinks.made(Instant::now());
    }
}
