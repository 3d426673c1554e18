//! What the entries of a session name beside each other, and how much of it is here: words (payloads and config blocks) and files
//! (attachments, media, the bytes that an import was made from). `docs/PROTOCOL.md` §Verification, R-VE-7.
//!
//! Every report counts by this one: of a file, of what is held, of what was fetched, of the target of a move. It knows no place
//! where blocks lie: whoever has one answers for a block with what it links.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::Block;
use crate::entry::{Body, Entry, Note};
use crate::id::{Cid, EntryCid};
use crate::unixfs;

/// Absent payloads and redactions that are told apart; beyond it an absent payload counts as missing.
const ABSENT_MAX: usize = 65_536;
/// Config blocks, and files, of one session that are counted; of more, the later ones are not.
const NAMED_MAX: usize = 262_144;
/// Blocks of files that are looked at; a file with one beyond them counts as missing.
const BLOCKS_MAX: usize = 1 << 20;
/// Blocks that an inventory lists as missing.
pub const LACKING_MAX: usize = 16;

/// What became of the links to words, or to files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// They are here, a file with all of its blocks, and are what their entries say.
    pub here: u64,
    /// They are not.
    pub missing: u64,
    /// They are not, and were redacted or deleted: nobody has to bring them.
    pub withdrawn: u64,
}

impl LinkCounts {
    /// How many there are.
    #[must_use]
    pub fn linked(&self) -> u64 {
        self.here.saturating_add(self.missing).saturating_add(self.withdrawn)
    }

    /// Those of another session too.
    pub fn add(&mut self, other: &LinkCounts) {
        self.here = self.here.saturating_add(other.here);
        self.missing = self.missing.saturating_add(other.missing);
        self.withdrawn = self.withdrawn.saturating_add(other.withdrawn);
    }
}

/// What is here of what a session names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Payloads, and config blocks, each once.
    pub payloads: LinkCounts,
    /// Files, each once. Those that only a missing payload names are not known.
    pub files: LinkCounts,
    /// The first of what is missing, at most [`LACKING_MAX`]: payloads, config blocks, then files by their roots.
    pub lacking: Vec<Cid>,
}

impl Inventory {
    /// Whether something is missing.
    #[must_use]
    pub fn is_lacking(&self) -> bool {
        self.payloads.missing > 0 || self.files.missing > 0
    }
}

/// Gathers what entries name.
#[derive(Clone, Debug, Default)]
pub struct Links {
    with_payload: u64,
    absent: BTreeMap<EntryCid, Cid>,
    /// Absent ones that are not told apart.
    absent_more: u64,
    redacted: BTreeSet<EntryCid>,
    deleted: bool,
    configs: BTreeSet<Cid>,
    files: BTreeSet<Cid>,
}

impl Links {
    /// Takes an entry in. `files` are those that its payload names; none when the payload is not here.
    pub fn entry(&mut self, cid: EntryCid, entry: &Entry, files: Option<&[Cid]>) {
        if let Some(payload) = entry.payload {
            match files {
                Some(_) => self.with_payload += 1,
                None if self.absent.len() < ABSENT_MAX => {
                    self.absent.insert(cid, payload.cid.cid());
                }
                None => self.absent_more += 1,
            }
        }
        for file in files.unwrap_or_default().iter().filter(|file| file.is_file()) {
            if self.files.len() < NAMED_MAX {
                self.files.insert(*file);
            }
        }
        match &entry.body {
            Body::ModelResponse(response) if self.configs.len() < NAMED_MAX => {
                self.configs.extend(response.config.map(|config| config.cid()));
            }
            Body::Note(Note::Redaction { entries }) if self.redacted.len() < ABSENT_MAX => {
                self.redacted.extend(entries);
            }
            Body::Note(Note::Delete) => self.deleted = true,
            Body::Genesis(_)
            | Body::UserMessage(_)
            | Body::ModelResponse(_)
            | Body::ToolCall(_)
            | Body::Note(_)
            | Body::Handoff(_)
            | Body::Seal(_) => {}
        }
    }

    /// Counts. `links_of` gives what a block links, if the block is here: of a file every block is asked for, of a config block itself.
    ///
    /// # Errors
    /// What `links_of` gives.
    pub fn inventory<E>(
        &self,
        mut links_of: impl FnMut(&Cid) -> Result<Option<Vec<Cid>>, E>,
    ) -> Result<Inventory, E> {
        let mut found = Inventory::default();
        found.payloads.here = self.with_payload;
        for (entry, payload) in &self.absent {
            if self.deleted || self.redacted.contains(entry) {
                found.payloads.withdrawn += 1;
            } else {
                found.payloads.missing += 1;
                found.note(*payload);
            }
        }
        let more = if self.deleted { &mut found.payloads.withdrawn } else { &mut found.payloads.missing };
        *more += self.absent_more;
        for config in &self.configs {
            let here = links_of(config)?.is_some();
            found.count(*config, here, self.deleted, |found| &mut found.payloads);
        }
        let mut whole = WholeFiles::default();
        for file in &self.files {
            let here = whole.is_whole(*file, &mut links_of)?;
            found.count(*file, here, self.deleted, |found| &mut found.files);
        }
        Ok(found)
    }
}

impl Inventory {
    fn note(&mut self, cid: Cid) {
        if self.lacking.len() < LACKING_MAX {
            self.lacking.push(cid);
        }
    }

    fn count(&mut self, cid: Cid, here: bool, deleted: bool, of: fn(&mut Self) -> &mut LinkCounts) {
        let counts = of(self);
        match (here, deleted) {
            (true, _) => counts.here += 1,
            (false, true) => counts.withdrawn += 1,
            (false, false) => {
                counts.missing += 1;
                self.note(cid);
            }
        }
    }
}

/// Config blocks and blocks of files that were read from somewhere once, by what they link.
#[derive(Clone, Debug, Default)]
pub struct BlocksRead(BTreeMap<Cid, Box<[Cid]>>);

impl BlocksRead {
    /// Notes a block.
    pub fn note(&mut self, block: &Block) {
        if self.0.len() < BLOCKS_MAX {
            let links = unixfs::parts(&block.cid(), block.bytes());
            self.0.insert(block.cid(), links.into());
        }
    }

    /// What a block links, if it was noted.
    #[must_use]
    pub fn links_of(&self, cid: &Cid) -> Option<Vec<Cid>> {
        self.0.get(cid).map(|links| links.to_vec())
    }
}

/// Which blocks are here with all that is below them. Files may share any of them: none is looked at twice.
#[derive(Default)]
struct WholeFiles(BTreeMap<Cid, bool>);

/// A block whose links are gone through.
struct Open {
    cid: Cid,
    links: Vec<Cid>,
    whole: bool,
}

impl WholeFiles {
    fn is_whole<E>(
        &mut self,
        root: Cid,
        links_of: &mut impl FnMut(&Cid) -> Result<Option<Vec<Cid>>, E>,
    ) -> Result<bool, E> {
        let mut path: Vec<Open> = Vec::new();
        let mut next = Some(root);
        loop {
            // What is below the last block of the path turned out to be whole, or not.
            let ended = match next.take() {
                Some(cid) => match self.0.get(&cid) {
                    Some(whole) => *whole,
                    None => match self.open(cid, links_of)? {
                        Some(open) => {
                            path.push(open);
                            true
                        }
                        None => false,
                    },
                },
                None => match path.pop() {
                    Some(open) => {
                        self.0.insert(open.cid, open.whole);
                        open.whole
                    }
                    None => return Ok(false),
                },
            };
            match path.last_mut() {
                Some(open) => {
                    open.whole &= ended;
                    next = open.links.pop();
                }
                None => return Ok(ended),
            }
        }
    }

    fn open<E>(
        &self,
        cid: Cid,
        links_of: &mut impl FnMut(&Cid) -> Result<Option<Vec<Cid>>, E>,
    ) -> Result<Option<Open>, E> {
        if self.0.len() >= BLOCKS_MAX {
            return Ok(None);
        }
        Ok(links_of(&cid)?.map(|links| Open { cid, links, whole: true }))
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
