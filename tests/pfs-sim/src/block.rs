//! Memory for the bytes of objects, in blocks of 64 KiB.
//!
//! The first access to a page costs a page fault. On a virtual machine these faults can cost more
//! than everything else that a write asks of the simulator, and they would show up as time that no
//! OST was set to take. So blocks are reused and never returned to the system, and memory can be
//! touched before anything is measured (`warm`).

use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};

pub const BLOCK: usize = 64 << 10;
/// Bytes requested from the system at once.
const REGION: usize = 32 << 20;

#[derive(Default)]
struct Free {
    /// Blocks that were never used, and so are zero.
    fresh: Vec<&'static mut [u8]>,
    used: Vec<&'static mut [u8]>,
}

static FREE: Mutex<Free> = Mutex::new(Free {
    fresh: Vec::new(),
    used: Vec::new(),
});

/// One block. It goes back to the free list when it is dropped.
pub struct Block(&'static mut [u8]);

impl Block {
    /// Takes a block. With `zero` its bytes are zero; otherwise the caller must overwrite all of
    /// it.
    pub fn take(zero: bool) -> Self {
        let mut free = FREE.lock();
        if let Some(bytes) = free.used.pop() {
            drop(free);
            if zero {
                bytes.fill(0);
            }
            return Self(bytes);
        }
        if free.fresh.is_empty() {
            free.fresh = region().chunks_exact_mut(BLOCK).rev().collect();
        }
        match free.fresh.pop() {
            Some(bytes) => Self(bytes),
            None => Self(Box::leak(vec![0; BLOCK].into_boxed_slice())),
        }
    }
}

/// Touches memory for this many bytes of data, so that it causes no page faults later.
pub fn warm(bytes: u64) {
    let blocks = bytes.div_ceil(BLOCK as u64) as usize;
    let mut free = FREE.lock();
    while free.fresh.len() < blocks {
        let region = region();
        if region.is_empty() {
            break;
        }
        for page in region.chunks_exact_mut(4096) {
            // Writes a zero over a zero: only the kernel notices.
            page[0] = std::hint::black_box(0);
        }
        free.fresh.extend(region.chunks_exact_mut(BLOCK).rev());
    }
}

/// Returns more memory; an empty slice if the system has none left.
fn region() -> &'static mut [u8] {
    // SAFETY: a new private mapping at an address of the kernel's choice, which is never unmapped
    // and to which there is no other pointer. It is readable, writable and zero.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at = libc::mmap(std::ptr::null_mut(), REGION, prot, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return &mut [];
        }
        std::slice::from_raw_parts_mut(at.cast(), REGION)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        FREE.lock().used.push(bytes);
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Block")
    }
}

#[cfg(test)]
mod tests;
