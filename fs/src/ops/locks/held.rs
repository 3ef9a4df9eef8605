//! The locks of one owner on one file. The backing knows them too, but cannot be asked for them. They are needed to
//! name the holder of a conflicting lock, to know when a lock shrinks, and to know when none is left.

use crate::backing::ofd::{LockKind, Span};

/// Locked bytes, with the process and handle that have locked them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    pub kind: LockKind,
    /// The process that requested the lock.
    pub pid: u32,
    /// The handle through which it was requested.
    pub fh: u64,
}

/// Pieces in ascending order; no two of them overlap.
#[derive(Debug, Default)]
pub struct Held(Vec<Piece>);

impl Held {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes whatever is held over `span`.
    pub fn remove(&mut self, span: Span) {
        let from = self.0.partition_point(|p| p.span.last < span.first);
        let to = self.0.partition_point(|p| p.span.first <= span.last);
        if from >= to {
            return;
        }
        let (before, after) = (self.0[from], self.0[to - 1]);
        let left = (before.span.first < span.first).then(|| Piece {
            span: Span {
                first: before.span.first,
                last: span.first - 1,
            },
            ..before
        });
        let right = (after.span.last > span.last).then(|| Piece {
            span: Span {
                first: span.last + 1,
                last: after.span.last,
            },
            ..after
        });
        self.0.splice(from..to, left.into_iter().chain(right));
    }

    /// Replaces whatever was held over the piece's bytes. Adjacent pieces of the same kind,
    /// process and handle become one.
    pub fn insert(&mut self, piece: Piece) {
        self.remove(piece.span);
        let mut piece = piece;
        let alike = |a: &Piece, b: &Piece| (a.kind, a.pid, a.fh) == (b.kind, b.pid, b.fh);
        let mut at = self.0.partition_point(|p| p.span.last < piece.span.first);
        if let Some(next) = self.0.get(at).copied()
            && alike(&next, &piece)
            && next.span.first == piece.span.last + 1
        {
            piece.span.last = next.span.last;
            self.0.remove(at);
        }
        if at > 0
            && let previous = self.0[at - 1]
            && alike(&previous, &piece)
            && previous.span.last + 1 == piece.span.first
        {
            piece.span.first = previous.span.first;
            at -= 1;
            self.0.remove(at);
        }
        self.0.insert(at, piece);
    }

    /// The pieces within `span`, cut to it.
    pub fn within(&self, span: Span) -> impl Iterator<Item = Piece> + '_ {
        let from = self.0.partition_point(|p| p.span.last < span.first);
        self.0[from..]
            .iter()
            .map_while(move |p| p.span.and(span).map(|span| Piece { span, ..*p }))
    }

    /// Covers all of `span`: with the held pieces, and with `None` for the gaps between them.
    pub fn cover(&self, span: Span) -> Vec<(Span, Option<Piece>)> {
        let mut all = Vec::new();
        let mut next = span.first;
        for piece in self.within(span) {
            if next < piece.span.first {
                let last = piece.span.first - 1;
                all.push((Span { first: next, last }, None));
            }
            all.push((piece.span, Some(piece)));
            next = piece.span.last + 1;
        }
        if next <= span.last {
            let last = span.last;
            all.push((Span { first: next, last }, None));
        }
        all
    }

    /// The ranges that were locked through `fh`.
    pub fn spans_of_handle(&self, fh: u64) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().filter(move |p| p.fh == fh).map(|p| p.span)
    }
}

#[cfg(test)]
mod tests;
