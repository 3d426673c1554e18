//! Planning a move: who leaves, who takes over, whether they may, and who else is asked.

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::fork::Ending;
use throughline_protocol::handoff::Point;
use throughline_protocol::handoff::driver::{Origin, Plan};
use throughline_protocol::id::{AgentIri, Principal, SessionId};

use super::Desk;
use super::desk::{Begin, Depth, Leave, expect_none_open};
use super::drive_acts::fresh_id;
use super::report::{self, Names, Servers};
use crate::api::error::{Answer, Problem};
use crate::core::{Granted, shape, standing};
use crate::sync::peers;

/// What a request for a move came to.
pub(super) enum Planned {
    /// It may begin.
    Ready { plan: Box<Plan>, owner: Principal, names: Names },
    /// It does not; this is the answer.
    Told(Value),
}

impl Desk {
    pub(super) fn plan(&self, begin: &Begin, peers: &[Principal]) -> Answer<Planned> {
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
        let tip = Point { cid: row.tip.cid, seq: row.tip.seq };
        let told = |word| {
            let base = json!({"cid": tip.cid.to_string(), "seq": tip.seq.get()});
            report::unbegun(begin.session, word, (servers, &names), row.tip.epoch.get(), base)
        };
        if let Some(problem) = self.grant_lacking(begin.session, target, &names.to, state.agent())? {
            let mut value = told("needs-grant");
            value["error"] = problem.to_json();
            return Ok(Planned::Told(value));
        }
        if begin.depth == Depth::DryRun {
            return Ok(Planned::Told(told("planned")));
        }
        let own = self.node.principal();
        let others =
            peers.iter().copied().filter(|peer| ![Some(own), Some(target), holder].contains(&Some(*peer)));
        let plan = Plan {
            move_id: fresh_id()?,
            session: begin.session,
            epoch: row.tip.epoch,
            origin: match (begin.leave, holder) {
                (Leave::Auto, Some(holder)) => Origin::Online(holder),
                (Leave::Auto | Leave::Offline, holder) => Origin::Offline(holder),
            },
            target,
            peers: others.collect(),
            held: Some(tip),
            told: None,
        };
        Ok(Planned::Ready { plan: Box::new(plan), owner: row.owner, names })
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
