//! The rules that one entry has to meet on the entry before it: links, authority, epoch. `docs/PROTOCOL.md` §The chain, §Authority.
//!
//! [`begin`] judges a genesis, [`link`] every other entry. Both [`crate::fork::Set`] and [`crate::verify::Verifier`] call them, so
//! a chain that streams in and a set of blobs are judged alike. Revocation is not looked at here.
//!
//! The first failure wins, in the order: session, prev, seal, seq, skip, ts, ancestors; capability and role; epoch; holder;
//! what a server has to name; class; the numbers of a seal.

use super::controls::Controls;
use super::select::Mark;
use super::skeleton::{Claim, GenesisFacts, Kind, SealNumbers, Skeleton, roster_hash};
use crate::code::{Code, Reject};
use crate::control::Role;
use crate::entry::Class;
use crate::id::{AgentIri, Cid, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};

/// What the genesis fixes for the whole session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionFacts {
    /// The session.
    pub id: SessionId,
    /// The owning account.
    pub owner: Principal,
    /// The agent.
    pub agent: AgentIri,
    /// ts of the genesis.
    pub first_ts: UnixMillis,
}

/// Where a chain stands after an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The entry.
    pub cid: EntryCid,
    /// Its seq.
    pub seq: Seq,
    /// Its time.
    pub ts: UnixMillis,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who may append next; none while the session is suspended or sealed by the owner.
    pub holder: Option<Principal>,
    /// The class in force from here on.
    pub class: Class,
    /// Whether this entry is a seal.
    pub ending: Ending,
}

/// Whether anything may follow an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It may.
    Open,
    /// The entry is a seal.
    Sealed,
}

/// As what a signer acted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// The account itself.
    Owner,
    /// A device of the account.
    Device,
    /// The holder of the epoch, under a writer grant.
    Holder,
    /// A contributor.
    Contributor,
}

impl Standing {
    /// The word for reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Standing::Owner => "owner",
            Standing::Device => "device",
            Standing::Holder => "holder",
            Standing::Contributor => "contributor",
        }
    }
}

/// Whether an entry opens an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Opens,
    Continues,
}

/// An entry that meets the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linked {
    pub(crate) position: Position,
    pub(crate) standing: Standing,
    pub(crate) opening: Opening,
}

impl Linked {
    /// Whether `signer`, whose entry it is, signed it as the holder of its epoch: *holderEntry* of §Selection.
    ///
    /// The key alone does not say it: one that holds the session and is a device of the owner too signs beside itself under
    /// `AGENT`. An opening is the account's, whoever holds before or after it.
    pub(crate) fn is_holder_entry(&self, signer: Principal) -> bool {
        self.opening == Opening::Continues
            && matches!(self.standing, Standing::Owner | Standing::Holder)
            && self.position.holder == Some(signer)
    }

    /// Where the entry stands.
    pub(crate) fn mark(&self) -> Mark {
        Mark { seq: self.position.seq, epoch: self.position.epoch, cid: self.position.cid }
    }
}

/// Whether a path holds an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It is an ancestor.
    Yes,
    /// It is not.
    No,
    /// It cannot be told here.
    Unknown,
}

/// What [`link`] asks about the path that ends in the parent.
pub(crate) trait Lineage {
    /// The entry that the next one skips to.
    fn next_skip(&self) -> EntryCid;
    /// Whether the path holds this entry.
    fn holds(&self, cid: EntryCid) -> Holds;
    /// The distinct signers on the path, ascending; none when there are more than a seal may list.
    fn participants(&self) -> Option<Vec<Principal>>;
}

/// Judges a genesis.
///
/// # Errors
/// The first rule that it breaks; `E_INCOMPLETE` when the capability that it cites is not held.
pub(crate) fn begin(entry: &Skeleton, controls: &Controls) -> Result<(SessionFacts, Linked), Reject> {
    let Kind::Genesis(genesis) = &entry.kind else {
        return Err(Reject::new(Code::Genesis, format!("expected a genesis, got a {}", entry.kind.word())));
    };
    let owner = entry.owner();
    if genesis.agent.account() != owner {
        return Err(Reject::new(
            Code::CapScope,
            format!("expected an agent of {}, got one of {}", owner.short(), genesis.agent.account().short()),
        ));
    }
    let session = SessionFacts {
        id: SessionId::of_genesis(entry.cid),
        owner,
        agent: genesis.agent.clone(),
        first_ts: entry.ts,
    };
    let standing = begins_as(&session, entry, genesis, controls)?;
    let position = Position {
        cid: entry.cid,
        seq: Seq::ZERO,
        ts: entry.ts,
        epoch: Epoch::ZERO,
        holder: Some(genesis.holder.unwrap_or(entry.signer)),
        class: genesis.class,
        ending: Ending::Open,
    };
    Ok((session, Linked { position, standing, opening: Opening::Continues }))
}

/// Judges an entry on its parent. Also returns the links that `path` could not tell to be ancestors.
///
/// # Errors
/// The first rule that it breaks; `E_INCOMPLETE` when the capability that it cites is not held.
pub(crate) fn link(
    session: &SessionFacts,
    parent: &Position,
    path: &impl Lineage,
    entry: &Skeleton,
    controls: &Controls,
) -> Result<(Linked, Vec<EntryCid>), Reject> {
    check_place(session, parent, path, entry)?;
    let unknown = check_ancestors(path, entry)?;
    let role = acting_role(session, entry, controls)?;
    check_type_allowed(entry, role)?;
    let opening = check_epoch(parent, entry, role)?;
    let standing = check_holder(parent, entry, role, opening)?;
    check_claims(entry, standing)?;
    let class = check_class(parent, entry, standing)?;
    if let Kind::Seal(numbers) = &entry.kind {
        check_seal(session, parent, path, numbers)?;
    }
    let holder = match (&entry.kind, opening) {
        (Kind::Handoff(holder), _) => *holder,
        (_, Opening::Opens) => None,
        (_, Opening::Continues) => parent.holder,
    };
    let position = Position {
        cid: entry.cid,
        seq: entry.seq,
        ts: entry.ts,
        epoch: entry.epoch,
        holder,
        class,
        ending: if entry.is_seal() { Ending::Sealed } else { Ending::Open },
    };
    Ok((Linked { position, standing, opening }, unknown))
}

fn begins_as(
    session: &SessionFacts,
    entry: &Skeleton,
    genesis: &GenesisFacts,
    controls: &Controls,
) -> Result<Standing, Reject> {
    match acting_role(session, entry, controls)? {
        Acting::Account => Ok(Standing::Owner),
        Acting::Under(Role::Agent) => Ok(Standing::Device),
        Acting::Under(Role::Writer) if genesis.holder.is_some() => {
            Err(Reject::new(Code::Genesis, "a server begins a session for itself only"))
        }
        Acting::Under(Role::Writer) if genesis.class == Class::Public => {
            Err(Reject::new(Code::ClassDowngrade, "a server begins no public session"))
        }
        Acting::Under(Role::Writer) => Ok(Standing::Holder),
        Acting::Under(role @ (Role::Contributor | Role::Reader)) => Err(role_forbids(role, entry)),
    }
}

/// Session, prev, seal, seq, skip and ts.
fn check_place(
    session: &SessionFacts,
    parent: &Position,
    path: &impl Lineage,
    entry: &Skeleton,
) -> Result<(), Reject> {
    if entry.session != session.id {
        return Err(Reject::new(
            Code::SessionMismatch,
            format!("expected session {}, got {}", session.id.short(), entry.session.short()),
        ));
    }
    if entry.prev != Some(parent.cid) {
        // Callers look the parent up by `prev`; this is for those that do not.
        return Err(Reject::new(Code::Incomplete, "prev is not the entry that was judged before"));
    }
    if parent.ending == Ending::Sealed {
        return Err(Reject::new(Code::Sealed, format!("entry {} is a seal", parent.seq)));
    }
    if entry.seq != parent.seq.next() {
        return Err(Reject::new(Code::Seq, format!("expected seq {}, got {}", parent.seq.next(), entry.seq)));
    }
    let skip = entry.skip.unwrap_or(parent.cid);
    if skip != path.next_skip() {
        let expected = path.next_skip().short();
        return Err(Reject::new(Code::Skip, format!("expected skip {expected}, got {}", skip.short())));
    }
    if entry.ts < parent.ts {
        return Err(Reject::new(
            Code::TsOrder,
            format!("expected a ts of at least {}, got {}", parent.ts, entry.ts),
        ));
    }
    Ok(())
}

fn check_ancestors(path: &impl Lineage, entry: &Skeleton) -> Result<Vec<EntryCid>, Reject> {
    let mut unknown = Vec::new();
    for link in &entry.links {
        match path.holds(*link) {
            Holds::Yes => {}
            Holds::Unknown => unknown.push(*link),
            Holds::No => {
                return Err(Reject::new(
                    Code::Ancestor,
                    format!("{} is no entry before this one", link.short()),
                ));
            }
        }
    }
    Ok(unknown)
}

/// The permission that an entry was signed with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Acting {
    Account,
    Under(Role),
}

/// Who acts: the account itself, or its delegate under the capability that the entry cites.
fn acting_role(session: &SessionFacts, entry: &Skeleton, controls: &Controls) -> Result<Acting, Reject> {
    let signer = entry.signer;
    match &entry.authority {
        None if signer == session.owner => Ok(Acting::Account),
        None if matches!(entry.kind, Kind::Handoff(_)) => {
            Err(Reject::new(Code::CapRole, "a handoff is signed by the account itself"))
        }
        None => Err(Reject::new(
            Code::CapMissing,
            format!("{} is not the owner and cites no capability", signer.short()),
        )),
        Some(authority) if authority.space != session.owner => Err(Reject::new(
            Code::CapIssuer,
            format!("expected space {}, got {}", session.owner.short(), authority.space.short()),
        )),
        Some(authority) => role_under(session, &authority.capability, signer, controls).map(Acting::Under),
    }
}

/// Checks that an entry is signed as a holder's has to be: by the account itself, or under a writer capability.
///
/// # Errors
/// An `E_CAP_…` code; `E_INCOMPLETE` when the capability is not held.
pub(crate) fn check_signed_as_holder(
    session: &SessionFacts,
    entry: &Skeleton,
    controls: &Controls,
) -> Result<(), Reject> {
    match acting_role(session, entry, controls)? {
        Acting::Account | Acting::Under(Role::Writer) => Ok(()),
        Acting::Under(role @ (Role::Agent | Role::Contributor | Role::Reader)) => Err(Reject::new(
            Code::CapRole,
            format!("expected a holder's entry, got one under {}", role.word()),
        )),
    }
}

/// The role that a capability gives `signer` in this session.
pub(crate) fn role_under(
    session: &SessionFacts,
    cited: &Cid,
    signer: Principal,
    controls: &Controls,
) -> Result<Role, Reject> {
    let grant = controls.grant(cited, signer, session.owner)?;
    if grant.covers(session.id, &session.agent) {
        Ok(grant.role)
    } else {
        Err(Reject::new(
            Code::CapScope,
            format!("capability {} does not cover session {}", cited.short(), session.id.short()),
        ))
    }
}

/// Which types a role may sign at all.
fn check_type_allowed(entry: &Skeleton, acting: Acting) -> Result<(), Reject> {
    let Acting::Under(role) = acting else {
        return match entry.kind {
            Kind::Genesis(_) => Err(Reject::new(Code::Genesis, "a second genesis")),
            Kind::UserMessage(_)
            | Kind::ModelResponse
            | Kind::ToolCall(_)
            | Kind::Note
            | Kind::ClassNote(_)
            | Kind::Handoff(_)
            | Kind::Seal(_) => Ok(()),
        };
    };
    let allowed = match &entry.kind {
        Kind::Genesis(_) => return Err(Reject::new(Code::Genesis, "a second genesis")),
        Kind::UserMessage(_) => matches!(role, Role::Writer | Role::Agent | Role::Contributor),
        Kind::ToolCall(_) | Kind::Note | Kind::ClassNote(_) => matches!(role, Role::Writer | Role::Agent),
        Kind::ModelResponse | Kind::Seal(_) => role == Role::Writer,
        Kind::Handoff(_) => false,
    };
    if allowed { Ok(()) } else { Err(role_forbids(role, entry)) }
}

fn role_forbids(role: Role, entry: &Skeleton) -> Reject {
    Reject::new(Code::CapRole, format!("{} does not sign a {}", role.word(), entry.kind.word()))
}

fn check_epoch(parent: &Position, entry: &Skeleton, acting: Acting) -> Result<Opening, Reject> {
    let opening =
        if acting == Acting::Account && entry.may_open() { Opening::Opens } else { Opening::Continues };
    let expected = match opening {
        Opening::Opens => parent.epoch.next(),
        Opening::Continues => parent.epoch,
    };
    if entry.epoch == expected {
        Ok(opening)
    } else {
        Err(Reject::new(Code::EpochGap, format!("expected epoch {expected}, got {}", entry.epoch)))
    }
}

/// Whether the signer may append here: the holder whatever it is, the others beside it, nobody but the owner's opening
/// entries while there is no holder.
fn check_holder(
    parent: &Position,
    entry: &Skeleton,
    acting: Acting,
    opening: Opening,
) -> Result<Standing, Reject> {
    if opening == Opening::Opens {
        return Ok(Standing::Owner);
    }
    let Some(holder) = parent.holder else {
        return Err(Reject::new(Code::NotHolder, "the session is suspended: only a handoff may follow"));
    };
    let beside =
        matches!(entry.kind, Kind::UserMessage(_) | Kind::ToolCall(_) | Kind::Note | Kind::ClassNote(_));
    let standing = match acting {
        Acting::Account if beside || entry.signer == holder => Some(Standing::Owner),
        Acting::Under(Role::Writer) if entry.signer == holder => Some(Standing::Holder),
        Acting::Under(Role::Agent) => Some(Standing::Device),
        Acting::Under(Role::Contributor) => Some(Standing::Contributor),
        Acting::Account | Acting::Under(Role::Writer | Role::Reader) => None,
    };
    standing.ok_or_else(|| {
        let (expected, got) = (holder.short(), entry.signer.short());
        Reject::new(Code::NotHolder, format!("expected the holder {expected}, got {got}"))
    })
}

/// A server never writes as if a person had: its user messages say where they come from, its tool calls who asked.
fn check_claims(entry: &Skeleton, standing: Standing) -> Result<(), Reject> {
    let missing = |what: &str| Err(Reject::new(Code::SchemaMissing, what));
    match (&entry.kind, standing) {
        (Kind::UserMessage(Claim::Unnamed), Standing::Holder) => {
            missing("a user message of a server needs `origin`")
        }
        (Kind::ToolCall(Claim::Unnamed), Standing::Holder | Standing::Contributor) => {
            missing("a tool call of a server needs `response`")
        }
        _ => Ok(()),
    }
}

/// The class from this entry on. Only the account or a device makes it more open.
fn check_class(parent: &Position, entry: &Skeleton, standing: Standing) -> Result<Class, Reject> {
    let Kind::ClassNote(class) = entry.kind else {
        return Ok(parent.class);
    };
    // `Class` ascends from the most open one.
    if class < parent.class && !matches!(standing, Standing::Owner | Standing::Device) {
        return Err(Reject::new(
            Code::ClassDowngrade,
            format!("a server does not open {} to {}", parent.class.word(), class.word()),
        ));
    }
    Ok(class)
}

fn check_seal(
    session: &SessionFacts,
    parent: &Position,
    path: &impl Lineage,
    numbers: &SealNumbers,
) -> Result<(), Reject> {
    let bad = |what: String| Err(Reject::new(Code::Seal, what));
    let before = parent.seq.next().get();
    if numbers.count != before {
        return bad(format!("expected count {before}, got {}", numbers.count));
    }
    if numbers.first_ts != session.first_ts {
        return bad(format!("expected firstTs {}, got {}", session.first_ts, numbers.first_ts));
    }
    if numbers.last_ts != parent.ts {
        return bad(format!("expected lastTs {}, got {}", parent.ts, numbers.last_ts));
    }
    let Some(participants) = path.participants() else {
        return bad("more signers than a seal can list".to_owned());
    };
    if numbers.participants != roster_hash(&participants) {
        return bad(format!("participants are not the {} signers before it, ascending", participants.len()));
    }
    Ok(())
}
