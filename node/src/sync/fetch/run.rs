//! A fetch under way: one provider after the other, until the head is reached.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::PeerId;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::Point;
use throughline_protocol::sync::range::{Charged, RangeLimits};
use throughline_protocol::verify::{Auditor, Report};
use throughline_protocol::wire::chain::{OwnerState, Payloads};
use tokio::time::timeout;

use super::adopting::{Adopting, Told};
use super::auditing::Auditing;
use super::providers::{Answered, distinct_heads};
use super::range::{self, RangeJob, Ranged, on_sink};
use super::sink::{Hearing, Preview, Sink};
use super::tally::Tally;
use super::{Fetched, Freshness, FromPeer, Transfer, Use, Wanted};
use crate::api::error::{Answer, Problem};
use crate::core::{Evaluated, is_held};
use crate::net::Transport;
use crate::sync::fault::PeerFault;
use crate::sync::shared::{Shared, blocking};

/// A fetch under way.
pub(super) struct Run<'a> {
    pub(super) shared: &'a Shared,
    pub(super) session: SessionId,
    pub(super) wanted: Wanted,
    pub(super) idle: Duration,
    limits: RangeLimits,
    pub(super) tally: Arc<Tally>,
    pub(super) transfer: Transfer,
    /// Peers whose control blobs for the session are known: told with a range, or compared by the digest of its owner's.
    heard: BTreeSet<PeerId>,
    /// Peers that were too slow once, or broke the protocol: for what others told they are not asked again.
    failed: BTreeSet<PeerId>,
    /// Heads that were told and that nobody showed.
    pub(super) unshown: BTreeSet<EntryCid>,
}

/// What became of what was fetched.
struct Outcome {
    mode: Use,
    evaluated: Option<Evaluated>,
    report: Option<Report>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        session: SessionId,
        wanted: Wanted,
        idle: Duration,
        tally: Arc<Tally>,
    ) -> Self {
        let (limits, transfer) = (RangeLimits::default(), Transfer::default());
        let (heard, failed, unshown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Run { shared, session, wanted, idle, limits, tally, transfer, heard, failed, unshown }
    }

    pub(super) async fn adopt(
        &mut self,
        told: Mark,
        answers: &[Answered],
        held: Option<OwnerState>,
        owner: Option<Principal>,
        wants: Told,
    ) -> Answer<Fetched> {
        let node = self.shared.node()?;
        let (session, wanted) = (self.session, self.wanted);
        if let Some(held) = held {
            self.control_difference(held, answers).await?;
        }
        let sink = move || Ok(Sink::Adopt(Box::new(Adopting::new(node, session, owner, wanted, wants)?)));
        let sink = blocking(sink).await?;
        let sink = self.through_providers(point(told), answers, sink).await?;
        let sink = self.hear_others(answers, sink).await?;
        let (sink, flushed) = on_sink(sink, Sink::flush).await?;
        flushed?;
        let Sink::Adopt(adopting) = sink else { return Err(Code::Internal.into()) };
        let (missing, evaluated, witness) = blocking(move || adopting.finish()).await?;
        self.missing(answers, missing).await?;
        let report = match witness {
            // Not before all came that could be had: it counts what is here.
            Some(witness) => self.shared.on_node(move |node| witness.report(node)).await?,
            None => None,
        };
        let outcome = Outcome { mode: Use::Adopt, evaluated, report };
        Ok(self.done(told, answers, outcome))
    }

    pub(super) async fn audit(&mut self, told: Mark, answers: &[Answered]) -> Answer<Fetched> {
        let not_linear = Arc::new(AtomicBool::new(false));
        let streaming = Auditor::new().of_session(self.session);
        let mut attempt = self.audit_with(streaming, told, answers, &not_linear).await;
        if attempt.is_err() && not_linear.load(Ordering::Relaxed) {
            // Not one chain in order: everything once more, judged as a set.
            self.tally.again();
            self.heard.clear();
            attempt = self.audit_with(Auditor::over_set(self.session), told, answers, &not_linear).await;
        }
        let outcome = Outcome { mode: Use::Audit, evaluated: None, report: Some(attempt?) };
        Ok(self.done(told, answers, outcome))
    }

    async fn audit_with(
        &mut self,
        auditor: Auditor,
        told: Mark,
        answers: &[Answered],
        not_linear: &Arc<AtomicBool>,
    ) -> Answer<Report> {
        let (auditor, heads) = (auditor.told(told.cid), distinct_heads(answers, &self.unshown));
        let auditing = Auditing::new(auditor, heads, self.wanted, Arc::clone(not_linear));
        let mut sink = self.through_providers(point(told), answers, Sink::Audit(Box::new(auditing))).await?;
        // A head that did not go by is another history, or a claim: its teller has to show it.
        for head in unmet(&sink) {
            let Some(teller) = answers.iter().find(|answer| answer.head.is_some_and(|mark| mark.cid == head))
            else {
                continue;
            };
            let Some(mark) = teller.head else { continue };
            let (back, result) = self.range_of(point(mark), teller, sink).await?;
            sink = back;
            if let Err(fault) = result {
                tracing::debug!(peer = teller.provider.name(), %fault, "another head was told and not shown");
                self.unshown.insert(head);
            }
        }
        let sink = self.hear_others(answers, sink).await?;
        let Sink::Audit(mut auditing) = sink else { return Err(Code::Internal.into()) };
        let (refused, lacking) = self.check_files(auditing.files.clone(), answers).await?;
        for reject in refused {
            auditing.refused(None, reject);
        }
        blocking(move || auditing.report(&lacking)).await
    }

    /// One provider after the other, each going on where the one before ended.
    async fn through_providers(&mut self, want: Point, answers: &[Answered], sink: Sink) -> Answer<Sink> {
        let mut sink = sink;
        let mut first_fault: Option<Problem> = None;
        let (told, other): (Vec<&Answered>, Vec<&Answered>) =
            answers.iter().partition(|answer| answer.head.is_some_and(|head| head.cid == want.cid));
        // Whoever told a head at least as high may have the wanted one below it.
        let other = other.into_iter().filter(|answer| answer.head.is_some_and(|head| head.seq >= want.seq));
        let failed = self.failed.clone();
        let other = other.filter(|answer| !failed.contains(&answer.provider.peer));
        for answer in told.into_iter().chain(other) {
            let (back, mut result) = self.range_of(want, answer, sink).await?;
            sink = back;
            if sink.waits() {
                (sink, result) = self.preview_and_take(want, answer, answers, sink).await?;
            }
            let Err(fault) = result else { return Ok(sink) };
            tracing::info!(peer = answer.provider.name(), code = %fault.reject.code, "a transfer failed");
            if fault.charged != Charged::Nobody || fault.reject.code == Code::Timeout {
                self.failed.insert(answer.provider.peer);
            }
            first_fault.get_or_insert(
                Problem::from(fault)
                    .with("session", self.session.to_string())
                    .with("peer", answer.provider.name()),
            );
        }
        let (_, flushed) = on_sink(sink, Sink::flush).await?;
        flushed?;
        Err(first_fault.unwrap_or_else(|| Code::NotFoundYet.into()))
    }

    /// What came can only be judged together with what follows it: that is read, without its words, and what others know of it asked
    /// for. Then it comes again.
    async fn preview_and_take(
        &mut self,
        want: Point,
        from: &Answered,
        answers: &[Answered],
        sink: Sink,
    ) -> Answer<(Sink, Result<(), PeerFault>)> {
        tracing::debug!(session = self.session.short(), "a transfer is judged as one");
        let (sink, have) = on_sink(sink, |sink| sink.locator()).await?;
        let preview = Sink::Preview(Box::new(Preview::new(have?)));
        let (Sink::Preview(preview), previewed) = self.range_of(want, from, preview).await? else {
            return Err(Code::Internal.into());
        };
        if previewed.is_err() {
            return Ok((sink, previewed));
        }
        let sink = self.hear_others(answers, sink).await?;
        let Sink::Adopt(mut adopting) = sink else { return Err(Code::Internal.into()) };
        adopting.judge_together(Arc::new(preview.following))?;
        self.tally.again();
        self.range_of(want, from, Sink::Adopt(adopting)).await
    }

    async fn range_of(
        &mut self,
        want: Point,
        answer: &Answered,
        sink: Sink,
    ) -> Answer<(Sink, Result<(), PeerFault>)> {
        let provider = &answer.provider;
        let is_preview = matches!(sink, Sink::Preview(_));
        let is_bare = is_preview || self.wanted == Wanted::None;
        let payloads = if is_bare { Payloads::Without } else { Payloads::With };
        let job = RangeJob { session: self.session, want, payloads, idle: self.idle, limits: self.limits };
        let ranged = range::fetch(
            self.shared,
            provider.peer,
            &answer.credentials,
            &job,
            sink,
            Arc::clone(&self.tally),
        )
        .await?;
        self.transfer.round_trips += 1;
        self.heard.insert(provider.peer);
        self.count(answer, if is_preview { 0 } else { ranged.came.entries }, ranged.came.bytes);
        if self.transfer.resumed_from.is_none() {
            self.transfer.resumed_from = ranged.came.base.map(|base| base.seq.get());
        }
        match &ranged.result {
            Ok(()) if is_preview => {}
            Ok(()) => {
                let session = self.session;
                let held = self.shared.on_node(move |node| is_held(&node.reader()?, want.cid)).await?;
                let judged_under = match &ranged.sink {
                    Sink::Adopt(adopting) => adopting.judged_under(),
                    Sink::Audit(_) | Sink::Hear(_) | Sink::Preview(_) => None,
                };
                let left = judged_under.filter(|_| !held);
                self.shared.contacts.took(provider.key, session, want.cid, left);
            }
            Err(fault) if fault.charged == Charged::Nobody => {}
            // Whoever told the head answers for it as much as whoever sends it: here that is the same peer.
            Err(fault) => self.shared.net.charge(provider.peer, fault.reject.code).await,
        }
        Ok((ranged.sink, ranged.result))
    }

    /// Asks every other peer that told a head what control blobs it holds for the session, all at once: one that sends the
    /// entries may leave a tombstone out. Digests are compared only where the session is held, for an adoption, and by a peer
    /// that may see the owner's; all others are asked. The answer to a range of which the asker holds everything brings them;
    /// an entry in it is unsolicited.
    async fn hear_others(&mut self, answers: &[Answered], mut sink: Sink) -> Answer<Sink> {
        let silent = |answer: &&Answered| !self.heard.contains(&answer.provider.peer);
        let others = answers.iter().filter(silent).filter_map(|answer| Some((answer, answer.head?)));
        let asked: Vec<_> = others.map(|(answer, head)| self.hear(answer, head)).collect();
        if asked.is_empty() {
            return Ok(sink);
        }
        let at_a_time = self.shared.limits.peers_max.max(1);
        let heard: Vec<_> = futures::stream::iter(asked).buffered(at_a_time).collect().await;
        self.transfer.round_trips += 1;
        for (answer, ranged) in heard {
            let Some(ranged) = ranged.transpose()? else { continue };
            self.count(answer, 0, ranged.came.bytes);
            if let Err(fault) = ranged.result {
                tracing::debug!(peer = answer.provider.name(), %fault, "it did not tell its control blobs");
                if fault.charged != Charged::Nobody {
                    self.shared.net.charge(answer.provider.peer, fault.reject.code).await;
                }
                continue;
            }
            let Sink::Hear(heard) = ranged.sink else { return Err(Code::Internal.into()) };
            let (back, taken) = on_sink(sink, move |sink| sink.controls(heard.controls)).await?;
            sink = back;
            taken?;
        }
        Ok(sink)
    }

    /// Asks one peer for the control blobs beside the head that it told. None when it takes longer than a peer may send nothing:
    /// they are one frame or a few.
    fn hear<'b>(
        &self,
        answer: &'b Answered,
        head: Mark,
    ) -> impl Future<Output = (&'b Answered, Option<Answer<Ranged>>)> + use<'a, 'b> {
        let (shared, idle) = (self.shared, self.idle);
        let (want, payloads) = (point(head), Payloads::Without);
        let job = RangeJob { session: self.session, want, payloads, idle, limits: self.limits };
        async move {
            let hearing = Sink::Hear(Box::new(Hearing::new(head.cid)));
            let peer = answer.provider.peer;
            let asking = range::fetch(shared, peer, &answer.credentials, &job, hearing, Tally::new());
            let heard = timeout(idle, asking).await.ok();
            if heard.is_none() {
                tracing::debug!(peer = answer.provider.name(), "it did not tell its control blobs in time");
            }
            (answer, heard)
        }
    }

    pub(super) fn count(&mut self, answer: &Answered, entries: u64, bytes: u64) {
        let provider = &answer.provider;
        let peer = provider.principal.unwrap_or(provider.key);
        self.transfer.bytes += bytes;
        match self.transfer.from.iter_mut().find(|from| from.peer == peer) {
            Some(from) => {
                from.entries += entries;
                from.bytes += bytes;
            }
            None => self.transfer.from.push(FromPeer {
                peer,
                alias: provider.alias.clone(),
                road: road(answer.road),
                entries,
                bytes,
            }),
        }
    }

    /// What peers hold of the owner and this node does not is fetched first: revocations and grants decide how the rest is
    /// judged.
    async fn control_difference(&mut self, held: OwnerState, answers: &[Answered]) -> Answer<()> {
        for answer in answers {
            let Some(told) = answer.owner.filter(|told| told.count > 0) else { continue };
            if told.digest != held.digest {
                self.transfer.round_trips += 1;
                let sent =
                    self.shared.take_difference(&answer.provider, &answer.credentials, held.owner).await;
                match sent {
                    Ok(bytes) => self.count(answer, 0, bytes),
                    Err(fault) => {
                        tracing::debug!(peer = answer.provider.name(), %fault, "no control blobs");
                        continue;
                    }
                }
            }
            self.heard.insert(answer.provider.peer);
        }
        Ok(())
    }

    fn done(&mut self, told: Mark, answers: &[Answered], outcome: Outcome) -> Fetched {
        let agree = |answer: &&Answered| answer.head.is_some_and(|head| head.cid == told.cid);
        let reference = answers.iter().filter(agree).find_map(|answer| answer.reference.as_ref());
        Fetched {
            session: self.session,
            told,
            told_by: reference.and_then(|bytes| signer_of(bytes, told.cid)),
            freshness: Freshness::default(),
            transfer: std::mem::take(&mut self.transfer),
            mode: outcome.mode,
            evaluated: outcome.evaluated,
            report: outcome.report,
        }
    }
}

fn point(mark: Mark) -> Point {
    Point { cid: mark.cid, seq: mark.seq }
}

fn unmet(sink: &Sink) -> Vec<EntryCid> {
    match sink {
        Sink::Audit(auditing) => auditing.unmet(),
        Sink::Adopt(_) | Sink::Hear(_) | Sink::Preview(_) => Vec::new(),
    }
}

fn road(transport: Transport) -> &'static str {
    match transport {
        Transport::Quic => "chain-sync/quic",
        Transport::Tcp => "chain-sync/tcp",
    }
}

/// Who signed a Ref to this head; its own signature decides, not who passed it on.
fn signer_of(bytes: &Arc<[u8]>, head: EntryCid) -> Option<Principal> {
    let signed =
        Decoded::<Control>::decode(Arc::clone(bytes)).ok()?.verify(&mut VerifyingKeys::default()).ok()?;
    match signed.value() {
        Control::Ref(value) if value.session_head().is_ok_and(|named| named.head == head) => {
            Some(value.signer)
        }
        Control::Ref(_) | Control::Capability(_) | Control::Tombstone(_) => None,
    }
}
