//! The size that the kernel believes a file to have.

use std::sync::atomic::{AtomicU64, Ordering};

/// The size that the kernel was told last, enlarged by the kernel's own writes since. One answer may overtake
/// another, so this may be wrong for as long as requests for attributes run side by side.
#[derive(Debug)]
pub struct KernelSize(AtomicU64);

impl Default for KernelSize {
    /// No file has this size.
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl KernelSize {
    pub fn is(&self, size: u64) -> bool {
        self.0.load(Ordering::Acquire) == size
    }

    /// Must be called when an answer to the kernel contains this size.
    pub fn told(&self, size: u64) {
        self.0.store(size, Ordering::Release);
    }

    /// Must be called after a write: the kernel takes a file to be at least as long as its writes make it.
    pub fn written(&self, end: u64) {
        if self.0.load(Ordering::Relaxed) < end {
            self.0.fetch_max(end, Ordering::AcqRel);
        }
    }
}
