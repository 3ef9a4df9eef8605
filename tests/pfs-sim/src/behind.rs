//! Writes that are acknowledged before they are served: the write-back cache of a client.
//!
//! Each client may have so many bytes under way to each OST. A write that fits is acknowledged at
//! once and served in its turn; one that does not is acknowledged when it was served, which is when
//! everything before it was, too. Errors that come after the acknowledgement are kept with the
//! file and told by its next sync or close.

use crate::locks::Client;
use parking_lot::Mutex;
use std::collections::HashMap;

#[derive(Debug)]
pub struct Behind {
    /// Bytes for each client and OST; 0 switches it off.
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

    /// Notes that `client` has these bytes under way to these OSTs, all of them or none.
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
