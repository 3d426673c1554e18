//! Small files on which verifiers once differed, each with what `docs/PROTOCOL.md` says of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use throughline_protocol::block::Signed;
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::{Body, ModelResponse, Note};
use throughline_protocol::id::{Cid, Codec, EntryCid, Seq};
use throughline_protocol::limits::INTEGER_MAX;
use throughline_protocol::testing::{Built, Party, Reach, SessionBuilder, capability};

/// A file and what is to be reported of it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) verdict: &'static str,
    /// The code of the first problem.
    pub(super) code: Option<&'static str>,
    /// The result of the head check.
    pub(super) head: &'static str,
    pub(super) car: Vec<u8>,
}

/// Entries as a file, by seq and CID.
fn car<'a>(
    entries: impl IntoIterator<Item = &'a Built>,
    controls: &[Signed<Control>],
    root: EntryCid,
    configs: &BTreeMap<EntryCid, Vec<u8>>,
) -> Vec<u8> {
    let mut entries: Vec<&Built> = entries.into_iter().collect();
    entries.sort_by_key(|built| (built.entry.value().seq(), built.entry.cid()));
    entries.dedup_by_key(|built| built.entry.cid());
    let blocks = |built: &'a Built| EntryBlocks {
        entry: built.entry.bytes(),
        payload: built.payload.as_deref(),
        config: None,
        files: &[],
    };
    let mut out = Vec::new();
    let controls = controls.iter().map(|control| (control.value(), &control.bytes()[..]));
    let mut writer = SessionWriter::begin(&mut out, root, &blocks(entries[0]), controls);
    for built in &entries[1..] {
        let config = configs.get(&built.entry.cid()).map(Vec::as_slice);
        writer.entry(&mut out, &EntryBlocks { config, ..blocks(built) });
    }
    out
}

/// What was built, and further entries, under a root.
fn file(session: &SessionBuilder, more: &[&Built], root: &Built) -> Vec<u8> {
    let entries = session.entries().iter().chain(more.iter().copied());
    car(entries, session.controls(), root.entry.cid(), &BTreeMap::new())
}

/// Messages of the owner, each answered by the first server.
fn begin(turns: usize) -> SessionBuilder {
    let mut session = SessionBuilder::new("verdicts");
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    for turn in 0..turns {
        session.user(&owner, &format!("question {turn}"));
        session.response(&server, &format!("answer {turn}"), &[]);
    }
    session
}

const REF: Option<&str> = Some("E_REF_INCONSISTENT");
const GAP: Option<&str> = Some("E_INCOMPLETE");

pub(super) fn all() -> Vec<Case> {
    [roots(), tails(), gaps(), foreign(), forks(), both(), cited(), blocks()].into_iter().flatten().collect()
}

fn case(
    name: &'static str,
    verdict: &'static str,
    code: Option<&'static str>,
    head: &'static str,
    car: Vec<u8>,
) -> Case {
    Case { name, verdict, code, head, car }
}

/// Roots that are not the head.
fn roots() -> Vec<Case> {
    let session = begin(2);
    let one = begin(2).at(1);
    let mut pending = session.clone();
    pending.user(&session.owner.clone(), "and then?");
    let mut passed = session.clone();
    passed.user(&session.contributor.clone(), "too late");
    let mut on = session.clone().branch("on");
    on.response(&session.server1.clone(), "gone on", &[]);
    let [genesis, first, ..] = session.entries() else { return Vec::new() };
    let payload = genesis.entry.value().payload.map(|payload| payload.cid);
    let words = car(session.entries(), session.controls(), payload.unwrap(), &BTreeMap::new());
    vec![
        case("the genesis as root of one message", "valid", None, "pass", file(&one, &[], genesis)),
        case("the genesis as root of more", "incomplete", REF, "fail", file(&session, &[], genesis)),
        case("a root below the head", "incomplete", REF, "fail", file(&session, &[], first)),
        case("a root that is words", "incomplete", GAP, "unchecked", words),
        case("a root that is not held", "incomplete", GAP, "unchecked", file(&session, &[], on.head())),
        case("a root that waits", "valid", None, "pass", file(&pending, &[], pending.head())),
        case("a root below what waits", "valid", None, "pass", file(&pending, &[], session.head())),
        case("a root that was passed", "incomplete", REF, "fail", file(&on, &[passed.head()], passed.head())),
    ]
}

/// Evidence above the head is no fault of the file.
fn tails() -> Vec<Case> {
    let session = begin(2);
    let (server1, server2) = (session.server1.clone(), session.server2.clone());
    let mut moved = session.clone();
    moved.handoff(Some(&server2));
    let mut late = session.clone().branch("late");
    for text in ["late", "later", "latest"] {
        late.response(&server1, text, &[]);
    }
    let tail: Vec<&Built> = late.entries()[5..].iter().collect();
    let fenced = |root| file(&moved, &tail, root);
    let mut revoked = late.clone();
    revoked.reference(&session.owner.clone(), 4, Reach::Anchors);
    let mut twice = revoked.clone();
    let grant = server1.capability.clone().unwrap();
    revoked.tombstone(&grant, Vec::new());
    // Two tombstones for one capability: the report names the lower.
    twice.tombstone(&grant, Vec::new());
    twice.user(&session.owner.clone(), "for another time");
    let twice_root = twice.entries()[7].clone();
    twice.tombstone(&grant, Vec::new());
    let mut twice = twice.at(7);
    assert_eq!(twice.entries().len(), 8);
    twice.user(&session.contributor.clone(), "on a cut tail");
    vec![
        case("a fenced tail above the head", "fenced-tail", None, "pass", fenced(moved.head())),
        case("a fenced tail as root", "fenced-tail", None, "fail", fenced(late.head())),
        case("a root before the fence", "fenced-tail", None, "fail", fenced(session.head())),
        case(
            "a revoked tail above the head",
            "revoked-tail",
            None,
            "pass",
            file(&revoked, &[], session.head()),
        ),
        case("a revoked tail as root", "revoked-tail", None, "fail", file(&revoked, &[], revoked.head())),
        case(
            "two tombstones of one capability",
            "revoked-tail",
            None,
            "fail",
            file(&twice, &[], &twice_root),
        ),
    ]
}

/// What stands on nothing that is held.
fn gaps() -> Vec<Case> {
    let session = begin(2);
    let (owner, server1, server2) = (session.owner.clone(), session.server1.clone(), session.server2.clone());
    let mut moved = session.clone();
    moved.response(&server1, "left out", &[]);
    moved.handoff(Some(&server2));
    let mut revoked = session.clone();
    revoked.reference(&owner, 3, Reach::Anchors);
    revoked.tombstone(&server1.capability.clone().unwrap(), Vec::new());
    let far = moved.entries().iter().filter(|built| built.entry.value().seq().get() != 5);
    let gap = car(far, moved.controls(), moved.head().entry.cid(), &BTreeMap::new());
    let head = session.head().entry.cid();
    let bare = car(session.entries(), &[], head, &BTreeMap::new());
    vec![
        case(
            "a handoff that stands on nothing, beside a revoked tail",
            "incomplete",
            GAP,
            "unchecked",
            file(&revoked, &[moved.head()], session.head()),
        ),
        case(
            "a handoff that stands on nothing",
            "incomplete",
            GAP,
            "unchecked",
            file(&session, &[moved.head()], session.head()),
        ),
        case("a handoff that stands on nothing, as root", "incomplete", GAP, "unchecked", gap),
        case("no capabilities", "incomplete", GAP, "unchecked", bare),
        case("a genesis alone", "valid", None, "pass", file(&session.at(0), &[], &session.entries()[0])),
    ]
}

/// Entries of other sessions.
fn foreign() -> Vec<Case> {
    let session = begin(2);
    let other = SessionBuilder::new("another");
    let server = session.server1.clone();
    let foreign = |base: &SessionBuilder| {
        let mut base = base.clone();
        let (mut entry, payload) = base.draft(&server, Body::Note(Note::Resume), None);
        entry.place.as_mut().unwrap().genesis = other.session().genesis();
        base.push(&server, entry, payload).unwrap();
        base
    };
    let above = foreign(&session);
    let mut on = above.clone();
    on.note(&server, Note::Resume);
    let code = Some("E_SESSION_MISMATCH");
    let last = on.head();
    let beside = foreign(&session.at(1));
    vec![
        case(
            "an entry of another session above the head",
            "corrupt",
            code,
            "pass",
            file(&session, &[above.head()], session.head()),
        ),
        case(
            "an entry of another session as root",
            "corrupt",
            code,
            "fail",
            file(&session, &[above.head()], above.head()),
        ),
        case(
            "an entry of another session beside",
            "corrupt",
            code,
            "pass",
            file(&session, &[beside.head()], session.head()),
        ),
        case(
            "an entry on one of another session",
            "corrupt",
            code,
            "fail",
            file(&session, &[above.head(), last], last),
        ),
    ]
}

/// Forks, decided and not.
fn forks() -> Vec<Case> {
    let session = begin(2);
    let (owner, server1, server2) = (session.owner.clone(), session.server1.clone(), session.server2.clone());
    let (mut left, mut right) = (session.clone().branch("left"), session.clone().branch("right"));
    left.response(&server1, "one", &[]);
    left.response(&server1, "and on", &[]);
    right.response(&server1, "other", &[]);
    let mut decided = left.clone();
    decided.handoff(Some(&server2));
    let mut pinned = left.clone();
    pinned.reference(&owner, 5, Reach::Anchors);
    let mut both = right.clone();
    both.reference(&owner, 5, Reach::Anchors);
    let anchored: Vec<Signed<Control>> =
        pinned.controls().iter().chain(both.controls().last()).cloned().collect();
    let (mut here, mut there) = (session.clone(), session.clone());
    here.handoff(Some(&server1));
    there.handoff(Some(&server2));
    let mut after = here.clone();
    after.handoff(Some(&server2));
    let frozen = left.entries().iter().chain([right.head()]);
    let frozen = car(frozen, &anchored, left.head().entry.cid(), &BTreeMap::new());
    vec![
        case("a fork", "forked", None, "fail", file(&left, &[right.head()], left.head())),
        case(
            "a fork that a handoff decided",
            "fenced-tail",
            None,
            "pass",
            file(&decided, &[right.head()], decided.head()),
        ),
        case(
            "a fork that a Ref decided",
            "valid",
            None,
            "pass",
            file(&pinned, &[right.head()], pinned.head()),
        ),
        case("a fork of which both are anchored", "frozen", None, "fail", frozen),
        case("two handoffs of one epoch", "frozen", None, "fail", file(&here, &[there.head()], here.head())),
        case(
            "two handoffs, and one after",
            "valid",
            None,
            "pass",
            file(&after, &[there.head()], after.head()),
        ),
    ]
}

/// A key that is holder and device: what it signs under `AGENT` is no holder's entry.
fn both() -> Vec<Case> {
    let mut session = begin(1);
    let (server1, server2) = (session.server1.clone(), session.server2.clone());
    let grant = capability(&session.owner.key, server1.key.principal(), Role::Agent, None);
    let agent = Arc::new(Party {
        key: throughline_protocol::testing::key("server1"),
        capability: Some(grant.clone()),
    });
    let owner = session.owner.clone();
    session.reference(&owner, 2, Reach::Anchors);
    let by = |party: &Arc<Party>, base: &SessionBuilder, name: &str| {
        let mut branch = base.clone().branch(name);
        branch.user(party, name);
        branch
    };
    let mut moved = session.clone();
    moved.handoff(Some(&server2));
    let said = by(&agent, &session, "said");
    let ordered = by(&server1, &session, "ordered");
    let (one, other) = (by(&server1, &said, "one"), by(&server1, &by(&agent, &session, "more"), "other"));
    let file = |of: &SessionBuilder, more: &[&Built]| {
        let controls: Vec<Signed<Control>> = of.controls().iter().chain([&grant]).cloned().collect();
        let entries = of.entries().iter().chain(more.iter().copied());
        car(entries, &controls, of.head().entry.cid(), &BTreeMap::new())
    };
    let below_other = &other.entries()[3];
    vec![
        case(
            "a fenced message of a holder that is a device",
            "valid",
            None,
            "pass",
            file(&moved, &[said.head()]),
        ),
        case(
            "a fenced entry of a holder that is a device",
            "fenced-tail",
            None,
            "pass",
            file(&moved, &[ordered.head()]),
        ),
        case(
            "a device's message beside its own as holder",
            "valid",
            None,
            "pass",
            file(&ordered, &[said.head()]),
        ),
        case(
            "a fork on two messages of a device",
            "forked",
            None,
            "fail",
            file(&one, &[below_other, other.head()]),
        ),
    ]
}

/// What an entry cites as its capability and what is none, and numbers that are as large as they may be.
fn cited() -> Vec<Case> {
    let mut session = begin(1);
    let server1 = session.server1.clone();
    let other = session.contributor.capability.clone().unwrap();
    let tombstone = session.tombstone(&other, Vec::new());
    let owner = session.owner.clone();
    let anchor = session.reference(&owner, 2, Reach::Anchors);
    let genesis = session.entries()[0].entry.cid().cid();
    let cites = |cited: Cid| {
        let mut session = session.clone();
        let (mut entry, payload) = session.draft(&server1, Body::Note(Note::Resume), None);
        entry.authority.as_mut().unwrap().capability = cited;
        session.push(&server1, entry, payload).unwrap();
        file(&session, &[], session.head())
    };
    let blake2b = Cid::blake2b(Codec::DagCbor, tombstone.bytes());
    let none = |name, cited| case(name, "incomplete", GAP, "unchecked", cites(cited));
    let at = |session: &SessionBuilder, name: &str, seq: u64| {
        let mut far = session.clone().branch(name);
        far.note(&server1, Note::Resume);
        let (mut entry, payload) = far.draft(&server1, Body::Note(Note::Close { reason: None }), None);
        entry.place.as_mut().unwrap().seq = Seq::new(seq).unwrap();
        far.push(&server1, entry, payload).unwrap();
        far
    };
    // The lowest of them is told first, whatever its CID: doubles cannot tell twice these numbers apart.
    let far: Vec<SessionBuilder> =
        (0..4).map(|below| at(&session, &format!("far {below}"), INTEGER_MAX - below)).collect();
    let far: Vec<&Built> = far.iter().map(SessionBuilder::head).collect();
    vec![
        none("a tombstone as capability", tombstone.cid().cid()),
        none("a tombstone as capability, by its other name", blake2b),
        none("a Ref as capability", anchor.cid().cid()),
        none("an entry as capability", genesis),
        case(
            "gaps at the largest seqs",
            "incomplete",
            GAP,
            "unchecked",
            file(&session, &far, session.head()),
        ),
    ]
}

/// Blocks beside entries.
fn blocks() -> Vec<Case> {
    let session = begin(1);
    let server = session.server1.clone();
    let with = |block: &[u8]| {
        let mut session = session.clone();
        let Body::ModelResponse(response) = session.head().entry.value().body.clone() else {
            return Vec::new();
        };
        let body = ModelResponse { config: Some(EntryCid::of(block)), ..response };
        let (mut entry, _) = session.draft(&server, Body::ModelResponse(body), None);
        // Its words do not come along.
        entry.payload = session.head().entry.value().payload;
        let cid = session.push(&server, entry, None).unwrap();
        car(session.entries(), session.controls(), cid, &BTreeMap::from([(cid, block.to_vec())]))
    };
    let salted = [&[0xa1, 0x64][..], b"salt", &[0x58, 0x20], &[7; 32]].concat();
    let mut spelled = salted.clone();
    spelled[0] = 0xa2;
    spelled.extend([&[0x65][..], b"other", &[0x01]].concat());
    vec![
        case("a config block", "valid", None, "pass", with(&salted)),
        case(
            "a config block with an unknown field",
            "corrupt",
            Some("E_SCHEMA_UNKNOWN"),
            "pass",
            with(&spelled),
        ),
        case("a config block that is none", "corrupt", Some("E_SCHEMA_TYPE"), "pass", with(&[0x80])),
    ]
}
