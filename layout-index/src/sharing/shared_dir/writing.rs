//! Which layouts of this node are being written to, and on which targets they are.
//!
//! An append that does not come back in time goes on after its caller has stopped waiting
//! (`writer.rs`). Until it has come back its file must not be removed, and nothing more is sent to a
//! target that does not answer. Nothing here is durable: after a start no write is under way, and
//! the targets of layouts are not known.

use super::writer::FileWriter;
use crate::types::FileId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Layouts of this node that are being written to, and whether each is to be removed afterwards.
pub(super) type OngoingWrites = Arc<Mutex<HashMap<(FileId, u32), Arc<AtomicBool>>>>;

pub(super) struct OngoingWrite {
    all: OngoingWrites,
    layout: (FileId, u32),
    pub unwanted: Arc<AtomicBool>,
}

impl Drop for OngoingWrite {
    fn drop(&mut self) {
        self.all.lock().remove(&self.layout);
    }
}

impl FileWriter {
    pub(super) fn begin_write(&self, file: FileId, number: u32) -> OngoingWrite {
        let unwanted = Arc::new(AtomicBool::new(false));
        let layout = (file, number);
        self.ongoing.lock().insert(layout, unwanted.clone());
        OngoingWrite {
            all: self.ongoing.clone(),
            layout,
            unwanted,
        }
    }

    /// Whether an append to this layout of this node is still under way, although no caller waits
    /// for it any more.
    pub fn is_being_written(&self, file: FileId, number: u32) -> bool {
        self.ongoing.lock().contains_key(&(file, number))
    }

    /// Whether a layout of this node can be appended to, as far as is known.
    pub fn accepts_appends(&self, file: FileId, number: u32) -> bool {
        let place = self.places.lock().get(&(file, number)).copied();
        place.is_none_or(|place| self.place_answers(place))
    }

    /// This sealed layout is not needed any more: if an append to it is still under way, the layout
    /// and its seal are removed when that comes back. Returns false if no append is under way.
    pub fn leave_to_writer(&self, file: FileId, number: u32) -> bool {
        let writing = self.ongoing.lock();
        let Some(unwanted) = writing.get(&(file, number)) else {
            return false;
        };
        unwanted.store(true, Ordering::Release);
        self.forget_place(file, number);
        true
    }

    /// The layout is gone.
    pub(super) fn forget_place(&self, file: FileId, number: u32) {
        self.places.lock().remove(&(file, number));
    }
}
