//! Write-behind, as by a client's write-back cache: writes are acknowledged before they are served.
//!
//! Each client may have a limited number of bytes under way to each OST. A write that fits is
//! acknowledged at once and served in its turn. A write that does not fit is acknowledged when it
//! has been served, and then everything before it has been served too. Errors after the
//! acknowledgement are kept with the file and returned by its next sync or close.

use crate::locks::Client;
use parking_lot::Mutex;
use std::collections::HashMap;

#[derive(Debug)]
pub struct Behind {
    /// Limit in bytes for each client and OST; 0 switches write-behind off.
    limit: u64,
    under_way: Mutex<HashMap<(Client, usize), u64>>,
}

impl Behind {
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            under_way: Mutex::default(),
        }
    }

    pub fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Charges these bytes to `client` as under way to these OSTs: all of them, or none if one does
    /// not fit. Returns whether they fitted.
    pub fn take(&self, client: Client, parts: &[(usize, u64)]) -> bool {
        let mut under_way = self.under_way.lock();
        let fits = parts.iter().all(|(ost, bytes)| {
            let now = under_way.get(&(client, *ost)).copied().unwrap_or(0);
            now + bytes <= self.limit
        });
        if fits {
            for (ost, bytes) in parts {
                *under_way.entry((client, *ost)).or_default() += bytes;
            }
        }
        fits
    }

    pub fn give_back(&self, client: Client, parts: &[(usize, u64)]) {
        let mut under_way = self.under_way.lock();
        for (ost, bytes) in parts {
            let Some(now) = under_way.get_mut(&(client, *ost)) else {
                continue;
            };
            *now = now.saturating_sub(*bytes);
            if *now == 0 {
                under_way.remove(&(client, *ost));
            }
        }
    }
}

#[cfg(test)]
mod tests;
