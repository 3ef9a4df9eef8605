//! What one owner holds of one file. The backing knows it too, but cannot be asked for it; it is
//! needed to say who is in the way, to know when a lock shrinks, and when nothing is left.

use crate::backing::ofd::{LockKind, Span};

/// Locked bytes, and on whose word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub span: Span,
    pub kind: LockKind,
    /// The process that asked.
    pub pid: u32,
    /// The handle it asked through.
    pub fh: u64,
}

/// Sorted, and no two pieces overlap.
#[derive(Debug, Default)]
pub struct Held(Vec<Piece>);

impl Held {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing is held over `span` any more.
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

    /// Replaces whatever was held over the piece's bytes; neighbours of the same word become one.
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

    /// What is held within `span`, cut to it.
    pub fn within(&self, span: Span) -> impl Iterator<Item = Piece> + '_ {
        let from = self.0.partition_point(|p| p.span.last < span.first);
        self.0[from..]
            .iter()
            .map_while(move |p| p.span.and(span).map(|span| Piece { span, ..*p }))
    }

    /// All of `span`: what is held, and between it what is not.
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

    /// What was taken through `fh`.
    pub fn through(&self, fh: u64) -> impl Iterator<Item = Span> + '_ {
        self.0.iter().filter(move |p| p.fh == fh).map(|p| p.span)
    }
}

#[cfg(test)]
mod tests;
