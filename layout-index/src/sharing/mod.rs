//! What nodes over one backing tell each other, and what they make of it: the shared directory, the
//! layouts in it, and this node among the others.

pub mod layout;
pub mod peers;
pub mod shared_dir;
