//! How the `forebay` commands talk to a running daemon: over a Unix socket for each mount, one message after
//! another. The daemon checks the peer's credentials for every request.

pub mod client;
pub mod codec;
pub mod location;
pub mod peer;
pub mod protocol;
pub mod server;
