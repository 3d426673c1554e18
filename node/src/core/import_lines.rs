//! Reading a source: its lines for the importer, its bytes for the file that keeps them. One line or one piece is in memory.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use throughline_protocol::code::Code;
use throughline_protocol::id::Cid;
use throughline_protocol::limits;
use throughline_protocol::transcript::import::{ClaudeCode, Draft, LINE_BYTES_MAX};
use throughline_protocol::unixfs::{FileBuilder, Layout};

use crate::api::error::{Answer, Problem};

/// A line as the importer takes it: its bytes, or only its length.
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    TooLong(u64),
}

/// Hands a line over.
pub(super) fn feed(importer: &mut ClaudeCode, line: Line<'_>) -> Vec<Draft> {
    match line {
        Line::Whole(bytes) => importer.line(bytes),
        Line::TooLong(length) => importer.oversized(length),
    }
}

/// Reads the lines that begin in `offset..end`; `take` says whether to go on. Holds one line in memory.
pub(super) fn for_each_line(
    spool: &Path,
    offset: u64,
    end: u64,
    mut take: impl FnMut(Line<'_>) -> Answer<bool>,
) -> Answer<()> {
    let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("reading the source: {error}"));
    let mut file = BufReader::with_capacity(1 << 16, File::open(spool).map_err(io)?);
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    let mut at = offset;
    let mut line = Vec::new();
    while at < end {
        line.clear();
        let limit = (end - at).min(LINE_BYTES_MAX as u64 + 2);
        let read = file.by_ref().take(limit).read_until(b'\n', &mut line).map_err(io)? as u64;
        if read == 0 {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n") || at + read >= end || line.len() <= LINE_BYTES_MAX;
        let length = if is_whole { read } else { read + skip_line(&mut file).map_err(io)? };
        let go_on = take(if is_whole { Line::Whole(&line) } else { Line::TooLong(length) })?;
        at += length;
        if !go_on {
            return Ok(());
        }
    }
    Ok(())
}

/// Skips to the end of the line; returns how many bytes that were.
fn skip_line(file: &mut BufReader<File>) -> std::io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = file.fill_buf()?;
        let found = buffer.iter().position(|byte| *byte == b'\n');
        let step = found.map_or(buffer.len(), |at| at + 1);
        if step == 0 {
            return Ok(skipped);
        }
        file.consume(step);
        skipped += step as u64;
        if found.is_some() {
            return Ok(skipped);
        }
    }
}

/// The CID that a part of a file has when it is stored, and its length.
pub(super) fn file_cid(spool: &Path, offset: u64, length: u64) -> Answer<(Cid, u64)> {
    let mut builder = FileBuilder::new(Layout::THROUGHLINE);
    let read = for_each_chunk(spool, offset, length, |chunk| {
        drop(builder.push(chunk));
        Ok(())
    })?;
    Ok((builder.finish().1.root, read))
}

/// Reads a part of a file piece by piece; gives how many bytes there were.
pub(super) fn for_each_chunk(
    spool: &Path,
    offset: u64,
    length: u64,
    mut take: impl FnMut(&[u8]) -> Answer<()>,
) -> Answer<u64> {
    let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("reading the source: {error}"));
    let mut file = File::open(spool).map_err(io)?;
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    let mut part = file.take(length);
    let mut chunk = vec![0; limits::FILE_CHUNK_BYTES];
    let mut total = 0;
    loop {
        let read = part.read(&mut chunk).map_err(io)?;
        if read == 0 {
            return Ok(total);
        }
        total += read as u64;
        take(&chunk[..read])?;
    }
}
