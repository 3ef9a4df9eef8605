//! Which layouts of this node's are being written to, and where they lie.
//!
//! An append that does not come back in time goes on without those who waited for it (`data.rs`). Until it
//! has come back its file must not be removed, and nothing more is sent to a place that does not answer.
//! Nothing here is durable: after a start nobody writes, and where layouts lie is found out anew.

use super::Commons;
use crate::types::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Layouts of this node's that are being written to, and whether they are to go afterwards.
pub(super) type Written = Arc<Mutex<HashMap<(FileId, u32), Arc<AtomicBool>>>>;

pub(super) struct Writing {
    all: Written,
    layout: (FileId, u32),
    pub unwanted: Arc<AtomicBool>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.all.lock().remove(&self.layout);
    }
}

impl Commons {
    pub(super) fn write_begins(&self, file: FileId, number: u32) -> Writing {
        let unwanted = Arc::new(AtomicBool::new(false));
        let layout = (file, number);
        self.writing.lock().insert(layout, unwanted.clone());
        Writing {
            all: self.writing.clone(),
            layout,
            unwanted,
        }
    }

    /// Somebody may still write to this layout of this node's, although nobody waits for that.
    pub fn is_written(&self, file: FileId, number: u32) -> bool {
        self.writing.lock().contains_key(&(file, number))
    }

    /// A layout of this node's can be appended to, as far as is known.
    pub fn takes_more(&self, file: FileId, number: u32) -> bool {
        let place = self.places.lock().get(&(file, number)).copied();
        place.is_none_or(|place| self.answers(place))
    }

    /// Nobody needs this sealed layout any more: if somebody still writes to it, that one removes it
    /// and its seal when it comes back. False if nobody does.
    pub fn leave_to_writer(&self, file: FileId, number: u32) -> bool {
        let writing = self.writing.lock();
        let Some(unwanted) = writing.get(&(file, number)) else {
            return false;
        };
        unwanted.store(true, Ordering::Release);
        self.places.lock().remove(&(file, number));
        true
    }
}
