//! Frames on a stream: an unsigned varint length, minimal, then that many bytes. `docs/PROTOCOL.md` §Streams.
//!
//! A frame is bytes here; what they mean is for others. Nothing is allocated from a declared length: the buffer
//! grows in steps of [`STEP_BYTES`] as bytes arrive. Every wait has an end:
//!
//! - nothing at all for [`FrameTiming::idle`];
//! - a frame whose first byte is there and that was then waited for longer than [`FrameTiming::grace`] and its
//!   bytes at [`FrameTiming::bytes_per_s_min`] allow; time that the reader spends elsewhere does not count;
//! - the stream is older than [`FrameTiming::total`].
//!
//! The same holds for writing, where the peer is slow by not reading.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use futures::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use throughline_protocol::code::Code;
use throughline_protocol::limits;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::streams::PeerRoom;

/// How much the read buffer grows at a time, in bytes.
const STEP_BYTES: usize = 32 * 1024;
/// A read buffer larger than this is given back once it is empty.
const KEPT_BYTES_MAX: usize = 4 * STEP_BYTES;
/// Bytes of the longest length prefix: four groups of seven bits hold the largest frame.
const PREFIX_BYTES_MAX: usize = 4;
const _: () = assert!(limits::FRAME_BYTES_MAX < 1 << (7 * PREFIX_BYTES_MAX));

/// How long the other side may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTiming {
    /// Life of a stream. A longer transfer resumes on a new one.
    pub total: Duration,
    /// Longest wait without a single byte of progress.
    pub idle: Duration,
    /// How long a frame may take before its rate counts.
    pub grace: Duration,
    /// Least rate of a frame once the grace is over.
    pub bytes_per_s_min: u32,
}

impl Default for FrameTiming {
    fn default() -> Self {
        FrameTiming {
            total: Duration::from_secs(15 * 60),
            idle: Duration::from_secs(30),
            grace: Duration::from_secs(10),
            bytes_per_s_min: 16 * 1024,
        }
    }
}

/// Why a frame could not be read or written. The stream is of no more use after any of them.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length prefix is longer than it needs to be.
    #[error("expected a minimal length prefix of at most {PREFIX_BYTES_MAX} bytes")]
    Prefix,
    /// The length is over the limit.
    #[error("expected a frame of at most {} bytes, got {got}", limits::FRAME_BYTES_MAX)]
    TooLong {
        /// The length, in bytes.
        got: usize,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Cut,
    /// The other side was too slow.
    #[error("{slow}")]
    Timeout {
        /// Which bound it missed.
        slow: Slow,
    },
    /// The connection broke.
    #[error("the stream broke: {0}")]
    Io(#[from] io::Error),
}

/// Which bound of [`FrameTiming`] was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Slow {
    /// [`FrameTiming::total`].
    #[error("the stream took longer than it may in all")]
    Total,
    /// [`FrameTiming::idle`].
    #[error("nothing moved for too long")]
    Idle,
    /// [`FrameTiming::bytes_per_s_min`].
    #[error("a frame moved slower than the least rate")]
    Rate,
}

impl FrameError {
    /// The stable code that this answers as.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            FrameError::Prefix | FrameError::TooLong { .. } => Code::FrameLen,
            FrameError::Timeout { .. } => Code::Timeout,
            FrameError::Cut | FrameError::Io(_) => Code::Unreachable,
        }
    }
}

/// A place among the incoming streams of a peer and of all peers, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) _of_peer: OwnedSemaphorePermit,
    /// None for a known peer: it takes no stranger's place.
    pub(super) _of_strangers: Option<OwnedSemaphorePermit>,
    pub(super) _of_all: OwnedSemaphorePermit,
    /// A peer that reconnects does not start from zero while this is open.
    pub(super) _peer: Arc<PeerRoom>,
}

/// A stream of frames. An incoming one holds its place among the allowed streams until it is dropped.
#[derive(Debug)]
pub struct FrameStream<S = libp2p::Stream> {
    io: S,
    timing: FrameTiming,
    opened: Instant,
    /// Bytes that arrived and were not handed out yet.
    inbox: BytesMut,
    /// How long the frame at the front of `inbox` was waited for since its first byte.
    waited: Duration,
    _place: Option<Place>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> FrameStream<S> {
    /// Frames over `io`; its life begins now.
    pub fn new(io: S, timing: FrameTiming) -> Self {
        FrameStream {
            io,
            timing,
            opened: Instant::now(),
            inbox: BytesMut::new(),
            waited: Duration::ZERO,
            _place: None,
        }
    }

    /// The same for an incoming stream, which keeps its place taken.
    pub(super) fn incoming(io: S, timing: FrameTiming, place: Place) -> Self {
        FrameStream { _place: Some(place), ..FrameStream::new(io, timing) }
    }

    /// The next frame, or nothing when the other side has finished. Dropping the future loses no bytes: the next
    /// call goes on where it was.
    ///
    /// # Errors
    /// `E_FRAME_LEN` for a bad prefix, `E_TIMEOUT` for a slow peer, `E_UNREACHABLE` when the stream broke or ended
    /// inside a frame.
    pub async fn read(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some(frame));
            }
            if !self.fill().await? {
                return if self.inbox.is_empty() { Ok(None) } else { Err(FrameError::Cut) };
            }
        }
    }

    /// Sends one frame and flushes it. The future must be driven to its end: dropped midway it leaves half a frame.
    ///
    /// # Errors
    /// `E_FRAME_LEN` when `frame` is over the limit (nothing was sent), `E_TIMEOUT` when the other side does not read,
    /// `E_UNREACHABLE` when the stream broke.
    pub async fn write(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        if frame.len() > limits::FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { got: frame.len() });
        }
        let (prefix, prefix_len) = encode_length(frame.len());
        let began = Instant::now();
        let mut sent = 0;
        for part in [&prefix[..prefix_len], frame] {
            let mut rest = part;
            while !rest.is_empty() {
                let bound = self.bound(Some((began.elapsed(), sent)));
                let n = within(bound, self.io.write(rest)).await?;
                if n == 0 {
                    return Err(io::Error::from(io::ErrorKind::WriteZero).into());
                }
                sent += n;
                rest = &rest[n..];
            }
        }
        let bound = self.bound(Some((began.elapsed(), sent)));
        within(bound, self.io.flush()).await
    }

    /// Tells the other side that no more frames follow. Reading goes on.
    ///
    /// # Errors
    /// `E_TIMEOUT` and `E_UNREACHABLE` as for [`FrameStream::write`].
    pub async fn finish(&mut self) -> Result<(), FrameError> {
        let bound = self.bound(None);
        within(bound, self.io.close()).await
    }

    /// Takes a whole frame off the front of the inbox.
    fn take_frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some((length, start)) = decode_length(&self.inbox)? else { return Ok(None) };
        let end = start + length;
        if self.inbox.len() < end {
            return Ok(None);
        }
        let frame = self.inbox.split_to(end)[start..].to_vec();
        self.waited = Duration::ZERO;
        if self.inbox.is_empty() && self.inbox.capacity() > KEPT_BYTES_MAX {
            self.inbox = BytesMut::new();
        }
        Ok(Some(frame))
    }

    /// Waits for more bytes; false at the end of the stream.
    async fn fill(&mut self) -> Result<bool, FrameError> {
        let begun = !self.inbox.is_empty();
        let bound = self.bound(begun.then_some((self.waited, self.inbox.len())));
        let _clock = begun.then(|| Stopwatch { since: Instant::now(), total: &mut self.waited });
        let (io, inbox) = (&mut self.io, &mut self.inbox);
        let n = within(bound, poll_fn(|cx| poll_extend(io, cx, inbox))).await?;
        Ok(n > 0)
    }

    /// Until when the next byte must move, and which bound that is: the nearest of the three. `frame` is how long
    /// the frame that is under way was waited for and how much of it has moved.
    fn bound(&self, frame: Option<(Duration, usize)>) -> (Instant, Slow) {
        let (timing, now) = (&self.timing, Instant::now());
        let total = (self.opened + timing.total, Slow::Total);
        let idle = (now + timing.idle, Slow::Idle);
        let rate = frame.map(|(waited, moved)| {
            let moved = u32::try_from(moved).unwrap_or(u32::MAX);
            let earned = Duration::from_secs_f64(f64::from(moved) / f64::from(timing.bytes_per_s_min.max(1)));
            (now + (timing.grace + earned).saturating_sub(waited), Slow::Rate)
        });
        [idle]
            .into_iter()
            .chain(rate)
            .fold(total, |nearest, bound| if bound.0 < nearest.0 { bound } else { nearest })
    }
}

/// Adds the time until it is dropped, also when the future that holds it is.
struct Stopwatch<'a> {
    since: Instant,
    total: &'a mut Duration,
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.total += self.since.elapsed();
    }
}

/// One read appended to `inbox`, which is as long as before when there was nothing to read.
fn poll_extend<S: AsyncRead + Unpin>(
    io: &mut S,
    cx: &mut Context<'_>,
    inbox: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let filled = inbox.len();
    inbox.resize(filled + STEP_BYTES, 0);
    let polled = Pin::new(io).poll_read(cx, &mut inbox[filled..]);
    inbox.truncate(filled + if let Poll::Ready(Ok(n)) = &polled { *n } else { 0 });
    Poll::Ready(ready!(polled))
}

async fn within<T>(
    (deadline, slow): (Instant, Slow),
    act: impl Future<Output = io::Result<T>>,
) -> Result<T, FrameError> {
    // A timeout looks at the clock only when there is nothing to do; the life of a stream ends even when there is.
    if slow == Slow::Total && Instant::now() >= deadline {
        return Err(FrameError::Timeout { slow });
    }
    match timeout_at(deadline, act).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(FrameError::Timeout { slow }),
    }
}

/// The length at the front of `bytes` and where the body starts; nothing when the prefix is not complete.
fn decode_length(bytes: &[u8]) -> Result<Option<(usize, usize)>, FrameError> {
    let mut length = 0;
    for (at, byte) in bytes.iter().take(PREFIX_BYTES_MAX).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 != 0 {
            continue;
        }
        if at > 0 && *byte == 0 {
            return Err(FrameError::Prefix);
        }
        if length > limits::FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { got: length });
        }
        return Ok(Some((length, at + 1)));
    }
    if bytes.len() < PREFIX_BYTES_MAX { Ok(None) } else { Err(FrameError::Prefix) }
}

/// The prefix of a length that is within the limit, and how many of its bytes are used.
fn encode_length(mut length: usize) -> ([u8; PREFIX_BYTES_MAX], usize) {
    let mut prefix = [0; PREFIX_BYTES_MAX];
    let mut used = 0;
    loop {
        let low = u8::try_from(length & 0x7f).unwrap_or(0x7f);
        length >>= 7;
        prefix[used] = if length == 0 { low } else { low | 0x80 };
        used += 1;
        if length == 0 {
            return (prefix, used);
        }
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
