use super::*;
use crate::build;
use crate::id::{EntryCid, UnixMillis};
use crate::sign::SigningKey;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

const OWNER: u8 = 1;
const SERVER: u8 = 2;

fn ts() -> UnixMillis {
    UnixMillis::new(1_767_225_600_000).unwrap()
}

fn session() -> SessionId {
    SessionId::of_genesis(EntryCid::of(b"genesis"))
}

fn grant(change: impl FnOnce(&mut Capability)) -> Signed<Capability> {
    let mut capability = Capability {
        ts: ts(),
        signer: key(OWNER).principal(),
        delegate: key(SERVER).principal(),
        role: Some("agent-session-writer".into()),
        path: None,
        label: None,
        audience: None,
    };
    change(&mut capability);
    let signer = if capability.signer == key(OWNER).principal() { key(OWNER) } else { key(SERVER) };
    build::sign(capability, &signer).unwrap()
}

fn reference(signer: u8, capability: Option<Cid>) -> Ref {
    Ref {
        ts: ts(),
        signer: key(signer).principal(),
        space: (signer != OWNER).then(|| key(OWNER).principal()),
        capability,
        path: Some(session().path()),
        heads: vec![EntryCid::of(b"head").cid()],
        genesis_blob: Some(session().genesis().cid()),
        generation: 1,
        private: false,
        redirect: None,
    }
}

fn message(reference: Ref, signer: u8, control: Vec<Arc<[u8]>>) -> Vec<u8> {
    let blob = build::sign(reference, &key(signer)).unwrap().bytes().clone();
    Message { blob, control, hint: Hint::default() }.encode().unwrap()
}

fn checked(bytes: &[u8]) -> Result<Acting, Code> {
    check(key(OWNER).principal(), bytes, &mut VerifyingKeys::default())
        .map(|announcement| announcement.authority)
        .map_err(|reject| reject.code)
}

/// The server's Ref under this capability, which comes along.
fn under(capability: &Signed<Capability>) -> Result<Acting, Code> {
    let cited = reference(SERVER, Some(capability.cid().cid()));
    checked(&message(cited, SERVER, vec![capability.bytes().clone()]))
}

#[test]
fn a_ref_is_the_owners_or_under_a_capability_that_fits() {
    assert_eq!(checked(&message(reference(OWNER, None), OWNER, Vec::new())), Ok(Acting::Owner));
    let writer = grant(|_| {});
    let cid = writer.cid().cid();
    assert_eq!(under(&writer), Ok(Acting::Under(cid)));
    let alone = message(reference(SERVER, Some(cid)), SERVER, Vec::new());
    assert_eq!(checked(&alone), Ok(Acting::Cited(cid)));
    // Seed names capabilities by blake2b.
    let blake = Cid::blake2b(crate::id::Codec::DagCbor, writer.bytes());
    let cited = message(reference(SERVER, Some(blake)), SERVER, vec![writer.bytes().clone()]);
    assert_eq!(checked(&cited), Ok(Acting::Under(blake)));

    let own_path = grant(|capability| capability.path = Some(session().path()));
    assert!(under(&own_path).is_ok());
    let agent_path = grant(|capability| capability.path = Some("/scout".into()));
    assert!(under(&agent_path).is_ok(), "an agent's path needs the genesis to be judged");
}

#[test]
fn a_capability_that_does_not_fit_is_named() {
    let other = SessionId::of_genesis(EntryCid::of(b"other")).path();
    for (capability, code) in [
        (grant(|capability| capability.delegate = key(9).principal()), Code::CapMissing),
        (grant(|capability| capability.role = Some("agent-session-reader".into())), Code::CapRole),
        (grant(|capability| capability.role = Some("OTHER".into())), Code::CapRole),
        (grant(|capability| capability.audience = Some(key(9).principal())), Code::CapAudience),
        (grant(|capability| capability.path = Some(other.clone())), Code::CapScope),
        (grant(|capability| capability.signer = key(SERVER).principal()), Code::Topic),
    ] {
        assert_eq!(under(&capability), Err(code), "{capability:?}");
    }
    assert_eq!(checked(&message(reference(SERVER, None), SERVER, Vec::new())), Err(Code::CapMissing));
}

#[test]
fn only_news_is_announced_and_only_authority_comes_along() {
    let of_blob = |blob: Arc<[u8]>| {
        let message = Message { blob, control: Vec::new(), hint: Hint::default() };
        checked(&message.encode().unwrap())
    };
    assert_eq!(of_blob(grant(|_| {}).bytes().clone()), Err(Code::Type));
    assert_eq!(of_blob(Arc::from(&b"\xa0"[..])), Err(Code::Type));
    assert_eq!(of_blob(Arc::from(&b"\xa1"[..])), Err(Code::CborLen));

    let other_ref = build::sign(reference(OWNER, None), &key(OWNER)).unwrap();
    let with_ref = message(reference(OWNER, None), OWNER, vec![other_ref.bytes().clone()]);
    assert_eq!(checked(&with_ref), Err(Code::Type));

    let mut document = reference(OWNER, None);
    document.path = Some("/notes".into());
    assert_eq!(checked(&message(document, OWNER, Vec::new())), Err(Code::RefMismatch));
}

#[test]
fn topics_name_their_owner() {
    let owner = key(OWNER).principal();
    assert_eq!(topic_owner(&topic(owner)), Some(owner));
    for other in ["", "/throughline/1/", "/throughline/2/z6Mk", "/throughline/1/z6Mk"] {
        assert_eq!(topic_owner(other), None, "{other}");
    }
}

/// Evidence of a fork at the genesis of a session of the test account, and its owner.
fn exhibit() -> (Principal, Exhibit) {
    use crate::evidence::{build, charges};
    use crate::testing::SessionBuilder;
    let session = SessionBuilder::new("told");
    let server = Arc::clone(&session.server1);
    let (mut one, mut other) = (session.clone().branch("one"), session.clone().branch("other"));
    one.response(&server, "one", &[]);
    other.response(&server, "other", &[]);
    let mut set = crate::fork::Set::new(session.session());
    session.controls().iter().for_each(|control| {
        set.insert_control(control);
    });
    let built: Vec<_> =
        one.entries().iter().chain(other.entries()).map(|built| built.entry.clone()).collect();
    built.iter().for_each(|entry| {
        set.insert_entry(entry);
    });
    let judged = set.judge();
    let charge = charges(&judged, &judged.selection()).remove(0);
    let entry = |cid| built.iter().find(|entry| entry.cid() == cid).map(|entry| Arc::clone(entry.bytes()));
    let control = |cid: &Cid| {
        session.controls().iter().map(Signed::bytes).find(|bytes| cid.matches(bytes)).map(Arc::clone)
    };
    let exhibit = build(&charge, entry, control).unwrap();
    (exhibit.owner(), exhibit)
}

#[test]
fn evidence_is_told_whole_and_judged_by_its_own_bytes() {
    let (owner, exhibit) = exhibit();
    let message = evidence_message(&exhibit).unwrap();
    let announced = check(owner, &message, &mut VerifyingKeys::default()).unwrap();
    assert_eq!(announced.session(), Some(exhibit.session()));
    assert_eq!(announced.news, News::Evidence(Box::new(exhibit.clone())));
    let code = |owner, bytes: &[u8]| check(owner, bytes, &mut VerifyingKeys::default()).unwrap_err().code;
    assert_eq!(code(key(OWNER).principal(), &message), Code::Topic, "of another owner");
    let with = |file: &[u8]| codec::encode_map(&Map::new().with("evidence", file));
    assert_eq!(code(owner, &with(b"")), Code::CarTruncated);
    let mut damaged = exhibit.bytes().to_vec();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    assert_eq!(code(owner, &with(&damaged)), Code::CidMismatch);
    let both = codec::encode_map(&Map::new().with("blob", &b"x"[..]).with("evidence", &exhibit.bytes()[..]));
    assert_eq!(code(owner, &both), Code::SchemaExclusive);
    let text = codec::encode_map(&Map::new().with("evidence", "a file"));
    assert_eq!(code(owner, &text), Code::SchemaType);
    assert_eq!(code(owner, &with(&[0; limits::ANNOUNCEMENT_BYTES_MAX])), Code::TooBig);
}
