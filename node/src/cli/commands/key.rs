//! `key`: the owner key only. The node's keys are this machine's and never leave it.

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::json;
use zeroize::Zeroizing;

use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{owner, refusal};
use crate::keys::{KeyOrigin, OwnerKeyFile};
use throughline_protocol::code::Code;

/// Largest exported key that is read, in bytes.
const KEY_BYTES_MAX: u64 = 64 * 1024;

/// Commands of `key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Whose key it is and how it is kept; no passphrase is needed
    Show,
    /// Write the owner key as it is kept: an encrypted one stays encrypted
    Export(ExportArgs),
    /// Take an exported owner key, after opening it
    Import(ImportArgs),
}

/// Arguments of `key export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// A new file, readable by you only; without it an encrypted key goes to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `key import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The exported key, or - for stdin
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// How the key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// Runs one.
pub(crate) fn run(ctx: &Context, command: &KeyCommand) -> Answer<Outcome> {
    match command {
        KeyCommand::Show => show(ctx),
        KeyCommand::Export(args) => export(ctx, args),
        KeyCommand::Import(args) => import(ctx, args),
    }
}

fn show(ctx: &Context) -> Answer<Outcome> {
    let file = owner::file(ctx)?;
    let principal = file.principal().to_string();
    let kept = if file.is_encrypted() { "encrypted" } else { "in the clear" };
    let path = ctx.dirs().keys().join("owner.key").display().to_string();
    let json = json!({"v": 1, "kind": "key", "principal": principal, "passphrase": file.is_encrypted(), "path": path});
    let mut page = Page::default();
    page.row(["owner key".to_owned(), kept.to_owned(), path]);
    page.plain(principal);
    Ok(Outcome::done(json, page))
}

fn export(ctx: &Context, args: &ExportArgs) -> Answer<Outcome> {
    let file = owner::file(ctx)?;
    let text = file.export();
    let principal = file.principal().to_string();
    let Some(path) = &args.output else {
        if !file.is_encrypted() || !ctx.out().is_text() {
            let detail =
                "a key is written to stdout only when it is encrypted, and never as JSON: pass -o FILE";
            return Err(Problem::new(Code::Usage, detail).hint("throughline key export -o FILE"));
        }
        ctx.out().raw(text.as_bytes()).map_err(refusal::stdout)?;
        return Ok(Outcome::written());
    };
    refusal::writable(path, "-o")?;
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).and_then(|mut out| {
            out.write_all(text.as_bytes())?;
            out.sync_all()
        });
    written.map_err(|error| refusal::write(path, "-o", error))?;
    let mut page = Page::default();
    page.mark(Mark::Done, format!("owner key of {principal} written to {}", path.display()));
    if !file.is_encrypted() {
        page.mark(Mark::Warning, "it is in the clear: whoever reads the file has the account");
    }
    let path = path.display().to_string();
    let json = json!({"v": 1, "kind": "key-export", "principal": principal, "passphrase": file.is_encrypted(), "path": path});
    Ok(Outcome::done(json, page))
}

fn import(ctx: &Context, args: &ImportArgs) -> Answer<Outcome> {
    ctx.expect_initialised()?;
    if args.file == Path::new("-") && args.owner.passphrase_fd == Some(0) {
        return Err(refusal::usage(
            "expected the key and the passphrase from two places, got stdin for both",
        ));
    }
    let text = read(&args.file)?;
    let key = OwnerKeyFile::parse(&text).map_err(refusal::key)?;
    let passphrase = if key.is_encrypted() {
        let source = ctx.passphrase_source(args.owner);
        Some(ctx.while_asking(|| source.existing("Passphrase of the key: ")).map_err(refusal::passphrase)?)
    } else {
        None
    };
    let origin = key.import(ctx.dirs(), passphrase.as_ref()).map_err(refusal::key)?;
    let principal = key.principal().to_string();
    let mut page = Page::default();
    let mark = if origin == KeyOrigin::Created { Mark::Done } else { Mark::Same };
    page.mark(mark, format!("owner key {principal}"));
    page.hint("Next, so that this machine may act for it: throughline init");
    let json = json!({"v": 1, "kind": "key-import", "principal": principal, "created": origin == KeyOrigin::Created});
    Ok(Outcome::done(json, page))
}

fn read(path: &Path) -> Answer<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(KEY_BYTES_MAX).read_to_string(&mut text)
    } else {
        let file = std::fs::File::open(path).map_err(|error| refusal::input(path, error))?;
        file.take(KEY_BYTES_MAX).read_to_string(&mut text)
    };
    read.map_err(|error| refusal::input(path, error))?;
    Ok(text)
}
