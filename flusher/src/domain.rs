//! File domains: which writer may touch which bytes of a canonical file.
//!
//! The file is cut into units of its stripe size, and unit *u* belongs to domain *u* mod *D*. Only
//! a domain's owner writes its units, so every write is of whole stripes and none of them waits for
//! another writer's bytes.
//!
//! # Why D is not free
//!
//! A parallel file system keeps a lock table for each object of a file, and grants a client the
//! whole object if no other client holds a part of it. Unit *u* lies on object *u* mod *n* of *n*.
//! If *D* is a factor of *n*, each object has one domain and its lock is asked for once. If *D* is
//! a multiple of *n*, each object is shared by a group of *D* / *n* domains that meet on no other
//! object. With any other *D* the groups overlap, and if the two have no factor in common, every
//! domain meets every other on every object (Nisar et al.: 49 delegates on 48 servers are much
//! slower than 48).
//!
//! This module is pure arithmetic: which node owns a domain, and for how long, is decided
//! elsewhere.

use layout_index::ByteRange;

#[cfg(test)]
mod tests;

/// How a file is divided into domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domains {
    unit: u64,
    count: u32,
}

impl Domains {
    /// Makes exactly `count` domains, however well that fits the file's objects. Zero counts as
    /// one.
    pub fn with_count(unit: u64, count: u32) -> Domains {
        Domains {
            unit: unit.max(1),
            count: count.max(1),
        }
    }

    /// Makes as many domains as is nearest to `writers` among the factors and multiples of `osts`,
    /// the number of the file's objects. Of two numbers that are equally near it takes the smaller:
    /// that leaves fewer clients on each object, and the busiest writer has no more to write. Zero
    /// counts as one.
    pub fn mapped(unit: u64, osts: u32, writers: u32) -> Domains {
        let (osts, writers) = (osts.max(1), writers.max(1));
        let count = if writers >= osts {
            let below = writers - writers % osts;
            match below.checked_add(osts) {
                Some(above) if above - writers < writers - below => above,
                _ => below,
            }
        } else {
            factors(osts)
                .min_by_key(|factor| (factor.abs_diff(writers), *factor))
                .unwrap_or(1)
        };
        Domains::with_count(unit, count)
    }

    pub fn unit(&self) -> u64 {
        self.unit
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the domain that the byte at `offset` belongs to.
    pub fn domain_of(&self, offset: u64) -> u32 {
        (offset / self.unit % u64::from(self.count)) as u32
    }

    /// Returns the units of `domain` in a file of `size` bytes, from front to back; the file's last
    /// unit ends with the file. There are none if `domain` is not the number of a domain.
    pub fn units(&self, domain: u32, size: u64) -> impl Iterator<Item = ByteRange> + use<> {
        let Domains { unit, count } = *self;
        let end = if domain < count {
            size.div_ceil(unit)
        } else {
            0
        };
        (u64::from(domain)..end)
            .step_by(count as usize)
            .map(move |n| ByteRange::new(n * unit, (n * unit).saturating_add(unit).min(size)))
    }

    /// Returns how many domains share each object of a file that lies on `osts` objects, in units
    /// of the stripe size. With 1 no lock ever moves between clients.
    pub fn sharing(&self, osts: u32) -> u32 {
        self.count / gcd(self.count, osts.max(1))
    }
}

fn factors(n: u32) -> impl Iterator<Item = u32> {
    (1..=n.isqrt())
        .filter(move |low| n.is_multiple_of(*low))
        .flat_map(move |low| [low, n / low])
}

fn gcd(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
