//! Between the machines of `protocol::handoff` and the messages of `/throughline/handoff/1`. `docs/PROTOCOL.md` §Streams.
//!
//! The wire has no word for a server that holds and stages nothing: it says `retired` without a head. Everything else
//! is one to one. Bytes from a peer become a [`Receipt`] only after their signature was checked.

use std::sync::Arc;

use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Ref;
use throughline_protocol::fork::Mark;
use throughline_protocol::handoff::driver::Message;
use throughline_protocol::handoff::{Answer, MoveId, Point, Presence, Readiness, Receipt, Reply, Tool};
use throughline_protocol::id::{Epoch, Seq, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::wire::handoff::{
    HandoffAnswer, HandoffRequest, HandoffState, HandoffStatus, HandoffStep, MoveId as WireMoveId, ToolState,
};
use throughline_protocol::wire::{Credentials, ErrorCode, WireError};

/// A request of a move; the network adds the peer proof.
pub(super) fn request(
    session: SessionId,
    move_id: MoveId,
    step: HandoffStep,
    grants: Vec<Arc<[u8]>>,
) -> HandoffRequest {
    HandoffRequest {
        credentials: Credentials { auth: None, grants },
        move_id: WireMoveId::from_bytes(move_id.to_bytes()),
        session,
        step,
    }
}

/// The step that a message is on the wire. `providers` are the addresses that go with an offer.
pub(super) fn step(message: Message, providers: Vec<String>) -> HandoffStep {
    match message {
        Message::Freeze { epoch } => HandoffStep::Freeze { epoch },
        Message::Offer { epoch, head, providers: _, grant: _ } => {
            HandoffStep::Offer { epoch, seq: head.seq, head: head.cid, providers }
        }
        Message::Prepare => HandoffStep::Prepare,
        Message::Activate { opening, grant: _ } => HandoffStep::Activate { handoff: opening.bytes().into() },
        Message::Retire { opening, receipt } => HandoffStep::Retire {
            handoff: opening.bytes().into(),
            // Present even when the target's receipt was lost; then it is empty.
            receipt: receipt.as_ref().map(Receipt::bytes).unwrap_or_default().into(),
        },
        Message::Abort => HandoffStep::Abort,
    }
}

/// The move that a request belongs to.
pub(super) fn move_of(request: &HandoffRequest) -> MoveId {
    MoveId::from_bytes(*request.move_id.as_bytes())
}

/// What a server answers. `tip` is the chain that it holds, told when it has nothing else to tell.
pub(super) fn answer(reply: Reply, tip: Option<Mark>) -> HandoffAnswer {
    match reply {
        Ok(answer) => HandoffAnswer::State(status(answer, tip)),
        Err(reject) => HandoffAnswer::Error(reject.into()),
    }
}

fn status(answer: Answer, tip: Option<Mark>) -> HandoffStatus {
    let at = |state, epoch, point: Option<Point>| HandoffStatus {
        state,
        epoch,
        seq: point.map_or(Seq::ZERO, |point| point.seq),
        head: point.map(|point| point.cid),
    };
    let held = tip.map(|tip| Point { cid: tip.cid, seq: tip.seq });
    match answer {
        Answer::Active { epoch, receipt } => {
            let receipt = receipt.map(|receipt| receipt.bytes().into());
            at(HandoffState::Active { receipt }, epoch, held)
        }
        Answer::Frozen { epoch, head, move_id: _ } => at(HandoffState::Frozen, epoch, Some(head)),
        Answer::Retired { epoch, opening } => at(HandoffState::Retired, epoch, Some(opening)),
        Answer::Idle { epoch } => at(HandoffState::Retired, epoch.unwrap_or_default(), None),
        Answer::Fetching { through, bytes } => HandoffStatus {
            seq: through.unwrap_or_default(),
            ..HandoffStatus::of(HandoffState::Fetching { bytes })
        },
        Answer::Offered { head } => at(HandoffState::Offered, Epoch::ZERO, Some(head)),
        Answer::Prepared(Readiness { tools, model, inventory }) => {
            let tools = tools
                .into_iter()
                .map(|tool| ToolState { available: tool.presence == Presence::Available, name: tool.name });
            HandoffStatus::of(HandoffState::Prepared { tools: tools.collect(), model, inventory })
        }
        Answer::Refused { reason } => HandoffStatus::of(HandoffState::Refused { reason }),
    }
}

/// What a peer's answer says. `move_id` is the move that it was asked in: a frozen server tells none.
pub(super) fn reply(answer: HandoffAnswer, move_id: MoveId) -> Reply {
    match answer {
        HandoffAnswer::State(status) => read_status(status, move_id),
        HandoffAnswer::Error(error) => Err(reject_of(&error)),
    }
}

fn read_status(status: HandoffStatus, move_id: MoveId) -> Reply {
    let HandoffStatus { state, epoch, seq, head } = status;
    let point = head.map(|cid| Point { cid, seq });
    let need = |word| point.ok_or_else(|| Reject::new(Code::SchemaMissing, format!("{word} needs `head`")));
    Ok(match state {
        HandoffState::Frozen => Answer::Frozen { epoch, head: need("frozen")?, move_id },
        HandoffState::Active { receipt } => {
            Answer::Active { epoch, receipt: receipt.map(|bytes| receipt_of(&bytes)).transpose()? }
        }
        HandoffState::Retired => match point {
            Some(opening) => Answer::Retired { epoch, opening },
            None => Answer::Idle { epoch: Some(epoch) },
        },
        HandoffState::Fetching { bytes } => {
            Answer::Fetching { through: (seq > Seq::ZERO).then_some(seq), bytes }
        }
        HandoffState::Offered => Answer::Offered { head: need("offered")? },
        HandoffState::Prepared { tools, model, inventory } => {
            let tools = tools.into_iter().map(|tool| Tool {
                name: tool.name,
                presence: if tool.available { Presence::Available } else { Presence::Missing },
            });
            Answer::Prepared(Readiness { tools: tools.collect(), model, inventory })
        }
        HandoffState::Refused { reason } => Answer::Refused { reason },
    })
}

/// What a server says of an epoch later than `ends`: that it knows one, held or not. Said is not shown.
pub(super) fn later(answer: &HandoffAnswer, ends: Epoch) -> Option<String> {
    match answer {
        HandoffAnswer::State(status) => (status.epoch > ends).then(|| format!("epoch {}", status.epoch)),
        HandoffAnswer::Error(error) => {
            (*error.code() == ErrorCode::Known(Code::EpochOld)).then(|| format!("an epoch after {ends}"))
        }
    }
}

/// A Ref as a receipt, its signature checked.
pub(super) fn receipt_of(bytes: &[u8]) -> Result<Receipt, Reject> {
    Receipt::of(&Signed::<Ref>::check(bytes, &mut VerifyingKeys::default())?)
}

fn reject_of(error: &WireError) -> Reject {
    let detail = error.detail().unwrap_or_default();
    match error.code() {
        ErrorCode::Known(code) => Reject::new(*code, detail),
        ErrorCode::Unknown(name) => Reject::new(Code::Refused, format!("{name}: {detail}")),
    }
}
