//! A file on its way to the API: read in pieces, counted, never whole in memory.

use std::path::Path;

use axum::body::Body;
use axum::http::Method;
use futures::TryStreamExt as _;
use serde_json::Value;
use tokio_util::io::ReaderStream;

use super::context::Context;
use super::link::Api;
use super::refusal;
use crate::api::client::Call;
use crate::api::error::Answer;

/// The content type of a CAR.
pub(crate) const CAR: &str = "application/vnd.ipld.car";

/// POSTs the file at `file` to `path`.
///
/// # Errors
/// `E_INPUT_NOT_FOUND`, and what the API refuses.
pub(crate) fn file(
    ctx: &Context,
    api: &Api<'_>,
    phase: &'static str,
    file: &Path,
    path: &str,
    content_type: &str,
    headers: &[(&'static str, &str)],
) -> Answer<Value> {
    let opened = std::fs::File::open(file).map_err(|error| refusal::input(file, error))?;
    let length = opened.metadata().map_err(|error| refusal::input(file, error))?.len();
    let progress = ctx.progress(phase);
    progress.total(length);
    let counter = progress.counter();
    let pieces = ReaderStream::new(tokio::fs::File::from_std(opened))
        .inspect_ok(move |piece| counter.add(u64::try_from(piece.len()).unwrap_or(u64::MAX)));
    let mut call = Call::body(Method::POST, path, content_type, Body::from_stream(pieces));
    for (name, value) in headers {
        call = call.header(name, *value);
    }
    api.ask(call)
}
