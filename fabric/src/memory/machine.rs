//! The kernel's facts about this machine's memory.

use super::mapping::HUGE_PAGE;
use super::window::SendWindow;
use crate::ids::Span;
use crate::ranges::Ranges;

/// The file with Linux's setting for huge pages in shared memory. Every mapping asks for huge pages
/// by `madvise`.
pub const SHARED_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Whether windows can have huge pages on this machine, by `madvise` or by `MADV_COLLAPSE`.
pub fn shared_huge_pages() -> bool {
    // The chosen word stands in brackets: "always within_size advise [never] deny force".
    let words = std::fs::read_to_string(SHARED_HUGE_PAGES).unwrap_or_default();
    let advised =
        ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|word| words.contains(word));
    let page: Ranges = [Span { offset: 0, bytes: HUGE_PAGE }].into_iter().collect();
    advised || SendWindow::sparse(HUGE_PAGE).is_ok_and(|window| window.collapse_by_node(&[page], |_| ()) > 0)
}

/// Returns the resident memory of this process, including shared pages. Returns `None` if the kernel does not
/// report it.
pub fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
