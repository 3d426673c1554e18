//! Files on their way to the API: read in pieces, counted, never whole in memory.

use std::fs::File;
use std::io;
use std::path::Path;

use axum::body::{Body, Bytes};
use axum::http::Method;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use super::context::Context;
use super::link::Api;
use super::refusal;
use crate::api::client::Call;
use crate::api::error::Answer;

/// The content type of a CAR.
pub(crate) const CAR: &str = "application/vnd.ipld.car";
/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// A file that is open, and how much of it goes along: what it held then.
pub(crate) struct Part {
    file: File,
    length: u64,
}

impl Part {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// `E_INPUT_NOT_FOUND`, `E_INPUT_FORMAT` for a directory, `E_USAGE` where it may not be read, `E_STORE_IO`.
    pub(crate) fn open(path: &Path) -> Answer<Self> {
        let opened = File::open(path).and_then(Part::of);
        opened.map_err(|error| refusal::input(path, error))
    }

    /// A file that is open already.
    ///
    /// # Errors
    /// When it cannot be examined or is a directory.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            // It opens, and breaks off only where it is read.
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Part { file, length: metadata.len() })
    }

    /// How many bytes of it are sent.
    #[must_use]
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Its bytes. Breaks off if the file has shrunk meanwhile: what comes after it is never taken for a part of it.
    fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let begin = (tokio::fs::File::from_std(self.file), self.length);
        futures::stream::try_unfold(begin, |(mut file, left)| async move {
            if left == 0 {
                return Ok(None);
            }
            let want = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let mut piece = vec![0; want];
            let read = file.read(&mut piece).await?;
            if read == 0 {
                let what = format!("the file became {left} bytes shorter while it was read");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
            }
            piece.truncate(read);
            Ok(Some((Bytes::from(piece), (file, left.saturating_sub(read as u64)))))
        })
    }
}

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
    parts(ctx, api, phase, vec![Part::open(file)?], path, content_type, headers)
}

/// POSTs files, one after the other, to `path`.
///
/// # Errors
/// What the API refuses.
pub(crate) fn parts(
    ctx: &Context,
    api: &Api<'_>,
    phase: &'static str,
    parts: Vec<Part>,
    path: &str,
    content_type: &str,
    headers: &[(&'static str, &str)],
) -> Answer<Value> {
    let progress = ctx.progress(phase);
    progress.total(parts.iter().map(Part::length).sum());
    let counter = progress.counter();
    let pieces = futures::stream::iter(parts).flat_map(|part| Box::pin(part.stream()));
    let counted = pieces.inspect_ok(move |piece| counter.add(piece.len() as u64));
    let mut call = Call::body(Method::POST, path, content_type, Body::from_stream(counted));
    for (name, value) in headers {
        call = call.header(name, *value);
    }
    api.ask(call)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    async fn read(part: Part) -> io::Result<Vec<u8>> {
        let pieces: Vec<Bytes> = part.stream().try_collect().await?;
        Ok(pieces.concat())
    }

    #[tokio::test]
    async fn a_file_goes_along_as_it_was_when_it_was_opened() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes = vec![7; PIECE_BYTES * 2 + 1];
        file.write_all(&bytes).unwrap();
        let part = Part::open(file.path()).unwrap();
        file.write_all(b"more").unwrap();
        assert_eq!(read(part).await.unwrap(), bytes);
        let part = Part::open(file.path()).unwrap();
        file.as_file().set_len(PIECE_BYTES as u64).unwrap();
        assert_eq!(read(part).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
