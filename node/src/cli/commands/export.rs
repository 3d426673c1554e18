//! `export`: a session as one CAR file that anybody can verify alone.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;
use throughline_protocol::block::{Block, Decoded};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::code::Code;
use throughline_protocol::entry::Entry;
use throughline_protocol::payload::Payload;
use throughline_protocol::verify::{BlocksRead, Inventory, Links};

use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, refusal, resolve, upload, verdict, view};
use crate::outcome::Exit;
use crate::report;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The session
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// The CAR file to write, or - for stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Whether payloads and files are taken along
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub(crate) payloads: Taken,
}

/// What is taken along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Taken {
    /// All that is here; what is missing is a loss (exit 11)
    All,
    /// None: the chain alone, which verifies without its words
    None,
}

/// Writes the file in one step: it is whole or not there.
pub(crate) fn run(ctx: &Context, args: &ExportArgs) -> Answer<Outcome> {
    let to_stdout = args.output == Path::new("-");
    if to_stdout && (ctx.out().is_terminal() || !ctx.out().is_text()) {
        let detail = "expected -o FILE: a CAR on stdout goes to a pipe and not beside JSON";
        return Err(Problem::new(Code::Usage, detail).hint("throughline export S -o FILE.car"));
    }
    if !to_stdout {
        refusal::writable(&args.output, "-o")?;
    }
    let api = ctx.api()?;
    let session = resolve::session(&api, &args.session)?;
    let payloads = if args.payloads == Taken::All { "all" } else { "none" };
    let path = view::path(&format!("/v1/sessions/{session}/entries"), &[("payloads", Some(payloads))]);
    let mut reply = api.open(Call::get(&path).header("accept", upload::CAR))?;
    let progress = ctx.progress("export");
    let counter = progress.counter();
    let mut file = if to_stdout { None } else { Some(beside(&args.output)?) };
    let (mut hash, mut size, mut written) = (Sha256::new(), 0_u64, Written::default());
    while let Some(piece) = api.chunk(&mut reply)? {
        match &mut file {
            Some(file) => {
                file.write_all(&piece).map_err(|error| refusal::write(&args.output, "-o", error))?
            }
            None => ctx.out().raw(&piece).map_err(refusal::stdout)?,
        }
        hash.update(&piece);
        written.push(&piece)?;
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        size = size.saturating_add(length);
        counter.add(length);
    }
    drop(progress);
    let inventory = written.finish()?;
    let is_asked = args.payloads == Taken::All;
    let mut json = json!({
        "v": 1, "kind": "export", "session": session.to_string(), "sizeBytes": size,
        "payloads": report::links(&inventory.payloads, is_asked), "files": report::links(&inventory.files, is_asked),
    });
    let mut page = Page::default();
    verdict::inventory(&mut page, &json);
    let exit = verdict::with_losses(Exit::Done, &json);
    let Some(file) = file else {
        if exit != Exit::Done {
            ctx.out().aside(&page);
        }
        return Ok(Outcome::written().exit(exit));
    };
    let persisted =
        file.as_file().sync_all().and_then(|()| file.persist(&args.output).map_err(|error| error.error));
    persisted.map_err(|error| refusal::write(&args.output, "-o", error))?;
    let sha256: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let path = args.output.display().to_string();
    page.mark(Mark::Done, format!("{path}  {}", format::bytes(size)));
    page.hint(format!("anybody can check it alone: throughline verify {path}"));
    (json["path"], json["sha256"]) = (path.into(), sha256.into());
    Ok(Outcome::done(json, page).exit(exit))
}

/// What the file holds of the words and files that its entries name, told as it is written.
#[derive(Default)]
struct Written {
    reader: SessionReader,
    links: Links,
    blocks: BlocksRead,
    /// The entry before, whose payload may follow.
    entry: Option<Decoded<Entry>>,
}

impl Written {
    fn push(&mut self, piece: &[u8]) -> Answer<()> {
        self.reader.push(piece);
        while let Some(item) = self.reader.next() {
            match item? {
                SessionItem::Genesis(entry) | SessionItem::Entry(entry) => {
                    let before = self.entry.replace(entry);
                    self.count(before, None)?;
                }
                SessionItem::Payload { of, block } => {
                    let own = self.entry.take_if(|entry| entry.cid() == of);
                    self.count(own, Some(&block))?;
                }
                SessionItem::Config { block, .. } | SessionItem::File { block, .. } => {
                    self.blocks.note(&block)
                }
                SessionItem::Control(_) => {}
            }
        }
        Ok(())
    }

    fn count(&mut self, entry: Option<Decoded<Entry>>, payload: Option<&Block>) -> Answer<()> {
        let Some(entry) = entry else { return Ok(()) };
        let payload = payload.map(|block| Payload::check(entry.value(), Arc::clone(block.bytes())));
        let files = payload.transpose()?.map(|payload| payload.files());
        self.links.entry(entry.cid(), entry.value(), files.as_deref());
        Ok(())
    }

    fn finish(mut self) -> Answer<Inventory> {
        let last = self.entry.take();
        self.count(last, None)?;
        let Written { links, blocks, .. } = self;
        links.inventory(|cid| Answer::Ok(blocks.links_of(cid)))
    }
}

/// A file that becomes `path` when it is whole, in the same directory so that renaming is one step.
pub(super) fn beside(path: &Path) -> Answer<NamedTempFile> {
    refusal::writable(path, "-o")?;
    NamedTempFile::new_in(refusal::directory(path)).map_err(|error| refusal::write(path, "-o", error))
}
