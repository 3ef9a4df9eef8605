//! Content that identifies its position: each 8-byte word is a hash of its own offset. A comparison
//! shows any byte that is at a wrong offset, stale (from another seed) or missing, and every
//! process can make its own share without the other processes.

use std::io::{self, Write};

/// The word at `index` (byte offset / 8): splitmix64 of the position.
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fills `buf` with the file's content from `offset` on.
pub fn fill(seed: u64, offset: u64, buf: &mut [u8]) {
    let head = ((8 - offset % 8) % 8).min(buf.len() as u64) as usize;
    let (first, rest) = buf.split_at_mut(head);
    for (i, byte) in first.iter_mut().enumerate() {
        let at = offset + i as u64;
        *byte = word(seed, at / 8).to_le_bytes()[(at % 8) as usize];
    }
    let words = (offset + head as u64) / 8..;
    for (index, chunk) in words.zip(rest.chunks_mut(8)) {
        chunk.copy_from_slice(&word(seed, index).to_le_bytes()[..chunk.len()]);
    }
}

/// Writes the whole content from front to back, as the reference for comparisons.
pub fn write_reference(seed: u64, total: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while at < total {
        let len = buf.len().min((total - at) as usize);
        fill(seed, at, &mut buf[..len]);
        out.write_all(&buf[..len])?;
        at += len as u64;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_bytes() {
        let mut whole = vec![0; 1000];
        fill(7, 0, &mut whole);
        for (start, end) in [(0, 1), (3, 4), (3, 999), (8, 16), (13, 13), (991, 1000)] {
            let mut part = vec![0; end - start];
            fill(7, start as u64, &mut part);
            assert_eq!(part, whole[start..end], "{start}..{end}");
        }
        let mut reference = Vec::new();
        write_reference(7, 1000, &mut reference).expect("a Vec takes every write");
        assert_eq!(reference, whole);
    }

    #[test]
    fn seeds_differ() {
        let (mut a, mut b) = ([0; 64], [0; 64]);
        fill(1, 0, &mut a);
        fill(2, 0, &mut b);
        assert_ne!(a, b);
    }
}
