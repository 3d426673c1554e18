//! What a server can do that will not give up: sign one more entry on the head that it had.
//!
//! The signature is real, made with the server's own node key. Only the permission is gone.

use std::path::Path;

use throughline_protocol::build;
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::content::Content;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Authority, Body, Entry, Model, ModelResponse, Place, Usage};
use throughline_protocol::id::{EntryCid, Seq};
use throughline_protocol::payload::{PayloadDraft, ResponseWords, Words};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::skip::SkipPath;

use crate::api::error::{Answer, Problem};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

/// A forged entry and the file that carries it.
#[derive(Clone, Debug)]
pub struct Forged {
    /// A session CAR whose root is the entry.
    pub car: Vec<u8>,
    /// The entry.
    pub cid: EntryCid,
    /// Its position.
    pub seq: Seq,
}

/// A session as far as one signer wrote it.
struct Prefix {
    entries: Vec<Held>,
    controls: Vec<(Control, Vec<u8>)>,
}

/// An entry and its bytes.
struct Held {
    entry: Entry,
    cid: EntryCid,
    bytes: Vec<u8>,
    payload: Option<Vec<u8>>,
}

/// Signs one more entry of the session in `car`, with the node key of `home`, on the last entry of that key.
///
/// # Errors
/// What the key files or the CAR are refused for; `E_INCOMPLETE` when the key signed nothing in it.
pub fn forge_entry(home: &Path, car: &[u8]) -> Answer<Forged> {
    let dirs = Dirs::locate(Some(home), &Environment::default());
    let dirs = dirs.map_err(|error| Problem::new(error.code(), error.to_string()))?;
    let keys = NodeKeys::load(&dirs).map_err(|error| Problem::new(error.code(), error.to_string()))?;
    let key = keys.node().signing_key();
    let prefix = Prefix::read(car, &key)?;
    let mut salt = [0; 32];
    getrandom::fill(&mut salt).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    Ok(prefix.forge(&key, salt)?)
}

impl Prefix {
    /// Reads the entries up to the last one by `key`.
    fn read(car: &[u8], key: &SigningKey) -> Result<Self, Reject> {
        let mut reader = SessionReader::new();
        reader.push(car);
        let mut prefix = Prefix { entries: Vec::new(), controls: Vec::new() };
        while let Some(item) = reader.next() {
            match item? {
                SessionItem::Genesis(entry) | SessionItem::Entry(entry) => {
                    let (bytes, cid) = (entry.bytes().to_vec(), entry.cid());
                    prefix.entries.push(Held { entry: entry.value().clone(), cid, bytes, payload: None });
                }
                SessionItem::Control(control) => {
                    prefix.controls.push((control.value().clone(), control.bytes().to_vec()));
                }
                SessionItem::Payload { block, .. } => {
                    if let Some(last) = prefix.entries.last_mut() {
                        last.payload = Some(block.bytes().to_vec());
                    }
                }
                SessionItem::Config { .. } | SessionItem::File { .. } => {}
            }
        }
        reader.finish()?;
        let last = prefix.entries.iter().rposition(|held| held.entry.signer == key.principal());
        let last =
            last.ok_or_else(|| Reject::new(Code::Incomplete, "the server signed nothing in this session"))?;
        prefix.entries.truncate(last + 1);
        Ok(prefix)
    }

    fn forge(&self, key: &SigningKey, salt: [u8; 32]) -> Result<Forged, Reject> {
        let ([genesis, rest @ ..], Some(head)) = (&self.entries[..], self.entries.last()) else {
            return Err(Code::Incomplete.into());
        };
        let (body, words) = last_words();
        let (payload, named) = PayloadDraft::new(words).build(&body, salt)?;
        let owner = genesis.entry.owner();
        let entry = Entry {
            ts: head.entry.ts,
            signer: key.principal(),
            authority: head.entry.capability().map(|capability| Authority { space: owner, capability }),
            place: Some(self.next_place(genesis, head)),
            body,
            payload: Some(named),
            ext: None,
        };
        let signed = build::sign(entry, key)?;
        let mut car = Vec::new();
        let controls = self.controls.iter().map(|(control, bytes)| (control, bytes.as_slice()));
        let mut writer = SessionWriter::begin(&mut car, signed.cid(), &genesis.blocks(), controls);
        rest.iter().for_each(|held| writer.entry(&mut car, &held.blocks()));
        writer.entry(&mut car, &blocks(signed.bytes(), Some(&payload)));
        Ok(Forged { car, cid: signed.cid(), seq: signed.value().seq() })
    }

    fn next_place(&self, genesis: &Held, head: &Held) -> Place {
        let mut skips = SkipPath::genesis(genesis.cid);
        self.entries.iter().skip(1).for_each(|held| skips.push(held.cid));
        let skip = skips.next_skip().1;
        Place {
            genesis: genesis.cid,
            prev: head.cid,
            seq: head.entry.seq().next(),
            epoch: head.entry.epoch(),
            skip: (skip != head.cid).then_some(skip),
        }
    }
}

impl Held {
    fn blocks(&self) -> EntryBlocks<'_> {
        blocks(&self.bytes, self.payload.as_deref())
    }
}

fn blocks<'a>(entry: &'a [u8], payload: Option<&'a [u8]>) -> EntryBlocks<'a> {
    EntryBlocks { entry, payload, config: None, files: &[] }
}

fn last_words() -> (Body, Words) {
    let body = Body::ModelResponse(ModelResponse {
        model: Model { provider: "anthropic".to_owned(), id: "claude-x".to_owned(), api: None },
        calls: Vec::new(),
        usage: Usage::default(),
        stop_reason: None,
        status: None,
        config: None,
        duration_ms: 0,
    });
    let content = vec![Content::text("As the holder I say: ship it.")];
    (body, Words::ModelResponse(ResponseWords { content, ..ResponseWords::default() }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throughline_protocol::block::Signed;
    use throughline_protocol::sign::VerifyingKeys;
    use throughline_protocol::testing::{SessionBuilder, key};

    use super::*;

    #[test]
    fn the_signature_is_real_and_the_place_is_the_old_head() {
        let mut session = SessionBuilder::new("demo forge");
        let (first, second) = (Arc::clone(&session.server1), Arc::clone(&session.server2));
        session.user(&Arc::clone(&session.owner), "hello");
        let old_head = session.response(&first, "here", &[]);
        session.handoff(Some(&second));
        session.response(&second, "carrying on", &[]);
        let controls = session.controls().iter().map(|control| (control.value(), &control.bytes()[..]));
        let entry = |built: &'_ throughline_protocol::testing::Built| built.entry.bytes().to_vec();
        let entries: Vec<Vec<u8>> = session.entries().iter().map(entry).collect();
        let mut car = Vec::new();
        let head = session.head().entry.cid();
        let mut writer = SessionWriter::begin(&mut car, head, &blocks(&entries[0], None), controls);
        entries[1..].iter().for_each(|bytes| writer.entry(&mut car, &blocks(bytes, None)));

        let key = key("server1");
        let forged = Prefix::read(&car, &key).unwrap().forge(&key, [7; 32]).unwrap();
        let mut reader = SessionReader::new();
        reader.push(&forged.car);
        let mut last = None;
        while let Some(item) = reader.next() {
            if let SessionItem::Entry(entry) = item.unwrap() {
                last = Some(entry);
            }
        }
        let end = reader.finish().unwrap();
        let last = last.unwrap();
        assert_eq!((end.root, last.cid()), (forged.cid, forged.cid));
        assert_eq!(last.value().prev(), Some(old_head));
        assert_eq!((last.value().seq().get(), last.value().epoch().get()), (3, 0));
        let signed = Signed::<Entry>::check(Arc::clone(last.bytes()), &mut VerifyingKeys::default()).unwrap();
        assert_eq!(signed.value().signer, key.principal());
        assert_eq!(signed.value().capability(), session.entries()[2].entry.value().capability());
    }

    #[test]
    fn a_key_without_entries_has_no_head_to_forge_on() {
        let session = SessionBuilder::new("demo forge nothing");
        let mut car = Vec::new();
        let genesis = blocks(session.entries()[0].entry.bytes(), None);
        SessionWriter::begin(&mut car, session.head().entry.cid(), &genesis, []);
        assert_eq!(Prefix::read(&car, &key("server1")).err().unwrap().code, Code::Incomplete);
    }
}
