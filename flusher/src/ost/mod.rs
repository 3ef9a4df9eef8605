//! Storage targets: what is needed to place a file on one of them.
//!
//! - [`lustre_abi`]: Lustre's layouts as bytes, and its list of OSTs as text.
//! - [`moosefs_master`]: asking a MooseFS master for targets, classes and chunks.

pub mod lustre_abi;
pub mod moosefs_master;
