//! Reading and writing numbers. A reader never goes past the bytes it was given.

/// Why bytes were refused: the end of a sentence that begins with the name of the thing they
/// encode.
pub(super) type Refused = String;

pub(super) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { left: bytes }
    }

    pub fn left(&self) -> usize {
        self.left.len()
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Refused> {
        let Some((taken, left)) = self.left.split_at_checked(len) else {
            return Err("ends in the middle of a field".into());
        };
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u8(&mut self) -> Result<u8, Refused> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, Refused> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, Refused> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, Refused> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Seven bits in each byte, the lowest first; the last byte is below 128.
    pub fn varint(&mut self) -> Result<u64, Refused> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("holds a number of more than 64 bits".into())
    }

    pub fn varint_u32(&mut self) -> Result<u32, Refused> {
        u32::try_from(self.varint()?).map_err(|_| "holds a number that is too large".into())
    }

    /// A signed number as a varint: 0, -1, 1, -2, 2 and so on are encoded as 0, 1, 2, 3, 4.
    pub fn signed(&mut self) -> Result<i64, Refused> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A field that must be zero, so that a later version can give it a meaning.
    pub fn zero_u32(&mut self) -> Result<(), Refused> {
        match self.u32()? {
            0 => Ok(()),
            _ => Err("has a field that must be zero and is not".into()),
        }
    }

    pub fn end(&self) -> Result<(), Refused> {
        match self.left.len() {
            0 => Ok(()),
            n => Err(format!("has {n} bytes too many")),
        }
    }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1 ^ value >> 63) as u64);
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// The largest offset that a file can have.
pub(super) const MAX_OFFSET: u64 = i64::MAX as u64;

/// An offset or size that a file can have.
pub(super) fn offset(value: u64, what: &str) -> Result<u64, Refused> {
    if value > MAX_OFFSET {
        return Err(format!(
            "has a {what} of {value}, more than a file can have"
        ));
    }
    Ok(value)
}
