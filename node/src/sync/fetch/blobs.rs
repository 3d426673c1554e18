//! Payloads, configs and files after the entries: what is missing is asked for by CID, and bytes count only if they hash to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use throughline_protocol::block::{Block, Decoded};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, EntryCid, Seq, SessionId, UnixMillis};
use throughline_protocol::limits;
use throughline_protocol::payload::{ConfigBlock, Payload};
use throughline_protocol::unixfs;
use throughline_protocol::verify::Prechecked;
use throughline_store::{LinkBlocks, PayloadState, PutBlock, Reader, StoredEntry};

use super::super::fault::PeerFault;
use super::Wanted;
use super::adopting::{Missing, config_of, expect_room};
use super::providers::Answered;
use super::run::Run;
use crate::api::error::Answer;
use crate::core::{Node, links_here, now};

/// Blocks that one fetch asks for, parts of files included.
const BLOCKS_MAX: usize = 1 << 20;
/// Rounds of asking: payloads, then the files they name, then their parts, level by level.
const ROUNDS_MAX: usize = 2 + limits::FILE_DEPTH_MAX;
/// How long a block stays that nothing links yet.
const LEASE_MS: u64 = 24 * 60 * 60 * 1000;

/// A block that is wanted, and for a part of a file the nodes above it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Want {
    cid: Cid,
    /// The entry that it belongs to.
    seq: Seq,
    /// From the file's root down: a peer serves a part with its file.
    above: Vec<Cid>,
}

impl Want {
    /// What the entry names: the block itself, or the file that it is a part of.
    fn root(&self) -> Cid {
        self.above.first().copied().unwrap_or(self.cid)
    }
}

impl Run<'_> {
    /// Fetches what the session's entries name and this node does not hold. What nobody gives is not asked for again.
    pub(super) async fn missing(&mut self, answers: &[Answered], missing: Missing) -> Answer<()> {
        let (session, wanted) = (self.session, self.wanted);
        let (mut look, mut refused) = (missing, BTreeSet::new());
        for _ in 0..ROUNDS_MAX {
            if wanted == Wanted::None {
                break;
            }
            let wants = self.shared.on_node(move |node| wants_of(node, session, wanted, &look)).await?;
            let open: Vec<Want> = wants.into_iter().filter(|want| !refused.contains(&want.cid)).collect();
            if open.is_empty() {
                break;
            }
            self.tally.expect_blocks(open.len() as u64);
            let mut seqs: BTreeMap<Cid, Seq> = open.iter().map(|want| (want.cid, want.seq)).collect();
            for want in self.store_from(answers, open).await? {
                seqs.remove(&want.cid);
                refused.insert(want.cid);
            }
            // Only what came names more.
            let came: BTreeSet<Seq> = seqs.into_values().collect();
            look = Missing::of(wanted, came.into_iter().collect());
        }
        Ok(())
    }

    /// Asks one provider after the other; returns what none of them gave.
    async fn store_from(&mut self, answers: &[Answered], wants: Vec<Want>) -> Answer<Vec<Want>> {
        let mut open = wants;
        for answer in answers.iter().filter(|answer| answer.head.is_some()) {
            let mut left = Vec::new();
            let mut queue: VecDeque<Want> = std::mem::take(&mut open).into();
            while let Some(batch) = next_batch(&mut queue) {
                let (got, fault) = self.ask_blocks(answer, &batch).await;
                let session = self.session;
                let stored = self.shared.on_node(move |node| store(node, session, got)).await?;
                left.extend(batch.into_iter().filter(|want| !stored.contains(&want.cid)));
                if let Some(fault) = fault {
                    tracing::debug!(peer = answer.provider.name(), %fault, "blocks did not come");
                    left.extend(queue.drain(..));
                }
            }
            open = left;
            if open.is_empty() {
                break;
            }
        }
        Ok(open)
    }

    /// Config blocks and files of an audit: asked for, hashed, dropped. Returns what was refused, and those of which nobody gave
    /// every block.
    pub(super) async fn check_files(
        &mut self,
        files: BTreeSet<Cid>,
        answers: &[Answered],
    ) -> Answer<(Vec<Reject>, BTreeSet<Cid>)> {
        let (mut refused, mut lacking, mut asked) = (Vec::new(), BTreeSet::new(), 0_usize);
        let mut queue: VecDeque<Want> =
            files.into_iter().map(|cid| Want { cid, seq: Seq::ZERO, above: Vec::new() }).collect();
        while let Some(batch) = next_batch(&mut queue) {
            asked += batch.len();
            let mut open = batch;
            for answer in answers.iter().filter(|answer| answer.head.is_some()) {
                let (got, fault) = self.ask_blocks(answer, &open).await;
                refused
                    .extend(fault.filter(|fault| fault.reject.code == Code::CidMismatch).map(|f| f.reject));
                for (want, block) in &got {
                    queue.extend(parts_of(want, block));
                }
                open.retain(|want| !got.iter().any(|(got, _)| got.cid == want.cid));
            }
            lacking.extend(open.iter().map(Want::root));
            if asked + queue.len() > BLOCKS_MAX {
                // What is not looked at is missing here; that is no fault of the session.
                lacking.extend(queue.iter().map(Want::root));
                break;
            }
        }
        Ok((refused, lacking))
    }

    /// One request: blocks that hash to what was asked, and why it ended early if it did.
    async fn ask_blocks(
        &mut self,
        answer: &Answered,
        wants: &[Want],
    ) -> (Vec<(Want, Block)>, Option<PeerFault>) {
        let (mut blocks, cids) = (Vec::new(), cids_of(wants));
        let (peer, credentials) = (answer.provider.peer, &answer.credentials);
        let result = self.shared.ask_blocks(peer, credentials, &cids, self.idle, &mut blocks).await;
        let wanted = |block: Block| Some((wants.iter().find(|want| want.cid == block.cid())?.clone(), block));
        // The nodes above a part are asked for so that the peer sends it; they are held.
        let got: Vec<(Want, Block)> = blocks.into_iter().filter_map(wanted).collect();
        self.transfer.round_trips += 1;
        let bytes: usize = got.iter().map(|(_, block)| block.bytes().len()).sum();
        self.count(answer, 0, bytes as u64);
        self.tally.blocks(got.len() as u64, bytes as u64);
        let fault = result.err();
        if let Some(fault) = &fault
            && fault.charged != throughline_protocol::sync::range::Charged::Nobody
        {
            self.shared.net.charge(answer.provider.peer, fault.reject.code).await;
        }
        (got, fault)
    }
}

/// The CIDs of a request: each part after the nodes above it, none twice.
fn cids_of(wants: &[Want]) -> Vec<Cid> {
    let mut cids = Vec::new();
    for cid in wants.iter().flat_map(|want| want.above.iter().chain([&want.cid])) {
        if !cids.contains(cid) {
            cids.push(*cid);
        }
    }
    cids
}

/// The next wants that fit one request.
fn next_batch(queue: &mut VecDeque<Want>) -> Option<Vec<Want>> {
    let mut batch = Vec::new();
    while let Some(want) = queue.pop_front() {
        batch.push(want);
        if cids_of(&batch).len() > limits::BLOBS_MAX {
            if let Some(over) = batch.pop() {
                queue.push_front(over);
            }
            break;
        }
    }
    (!batch.is_empty()).then_some(batch)
}

/// The parts of a file's node.
fn parts_of(want: &Want, block: &Block) -> Vec<Want> {
    parts(want, unixfs::parts(&want.cid, block.bytes()))
}

fn parts(want: &Want, links: Vec<Cid>) -> Vec<Want> {
    if want.above.len() >= limits::FILE_DEPTH_MAX {
        return Vec::new();
    }
    let above: Vec<Cid> = want.above.iter().copied().chain([want.cid]).collect();
    let parts: BTreeSet<Cid> = links.into_iter().collect();
    parts.into_iter().map(|cid| Want { cid, seq: want.seq, above: above.clone() }).collect()
}

/// Payloads, configs and files that the session's entries name and that are not here for it: of the entries that were noted, and of
/// all that were held before.
fn wants_of(node: &Node, session: SessionId, wanted: Wanted, missing: &Missing) -> Answer<BTreeSet<Want>> {
    let reader = node.reader()?;
    let mut wants = BTreeSet::new();
    if reader.session(session)?.is_none() {
        return Ok(wants);
    }
    let held = missing.held_through.map(|last| reader.entries(session, Seq::ZERO, last)).transpose()?;
    for stored in held.into_iter().flatten() {
        wants_of_entry(&reader, (session, wanted), stored?, &mut wants)?;
        if wants.len() >= BLOCKS_MAX {
            return Ok(wants);
        }
    }
    for seq in &missing.noted {
        if let Some(stored) = reader.entry_at(session, *seq)? {
            wants_of_entry(&reader, (session, wanted), stored, &mut wants)?;
        }
        if wants.len() >= BLOCKS_MAX {
            break;
        }
    }
    Ok(wants)
}

fn wants_of_entry(
    reader: &Reader,
    (session, wanted): (SessionId, Wanted),
    stored: StoredEntry,
    wants: &mut BTreeSet<Want>,
) -> Answer<()> {
    let payload = match stored.payload {
        None => None,
        Some(cid) => match (reader.is_here(session, &cid.cid())?, wanted) {
            // Whether it is here says enough where nobody asks for the files that it names.
            (true, Wanted::None | Wanted::Referenced) => None,
            (is_here, _) => match reader.payload(cid)? {
                PayloadState::Present(bytes) if is_here => Some(Arc::<[u8]>::from(bytes)),
                PayloadState::Present(_) | PayloadState::Absent => {
                    wants.insert(Want { cid: cid.cid(), seq: stored.seq, above: Vec::new() });
                    None
                }
                PayloadState::Dropped => None,
            },
        },
    };
    let signed = Decoded::<Entry>::decode(stored.bytes)?.assume_signed();
    let want = |cid| Want { cid, seq: stored.seq, above: Vec::new() };
    if let Some(config) = config_of(signed.value())
        && links_here(reader, session, &config.cid())?.is_none()
    {
        wants.insert(want(config.cid()));
    }
    if wanted == Wanted::All {
        for cid in Prechecked::of(signed, payload)?.files().iter().filter(|cid| cid.is_file()) {
            missing_of_file(reader, session, want(*cid), wants)?;
        }
    }
    Ok(())
}

/// What is missing of a file: its root, or the parts below what is held.
fn missing_of_file(
    reader: &Reader,
    session: SessionId,
    root: Want,
    wants: &mut BTreeSet<Want>,
) -> Answer<()> {
    // A block that stands in many places of a file is looked at once.
    let (mut open, mut seen) = (vec![root], BTreeSet::new());
    while let Some(want) = open.pop() {
        if wants.len() >= BLOCKS_MAX || seen.len() >= BLOCKS_MAX || !seen.insert(want.cid) {
            continue;
        }
        match links_here(reader, session, &want.cid)? {
            Some(links) => open.extend(parts(&want, links)),
            None => {
                wants.insert(want);
            }
        }
    }
    Ok(())
}

/// Stores blocks and links them to the session; returns those that are held now. A payload must also be what its entry says.
fn store(node: &Node, session: SessionId, blocks: Vec<(Want, Block)>) -> Answer<BTreeSet<Cid>> {
    if !blocks.is_empty() {
        expect_room(node)?;
    }
    let reader = node.reader()?;
    let (mut stored, mut links) = (BTreeSet::new(), Vec::new());
    let at = now();
    let until = UnixMillis::new(at.get() + LEASE_MS).unwrap_or(at);
    for (want, block) in blocks {
        if let Some(links_of_payload) = links_of_payload(&reader, session, &want, &block)? {
            links.extend(links_of_payload);
        } else {
            continue;
        }
        match node.store().run(PutBlock::bytes(block, at, until).received_for(session)) {
            Ok(_) => {
                links.push((want.seq, *want.cid.digest()));
                stored.insert(want.cid);
            }
            Err(error) => tracing::debug!(%error, "a block is not taken"),
        }
    }
    if !links.is_empty() {
        node.store().run(LinkBlocks { session, links })?;
    }
    Ok(stored)
}

/// The entry that names a block, and the block's digest.
type Link = (Seq, [u8; 32]);

/// For a payload, the files it names; nothing for another block; none for bytes that are not what the entry says.
fn links_of_payload(
    reader: &Reader,
    session: SessionId,
    want: &Want,
    block: &Block,
) -> Answer<Option<Vec<Link>>> {
    let Some(entry) = reader.entry_at(session, want.seq)? else { return Ok(Some(Vec::new())) };
    if entry.payload.map(|cid| cid.cid()) != Some(want.cid) {
        // Besides payloads only config blocks are dag-cbor: an entry that is named as one does not become one.
        let is_config = || ConfigBlock::check(EntryCid::of(block.bytes()), block.bytes()).is_ok();
        return Ok((want.cid.is_file() || is_config()).then(Vec::new));
    }
    let signed = Decoded::<Entry>::decode(entry.bytes)?.assume_signed();
    if Payload::check(signed.value(), Arc::clone(block.bytes())).is_err() {
        return Ok(None);
    }
    let checked = Prechecked::of(signed, Some(Arc::clone(block.bytes())))?;
    Ok(Some(checked.files().iter().map(|cid| (want.seq, *cid.digest())).collect()))
}

#[cfg(test)]
mod tests {
    use throughline_protocol::id::Codec;

    use super::*;

    fn want(number: u32, above: &[u32]) -> Want {
        let cid = |number: u32| Cid::sha256(Codec::Raw, &number.to_be_bytes());
        Want { cid: cid(number), seq: Seq::ZERO, above: above.iter().map(|n| cid(*n)).collect() }
    }

    #[test]
    fn a_request_holds_no_more_than_it_may_and_loses_nothing() {
        let wants: Vec<Want> = (0..300).map(|number| want(number, &[1_000 + number / 100, 2_000])).collect();
        let mut queue: VecDeque<Want> = wants.iter().cloned().collect();
        let mut taken = Vec::new();
        while let Some(batch) = next_batch(&mut queue) {
            let cids = cids_of(&batch);
            assert!(cids.len() <= limits::BLOBS_MAX);
            for want in &batch {
                let at = |cid: &Cid| cids.iter().position(|asked| asked == cid).unwrap();
                assert!(
                    want.above.iter().all(|above| at(above) < at(&want.cid)),
                    "the file before its parts"
                );
            }
            taken.extend(batch);
        }
        assert_eq!(taken, wants);
    }
}
