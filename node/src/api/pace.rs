//! How slowly a request's body may come: a place at the door is not held by somebody who sends a byte now and then.
//! `docs/THREAT_MODEL.md` §This machine.
//!
//! A body that is read whole has one deadline. One that is streamed may be of any size, so it has an allowance of time to be
//! waited for: waiting spends it, bytes earn it back. Only waiting for the sender counts; while the node is busy with what
//! came, nothing is spent.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use throughline_protocol::code::Code;
use tokio::time::{Instant, timeout};

use super::error::{Answer, Problem};

/// Time for a body that is read whole, at most 4 MiB.
pub(super) const WHOLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a streamed body, and the allowance that it begins with.
pub(super) const ALLOWANCE: Duration = Duration::from_secs(30);
/// What a byte of a streamed body earns: who sends 1,024 a second is never refused.
const EARNED_BY_BYTE: Duration = Duration::from_nanos(1_000_000_000 / 1_024);

/// A streamed body, read at its sender's pace as long as that is one.
pub(super) struct Paced {
    body: Body,
    allowance: Duration,
}

impl Paced {
    /// A body of which nothing was read.
    pub(super) fn new(body: Body) -> Self {
        Paced { body, allowance: ALLOWANCE }
    }

    /// The bytes that come next; none at the end.
    ///
    /// # Errors
    /// `E_API_TIMEOUT` when the allowance is spent, `E_INTERRUPTED` when the body breaks off.
    pub(super) async fn next(&mut self) -> Answer<Option<Bytes>> {
        loop {
            let began = Instant::now();
            let Ok(frame) = timeout(self.allowance, self.body.frame()).await else {
                let what = format!(
                    "expected a body without waits of {} s in all, or 1,024 bytes a second",
                    ALLOWANCE.as_secs()
                );
                return Err(Problem::new(Code::ApiTimeout, what));
            };
            self.allowance = self.allowance.saturating_sub(began.elapsed());
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame
                .map_err(|error| Problem::new(Code::Interrupted, format!("the body ended early: {error}")))?;
            // Trailers are no bytes, and earn nothing.
            let Ok(bytes) = frame.into_data() else { continue };
            let earned = EARNED_BY_BYTE.saturating_mul(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            self.allowance = self.allowance.saturating_add(earned).min(ALLOWANCE);
            return Ok(Some(bytes));
        }
    }
}

/// What reading a body whole gives, unless it takes longer than [`WHOLE_TIMEOUT`].
///
/// # Errors
/// `E_API_TIMEOUT`.
pub(super) async fn whole<T>(reading: impl Future<Output = T>) -> Answer<T> {
    timeout(WHOLE_TIMEOUT, reading).await.map_err(|_| {
        let what = format!("expected the whole body within {} s", WHOLE_TIMEOUT.as_secs());
        Problem::new(Code::ApiTimeout, what)
    })
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
