//! Messages on the wire: length (4 bytes, little-endian), then JSON.
//!
//! The other side is not trusted: a length above the cap is refused before a byte is allocated
//! for it, and the stream's timeouts bound how long a silent peer is waited for.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};

#[cfg(test)]
mod tests;

/// Longest message. Reports that could be longer are cut and say so.
pub const MAX: usize = 1 << 20;

pub fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {} bytes is too long to be sent", body.len()),
        ));
    }
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(body);
    to.write_all(&frame)?;
    to.flush()
}

/// `None` when the peer closed the connection between messages.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let mut got = 0;
    while got < length.len() {
        match from.read(&mut length[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a message of {length} bytes is longer than the {MAX} allowed"),
        ));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    serde_json::from_slice(&body)
        .map(Some)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("not understood: {e}")))
}
