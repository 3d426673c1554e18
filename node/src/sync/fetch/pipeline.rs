//! The bytes of one range answer on their way: received, read on all cores, taken in order.
//!
//! ```text
//!  stream ─▶ feed ─ a frame a thread, as many as cores ─▶ queue, in the order they came ─▶ take: place, adopt
//!             ▲                                                                              │
//!             └──────────────── room for AHEAD_BYTES_MAX, given back by what is adopted ◀────┘
//! ```
//!
//! While one group of entries is being adopted the next are verified and those after them received. Everything that came and
//! is not adopted yet is within [`AHEAD_BYTES_MAX`] plus one frame, however long the transfer; a frame counts as
//! [`FRAME_COST_MIN`] at least, so that small ones are bounded in number too. A peer waits for us as it waits for a slow line:
//! nothing is charged for it.

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use throughline_protocol::code::Code;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::check::{Frame, KeyRing, lost, read_frame};
use crate::sync::ask::Line;
use crate::sync::fault::PeerFault;

/// Bytes of frames that came and whose entries are not adopted yet, at most one frame more.
pub(super) const AHEAD_BYTES_MAX: u32 = 16 << 20;
/// What the smallest frame counts as, in bytes.
const FRAME_COST_MIN: u32 = 4 << 10;
/// Frames that are read at the same time, at most.
const LANES_MAX: usize = 16;

/// Room that a frame takes until what it brought is adopted or dropped.
pub(super) struct Room {
    permit: OwnedSemaphorePermit,
    /// Bytes of the frame.
    pub(super) bytes: u64,
}

impl Room {
    /// How much of [`AHEAD_BYTES_MAX`] it takes.
    pub(super) fn taken(&self) -> u64 {
        self.permit.num_permits() as u64
    }
}

/// What comes next of an answer.
enum Next {
    /// A frame that is being read.
    Frame(oneshot::Receiver<Result<Frame, PeerFault>>, Room),
    /// Nothing comes any more.
    Broken(PeerFault),
}

/// The end of the pipeline at which frames come out in order.
pub(super) struct Frames(mpsc::UnboundedReceiver<Next>);

/// The end at which bytes go in.
pub(super) struct Feed(mpsc::UnboundedSender<Next>);

/// A pipeline for one answer. The queue has no bound of its own: room is taken before anything is put into it.
pub(super) fn pipeline() -> (Feed, Frames) {
    let (feed, frames) = mpsc::unbounded_channel();
    (Feed(feed), Frames(frames))
}

impl Frames {
    /// The next frame, with its room. For threads of their own only.
    ///
    /// # Errors
    /// The fault that ends the answer.
    pub(super) fn next(&mut self) -> Result<(Frame, Room), PeerFault> {
        match self.0.blocking_recv() {
            Some(Next::Frame(read, room)) => {
                let frame = read.blocking_recv().unwrap_or_else(|_| Err(lost()))?;
                Ok((frame, room))
            }
            Some(Next::Broken(fault)) => Err(fault),
            None => Err(PeerFault::nobodys(Code::Interrupted, "the transfer was given up")),
        }
    }
}

/// Where frames come from.
pub(super) trait Source: Send {
    /// The bytes of the next frame. Dropping the future loses nothing.
    fn body(&mut self) -> impl Future<Output = Result<Vec<u8>, PeerFault>> + Send;
}

impl Source for Line {
    fn body(&mut self) -> impl Future<Output = Result<Vec<u8>, PeerFault>> + Send {
        Line::body(self)
    }
}

impl Feed {
    /// Receives until the source ends, says nothing for `idle`, or nobody takes frames any more.
    pub(super) async fn run(self, source: &mut impl Source, idle: Duration) {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let lanes = Arc::new(Semaphore::new(cores.min(LANES_MAX)));
        let room = Arc::new(Semaphore::new(AHEAD_BYTES_MAX as usize));
        let ring = Arc::new(KeyRing::default());
        loop {
            let body = tokio::select! {
                biased;
                () = self.0.closed() => return,
                body = timeout(idle, source.body()) => body,
            };
            let late = || PeerFault::nobodys(Code::Timeout, "the peer sent nothing for too long");
            let body = match body.unwrap_or_else(|_| Err(late())) {
                Ok(body) => body,
                Err(fault) => {
                    tracing::debug!(%fault, "nothing comes any more");
                    // Nobody may be left who wants to know.
                    let _ = self.0.send(Next::Broken(fault));
                    return;
                }
            };
            let cost = u32::try_from(body.len()).unwrap_or(u32::MAX).clamp(FRAME_COST_MIN, AHEAD_BYTES_MAX);
            let (Some(permit), Some(lane)) = (self.permit(&room, cost).await, self.permit(&lanes, 1).await)
            else {
                return;
            };
            let room = Room { permit, bytes: body.len() as u64 };
            let (done, read) = oneshot::channel();
            let ring = Arc::clone(&ring);
            tokio::task::spawn_blocking(move || {
                let frame = read_frame(&body, &ring);
                drop(lane);
                // Whoever waited for it may have ended.
                let _ = done.send(frame);
            });
            if self.0.send(Next::Frame(read, room)).is_err() {
                return;
            }
        }
    }

    /// Permits, once there are as many; none when nobody takes frames any more.
    async fn permit(&self, from: &Arc<Semaphore>, count: u32) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.0.closed() => None,
            permit = Arc::clone(from).acquire_many_owned(count) => permit.ok(),
        }
    }
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
