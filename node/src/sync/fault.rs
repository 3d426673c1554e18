//! Why an exchange with a peer failed, and who is charged for it.

use throughline_protocol::clock::Apart;
use throughline_protocol::code::{Code, Fault, Reject};
use throughline_protocol::sync::range::{Charged, Violation};
use throughline_protocol::wire::{ErrorCode, WireError};

use crate::api::error::Problem;
use crate::core::now;
use crate::net::{FrameError, NetError};

/// What went wrong with one peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reject}")]
pub struct PeerFault {
    /// The code and what was expected.
    pub reject: Reject,
    /// Who is charged.
    pub charged: Charged,
    /// How the peer's clock stands to this one, when it took no proof for that.
    pub apart: Option<Apart>,
}

impl PeerFault {
    /// A failure that is nobody's, such as a connection that broke.
    pub(super) fn nobodys(code: Code, detail: impl Into<String>) -> Self {
        PeerFault { reject: Reject::new(code, detail), charged: Charged::Nobody, apart: None }
    }

    /// A failure that the peer is charged for.
    pub(super) fn peers(reject: Reject) -> Self {
        // What is missing or newer than this program may be missing or old here.
        let charged = if reject.fault() == Fault::None { Charged::Nobody } else { Charged::Sender };
        PeerFault { reject, charged, apart: None }
    }

    /// Something of our own failed while the peer was served right.
    pub(super) fn ours(problem: &Problem) -> Self {
        PeerFault::nobodys(problem.code(), problem.detail())
    }
}

impl From<Violation> for PeerFault {
    fn from(violation: Violation) -> Self {
        PeerFault { reject: violation.reject, charged: violation.charged, apart: None }
    }
}

impl From<NetError> for PeerFault {
    fn from(error: NetError) -> Self {
        PeerFault::nobodys(error.code(), error.to_string())
    }
}

impl From<FrameError> for PeerFault {
    fn from(error: FrameError) -> Self {
        let reject = Reject::new(error.code(), error.to_string());
        match error {
            FrameError::Prefix | FrameError::TooLong { .. } => PeerFault::peers(reject),
            // Slow and broken lines are no proof of ill will.
            FrameError::Cut | FrameError::Timeout { .. } | FrameError::Io(_) => {
                PeerFault { reject, charged: Charged::Nobody, apart: None }
            }
        }
    }
}

impl From<WireError> for PeerFault {
    fn from(error: WireError) -> Self {
        let code = match error.code() {
            ErrorCode::Known(code) => *code,
            ErrorCode::Unknown(_) => Code::Refused,
        };
        if let Some(theirs) = error.clock().filter(|_| code == Code::PeerProof) {
            let apart = Apart { theirs, ours: now() };
            let what = format!("the peer took no proof of who asks: its clock is {apart}");
            return PeerFault { apart: Some(apart), ..PeerFault::nobodys(code, what) };
        }
        PeerFault::nobodys(code, error.detail().unwrap_or(code.title()))
    }
}

impl From<PeerFault> for Problem {
    fn from(fault: PeerFault) -> Self {
        fault.reject.into()
    }
}
