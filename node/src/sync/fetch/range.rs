//! One range from one peer: frames in, verified entries out, in order. The answer is checked frame by frame; a peer that does
//! not keep to the protocol is told from one that is merely gone.

use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::SessionId;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::range::{Passed, RangeCheck, RangeLimits, RangeRequest};
use throughline_protocol::sync::{Point, range};
use throughline_protocol::wire::Credentials;
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk, EntryAt, EntryItem, Payloads, RangeAsk};
use tokio::time::timeout;

use super::super::ask::Line;
use super::super::fault::PeerFault;
use super::super::shared::{Shared, blocking};
use super::check::check_all;
use super::sink::Sink;
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

/// Everything that is under way, handed to a thread for each frame and back.
struct Work {
    check: RangeCheck,
    sink: Sink,
    keys: VerifyingKeys,
    entries: u64,
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
    let work = Work { check, sink, keys: VerifyingKeys::default(), entries: 0 };
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
async fn frames(
    mut line: Line,
    idle: Duration,
    mut work: Work,
) -> Answer<(Work, u64, Result<(), PeerFault>)> {
    loop {
        let late = PeerFault::nobodys(Code::Timeout, "the peer sent nothing for too long");
        let frame = match timeout(idle, line.next()).await.unwrap_or(Err(late)) {
            Ok(frame) => frame,
            Err(fault) => {
                // What came before it is good.
                let (work, flushed) = step(work, Work::flush).await?;
                return Ok((work, line.bytes, flushed.and(Err(fault))));
            }
        };
        let is_end = frame.is_none();
        let (back, taken) = step(work, |work| work.take(frame)).await?;
        work = back;
        if is_end || taken.is_err() {
            return Ok((work, line.bytes, taken));
        }
    }
}

impl Work {
    /// Takes one frame; none is the end.
    fn take(&mut self, frame: Option<ChainAnswer>) -> Result<(), PeerFault> {
        match frame {
            None => {
                let ended = self.check.end().map_err(PeerFault::from);
                self.flush()?;
                ended
            }
            Some(ChainAnswer::Path(entries)) => Ok(self.check.path(&entries)?),
            Some(ChainAnswer::Control(blobs)) => {
                self.check.control(&blobs)?;
                self.controls(&blobs)
            }
            Some(ChainAnswer::Entries(items)) => self.items(&items),
            Some(
                ChainAnswer::Heads { .. }
                | ChainAnswer::Blob { .. }
                | ChainAnswer::End
                | ChainAnswer::Error(_),
            ) => {
                self.flush()?;
                Err(PeerFault::peers(Reject::new(Code::SyncUnsolicited, "a frame that answers no range")))
            }
        }
    }

    fn controls(&mut self, blobs: &[Arc<[u8]>]) -> Result<(), PeerFault> {
        let mut signed = Vec::with_capacity(blobs.len());
        for blob in blobs {
            let control = Signed::<Control>::check(Arc::clone(blob), &mut self.keys);
            signed.push(control.map_err(|reject| PeerFault::peers(reject.within("control blob")))?);
        }
        self.sink.controls(signed).map_err(|problem| PeerFault::ours(&problem))
    }

    /// Everything before the first fault of any kind is passed on; then that fault ends the answer.
    fn items(&mut self, items: &[EntryItem]) -> Result<(), PeerFault> {
        let mut passed = Vec::with_capacity(items.len());
        let mut fault = None;
        for item in items {
            match self.check.item(&item.entry, item.payload.as_ref()) {
                Ok(entry) => passed.push(entry),
                Err(violation) => {
                    fault = Some(finer(violation.into(), item, &mut self.keys));
                    break;
                }
            }
        }
        self.verified(passed)?;
        match fault {
            Some(fault) => {
                self.flush()?;
                Err(fault)
            }
            None => Ok(()),
        }
    }

    fn verified(&mut self, passed: Vec<Passed>) -> Result<(), PeerFault> {
        let checked = check_all(passed);
        self.entries += checked.entries.len() as u64;
        self.sink.entries(checked.entries).map_err(|problem| blame(&problem))?;
        match checked.failed {
            Some(reject) => {
                self.flush()?;
                Err(PeerFault::peers(reject))
            }
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), PeerFault> {
        self.sink.flush().map_err(|problem| blame(&problem))
    }
}

/// An entry out of place whose own bytes are damaged is named for that: it says more than where it stands.
fn finer(fault: PeerFault, item: &EntryItem, keys: &mut VerifyingKeys) -> PeerFault {
    if fault.reject.code != Code::SyncUnsolicited {
        return fault;
    }
    match Decoded::<Entry>::decode(Arc::clone(&item.entry)).and_then(|entry| entry.verify(keys)) {
        Ok(_) => fault,
        Err(reject) => PeerFault { reject, charged: fault.charged },
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

/// Runs one step on a thread of its own.
async fn step(
    mut work: Work,
    act: impl FnOnce(&mut Work) -> Result<(), PeerFault> + Send + 'static,
) -> Answer<(Work, Result<(), PeerFault>)> {
    let done = blocking(move || {
        let result = act(&mut work);
        Ok((work, result))
    });
    done.await
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
