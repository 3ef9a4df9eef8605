//! Finds the stripes that have something to move. Files are read in windows, to bound the extents
//! in memory.

use super::{DirtyStripe, File};
use crate::error::{Result, StoreError};
use crate::extent::{Extent, Place};
use crate::types::ByteRange;

/// Bytes that a search for unpublished bytes reads at a time.
const UNPUBLISHED: u64 = 1 << 20;

impl File {
    /// Stripes with undrained bytes at or after `from`, at most `max`, in file order.
    pub fn dirty_stripes(&self, stripe: u64, from: u64, max: usize) -> Result<Vec<DirtyStripe>> {
        self.stripes(stripe, from, max, |place| *place != Place::Canonical)
    }

    /// Stripes with bytes in places for which `counts` is true.
    pub(super) fn stripes(
        &self,
        stripe: u64,
        from: u64,
        max: usize,
        counts: impl Fn(&Place) -> bool,
    ) -> Result<Vec<DirtyStripe>> {
        let mut found: Vec<DirtyStripe> = Vec::new();
        let mut window = ByteRange {
            start: from,
            end: from,
        };
        loop {
            window = ByteRange {
                start: window.end,
                end: window.end.saturating_add(64 * stripe),
            };
            let Some(start) = self.next_extent(window.start)? else {
                return Ok(found);
            };
            if start >= window.end {
                let aligned = start / stripe * stripe;
                window = ByteRange {
                    start: aligned,
                    end: aligned.saturating_add(64 * stripe),
                };
            }
            let view = self.view(window)?;
            for (start, extent) in view.extents {
                if !counts(&extent.place) {
                    continue;
                }
                let mut at = start;
                while at < extent.end {
                    let first = at / stripe * stripe;
                    let end = first.saturating_add(stripe);
                    let stop = end.min(extent.end);
                    if found.last().is_none_or(|last| last.range.start != first) {
                        if found.len() == max {
                            return Ok(found);
                        }
                        let end = end.min(view.size.max(stop));
                        found.push(DirtyStripe {
                            range: ByteRange { start: first, end },
                            bytes: 0,
                        });
                    }
                    if let Some(last) = found.last_mut() {
                        last.bytes += stop - at;
                    }
                    at = stop;
                }
            }
        }
    }

    /// The first bytes at or after `from` that only this node has, at most one extent.
    pub(crate) fn next_unpublished(&self, from: u64) -> Result<Option<ByteRange>> {
        let Some(start) = self.next_extent(from)? else {
            return Ok(None);
        };
        let window = ByteRange {
            start,
            end: start.saturating_add(UNPUBLISHED),
        };
        let extents = self.visible(window)?.into_iter();
        let mut own = extents.filter(|(_, extent)| extent.place != Place::Canonical);
        let range = own.next().map(|(start, extent)| ByteRange {
            start,
            end: extent.end,
        });
        // If the whole window was drained meanwhile, the empty range lets the caller continue after
        // it.
        Ok(Some(range.unwrap_or(ByteRange {
            start: window.end,
            end: window.end,
        })))
    }

    /// Where the first extent of any layer at or after `from` begins.
    pub(super) fn next_extent(&self, from: u64) -> Result<Option<u64>> {
        let rest = ByteRange {
            start: from,
            end: u64::MAX,
        };
        let inner = self.inner();
        let period = inner.period.as_ref().ok_or(StoreError::Clean)?;
        let undrained = |(_, e): &(u64, Extent)| e.place != Place::Canonical;
        let hot = period.hot.within(rest).find(undrained).map(|(s, _)| s);
        let frozen = period
            .frozen
            .as_ref()
            .and_then(|f| f.within(rest).find(undrained));
        let memory = hot.into_iter().chain(frozen.map(|(s, _)| s)).min();
        if !period.has_lower_layers() {
            return Ok(memory);
        }
        let no = period.no;
        drop(inner);
        let cold = self.state.index.first_extent(no, from)?;
        Ok(memory.into_iter().chain(cold).min())
    }
}
