//! A session with words, config blocks and files, as a CAR from which any of its blocks may be left out.

use std::collections::BTreeMap;

use throughline_protocol::block::Block;
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::entry::{Body, Model, ModelResponse, Note, Origin, Usage, UserMessage};
use throughline_protocol::id::{Cid, EntryCid};
use throughline_protocol::payload::{Attachment, ConfigBlock, ResponseWords, UserWords, Words};
use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::unixfs::{FileBuilder, Layout};

/// The session, and what its entries name.
pub struct WithFiles {
    /// Its entries: one message with two files, two responses with one config block, a message that a redaction took back.
    pub session: SessionBuilder,
    /// A file of many blocks, its root first.
    pub large: Vec<Block>,
    /// A file of one block.
    pub small: Block,
    config: Vec<u8>,
    /// The entry whose words were withdrawn.
    withdrawn: EntryCid,
}

/// What a CAR leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Nothing but what was withdrawn.
    Nothing,
    /// The last block of the large file.
    APart,
    /// The small file and the config block.
    FileAndConfig,
    /// All words, and with them all files that only they name.
    Words,
}

impl Without {
    /// All of them.
    pub const ALL: [Without; 4] = [Without::Nothing, Without::APart, Without::FileAndConfig, Without::Words];
}

impl WithFiles {
    /// The session.
    #[must_use]
    pub fn new() -> Self {
        let mut session = SessionBuilder::new("with files");
        let server = session.server1.clone();
        let (large, root) =
            blocks_of(&(0..700_000_u32).map(|at| u8::try_from(at % 253).unwrap()).collect::<Vec<_>>());
        let (mut small, small_root) = blocks_of(b"a small file");
        let attachment = |cid: Cid, size: u64| Attachment {
            cid,
            size,
            media_type: "application/octet-stream".to_owned(),
            name: None,
        };
        let words = UserWords {
            attachments: vec![attachment(root, 700_000), attachment(small_root, 12)],
            ..UserWords::default()
        };
        let message = UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() };
        session.append(&server, Body::UserMessage(message), Some(Words::UserMessage(words)));
        let config =
            ConfigBlock { salt: [5; 32], tools: None, system: Some("be brief".to_owned()), sampling: None };
        let (config, named) = config.build().unwrap();
        for text in ["the first", "the second"] {
            let response = ModelResponse {
                model: Model { provider: "anthropic".to_owned(), id: "claude-x".to_owned(), api: None },
                calls: Vec::new(),
                usage: Usage::default(),
                stop_reason: Some("end_turn".to_owned()),
                status: None,
                config: Some(named),
                duration_ms: 0,
            };
            let content = vec![throughline_protocol::content::Content::text(text)];
            let words = ResponseWords { content, ..ResponseWords::default() };
            session.append(&server, Body::ModelResponse(response), Some(Words::ModelResponse(words)));
        }
        let withdrawn = session.user(&server, "a word too much");
        let owner = session.owner.clone();
        session.note(&owner, Note::Redaction { entries: vec![withdrawn] });
        let small = small.remove(0);
        WithFiles { session, large, small, config, withdrawn }
    }

    /// The CAR.
    #[must_use]
    pub fn car(&self, without: Without) -> Vec<u8> {
        let mut files = self.large.clone();
        if without == Without::APart {
            files.pop();
        }
        if without != Without::FileAndConfig {
            files.push(self.small.clone());
        }
        let has_words = without != Without::Words;
        let mut out = Vec::new();
        let mut writer = None;
        for (at, built) in self.session.entries().iter().enumerate() {
            let is_withdrawn = built.entry.cid() == self.withdrawn;
            let names_config = matches!(built.entry.value().body, Body::ModelResponse(_));
            let blocks = EntryBlocks {
                entry: built.entry.bytes(),
                payload: built.payload.as_deref().filter(|_| has_words && !is_withdrawn),
                config: Some(&self.config[..])
                    .filter(|_| names_config && has_words && without != Without::FileAndConfig),
                files: if at == 1 && has_words { &files } else { &[] },
            };
            match &mut writer {
                None => {
                    let controls = self.session.controls().iter();
                    let controls = controls.map(|control| (control.value(), &control.bytes()[..]));
                    let head = self.session.head().entry.cid();
                    writer = Some(SessionWriter::begin(&mut out, head, &blocks, controls));
                }
                Some(writer) => writer.entry(&mut out, &blocks),
            }
        }
        out
    }
}

impl Default for WithFiles {
    fn default() -> Self {
        WithFiles::new()
    }
}

/// A file's blocks, the root first, and its root.
fn blocks_of(bytes: &[u8]) -> (Vec<Block>, Cid) {
    let mut builder = FileBuilder::new(Layout::KUBO);
    let mut blocks: BTreeMap<Cid, Block> =
        builder.push(bytes).into_iter().map(|block| (block.cid(), block)).collect();
    let (last, built) = builder.finish();
    blocks.extend(last.into_iter().map(|block| (block.cid(), block)));
    let root = blocks.remove(&built.root).unwrap();
    (std::iter::once(root).chain(blocks.into_values()).collect(), built.root)
}
