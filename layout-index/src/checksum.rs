//! crc32c (Castagnoli), the only checksum of the store, computed with the CPU's carry-less
//! multiplication. The write path reads each payload byte once for it, at a small part of what
//! copying costs.

use crc_fast::{CrcAlgorithm, Digest};

pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// The checksum of what `crc` covers followed by `data`.
pub fn append(crc: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(data);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn appending_equals_the_whole_wherever_it_is_cut() {
        let data: Vec<u8> = (0..1000u32).map(|n| (n * 7) as u8).collect();
        for cut in [0, 1, 7, 64, 500, 999, 1000] {
            assert_eq!(append(crc32c(&data[..cut]), &data[cut..]), crc32c(&data));
        }
    }
}
