//! Planning a move: who leaves, who takes over, whether they may, and who else is asked. `docs/PROTOCOL.md` §Handing over.

use serde_json::Value;
use throughline_protocol::code::Code;
use throughline_protocol::fork::{Ending, Mark};
use throughline_protocol::handoff::Point;
use throughline_protocol::handoff::driver::{Origin, Plan};
use throughline_protocol::id::{AgentIri, Principal, SessionId};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffState, HandoffStep};

use super::desk::{Begin, Depth, Leave, expect_none_open};
use super::drive_acts::fresh_id;
use super::report::{self, Names, Servers, Unbegun};
use super::{Desk, wire};
use crate::api::error::{Answer, Problem};
use crate::core::{Granted, shape, standing};
use crate::sync::peers;

/// What a request for a move came to.
pub(super) enum Planned {
    /// It may begin.
    Ready { plan: Box<Plan>, owner: Principal, names: Names },
    /// It does not; this is the answer.
    Told(Value),
    /// The target is the holder. If it says that it goes on, this is the answer; else what stands in `otherwise`.
    Held { holder: Principal, owner: Principal, answer: Value, otherwise: Box<Planned> },
}

impl Desk {
    /// What a request for a move comes to. A target that is the holder already is asked whether it goes on: one that stands still, or
    /// that may not sign before a new epoch, is handed the session as any other.
    pub(super) async fn plan(&self, begin: &Begin, peers: Vec<Principal>) -> Answer<Planned> {
        let asked = begin.clone();
        match self.blocking(move |desk| desk.plan_blocking(&asked, &peers)).await? {
            Planned::Held { holder, owner, answer, otherwise } => {
                let goes_on = self.goes_on(begin.session, holder, owner).await?;
                Ok(if goes_on { Planned::Told(answer) } else { *otherwise })
            }
            planned @ (Planned::Ready { .. } | Planned::Told(_)) => Ok(planned),
        }
    }

    /// Whether the holder says that it appends. One that does not answer could take nothing over either: it is left as it is.
    async fn goes_on(&self, session: SessionId, holder: Principal, owner: Principal) -> Answer<bool> {
        let grants = self.grants(owner, None).await;
        let status = wire::request(session, fresh_id()?, HandoffStep::Status, grants);
        let asked = tokio::time::timeout(self.moves.limits.answer_max, self.ask(holder, status)).await;
        Ok(match asked {
            Ok(Ok(HandoffAnswer::State(status))) => matches!(status.state, HandoffState::Active { .. }),
            Ok(Ok(HandoffAnswer::Error(_))) => false,
            Ok(Err(_)) | Err(_) => true,
        })
    }

    fn plan_blocking(&self, begin: &Begin, peers: &[Principal]) -> Answer<Planned> {
        let target = self.resolve(&begin.to)?;
        let reader = self.node.reader()?;
        let standing = standing(&reader, begin.session)?;
        let (row, state) = (&standing.row, &standing.state);
        expect_none_open(&self.driven(), begin.session)?;
        if state.position().ending == Ending::Sealed {
            return Err(Problem::new(Code::Sealed, "expected an open session, this one is sealed"));
        }
        if matches!(row.summary.verdict.as_str(), "forked" | "frozen") {
            return Err(Problem::new(
                Code::Equivocation,
                "two histories are held; the owner has to decide first",
            ));
        }
        if row.fence > row.tip.epoch {
            return Err(Problem::new(
                Code::Incomplete,
                format!("epoch {} has begun, and is not held here", row.fence),
            )
            .hint(format!("throughline fetch {}", begin.session)));
        }
        let holder = state.holder();
        let names =
            Names { from: holder.map(|holder| self.name(holder)).transpose()?, to: self.name(target)? };
        let servers = Servers { from: holder, to: target };
        let told = |why| report::unbegun(begin.session, why, (servers, &names), &row.tip);
        if let Some(problem) = self.grant_lacking(begin.session, target, &names.to, state.agent())? {
            let mut value = told(Unbegun::NeedsGrant);
            value["error"] = problem.to_json();
            return Ok(Planned::Told(value));
        }
        let planned = match begin.depth {
            Depth::DryRun => Planned::Told(told(Unbegun::Planned)),
            Depth::Begin => {
                let plan = self.plan_of(begin, (row.tip, holder), target, peers)?;
                Planned::Ready { plan: Box::new(plan), owner: row.owner, names: names.clone() }
            }
        };
        Ok(match holder.filter(|holder| *holder == target) {
            Some(holder) => {
                let (answer, otherwise) = (told(Unbegun::Held), Box::new(planned));
                Planned::Held { holder, owner: row.owner, answer, otherwise }
            }
            None => planned,
        })
    }

    fn plan_of(
        &self,
        begin: &Begin,
        (tip, holder): (Mark, Option<Principal>),
        target: Principal,
        peers: &[Principal],
    ) -> Answer<Plan> {
        let own = self.node.principal();
        let others =
            peers.iter().copied().filter(|peer| ![Some(own), Some(target), holder].contains(&Some(*peer)));
        Ok(Plan {
            move_id: fresh_id()?,
            session: begin.session,
            epoch: tip.epoch,
            origin: match (begin.leave, holder) {
                (Leave::Auto, Some(holder)) => Origin::Online(holder),
                (Leave::Auto | Leave::Offline, holder) => Origin::Offline(holder),
            },
            target,
            peers: others.collect(),
            held: Some(Point { cid: tip.cid, seq: tip.seq }),
            told: None,
        })
    }

    /// The refusal of a target that may not hold the session, with the command that the owner runs.
    fn grant_lacking(
        &self,
        session: SessionId,
        target: Principal,
        name: &str,
        agent: &AgentIri,
    ) -> Answer<Option<Problem>> {
        let code = match self.grant_for(session, target)? {
            Granted::Live(_) => return Ok(None),
            Granted::Revoked(_) | Granted::Never => Code::CapMissing,
        };
        let peer = if name == "self" { target.to_string() } else { name.to_owned() };
        let what = format!("{name} may not hold this session: it has no live writer grant that covers it");
        Ok(Some(
            Problem::new(code, what)
                .with("session", session.to_string())
                .hint(format!("throughline grant {peer} --agent {agent}")),
        ))
    }

    fn resolve(&self, to: &str) -> Answer<Principal> {
        if to == "self" {
            return Ok(self.node.principal());
        }
        if let Ok(principal) = to.parse() {
            return Ok(principal);
        }
        Ok(peers::resolve(&self.node.reader()?, to)?.principal)
    }

    /// What people here call a server.
    pub(super) fn name(&self, peer: Principal) -> Answer<String> {
        if peer == self.node.principal() {
            return Ok("self".to_owned());
        }
        let aliases = shape::aliases(&self.node.reader()?)?;
        Ok(aliases.get(&peer).cloned().unwrap_or_else(|| peer.to_string()))
    }
}
