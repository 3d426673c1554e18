//! Peer proofs: who stands behind a connection. `docs/PROTOCOL.md` §Streams.
//!
//! The key that a connection is encrypted with and the key that signs are two keys. A proof ties them together for one
//! connection and ten minutes: a Capability without role and path, signed by the asker, whose delegate is the asker's
//! peer key and whose audience is the answerer's. It grants nothing, and a grant is never a proof.

use crate::block::Signed;
use crate::build;
use crate::clock::{self, Apart};
use crate::code::{Code, Reject};
use crate::control::Capability;
use crate::id::{Principal, UnixMillis};
use crate::limits::PEER_PROOF_WINDOW_MS;
use crate::sign::{SigningKey, VerifyingKeys};

/// The two ends of a connection, as one side sees them. Peer keys are in principal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// This side's peer key.
    pub mine: Principal,
    /// The other side's peer key, as the transport authenticated it.
    pub theirs: Principal,
}

/// Makes the proof that `key` stands behind `ends.mine` on the connection to `ends.theirs`.
///
/// # Errors
/// As [`build::sign`].
pub fn build(key: &SigningKey, ends: Ends, ts: UnixMillis) -> Result<Signed<Capability>, Reject> {
    let proof = Capability {
        ts,
        signer: key.principal(),
        delegate: ends.mine,
        role: None,
        path: None,
        label: None,
        audience: Some(ends.theirs),
    };
    build::sign(proof, key)
}

/// Why a proof does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is none, or one for another connection.
    Invalid(Reject),
    /// Everything is right but its time. Whoever sent it may be told so: that tells of this clock and of nothing else.
    Apart(Apart),
}

impl From<Refused> for Reject {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Invalid(reject) => reject,
            Refused::Apart(apart) => {
                let most = clock::length(PEER_PROOF_WINDOW_MS);
                let what =
                    format!("expected a proof within {most} of this clock, got one of a clock {apart}");
                Reject::new(Code::PeerProof, what)
            }
        }
    }
}

impl From<Reject> for Refused {
    fn from(reject: Reject) -> Self {
        Refused::Invalid(reject)
    }
}

/// Checks a proof that the other side sent; returns the principal behind it.
///
/// # Errors
/// What the blob itself is refused for (size, codec, schema, key, signature), then `E_PEER_PROOF` when it is a grant or is
/// for another connection; last, and apart from these, when it is more than ten minutes from `now`.
pub fn check(
    bytes: &[u8],
    keys: &mut VerifyingKeys,
    ends: Ends,
    now: UnixMillis,
) -> Result<Principal, Refused> {
    let proof = Signed::<Capability>::check(bytes, keys)?;
    let proof = proof.value();
    let refuse = |what: &str| Err(Reject::new(Code::PeerProof, what).into());
    if proof.role.is_some() || proof.path.is_some() {
        return refuse("expected a capability without role and path, got a grant");
    }
    if proof.delegate != ends.theirs {
        return refuse("expected the asker's peer key as delegate, got another");
    }
    if proof.audience != Some(ends.mine) {
        return refuse("expected this node's peer key as audience, got another or none");
    }
    let apart = Apart { theirs: proof.ts, ours: now };
    if apart.ms() > PEER_PROOF_WINDOW_MS { Err(Refused::Apart(apart)) } else { Ok(proof.signer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn ends() -> Ends {
        Ends { mine: key(1).principal(), theirs: key(2).principal() }
    }

    fn flipped(ends: Ends) -> Ends {
        Ends { mine: ends.theirs, theirs: ends.mine }
    }

    fn at(ms: u64) -> UnixMillis {
        UnixMillis::new(ms).unwrap()
    }

    const NOW_MS: u64 = 1_767_225_600_000;

    #[test]
    fn a_proof_names_its_signer_within_ten_minutes_and_not_after() {
        let owner = key(3);
        let proof = build(&owner, ends(), at(NOW_MS)).unwrap();
        let mut keys = VerifyingKeys::default();
        let mut check_at = |ms| check(proof.bytes(), &mut keys, flipped(ends()), at(ms));
        for ms in [NOW_MS, NOW_MS - PEER_PROOF_WINDOW_MS, NOW_MS + PEER_PROOF_WINDOW_MS] {
            assert_eq!(check_at(ms), Ok(owner.principal()));
        }
        for ms in [NOW_MS - PEER_PROOF_WINDOW_MS - 1, NOW_MS + PEER_PROOF_WINDOW_MS + 1] {
            let apart = Apart { theirs: at(NOW_MS), ours: at(ms) };
            assert_eq!(check_at(ms), Err(Refused::Apart(apart)));
            assert_eq!(Reject::from(Refused::Apart(apart)).code, Code::PeerProof);
        }
    }

    #[test]
    fn a_proof_is_for_one_connection() {
        let proof = build(&key(3), ends(), at(NOW_MS)).unwrap();
        let mut keys = VerifyingKeys::default();
        let other = key(9).principal();
        for wrong in
            [Ends { mine: other, ..flipped(ends()) }, Ends { theirs: other, ..flipped(ends()) }, ends()]
        {
            // Nor is anybody told of this clock by a proof of another connection.
            for now in [NOW_MS, 0] {
                let refused = check(proof.bytes(), &mut keys, wrong, at(now)).unwrap_err();
                assert!(matches!(refused, Refused::Invalid(_)), "{wrong:?}");
                assert_eq!(Reject::from(refused).code, Code::PeerProof, "{wrong:?}");
            }
        }
    }

    #[test]
    fn a_grant_is_no_proof_and_a_changed_proof_is_refused() {
        let owner = key(3);
        let mut keys = VerifyingKeys::default();
        let grant = Capability {
            ts: at(NOW_MS),
            signer: owner.principal(),
            delegate: ends().mine,
            role: Some("AGENT".into()),
            path: None,
            label: None,
            audience: Some(ends().theirs),
        };
        let grant = build::sign(grant, &owner).unwrap();
        let refused = check(grant.bytes(), &mut keys, flipped(ends()), at(NOW_MS)).unwrap_err();
        assert_eq!(Reject::from(refused).code, Code::PeerProof);

        let mut bytes = build(&owner, ends(), at(NOW_MS)).unwrap().bytes().to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(check(&bytes, &mut keys, flipped(ends()), at(NOW_MS)).is_err());
    }
}
