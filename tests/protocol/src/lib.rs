//! The protocol between nodes (`docs/decisions/0008-many-nodes.md`) as a model that is explored exhaustively.
//!
//! Every interleaving of every step of a configuration is visited, and the properties are checked in every state. The
//! README of this package says what is modelled and what is not.

#[macro_use]
mod rules;

mod config;
mod configs;
mod drain;
mod late;
mod look;
mod model;
pub mod order;
mod power;
mod publish;
mod refresh;
mod run;
mod state;

pub use config::{Config, Op};
pub use configs::{all, named};
pub use model::{Action, Step, property};
pub use rules::Rules;
pub use run::{Explored, Report, Trace, check, check_until};
pub use state::State;
