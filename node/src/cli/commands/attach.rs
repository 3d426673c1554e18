//! `attach`: a file becomes a blob. The CID is made from its bytes, so twice is once.

use std::path::PathBuf;

use clap::Args;

use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::cli::{format, resolve, upload, view};

/// Arguments of `attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The session whose entry is to name it: what it needs where the entry comes signed
    #[arg(long, value_name = "SESSION")]
    pub(crate) session: Option<String>,
    /// Its media type; by default the name's ending tells
    #[arg(long = "type", value_name = "MIME")]
    pub(crate) media_type: Option<String>,
}

/// Stores it.
pub(crate) fn run(ctx: &Context, args: &AttachArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let name = args.file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let media_type = args.media_type.clone().unwrap_or_else(|| of_name(&name).to_owned());
    let encoded = view::encode(&name);
    let headers = [("x-filename", encoded.as_str())];
    let session = args.session.as_deref().map(|text| resolve::session(&api, text)).transpose()?;
    let session = session.map(|session| session.to_string());
    let path = view::path("/v1/blobs", &[("session", session.as_deref())]);
    let mut answer = upload::file(ctx, &api, "attach", &args.file, &path, &media_type, &headers)?;
    answer["v"] = 1.into();
    answer["kind"] = "attach".into();
    let size = format::bytes(view::number(&answer, "/sizeBytes"));
    let mut page = Page::default();
    page.plain(format!("{name}  {size}  {}", view::text(&answer, "/mediaType")));
    page.plain(view::text(&answer, "/cid"));
    Ok(Outcome::done(answer, page))
}

/// The media type of the endings that transcripts hold; anything else is bytes.
fn of_name(name: &str) -> &'static str {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase()).unwrap_or_default();
    match ending.as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        "txt" | "log" | "rs" | "ts" | "py" => "text/plain",
        "md" => "text/markdown",
        "html" => "text/html",
        "csv" => "text/csv",
        "json" => "application/json",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        "zip" => "application/zip",
        _ => "application/octet-stream",
    }
}
