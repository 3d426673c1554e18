//! One Ed25519 key, two names: libp2p's peer id and our principal.

use libp2p::PeerId;
use libp2p::identity::{PublicKey, ed25519};
use throughline_protocol::id::Principal;

/// The multihash code of an identity hash: the digest is the encoded key itself.
const IDENTITY_HASH: u64 = 0;

/// The principal of a peer, or nothing when its id holds no Ed25519 key (an RSA peer's id is only a hash).
#[must_use]
pub fn principal_of(peer: &PeerId) -> Option<Principal> {
    let hash = peer.as_ref();
    if hash.code() != IDENTITY_HASH {
        return None;
    }
    let key = PublicKey::try_decode_protobuf(hash.digest()).ok()?.try_into_ed25519().ok()?;
    Some(Principal::from_key(key.to_bytes()))
}

/// The peer id of a principal, or nothing when its bytes are no point of the curve.
#[must_use]
pub fn peer_of(principal: &Principal) -> Option<PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(principal.key()).ok()?;
    Some(PublicKey::from(key).to_peer_id())
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;

    #[test]
    fn a_key_has_the_same_bytes_under_both_names() {
        let keypair = Keypair::ed25519_from_bytes([7; 32]).unwrap();
        let peer = keypair.public().to_peer_id();
        let principal = principal_of(&peer).unwrap();
        assert_eq!(principal.key(), &keypair.public().try_into_ed25519().unwrap().to_bytes());
        assert_eq!(peer_of(&principal), Some(peer));
    }

    #[test]
    fn ids_without_a_usable_key_have_no_other_name() {
        let hashed: PeerId = "QmcgpsyWgH8Y8ajJz1Cu72KnS5uo2Aa2LpzU7kinSupNKC".parse().unwrap();
        assert_eq!(principal_of(&hashed), None);
        let no_point =
            (0..=u8::MAX).map(|byte| [byte; 32]).find(|key| peer_of(&Principal::from_key(*key)).is_none());
        assert!(no_point.is_some());
    }
}
