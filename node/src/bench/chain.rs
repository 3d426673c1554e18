//! A chain of signed entries in a temporary file, written once and streamed as often as needed, so that a million
//! entries never lie in memory.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::Arc;

use throughline_protocol::build;
use throughline_protocol::control::{Capability, Control, Role};
use throughline_protocol::entry::{Authority, Body, Class, Entry, Genesis, Place};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{AgentIri, EntryCid, Epoch, Seq, UnixMillis};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::skip::SkipPath;
use throughline_protocol::view::EntryDraft;

use super::home::on_disk;
use super::words;
use crate::api::error::Answer;
use crate::core::random;

/// Entries of one chunk.
pub(super) const CHUNK: usize = 256;
/// Text of a message, in bytes.
const MESSAGE_BYTES: usize = 400;

/// An entry as it came, and its payload when the file holds it.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) entry: Arc<[u8]>,
    pub(super) payload: Option<Arc<[u8]>>,
}

/// A chain in a file that vanishes with the value.
pub(super) struct Chain {
    file: tempfile::NamedTempFile,
    controls: Controls,
}

impl Chain {
    /// Signs a session of `entries` entries: a genesis by the owner, then turns by one server. Payloads are kept of the
    /// first `payloads` of them.
    pub(super) fn write(entries: u64, payloads: u64) -> Answer<Self> {
        let file = tempfile::NamedTempFile::new().map_err(|error| on_disk(&error))?;
        let (owner, server) = (SigningKey::from_seed(&random()?), SigningKey::from_seed(&random()?));
        let capability = build::sign(
            Control::Capability(Capability {
                ts: UnixMillis::default(),
                signer: owner.principal(),
                delegate: server.principal(),
                role: Some(Role::Writer.word().to_owned()),
                path: None,
                label: None,
                audience: None,
            }),
            &owner,
        )?;
        let mut controls = Controls::new();
        controls.insert(&capability);
        let authority = Authority { space: owner.principal(), capability: capability.cid().cid() };
        let genesis = genesis(&owner, &server)?;
        let mut out = BufWriter::new(file.as_file());
        put(&mut out, genesis.bytes(), None).map_err(|error| on_disk(&error))?;
        let mut tip =
            Tip { genesis: genesis.cid(), path: SkipPath::genesis(genesis.cid()), server, authority };
        for number in 1..entries {
            let draft = match number % 3 {
                1 => words::message(number, MESSAGE_BYTES),
                2 => words::response(number),
                _ => words::result(number - 1, tip.path.tip().1),
            };
            let Record { entry, payload } = tip.sign(&draft)?;
            let payload = payload.filter(|_| number < payloads);
            put(&mut out, &entry, payload.as_deref()).map_err(|error| on_disk(&error))?;
        }
        out.flush().map_err(|error| on_disk(&error))?;
        drop(out);
        Ok(Chain { file, controls })
    }

    /// What its signers act under.
    pub(super) fn controls(&self) -> &Controls {
        &self.controls
    }

    /// Its first `entries` entries in chunks.
    pub(super) fn stream(&self, entries: u64) -> Answer<Stream> {
        let file = self.file.reopen().map_err(|error| on_disk(&error))?;
        Ok(Stream { from: BufReader::with_capacity(1 << 18, file), left: entries })
    }

    /// Its first `entries` entries, in memory.
    pub(super) fn records(&self, entries: u64) -> Answer<Vec<Record>> {
        let mut all = Vec::new();
        for chunk in self.stream(entries)? {
            all.extend(chunk?);
        }
        Ok(all)
    }
}

/// The end of a chain that is being written.
struct Tip {
    genesis: EntryCid,
    path: SkipPath<EntryCid>,
    server: SigningKey,
    authority: Authority,
}

impl Tip {
    fn sign(&mut self, draft: &EntryDraft) -> Answer<Record> {
        let (seq, prev) = self.path.tip();
        let skip = self.path.next_skip().1;
        let place = Place {
            genesis: self.genesis,
            prev,
            seq: Seq::new(seq + 1)?,
            epoch: Epoch::ZERO,
            skip: (skip != prev).then_some(skip),
        };
        let built =
            draft.payload.as_ref().map(|payload| payload.build(&draft.body, random_salt(seq))).transpose()?;
        let (payload, named) = built.map_or((None, None), |(bytes, named)| (Some(bytes), Some(named)));
        let entry = Entry {
            ts: UnixMillis::new(seq + 1)?,
            signer: self.server.principal(),
            authority: Some(self.authority),
            place: Some(place),
            body: draft.body.clone(),
            payload: named,
            ext: None,
        };
        let signed = build::sign(entry, &self.server)?;
        self.path.push(signed.cid());
        Ok(Record { entry: Arc::clone(signed.bytes()), payload: payload.map(Arc::from) })
    }
}

/// Thrown-away payloads need no secret salt, only one of their own each.
fn random_salt(number: u64) -> [u8; 32] {
    throughline_protocol::block::sha256(&number.to_be_bytes())
}

fn genesis(owner: &SigningKey, server: &SigningKey) -> Answer<throughline_protocol::block::Signed<Entry>> {
    let body = Body::Genesis(Genesis {
        agent: AgentIri::new(owner.principal(), None),
        nonce: random()?,
        holder: Some(server.principal()),
        class: Class::Internal,
        parent: None,
        continues: None,
    });
    let entry = Entry {
        ts: UnixMillis::default(),
        signer: owner.principal(),
        authority: None,
        place: None,
        body,
        payload: None,
        ext: None,
    };
    Ok(build::sign(entry, owner)?)
}

/// Chunks of a chain, as they are read.
pub(super) struct Stream {
    from: BufReader<File>,
    left: u64,
}

impl Iterator for Stream {
    type Item = Answer<Vec<Record>>;

    fn next(&mut self) -> Option<Self::Item> {
        let count = usize::try_from(self.left).map_or(CHUNK, |left| left.min(CHUNK));
        if count == 0 {
            return None;
        }
        self.left -= count as u64;
        let records: io::Result<Vec<Record>> = (0..count).map(|_| take(&mut self.from)).collect();
        Some(records.map_err(|error| on_disk(&error)))
    }
}

/// Writes two lengths and the bytes; a payload of length 0 is none.
fn put(out: &mut impl Write, entry: &[u8], payload: Option<&[u8]>) -> io::Result<()> {
    let payload = payload.unwrap_or_default();
    for part in [entry, payload] {
        let length = u32::try_from(part.len()).map_err(io::Error::other)?;
        out.write_all(&length.to_be_bytes())?;
    }
    out.write_all(entry)?;
    out.write_all(payload)
}

fn take(from: &mut impl Read) -> io::Result<Record> {
    let mut lengths = [[0; 4]; 2];
    for length in &mut lengths {
        from.read_exact(length)?;
    }
    // Our own file: its lengths are believed.
    let [entry, payload] = lengths.map(|length| u32::from_be_bytes(length) as usize);
    let mut bytes = vec![0; entry];
    from.read_exact(&mut bytes)?;
    let entry = bytes.into();
    if payload == 0 {
        return Ok(Record { entry, payload: None });
    }
    let mut bytes = vec![0; payload];
    from.read_exact(&mut bytes)?;
    Ok(Record { entry, payload: Some(bytes.into()) })
}

#[cfg(test)]
mod tests {
    use throughline_protocol::verify::{Collect, Pushed, Verifier};

    use super::*;

    #[test]
    fn the_chain_verifies_and_streams_whole() {
        let chain = Chain::write(600, 10).unwrap();
        let records = chain.records(600).unwrap();
        assert_eq!(records.len(), 600);
        assert_eq!(records.iter().filter(|record| record.payload.is_some()).count(), 9);
        let mut verifier = Verifier::begin(chain.controls().clone()).collecting(Collect::Nothing);
        for record in records {
            let pushed = verifier.push(record.entry, record.payload).unwrap();
            assert!(matches!(pushed, Pushed::Linked(..)));
        }
        assert_eq!(verifier.progress().entries, 600);
        let sizes: Vec<usize> = chain.stream(300).unwrap().map(|chunk| chunk.unwrap().len()).collect();
        assert_eq!(sizes, [256, 44]);
    }
}
