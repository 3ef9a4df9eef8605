//! Maps the bytes of a file to objects: RAID-0 over the objects of a file, one object on each OST.
//!
//! Stripe `u` of a file is stripe `u / count` of object `u % count`; the object's bytes are
//! contiguous. All arithmetic between file offsets and object offsets is here.

use crate::Errno;

/// A stripe size must be a multiple of this, as on Lustre.
pub const STRIPE_UNIT: u64 = 65536;
/// Stands for "all" in a stripe count and for "any" in a start.
pub const ANY: u16 = 0xffff;

/// Requested striping. Missing values come from the directory, then from the mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub stripe_size: Option<u64>,
    pub stripe_count: Option<u16>,
    pub start: Option<usize>,
    /// A complete list of OSTs, in stripe order; `stripe_count` and `start` are then ignored.
    pub osts: Option<Vec<usize>>,
    /// Name of the pool. It is kept and shown but has no other effect. If it is set, the structure
    /// has version 3.
    pub pool: Option<[u8; 16]>,
}

impl Wish {
    /// Returns `self` with missing values filled in from `base`.
    pub fn or(&self, base: &Wish) -> Wish {
        Wish {
            stripe_size: self.stripe_size.or(base.stripe_size),
            stripe_count: self.stripe_count.or(base.stripe_count),
            start: self.start.or(base.start),
            osts: self.osts.clone().or_else(|| base.osts.clone()),
            pool: self.pool.or(base.pool),
        }
    }

    /// Refuses values that no file could have on `targets` OSTs.
    pub fn check(&self, targets: usize) -> Result<(), Errno> {
        if let Some(size) = self.stripe_size
            && (size == 0 || !size.is_multiple_of(STRIPE_UNIT) || size > u64::from(u32::MAX))
        {
            return Err(Errno::EINVAL);
        }
        if self.start.is_some_and(|start| start >= targets) {
            return Err(Errno::EINVAL);
        }
        if let Some(osts) = &self.osts {
            let mut sorted = osts.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if osts.is_empty() || sorted.len() != osts.len() || sorted[sorted.len() - 1] >= targets
            {
                return Err(Errno::EINVAL);
            }
        }
        Ok(())
    }

    /// Makes the layout of one file. `turn` is the first OST if none was requested.
    pub fn settle(&self, targets: usize, turn: usize) -> Layout {
        let osts = self.osts.clone().unwrap_or_else(|| {
            let count = match self.stripe_count {
                None | Some(0) => 1,
                Some(ANY) => targets,
                Some(count) => usize::from(count).min(targets),
            };
            let start = self.start.unwrap_or(turn);
            (0..count).map(|i| (start + i) % targets).collect()
        });
        Layout {
            stripe_size: self.stripe_size.unwrap_or(1 << 20),
            osts,
            pool: self.pool,
        }
    }
}

/// The placement of one file, fixed once it has objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub stripe_size: u64,
    /// The OST of each object, in stripe order. Never empty.
    pub osts: Vec<usize>,
    pub pool: Option<[u8; 16]>,
}

/// A byte range of a file that is contiguous in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Position of the object in `Layout::osts`.
    pub object: usize,
    pub ost: usize,
    /// Start of the range in the object.
    pub at: u64,
    /// Start of the range in the file.
    pub offset: u64,
    pub len: u64,
}

impl Layout {
    fn count(&self) -> u64 {
        self.osts.len() as u64
    }

    /// Returns the pieces of `offset..offset + len`, in file order. Consecutive stripes in the same
    /// object form one piece, so a file with a single object gives one piece.
    pub fn pieces(&self, offset: u64, len: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let unit = at / self.stripe_size;
            let stop = ((unit + 1).saturating_mul(self.stripe_size)).min(end);
            let object = (unit % self.count()) as usize;
            match pieces.last_mut() {
                Some(last) if last.object == object => last.len += stop - at,
                _ => pieces.push(Piece {
                    object,
                    ost: self.osts[object],
                    at: self.inside(at),
                    offset: at,
                    len: stop - at,
                }),
            }
            at = stop;
        }
        pieces
    }

    /// Returns the offset in its object of the file's byte `offset`.
    fn inside(&self, offset: u64) -> u64 {
        let unit = offset / self.stripe_size;
        unit / self.count() * self.stripe_size + offset % self.stripe_size
    }

    /// Returns how many bytes of `object` belong to the first `size` bytes of the file. This is
    /// also the first offset in the object that belongs to file bytes at or after `size`.
    pub fn object_len(&self, object: usize, size: u64) -> u64 {
        let row = self.stripe_size * self.count();
        let rest = size % row;
        let before = object as u64 * self.stripe_size;
        size / row * self.stripe_size + rest.saturating_sub(before).min(self.stripe_size)
    }

    /// Returns the file offset of byte `at` of `object`.
    pub fn offset_of(&self, object: usize, at: u64) -> u64 {
        let unit = at / self.stripe_size * self.count() + object as u64;
        unit * self.stripe_size + at % self.stripe_size
    }
}

#[cfg(test)]
mod tests;
