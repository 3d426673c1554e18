//! One range from one peer: frames in, verified entries out, in order. Frames are read on all cores ([`super::pipeline`]) and
//! taken here by one thread: the skip path first, then each entry in its place. A peer that does not keep to the protocol is
//! told from one that is merely gone.

use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::id::SessionId;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::range::{RangeCheck, RangeLimits, RangeRequest};
use throughline_protocol::sync::{Point, range};
use throughline_protocol::verify::Prechecked;
use throughline_protocol::wire::Credentials;
use throughline_protocol::wire::chain::{ChainAsk, EntryAt, Payloads, RangeAsk};
use tokio::time::timeout;

use super::super::ask::Line;
use super::super::fault::PeerFault;
use super::super::shared::{Shared, blocking};
use super::check::{Failed, Frame, Item};
use super::pipeline::{Frames, Room, pipeline};
use super::sink::Sink;
use super::tally::Tally;
use crate::api::error::{Answer, Problem};

/// What is to be fetched.
#[derive(Clone, Debug)]
pub(super) struct RangeJob {
    pub(super) session: SessionId,
    pub(super) want: Point,
    pub(super) payloads: Payloads,
    /// How long the peer may send nothing.
    pub(super) idle: Duration,
    pub(super) limits: RangeLimits,
}

/// How far a range came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Came {
    /// Entries that were verified.
    pub(super) entries: u64,
    /// Bytes on the wire.
    pub(super) bytes: u64,
    /// Where the transfer began: entries above it were missing.
    pub(super) base: Option<Point>,
}

/// Everything that one thread takes frames with, in order.
struct Work {
    check: RangeCheck,
    sink: Sink,
    keys: VerifyingKeys,
    entries: u64,
    tally: Arc<Tally>,
}

/// Why frames are taken no further.
enum Stop {
    /// The answer is at fault, or broke off: what came before is good.
    Answer(PeerFault),
    /// What was handed to the sink is not taken.
    Sink(PeerFault),
}

/// What came of a range. The sink is back with all that was verified, also when the peer failed midway.
pub(super) struct Ranged {
    pub(super) sink: Sink,
    pub(super) came: Came,
    pub(super) result: Result<(), PeerFault>,
}

/// Fetches one range.
///
/// # Errors
/// When this node itself fails; what the peer does wrong is in the result.
pub(super) async fn fetch(
    shared: &Shared,
    peer: PeerId,
    credentials: &Credentials,
    job: &RangeJob,
    sink: Sink,
    tally: Arc<Tally>,
) -> Answer<Ranged> {
    let (sink, located) = on_sink(sink, |sink| sink.locator()).await?;
    let have = located?;
    let payloads = match job.payloads {
        Payloads::With => range::Payloads::With,
        Payloads::Without => range::Payloads::Without,
    };
    let request = RangeRequest { session: job.session, want: job.want, have: have.clone(), payloads };
    let check = RangeCheck::new(request, job.limits)?;
    let ask = ChainAsk::Range(RangeAsk {
        session: job.session,
        want: EntryAt { cid: job.want.cid, seq: job.want.seq },
        have,
        payloads: job.payloads,
    });
    let work = Work { check, sink, keys: VerifyingKeys::default(), entries: 0, tally };
    let late = || PeerFault::nobodys(Code::Timeout, "the peer sent nothing for too long");
    let opened = timeout(job.idle, shared.chain(peer, credentials, ask)).await;
    let (work, bytes, result) = match opened.unwrap_or_else(|_| Err(late())) {
        Ok(line) => frames(line, job.idle, work).await?,
        Err(fault) => (work, 0, Err(fault)),
    };
    let came = Came { entries: work.entries, bytes, base: work.check.base() };
    Ok(Ranged { sink: work.sink, came, result })
}

/// Takes frames until the answer ends, one way or another.
async fn frames(mut line: Line, idle: Duration, work: Work) -> Answer<(Work, u64, Result<(), PeerFault>)> {
    let (feed, frames) = pipeline();
    let taking = blocking(move || Ok(work.run(frames)));
    let taking = tokio::spawn(taking);
    feed.run(&mut line, idle).await;
    let taken = taking.await.unwrap_or_else(|_| Err(Code::Internal.into()));
    taken.map(|(work, result)| (work, line.bytes, result))
}

impl Work {
    /// Takes frames to the end. Whatever was good before a fault is brought to where it belongs.
    fn run(mut self, mut frames: Frames) -> (Self, Result<(), PeerFault>) {
        let result = match self.take_all(&mut frames) {
            Ok(()) => self.flush(),
            Err(Stop::Answer(fault)) => self.flush().and(Err(fault)),
            Err(Stop::Sink(fault)) => {
                if let Err(problem) = self.sink.give_up() {
                    tracing::warn!(%problem, "what was taken in of a transfer is not judged yet");
                }
                Err(fault)
            }
        };
        (self, result)
    }

    fn take_all(&mut self, frames: &mut Frames) -> Result<(), Stop> {
        loop {
            let (frame, room) = frames.next().map_err(Stop::Answer)?;
            self.tally.came(room.bytes);
            match frame {
                Frame::End => {
                    tracing::debug!(entries = self.entries, "the last frame was taken");
                    return self.check.end().map_err(|violation| Stop::Answer(violation.into()));
                }
                Frame::Path(entries) => {
                    self.check.path(&entries).map_err(|violation| Stop::Answer(violation.into()))?;
                    if let Some(entries) = self.check.remaining() {
                        tracing::debug!(entries, "the skip path is whole");
                        self.tally.expect(entries);
                    }
                }
                Frame::Control(blobs) => self.controls(&blobs)?,
                Frame::Items(items) => self.items(items, room)?,
                Frame::Other => {
                    let what = Reject::new(Code::SyncUnsolicited, "a frame that answers no range");
                    return Err(Stop::Answer(PeerFault::peers(what)));
                }
            }
        }
    }

    fn controls(&mut self, blobs: &[Arc<[u8]>]) -> Result<(), Stop> {
        self.check.control(blobs).map_err(|violation| Stop::Answer(violation.into()))?;
        let mut signed = Vec::with_capacity(blobs.len());
        for blob in blobs {
            let control = Signed::<Control>::check(Arc::clone(blob), &mut self.keys);
            let control = control.map_err(|reject| PeerFault::peers(reject.within("control blob")));
            signed.push(control.map_err(Stop::Answer)?);
        }
        self.sink.controls(signed).map_err(|problem| Stop::Sink(PeerFault::ours(&problem)))
    }

    /// Everything before the first fault of any kind is passed on; then that fault ends the answer.
    fn items(&mut self, items: Vec<Item>, room: Room) -> Result<(), Stop> {
        if items.is_empty() {
            // It would be a sign of life that costs nothing.
            let what = Reject::new(Code::SyncUnsolicited, "an empty entries frame");
            return Err(Stop::Answer(PeerFault::peers(what)));
        }
        let mut good = Vec::with_capacity(items.len());
        let mut fault = None;
        for item in items {
            match self.place(item) {
                Ok(entry) => good.push(entry),
                Err(found) => {
                    fault = Some(found);
                    break;
                }
            }
        }
        let count = good.len() as u64;
        self.entries += count;
        self.sink.entries(good, room).map_err(|problem| Stop::Sink(blame(&problem)))?;
        self.tally.verified(count);
        fault.map_or(Ok(()), |fault| Err(Stop::Answer(fault)))
    }

    /// The order of refusals: an item that is none, then its place, then what it is by itself. One out of place whose own bytes
    /// are damaged is named for that: it says more than where it stands.
    fn place(&mut self, item: Item) -> Result<Prechecked, PeerFault> {
        let (place, checked) = match item {
            Item::Unreadable { bytes, reject } => return Err(self.check.refuse(bytes, reject).into()),
            Item::Read { place, checked } => (place, checked),
        };
        match (self.check.place(&place), checked) {
            (Ok(()), Ok(entry)) => Ok(*entry),
            (Ok(()), Err(failed)) => Err(PeerFault::peers(failed.at(&place))),
            (Err(violation), Err(Failed::Signature(reject)))
                if violation.reject.code == Code::SyncUnsolicited =>
            {
                Err(PeerFault { reject, charged: violation.charged, apart: None })
            }
            (Err(violation), _) => Err(violation.into()),
        }
    }

    fn flush(&mut self) -> Result<(), PeerFault> {
        self.sink.flush().map_err(|problem| blame(&problem))
    }
}

/// A refusal by the rules is the peer's: no honest node has such an entry on its main chain. Anything else is ours.
fn blame(problem: &Problem) -> PeerFault {
    use throughline_protocol::code::Fault;
    match problem.code().fault() {
        Fault::Author | Fault::Peer => PeerFault::peers(Reject::new(problem.code(), problem.detail())),
        Fault::Local | Fault::None => PeerFault::ours(problem),
    }
}

/// Runs an act on a sink on a thread of its own.
pub(super) async fn on_sink<T: Send + 'static>(
    mut sink: Sink,
    act: impl FnOnce(&mut Sink) -> Answer<T> + Send + 'static,
) -> Answer<(Sink, Answer<T>)> {
    let done = blocking(move || {
        let result = act(&mut sink);
        Ok((sink, result))
    });
    done.await
}
