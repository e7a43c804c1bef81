//! The ranges of a window that links carry. Both ends of a link compute the same ranges.
//!
//! ```text
//!   spans   [0 ][1 ]  [2 ]            [3 ]      the padding between 1 and 2 is smaller than a page
//!   ranges  [              ]          [  ]
//! ```

use crate::ids::Span;
use crate::memory::HUGE_PAGE;

/// The gap below which two spans belong to one range. Memory is pinned in whole pages, and a post over
/// several small spans includes the padding between them. The gap is the same on all machines, so both ends
/// of a link compute the same ranges.
const GAP: usize = 4096;

/// The most bytes of a huge page that may lie outside of the range: a chunk at each end, and some padding.
const FOREIGN: usize = 64 * 1024;

/// Parts of a window, in ascending order, with gaps between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<Span>);

impl Default for Ranges {
    /// Returns one range that contains the whole of any window.
    fn default() -> Self {
        Ranges(vec![Span { offset: 0, bytes: usize::MAX }])
    }
}

impl FromIterator<Span> for Ranges {
    /// Returns the ranges that these spans cover.
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Self {
        let mut spans: Vec<Span> = spans.into_iter().filter(|span| span.bytes > 0).collect();
        spans.sort_unstable();
        spans.dedup_by(|next, last| {
            let joins = next.offset < end(*last).saturating_add(GAP);
            if joins {
                last.bytes = end(*last).max(end(*next)) - last.offset;
            }
            joins
        });
        Ranges(spans)
    }
}

impl Ranges {
    /// Returns the parts of the ranges that lie in a window of `bytes` bytes.
    pub(crate) fn within(&self, bytes: usize) -> Self {
        let cut = |span: &Span| Span { bytes: span.bytes.min(bytes.saturating_sub(span.offset)), ..*span };
        self.0.iter().map(cut).collect()
    }

    /// Returns all ranges, in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Span> {
        self.0.iter().copied()
    }

    /// Returns the index of the range that holds the whole span.
    #[inline]
    pub fn holding(&self, span: Span) -> Option<usize> {
        let place = self.0.partition_point(|range| range.offset <= span.offset).checked_sub(1)?;
        (span.end()? <= end(self.0[place])).then_some(place)
    }

    /// Returns the number of bytes that the kernel pins when the ranges are registered. Each range pins whole
    /// pages. Windows begin on a page.
    pub fn pinned_bytes(&self) -> u64 {
        let page = rustix::param::page_size();
        let pages = |range: Span| end(range).div_ceil(page) - range.offset / page;
        self.iter().map(|range| (pages(range) * page) as u64).sum()
    }

    /// Returns huge pages of a window of `window` bytes: the huge pages that lie in these ranges, except for
    /// at most [`FOREIGN`] bytes of each page. Neighbouring pages form one span. Windows begin on a huge
    /// page.
    pub(crate) fn huge_pages(&self, window: usize) -> Vec<Span> {
        let mut pages: Vec<(usize, usize)> = Vec::new();
        for range in self.within(window).iter() {
            for page in range.offset / HUGE_PAGE..end(range).div_ceil(HUGE_PAGE) {
                let (first, last) = (page * HUGE_PAGE, (page + 1) * HUGE_PAGE);
                let held = end(range).min(last) - range.offset.max(first);
                match pages.last_mut() {
                    Some((known, bytes)) if *known == page => *bytes += held,
                    _ => pages.push((page, held)),
                }
            }
        }
        pages.retain(|&(page, held)| held + FOREIGN >= HUGE_PAGE && page < window / HUGE_PAGE);
        let part = |pages: &[(usize, usize)]| Span {
            offset: pages[0].0 * HUGE_PAGE,
            bytes: pages.len() * HUGE_PAGE,
        };
        pages.chunk_by(|(page, _), (next, _)| page + 1 == *next).map(part).collect()
    }

    /// Returns how many bytes of a window of `window` bytes can lie in huge pages of these ranges.
    pub fn huge_bytes(&self, window: usize) -> u64 {
        self.huge_pages(window).iter().map(|part| part.bytes as u64).sum()
    }
}

/// Returns the offset after the last byte. If the range extends to the end of memory, returns the offset of
/// the last byte.
fn end(range: Span) -> usize {
    range.end().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(offset: usize, bytes: usize) -> Span {
        Span { offset, bytes }
    }

    fn ranges(spans: &[(usize, usize)]) -> Ranges {
        spans.iter().map(|&(offset, bytes)| span(offset, bytes)).collect()
    }

    #[test]
    fn neighbours_are_one_range_and_so_are_spans_with_less_than_a_page_between() {
        let all = ranges(&[(8192, 100), (0, 64), (64, 60), (128, 4096), (12388, 1)]);
        assert_eq!(all.0, [span(0, 8292), span(12388, 1)]);
        assert_eq!(ranges(&[(10, 0)]).0, []);
    }

    #[test]
    fn a_span_is_in_the_range_that_holds_all_of_it() {
        let two = ranges(&[(4096, 100), (65536, 200)]);
        let places = [(4096, 100), (4195, 1), (4195, 2), (65536, 200), (0, 1), (70000, 1), (usize::MAX, 2)];
        let found = places.map(|(offset, bytes)| two.holding(span(offset, bytes)));
        assert_eq!(found, [Some(0), Some(0), None, Some(1), None, None, None]);
        assert_eq!(Ranges::default().holding(span(usize::MAX - 9, 9)), Some(0));
    }

    #[test]
    fn a_window_ends_ranges() {
        assert_eq!(Ranges::default().within(100).0, [span(0, 100)]);
        assert_eq!(ranges(&[(0, 10), (8000, 10)]).within(8005).0, [span(0, 10), span(8000, 5)]);
        assert_eq!(ranges(&[(0, 10), (8000, 10)]).within(8000).0, [span(0, 10)]);
    }

    #[test]
    fn pages_are_pinned_whole_by_each_range() {
        let page = rustix::param::page_size();
        let two = ranges(&[(page - 1, 2), (4 * page, 3 * page)]);
        assert_eq!(two.pinned_bytes(), 5 * page as u64);
    }

    #[test]
    fn a_range_has_the_huge_pages_that_lie_in_it_but_for_a_little() {
        const MIB: usize = 1 << 20;
        let parts = |ranges: &[(usize, usize)]| self::ranges(ranges).huge_pages(32 * MIB);
        assert_eq!(parts(&[(0, 4 * MIB), (5 * MIB, 4 * MIB)]), [span(0, 4 * MIB), span(6 * MIB, 2 * MIB)]);
        assert_eq!(parts(&[(FOREIGN, 4 * MIB - 2 * FOREIGN)]), [span(0, 4 * MIB)]);
        assert_eq!(
            parts(&[(FOREIGN + 1, 4 * MIB - 2 * FOREIGN - 2), (8 * MIB, 0)]),
            [],
            "more than a little"
        );
        let three = [(0, MIB), (MIB + FOREIGN / 2, MIB - FOREIGN), (2 * MIB, 64)];
        assert_eq!(parts(&three), [span(0, 2 * MIB)], "all that is beside counts");
        assert_eq!(ranges(&[(MIB, 7 * MIB)]).huge_bytes(8 * MIB), 6 << 20);
        assert_eq!(ranges(&[(0, 8 * MIB)]).huge_bytes(8 * MIB - 1), 6 << 20, "the window ends before");
    }

    proptest! {
        #[test]
        fn of_two_that_share_a_window_one_at_most_has_a_huge_page(
            lengths in proptest::collection::vec(1usize..3 << 20, 1..40),
        ) {
            let (mut offset, mut both) = (0, [Vec::new(), Vec::new()]);
            for (turn, &bytes) in lengths.iter().enumerate() {
                both[turn % 2].push(span(offset, bytes));
                offset += bytes;
            }
            let [one, other] = both.map(|spans| spans.into_iter().collect::<Ranges>().huge_pages(offset));
            let meet = |a: &Span, b: &Span| a.offset < end(*b) && b.offset < end(*a);
            prop_assert!(!one.iter().any(|part| other.iter().any(|with| meet(part, with))));
        }

        #[test]
        fn every_span_lies_in_a_range_and_no_range_is_larger_than_it_must_be(
            spans in proptest::collection::vec((0usize..1 << 20, 1usize..20_000), 1..60),
        ) {
            let all = ranges(&spans);
            for &(offset, bytes) in &spans {
                prop_assert!(all.holding(span(offset, bytes)).is_some());
            }
            for pair in all.0.windows(2) {
                prop_assert!(end(pair[0]) + GAP <= pair[1].offset, "{pair:?}");
            }
            let begins = |range: Span| spans.iter().any(|&(offset, _)| offset == range.offset);
            let ends = |range: Span| spans.iter().any(|&(offset, bytes)| offset + bytes == end(range));
            prop_assert!(all.iter().all(|range| begins(range) && ends(range)));
        }
    }
}
