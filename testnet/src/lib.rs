//! Real Throughline processes on one machine, driven as a user and an agent server drive them: by the command line and by
//! the local HTTP API.
//!
//! It knows the product from outside only: arguments, exit codes, streams, HTTP, and the wire. It never opens a store, and
//! never links the node, so that what passes here passes for everybody. Nothing sleeps: a wait ends with an event, with an answer
//! that is asked for again and again, or at [`LIMIT`].
//!
//! ```text
//! Lab ── Home (a directory of its own) ──┬─ Invocation ─▶ Ran      one command: exit code, both streams
//!                                        └─ Node ─▶ Api ─▶ Reply   `serve`, ready; HTTP over socket or TCP
//!                                            ▲          └▶ Events  server-sent events
//!                                        Hostile                    a peer that misbehaves on the wire
//! ```

pub mod hostile;
mod hygiene;
mod invocation;
mod lab;
mod node;
mod pty;

pub mod http;
pub mod sse;

use std::time::Duration;

pub use http::{Api, Reply, Request};
pub use invocation::{Invocation, Ran};
pub use lab::{Home, Lab};
pub use node::{Memory, Node};
pub use pty::Terminal;
pub use sse::{Event, Events};

/// The one limit of every wait: generous, because it only ends what hangs. No test asserts on time.
pub const LIMIT: Duration = Duration::from_secs(180);
