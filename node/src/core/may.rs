//! Whether this node may sign, or order, the next entry of a session. The refusal that helps most comes first.

use throughline_protocol::code::Code;
use throughline_protocol::fork::Ending;
use throughline_store::{Reader, SessionState};

use super::base::Standing;
use super::{Node, shape};
use crate::api::error::{Answer, Problem};

impl Node {
    /// Whether this node may sign the next entry as holder, or put in order what another key signed. Who orders promises
    /// that the entry is on the chain that it goes on signing, so both ask the sign guard.
    ///
    /// # Errors
    /// `E_SEALED`, `E_FROZEN`, `E_RETIRED`, `EV_EQUIVOCATION`, `EV_OWNER_EQUIVOCATION`, `E_INCOMPLETE`, `E_FENCED`, `E_NOT_HOLDER`, `E_SIGN_GUARD`.
    pub(crate) fn may_sign(&self, reader: &Reader, standing: &Standing) -> Answer<()> {
        let (row, state) = (&standing.row, &standing.state);
        let refuse = |code: Code, what: String| {
            Err(Problem::new(code, what)
                .with("session", row.session.to_string())
                .with("head", shape::mark(&state.tip()))
                .with("holder", state.holder().map(|holder| holder.to_string()))
                .hint(format!("throughline status {}", row.session.short())))
        };
        if state.position().ending == Ending::Sealed {
            return refuse(Code::Sealed, format!("sealed at seq {}", state.tip().seq));
        }
        match row.state {
            SessionState::Frozen { epoch, .. } => {
                return refuse(Code::Frozen, format!("frozen at epoch {epoch} for a handoff"));
            }
            SessionState::Retired { epoch } => {
                // Until the handoff's entry is here the chain still names this node.
                let next = state.holder().filter(|holder| *holder != self.principal());
                let next = next.map(|next| format!("; {} holds it now, send it there", next.short()));
                return refuse(
                    Code::Retired,
                    format!("handed over after epoch {epoch}{}", next.unwrap_or_default()),
                );
            }
            SessionState::Active => {}
        }
        let disputed = match row.summary.verdict.as_str() {
            "forked" => Some(Code::Equivocation),
            "frozen" => Some(Code::OwnerEquivocation),
            "incomplete" => {
                return refuse(
                    Code::Incomplete,
                    "what decides about its last entries is not here".to_owned(),
                );
            }
            _ => None,
        };
        if let Some(code) = disputed {
            return refuse(code, "two histories are held; the owner has to decide".to_owned());
        }
        if row.fence > state.tip().epoch {
            return refuse(Code::Fenced, format!("epoch {} has begun elsewhere", row.fence));
        }
        if state.holder() != Some(self.principal()) {
            let holder = state.holder().map_or_else(|| "nobody".to_owned(), |holder| holder.short());
            return refuse(
                Code::NotHolder,
                format!("{holder} holds the session in this epoch; send it there"),
            );
        }
        match reader.check_guard(row, state.tip().epoch, state.tip())? {
            Ok(()) => Ok(()),
            Err(guard) => refuse(Code::SignGuard, guard.to_string()),
        }
    }
}
