//! How the `forebay` commands talk to a running daemon: a Unix socket per mount, one message
//! after another, the peer's credentials checked for every verb.

pub mod client;
pub mod codec;
pub mod location;
pub mod peer;
pub mod protocol;
pub mod server;
