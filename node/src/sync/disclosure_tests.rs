use throughline_protocol::block::Signed;
use throughline_protocol::control::Control;
use throughline_protocol::testing::{self, SessionBuilder};

use super::*;

/// Who is told in these tests, by the name of its key, its role and its scope.
const GRANTS: [(&str, Role, Option<&str>); 8] = [
    ("device", Role::Agent, None),
    ("server everywhere", Role::Writer, None),
    ("server of scout", Role::Writer, Some("/scout")),
    ("server of deep scout", Role::Writer, Some("/scout/deep")),
    ("server of clerk", Role::Writer, Some("/clerk")),
    ("contributor of scout", Role::Contributor, Some("/scout")),
    ("reader of scout", Role::Reader, Some("/scout")),
    ("reader of clerk", Role::Reader, Some("/clerk")),
];

struct World {
    owner: Principal,
    controls: Controls,
    names: BTreeMap<BlobHash, String>,
    held: BTreeMap<SessionId, Held>,
}

impl World {
    fn new() -> Self {
        let owner = testing::key("account");
        let mut world = World {
            owner: owner.principal(),
            controls: Controls::new(),
            names: BTreeMap::new(),
            held: BTreeMap::new(),
        };
        for (name, role, scope) in GRANTS {
            world.keep(name, &testing::capability(&owner, testing::key(name).principal(), role, scope));
        }
        world
    }

    fn keep(&mut self, name: &str, control: &Signed<Control>) {
        self.controls.insert(control);
        self.names.insert(control.hash(), name.to_owned());
    }

    fn grant(&mut self, name: &str, role: Role, scope: &str) -> Signed<Control> {
        let grant =
            testing::capability(&testing::key("account"), testing::key(name).principal(), role, Some(scope));
        self.keep(name, &grant);
        grant
    }

    fn revoke(&mut self, name: &str) {
        let hash = self.names.iter().find(|(_, held)| *held == name).map(|(hash, _)| *hash).unwrap();
        let (_, capability) = self.controls.capabilities().find(|(held, _)| **held == hash).unwrap();
        let (role, path) = (capability.grant().unwrap().role, capability.path.clone());
        let delegate = testing::key(name).principal();
        let grant = testing::capability(&testing::key("account"), delegate, role, path.as_deref());
        let tombstone = SessionBuilder::new("revocations").tombstone(&grant, Vec::new());
        self.keep(&format!("revocation of {name}"), &tombstone);
    }

    fn hold(&mut self, session: SessionId, agent: &str, class: Class) {
        let agent = AgentIri::new(self.owner, Some(ScopePath::parse(agent).unwrap()));
        self.held.insert(session, Held { agent, class, holder: None });
    }

    fn standing(&self, name: &str) -> Standing {
        Standing::of(&self.controls, self.owner, Some(testing::key(name).principal()))
    }

    fn told(&self, name: &str) -> BTreeSet<&str> {
        let who = testing::key(name).principal();
        let told = disclosed(&self.controls, self.owner, (who, &self.standing(name)), &self.held);
        told.iter().map(|hash| self.names[hash].as_str()).collect()
    }
}

fn session(byte: u8) -> SessionId {
    SessionId::of_genesis(EntryCid::from_digest([byte; 32]))
}

#[test]
fn the_owners_side_is_told_all_and_a_stranger_nothing() {
    let mut world = World::new();
    world.revoke("reader of clerk");
    for name in ["account", "device"] {
        assert_eq!(world.told(name).len(), GRANTS.len() + 1, "{name}");
    }
    assert_eq!(world.told("passer-by"), BTreeSet::new());
    assert_eq!(Standing::of(&world.controls, world.owner, None), Standing::Stranger);
    // Grants of another owner make nobody a party to this one.
    let other = testing::key("somebody else").principal();
    let device = testing::key("device").principal();
    assert_eq!(Standing::of(&world.controls, other, Some(device)), Standing::Stranger);
}

#[test]
fn a_party_is_told_what_reaches_the_same_agents() {
    let world = World::new();
    let everywhere = ["device", "server everywhere"];
    let told = |name: &str, more: &[&'static str]| {
        assert_eq!(world.told(name), everywhere.iter().chain(more).copied().collect(), "{name}");
    };
    let scout = ["server of scout", "server of deep scout", "contributor of scout"];
    told("server of scout", &[&scout[..], &["reader of scout"]].concat());
    told("server of deep scout", &[&scout[..], &["reader of scout"]].concat());
    told("contributor of scout", &scout);
    told("reader of scout", &[&scout[..], &["reader of scout"]].concat());
    told("reader of clerk", &["server of clerk", "reader of clerk"]);
}

#[test]
fn who_ever_had_a_grant_is_told_every_tombstone_and_of_capabilities_its_own() {
    let mut world = World::new();
    for name in ["server of scout", "device", "reader of clerk"] {
        world.revoke(name);
    }
    let tombstones =
        ["revocation of server of scout", "revocation of device", "revocation of reader of clerk"];
    for name in ["server of scout", "device", "reader of clerk"] {
        assert_eq!(world.standing(name), Standing::Former);
        assert_eq!(world.told(name), tombstones.into_iter().chain([name]).collect(), "{name}");
    }
    for name in ["contributor of scout", "server everywhere"] {
        assert!(tombstones.iter().all(|tombstone| world.told(name).contains(tombstone)), "{name}");
    }
}

#[test]
fn a_grant_for_one_session_is_told_to_those_who_may_read_that_session() {
    let mut world = World::new();
    let (open, shut, unknown) = (session(1), session(2), session(3));
    world.hold(open, "/scout/deep", Class::Internal);
    world.hold(shut, "/scout/deep", Class::Confidential);
    for (name, of) in [("of open", open), ("of shut", shut), ("of unknown", unknown)] {
        world.grant(name, Role::Contributor, &of.path());
    }
    let told = |name: &str| -> Vec<&str> {
        let told = world.told(name);
        told.into_iter().filter(|told| told.starts_with("of ")).collect()
    };
    assert_eq!(told("reader of scout"), ["of open"]);
    assert_eq!(told("reader of clerk"), Vec::<&str>::new());
    assert_eq!(told("server everywhere"), ["of open", "of unknown"]);
    assert_eq!(told("device"), ["of open", "of shut", "of unknown"]);
    // The other way round: the session's party is told who writes for its agent.
    let deep = ["device", "server everywhere", "server of scout", "server of deep scout"];
    assert!(deep.iter().all(|name| world.told("of open").contains(name)));
    assert!(!world.told("of open").contains("server of clerk"));
    // Its holder reads a confidential session.
    let holder = testing::key("server of scout").principal();
    world.held.get_mut(&shut).unwrap().holder = Some(holder);
    assert!(world.told("server of scout").contains("of shut"));
}

#[test]
fn one_live_grant_among_revoked_ones_keeps_a_party() {
    let mut world = World::new();
    let grant = world.grant("server of scout", Role::Reader, "/clerk");
    world.revoke("server of clerk");
    assert!(matches!(world.standing("server of scout"), Standing::Party(live) if live.len() == 2));
    let tombstone = SessionBuilder::new("revocations").tombstone(&grant, Vec::new());
    world.keep("revocation of one", &tombstone);
    assert!(matches!(world.standing("server of scout"), Standing::Party(live) if live.len() == 1));
}
