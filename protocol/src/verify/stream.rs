//! The streaming verifier: one chain, oldest entry first.
//!
//! Two stages, so that the costly one may run on any number of threads:
//!
//! ```text
//! bytes, payload ─▶ Prechecked ─▶ Verifier::link ─▶ take_segment ─▶ VerifiedSegment
//!   decode, signature, payload      links, authority, epoch
//!   (pure, any thread)              (in order, cheap)
//! ```
//!
//! Memory does not grow with the chain: [`Collect::Nothing`] drops entries once they are verified, and a caller that adopts as
//! it goes takes every verified prefix with [`Verifier::take_segment`].

use std::sync::{Arc, OnceLock};

use super::links::{Ancestry, NoIndex, Streamed, UNSETTLED_MAX, UnsettledLink, Window};
use super::segment::{Base, Named, VerifiedEntry, VerifiedSegment};
use super::state::{ChainState, Context};
use crate::block::Signed;
use crate::code::{Code, Reject};
use crate::entry::{Body, Entry};
use crate::fork::{Controls, Holds, Linked, Mark, Skeleton, Standing, begin, link};
use crate::id::{Cid, EntryCid};
use crate::payload::Payload;
use crate::sign::VerifyingKeys;

/// An entry whose bytes, schema, key, signature and payload were checked. Its place was not.
#[derive(Clone, Debug)]
pub struct Prechecked {
    signed: Signed<Entry>,
    payload: Option<Arc<[u8]>>,
    named: Named,
}

impl Prechecked {
    /// Decodes an entry, verifies its signature and checks its payload, when that came along. Depends on nothing else: any
    /// thread may do it, with its own `keys`.
    ///
    /// # Errors
    /// The first failure in the order size, codec, schema, key, signature, payload.
    pub fn check(
        bytes: impl Into<Arc<[u8]>>,
        payload: Option<Arc<[u8]>>,
        keys: &mut VerifyingKeys,
    ) -> Result<Self, Reject> {
        Prechecked::of(Signed::check(bytes, keys)?, payload)
    }

    /// An entry that was signed or checked before, with its payload.
    ///
    /// # Errors
    /// As [`Payload::check`].
    pub fn of(signed: Signed<Entry>, payload: Option<Arc<[u8]>>) -> Result<Self, Reject> {
        let mut named = Named::default();
        if let Body::ModelResponse(response) = &signed.value().body {
            named.files.extend(response.config.map(|config| config.cid()));
        }
        if let Some(payload) = &payload {
            let payload = Payload::check(signed.value(), Arc::clone(payload))
                .map_err(|reject| reject.within(&signed.cid().short()))?;
            named.files.extend(payload.files());
            named.no_file = payload.check_files().err();
            named.title = payload.title().map(str::to_owned);
        }
        Ok(Prechecked { signed, payload, named })
    }

    /// The config and the files that it names, as far as its payload came along.
    #[must_use]
    pub fn files(&self) -> &[Cid] {
        &self.named.files
    }

    /// As [`Payload::check_files`], if its payload came along.
    ///
    /// # Errors
    /// `E_CID_CODEC`.
    pub fn check_files(&self) -> Result<(), Reject> {
        self.named.no_file.clone().map_or(Ok(()), Err)
    }

    /// The title that its payload sets, if that came along.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.named.title.as_deref()
    }

    /// The entry.
    #[must_use]
    pub fn signed(&self) -> &Signed<Entry> {
        &self.signed
    }

    /// Its payload's bytes, when they came along.
    #[must_use]
    pub fn payload(&self) -> Option<&Arc<[u8]>> {
        self.payload.as_ref()
    }

    /// Its parts.
    #[must_use]
    pub fn into_parts(self) -> (Signed<Entry>, Option<Arc<[u8]>>) {
        (self.signed, self.payload)
    }
}

/// What a verifier does with the entries that it verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Keeps them for [`Verifier::take_segment`].
    Entries,
    /// Drops them: only the state after them is wanted.
    Nothing,
}

/// What became of an entry that met every rule, or that this verifier does not judge.
#[derive(Debug)]
pub enum Pushed {
    /// It continues the chain.
    Linked(Mark, Standing),
    /// It is the tip, or one of the last entries, once more.
    Known,
    /// It belongs to the session and stands on an earlier entry: the blobs are no single chain. Judge them with
    /// [`crate::fork::Set`].
    Aside(Box<Prechecked>),
}

/// How much went through a verifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Entries verified.
    pub entries: u64,
    /// Their bytes, payloads included.
    pub bytes: u64,
    /// Payloads that came along and were checked.
    pub payloads: u64,
}

/// Verifies one chain as its entries arrive. After a refusal it stands where it stood before.
#[derive(Clone, Debug)]
pub struct Verifier<A = NoIndex> {
    controls: Controls,
    ancestry: A,
    collect: Collect,
    keys: VerifyingKeys,
    chain: Option<Chain>,
    base: Base,
    entries: Vec<VerifiedEntry>,
    unsettled: Vec<UnsettledLink>,
    failed: Option<Reject>,
    progress: Progress,
}

#[derive(Clone, Debug)]
struct Chain {
    state: ChainState,
    window: Window,
    context: Context,
}

impl Verifier {
    /// A verifier that begins with a genesis.
    #[must_use]
    pub fn begin(controls: Controls) -> Self {
        Verifier {
            controls,
            ancestry: NoIndex,
            collect: Collect::Entries,
            keys: VerifyingKeys::default(),
            chain: None,
            base: Base::Nothing,
            entries: Vec::new(),
            unsettled: Vec::new(),
            failed: None,
            progress: Progress::default(),
        }
    }

    /// A verifier that goes on after a chain that was verified before.
    #[must_use]
    pub fn resume(state: ChainState, controls: Controls) -> Self {
        let context = Context::of(state.facts(), &controls);
        let (base, window) = (Base::On(state.tip()), Window::after(&state));
        let mut chain = Chain { state, window, context };
        chain.state.trail.rejudge(&chain.state.session, &chain.context);
        Verifier { chain: Some(chain), base, ..Verifier::begin(controls) }
    }
}

impl<A: Ancestry> Verifier<A> {
    /// The same verifier, asking `ancestry` about links beyond what it remembers.
    #[must_use]
    pub fn with_ancestry<B: Ancestry>(self, ancestry: B) -> Verifier<B> {
        Verifier {
            ancestry,
            controls: self.controls,
            collect: self.collect,
            keys: self.keys,
            chain: self.chain,
            base: self.base,
            entries: self.entries,
            unsettled: self.unsettled,
            failed: self.failed,
            progress: self.progress,
        }
    }

    /// The same verifier, keeping or dropping what it verified.
    #[must_use]
    pub fn collecting(mut self, collect: Collect) -> Self {
        self.collect = collect;
        self
    }

    /// Verifies an entry and its payload: [`Prechecked::check`], then [`Verifier::link`].
    ///
    /// # Errors
    /// The first rule that they break.
    pub fn push(
        &mut self,
        bytes: impl Into<Arc<[u8]>>,
        payload: Option<Arc<[u8]>>,
    ) -> Result<Pushed, Reject> {
        let checked = Prechecked::check(bytes, payload, &mut self.keys)?;
        self.link(checked)
    }

    /// Puts a checked entry on the chain.
    ///
    /// # Errors
    /// The first rule of links, authority and epoch that it breaks. `E_INCOMPLETE` when `prev`, the genesis or the capability is not
    /// held: nobody's fault yet. `E_BUDGET` when too many links wait for [`Verifier::settle`].
    pub fn link(&mut self, checked: Prechecked) -> Result<Pushed, Reject> {
        if let Some(reject) = &self.failed {
            return Err(reject.clone());
        }
        let skeleton = Skeleton::of(&checked.signed);
        let Some(chain) = &mut self.chain else {
            return self.begin_with(checked, &skeleton);
        };
        if skeleton.prev() != Some(chain.state.tip().cid) {
            return chain.off_the_tip(checked, &skeleton);
        }
        let path = Streamed { state: &chain.state, window: &chain.window, ancestry: &self.ancestry };
        let (linked, unknown) =
            link(chain.state.facts(), chain.state.position(), &path, &skeleton, &self.controls)
                .map_err(|reject| at(&skeleton, reject))?;
        if self.unsettled.len() + unknown.len() > UNSETTLED_MAX {
            return Err(at(&skeleton, Reject::new(Code::Budget, "too many links wait to be looked up")));
        }
        chain.state.advance(&linked, &skeleton, &chain.context);
        chain.window.push(skeleton.cid());
        let from = chain.state.tip();
        self.unsettled.extend(unknown.into_iter().map(|target| UnsettledLink { target, from }));
        Ok(self.take(checked, &linked))
    }

    fn begin_with(&mut self, checked: Prechecked, skeleton: &Skeleton) -> Result<Pushed, Reject> {
        if skeleton.prev().is_some() {
            return Err(at(skeleton, Reject::new(Code::Incomplete, "the genesis comes first")));
        }
        let (facts, linked) = begin(skeleton, &self.controls).map_err(|reject| at(skeleton, reject))?;
        let context = Context::of(&facts, &self.controls);
        let state = ChainState::begin(facts, &linked, skeleton, &context);
        let mut window = Window::whole();
        window.push(skeleton.cid());
        self.chain = Some(Chain { state, window, context });
        Ok(self.take(checked, &linked))
    }

    fn take(&mut self, checked: Prechecked, linked: &Linked) -> Pushed {
        let payload_bytes = checked.payload.as_ref().map_or(0, |payload| payload.len());
        self.progress.entries += 1;
        self.progress.bytes += (checked.signed.bytes().len() + payload_bytes) as u64;
        self.progress.payloads += u64::from(checked.payload.is_some());
        if self.collect == Collect::Entries {
            self.entries.push(VerifiedEntry {
                signed: checked.signed,
                payload: checked.payload,
                named: checked.named,
            });
        }
        Pushed::Linked(linked.mark(), linked.standing)
    }

    /// The chain so far; none before a genesis.
    #[must_use]
    pub fn state(&self) -> Option<&ChainState> {
        self.chain.as_ref().map(|chain| &chain.state)
    }

    /// The control blobs that it judges under.
    #[must_use]
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// How much went through.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Links that must be looked up before anything can be taken.
    #[must_use]
    pub fn unsettled(&self) -> &[UnsettledLink] {
        &self.unsettled
    }

    /// Answers for every waiting link to `target`: `holds` says whether the chain holds it before the entry that links it.
    /// An answer of [`Holds::Unknown`] changes nothing.
    ///
    /// # Errors
    /// `E_ANCESTOR` when it does not. The chain is then wrong from that entry on, and this verifier refuses everything further.
    pub fn settle(
        &mut self,
        target: EntryCid,
        holds: impl Fn(&UnsettledLink) -> Holds,
    ) -> Result<(), Reject> {
        let mut refused = None;
        self.unsettled.retain(|link| {
            if link.target != target {
                return true;
            }
            match holds(link) {
                Holds::Yes => false,
                Holds::Unknown => true,
                Holds::No => {
                    refused.get_or_insert(*link);
                    true
                }
            }
        });
        let Some(link) = refused else { return Ok(()) };
        let what = format!("seq {}: {} is no entry before this one", link.from.seq, link.target.short());
        let reject = Reject::new(Code::Ancestor, what);
        self.failed = Some(reject.clone());
        Err(reject)
    }

    /// Takes what was verified since the last time, as one segment; none when there is nothing. The verifier goes on.
    ///
    /// # Errors
    /// `E_INCOMPLETE` while links are unsettled, and the refusal itself after one was found wrong.
    pub fn take_segment(&mut self) -> Result<Option<VerifiedSegment>, Reject> {
        if let Some(reject) = &self.failed {
            return Err(reject.clone());
        }
        if let Some(link) = self.unsettled.first() {
            let what = format!(
                "{} links to earlier entries wait, first {}",
                self.unsettled.len(),
                link.target.short()
            );
            return Err(Reject::new(Code::Incomplete, what));
        }
        let Some(chain) = self.chain.as_ref().filter(|_| !self.entries.is_empty()) else {
            return Ok(None);
        };
        let after = chain.state.clone();
        let base = std::mem::replace(&mut self.base, Base::On(after.tip()));
        let entries = std::mem::take(&mut self.entries);
        Ok(Some(VerifiedSegment { base, entries, after, after_bytes: OnceLock::new() }))
    }

    /// Takes the last segment and ends.
    ///
    /// # Errors
    /// As [`Verifier::take_segment`].
    pub fn finish(mut self) -> Result<Option<VerifiedSegment>, Reject> {
        self.take_segment()
    }
}

impl Chain {
    /// An entry that does not stand on the tip: known, on an earlier entry, or not connected.
    fn off_the_tip(&self, checked: Prechecked, skeleton: &Skeleton) -> Result<Pushed, Reject> {
        if skeleton.session() != self.state.session() {
            let (expected, got) = (self.state.session().short(), skeleton.session().short());
            let what = format!("expected session {expected}, got {got}");
            return Err(at(skeleton, Reject::new(Code::SessionMismatch, what)));
        }
        if self.window.contains(skeleton.cid()) || skeleton.cid() == self.state.session().genesis() {
            return Ok(Pushed::Known);
        }
        let Some(prev) = skeleton.prev() else {
            return Err(at(skeleton, Reject::new(Code::Genesis, "a second genesis")));
        };
        if self.context.controls.holds(prev.digest()) {
            return Err(at(skeleton, Reject::new(Code::PrevType, "prev is a control blob")));
        }
        if self.window.contains(prev) || skeleton.seq() <= self.state.tip().seq {
            return Ok(Pushed::Aside(Box::new(checked)));
        }
        Err(at(skeleton, Reject::new(Code::Incomplete, format!("prev {} is not held", prev.short()))))
    }
}

/// The refusal with the entry that it is about.
fn at(skeleton: &Skeleton, reject: Reject) -> Reject {
    reject.within(&format!("seq {} ({})", skeleton.seq(), skeleton.cid().short()))
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
