use throughline_protocol::id::{EntryCid, Epoch};
use throughline_protocol::testing::{self, SessionBuilder};

use super::*;

const PARTIES: [Party; 6] =
    [Party::Owner, Party::Device, Party::Writer, Party::Contributor, Party::Reader, Party::Stranger];
const CLASSES: [Class; 3] = [Class::Public, Class::Internal, Class::Confidential];

fn mark() -> Mark {
    Mark { seq: Seq::ZERO, epoch: Epoch::ZERO, cid: EntryCid::from_digest([1; 32]) }
}

#[test]
fn the_table_holds_for_every_party_class_tie_and_publication() {
    for party in PARTIES {
        for class in CLASSES {
            for tie in [Tie::Holds, Tie::None] {
                for published in [Some(mark()), None] {
                    // Said again in other words: confidential is for the owner's side and the holder, the rest also for
                    // everybody with a grant.
                    let granted = party < Party::Stranger && class != Class::Confidential;
                    let whole = party <= Party::Device || tie == Tie::Holds || granted;
                    let expected = match (whole, published) {
                        (true, _) => Reach::Whole,
                        (false, Some(mark)) => Reach::Through(mark),
                        (false, None) => Reach::Nothing,
                    };
                    let got = reach(party, class, tie, published);
                    assert_eq!(got, expected, "{party:?} {class:?} {tie:?} {published:?}");
                }
            }
        }
    }
}

#[test]
fn a_stranger_sees_nothing_of_any_class_that_is_not_published() {
    for class in CLASSES {
        assert_eq!(reach(Party::Stranger, class, Tie::None, None), Reach::Nothing);
        assert_eq!(reach(Party::Stranger, class, Tie::None, Some(mark())), Reach::Through(mark()));
    }
}

#[test]
fn grants_make_parties_until_they_are_revoked() {
    let mut builder = SessionBuilder::new("parties");
    let mut controls = Controls::new();
    builder.controls().iter().for_each(|control| {
        controls.insert(control);
    });
    let owner = testing::key("account").principal();
    let (session, agent) = (builder.session(), AgentIri::new(owner, None));
    let party_of = |controls: &Controls, name: &str| {
        let who = Some(testing::key(name).principal());
        party(controls, owner, who, Some((session, &agent)))
    };
    let expected = [
        ("account", Party::Owner),
        ("device", Party::Device),
        ("server1", Party::Writer),
        ("contributor", Party::Contributor),
        ("reader", Party::Reader),
        ("passer-by", Party::Stranger),
    ];
    for (name, expected) in expected {
        assert_eq!(party_of(&controls, name), expected, "{name}");
    }
    assert_eq!(party(&controls, owner, None, None), Party::Stranger);
    // The same grants mean nothing in another owner's sessions.
    let other = testing::key("somebody else").principal();
    let device = testing::key("device").principal();
    assert_eq!(party(&controls, other, Some(device), None), Party::Stranger);

    for name in ["device", "reader"] {
        let grantee = testing::key(name).principal();
        let grant = builder.controls().iter().find(|control| {
            matches!(control.value(), Control::Capability(capability) if capability.delegate == grantee)
        });
        let grant = grant.unwrap().clone();
        controls.insert(&builder.tombstone(&grant, Vec::new()));
        assert_eq!(party_of(&controls, name), Party::Stranger, "{name}");
    }
}

#[test]
fn a_grant_for_one_agent_covers_no_other() {
    let owner = testing::key("account");
    let reader = testing::key("reader").principal();
    let mut controls = Controls::new();
    controls.insert(&testing::capability(&owner, reader, Role::Reader, Some("/scout")));
    let session = SessionBuilder::new("scopes").session();
    let agent = |path: &str| {
        AgentIri::new(owner.principal(), Some(throughline_protocol::id::ScopePath::parse(path).unwrap()))
    };
    let at = |path: &str| party(&controls, owner.principal(), Some(reader), Some((session, &agent(path))));
    assert_eq!(at("/scout"), Party::Reader);
    assert_eq!(at("/scout/deep"), Party::Reader);
    assert_eq!(at("/scouting"), Party::Stranger);
    assert_eq!(at("/other"), Party::Stranger);
}

#[test]
fn targets_are_of_one_session_and_end() {
    let targets = Targets::default();
    let session = |byte| SessionId::of_genesis(EntryCid::from_digest([byte; 32]));
    let target = testing::key("server2").principal();
    targets.open(session(1), target);
    assert!(targets.holds(session(1), target));
    assert!(!targets.holds(session(2), target));
    targets.close(session(1), target);
    assert!(!targets.holds(session(1), target));
}
