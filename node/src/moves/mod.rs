//! Handing sessions over: the machines of `protocol::handoff` on this node's store and network. `docs/PROTOCOL.md`
//! §Handing over.
//!
//! ```text
//!  API ──▶ Desk ──▶ Drive (one task a move) ── Driver ──▶ journal: job `move`
//!                     │  asks                         ╲─▶ the owner signs, outside
//!                     ▼
//!                   Road (network)  ─ ─ ─ ─ ─ ─ ─ ─▶  Desk::answer ──▶ Held (one a session)
//!                                                        Source ──▶ session state, job `source`
//!                                                        Target ──▶ adoption,      job `target`
//! ```
//!
//! What is decided is decided in `protocol::handoff`; here each output becomes one act. What must never happen here: an
//! answer before what it says is durable, a thaw once a later epoch is known, a handoff sent that is not in the journal.
//! The owner's key is never here: a handoff arrives signed.
//!
//! A move of which this very node is source or target goes the same way without the network.

mod desk;
mod drive;
mod drive_acts;
mod drive_owner;
mod facts;
mod held;
mod held_catch_up;
mod held_target;
mod journal;
mod network;
mod participant;
mod plan;
mod report;
mod road;
mod told;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throughline_protocol::code::Code;
use throughline_protocol::handoff::{Limits, MoveId};
use throughline_protocol::id::SessionId;
use tokio::sync::watch;

use crate::api::error::{Answer, Problem};
use crate::core::Node;

pub use desk::{Begin, Depth, Leave};
pub use drive_owner::Question;
pub use participant::Asker;
pub use told::{Course, Driven, Halt, Halted};

use desk::Entry;
use held::Held;
use network::NetworkRoad;
use road::Road;

/// The moves of a node: those that it drives, and its part in those of others. Held by the node, so it holds no node.
pub struct Moves {
    road: Arc<dyn Road>,
    limits: Limits,
    driven: Mutex<BTreeMap<MoveId, Entry>>,
    held: Mutex<BTreeMap<SessionId, Arc<Mutex<Held>>>>,
    /// Moves on when a fetch for an offer ended.
    fetched: watch::Sender<u64>,
}

impl Moves {
    fn new(road: Arc<dyn Road>, limits: Limits) -> Self {
        Moves {
            road,
            limits,
            driven: Mutex::default(),
            held: Mutex::default(),
            fetched: watch::Sender::new(0),
        }
    }
}

/// The moves of a node together with the node: everything about handing over is asked here.
#[derive(Clone)]
pub struct Desk {
    node: Node,
    moves: Arc<Moves>,
    /// How long whoever asks lets a step go without progress; none is as long as the node does.
    idle: Option<Duration>,
}

/// Opens a node's desk: reads the journals, goes on with what is not finished if there is a network, and answers other
/// nodes from now on. Inside a tokio runtime, after the network was attached.
///
/// # Errors
/// When the store cannot be read. A journal that does not read back is logged, and the node goes on without that move.
pub fn attach(node: &Node) -> Answer<()> {
    attach_with(node, Arc::new(NetworkRoad), Limits::default())
}

fn attach_with(node: &Node, road: Arc<dyn Road>, limits: Limits) -> Answer<()> {
    node.attach_moves(Arc::new(Moves::new(road, limits)));
    let desk = node.moves()?;
    desk.moves.road.serve(node);
    desk.read_journals()
}

impl Node {
    /// The node's desk for moves.
    ///
    /// # Errors
    /// `E_REFUSED` before [`attach`].
    pub fn moves(&self) -> Answer<Desk> {
        let moves = self.attached_moves();
        let moves = moves.ok_or_else(|| Problem::new(Code::Refused, "this node moves no sessions"))?;
        Ok(Desk { node: self.clone(), moves: Arc::clone(moves), idle: None })
    }
}

#[cfg(test)]
mod bring_back_tests;
#[cfg(test)]
mod left_tests;
#[cfg(test)]
mod network_tests;
#[cfg(test)]
mod overtaken_tests;
#[cfg(test)]
mod problems_tests;
#[cfg(test)]
mod repaired_tests;
#[cfg(test)]
mod testbench;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wires;
