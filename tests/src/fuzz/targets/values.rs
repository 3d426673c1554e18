//! Values: the codec, CIDs, identifiers, the kept state of a chain.

use throughline_protocol::codec;
use throughline_protocol::id::{AgentIri, Cid, EntryCid, Principal, ScopePath, SessionId};
use throughline_protocol::verify::ChainState;

use super::{check_reject, same_bytes};

/// The strict codec reads exactly what it writes, agrees with a general decoder on what that means, and ends.
pub(in crate::fuzz) fn codec(data: &[u8]) {
    let (value, facts) = match codec::decode(data, 64) {
        Ok(read) => read,
        Err(reject) => return check_reject(&reject),
    };
    same_bytes(&codec::encode(&value), data);
    let owned = value.clone().into_owned();
    assert_eq!(owned, value);
    assert_eq!(codec::decode(data, 64).unwrap().1, facts);
    // Nested one level deeper it is refused as soon as the limit is one lower.
    for depth in [1, 4, 16] {
        if let Ok((again, _)) = codec::decode(data, depth) {
            assert_eq!(again, value, "a depth limit changes nothing but whether");
        }
    }
    let general: Result<ipld_core::ipld::Ipld, _> = serde_ipld_dagcbor::from_slice(data);
    let general = general.expect("what the strict codec takes, a general one takes");
    assert_eq!(serde_ipld_dagcbor::to_vec(&general).unwrap(), data);
}

/// Binary and text forms of CIDs: one each.
pub(in crate::fuzz) fn cid(data: &[u8]) {
    match Cid::from_bytes(data) {
        Ok(cid) => {
            assert_eq!(cid.to_bytes(), data);
            assert_eq!(cid.to_string().parse::<Cid>().as_ref(), Ok(&cid));
            let _ = cid.short();
            assert_eq!(EntryCid::try_from(cid).map(|entry| entry.cid()).ok().unwrap_or(cid), cid);
        }
        Err(reject) => check_reject(&reject),
    }
    if let Ok((cid, rest)) = Cid::read(data) {
        assert_eq!([&cid.to_bytes(), rest].concat(), data);
    }
    if let Ok(text) = std::str::from_utf8(data) {
        match text.parse::<Cid>() {
            Ok(cid) => assert_eq!(cid.to_string(), text),
            Err(reject) => check_reject(&reject),
        }
    }
}

/// Principals, agents, scopes and the CIDs with a meaning: what parses prints as it was.
pub(in crate::fuzz) fn identifier(data: &[u8]) {
    if let Ok(principal) = Principal::from_bytes(data) {
        assert_eq!(principal.to_bytes()[..], *data);
        assert_eq!(principal.to_string().parse::<Principal>().as_ref(), Ok(&principal));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(principal) = text.parse::<Principal>() {
        assert_eq!(principal.to_string(), text);
    }
    if let Ok(session) = text.parse::<SessionId>() {
        assert_eq!(session.to_string(), text);
        assert_eq!(session.genesis().to_string(), text);
    }
    if let Ok(entry) = text.parse::<EntryCid>() {
        assert_eq!(entry.to_string(), text);
    }
    match text.parse::<AgentIri>() {
        Ok(agent) => {
            assert_eq!(agent.to_string(), text);
            assert_eq!(AgentIri::new(agent.account(), agent.path().cloned()), agent);
        }
        Err(reject) => check_reject(&reject),
    }
    match ScopePath::parse(text) {
        Ok(path) => {
            assert_eq!(path.as_str(), text);
            assert!(path.covers(&path));
            if let Ok(below) = ScopePath::parse(&format!("{text}/below")) {
                assert!(path.covers(&below) && !below.covers(&path));
            }
            if let Ok(beside) = ScopePath::parse(&format!("{text}beside")) {
                assert!(!path.covers(&beside) && !beside.covers(&path));
            }
        }
        Err(reject) => check_reject(&reject),
    }
}

/// The kept state of a chain: what is read is written as it was.
pub(in crate::fuzz) fn chain_state(data: &[u8]) {
    match ChainState::from_bytes(data) {
        Ok(state) => same_bytes(&state.to_bytes(), data),
        Err(reject) => check_reject(&reject),
    }
}
