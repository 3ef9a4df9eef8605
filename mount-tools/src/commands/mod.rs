//! The commands, one file each.

pub mod adopt;
pub mod drain;
pub mod explain;
pub mod layout;
pub mod mount;
pub mod prefetch;
pub mod probe;
pub mod recover;
pub mod status;
mod takeover;
pub mod umount;

use crate::units::Span;

fn millis(span: Option<Span>) -> Option<u64> {
    span.map(|s| u64::try_from(s.0.as_millis()).unwrap_or(u64::MAX))
}
