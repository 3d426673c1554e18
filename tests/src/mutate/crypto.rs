//! Keys and signatures that some Ed25519 implementations take and the one predicate of the protocol refuses.
//!
//! After Chalkias, Garillot, Nikolaenko, "Taming the many EdDSAs" (2020): components of small order, mixed order, encodings that are
//! not canonical, and scalars that are not reduced. The mixed-order ones pass a verification that multiplies by the cofactor.

use curve25519_dalek::constants::{ED25519_BASEPOINT_TABLE, EIGHT_TORSION};
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use sha2::{Digest as _, Sha512};
use throughline_protocol::sign::SigningKey;

/// What is wrong with a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// One bit of R is flipped.
    FlippedR,
    /// One bit of S is flipped.
    FlippedS,
    /// All zero.
    Zero,
    /// S + L: the same scalar, not reduced.
    UnreducedS,
    /// R has a component of order 8; the equation holds after multiplying by the cofactor only.
    MixedR,
    /// R is the neutral element; the equation holds.
    NeutralR,
    /// R is the neutral element, written as y = p + 1; the equation holds.
    NoncanonicalR,
    /// R is a point of order 8.
    SmallR,
    /// A good signature of other bytes.
    OtherMessage,
}

impl Flaw {
    /// Every flaw.
    pub const ALL: &[Flaw] = &[
        Flaw::FlippedR,
        Flaw::FlippedS,
        Flaw::Zero,
        Flaw::UnreducedS,
        Flaw::MixedR,
        Flaw::NeutralR,
        Flaw::NoncanonicalR,
        Flaw::SmallR,
        Flaw::OtherMessage,
    ];

    /// A signature of `message` with this flaw.
    #[must_use]
    pub fn sign(self, key: &SigningKey, message: &[u8]) -> [u8; 64] {
        let mut good = key.sign(message);
        match self {
            Flaw::FlippedR => good[7] ^= 0x10,
            Flaw::FlippedS => good[40] ^= 0x02,
            Flaw::Zero => good = [0; 64],
            Flaw::UnreducedS => add_order(&mut good),
            Flaw::MixedR => {
                let nonce = Scalar::from_bytes_mod_order(*b"nonce of a test, never a secret!");
                let r = (&nonce * ED25519_BASEPOINT_TABLE + EIGHT_TORSION[1]).compress();
                return answer(key, r, nonce, message);
            }
            Flaw::NeutralR => return answer(key, EIGHT_TORSION[0].compress(), Scalar::ZERO, message),
            Flaw::NoncanonicalR => {
                return answer(key, CompressedEdwardsY(NEUTRAL_NONCANONICAL), Scalar::ZERO, message);
            }
            Flaw::SmallR => return answer(key, EIGHT_TORSION[1].compress(), Scalar::ZERO, message),
            Flaw::OtherMessage => good = key.sign(&[message, b"!"].concat()),
        }
        good
    }
}

/// y = p + 1, which reduces to the y of the neutral element.
const NEUTRAL_NONCANONICAL: [u8; 32] = {
    let mut bytes = [0xff; 32];
    bytes[0] = 0xee;
    bytes[31] = 0x7f;
    bytes
};

/// R and S = r + H(R, A, M)·a.
fn answer(key: &SigningKey, r: CompressedEdwardsY, nonce: Scalar, message: &[u8]) -> [u8; 64] {
    let principal = key.principal();
    let digest = Sha512::new().chain_update(r.as_bytes()).chain_update(principal.key()).chain_update(message);
    let challenge = Scalar::from_bytes_mod_order_wide(&digest.finalize().into());
    let s = nonce + challenge * secret(key);
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(r.as_bytes());
    signature[32..].copy_from_slice(s.as_bytes());
    signature
}

fn secret(key: &SigningKey) -> Scalar {
    let digest = Sha512::digest(key.seed().as_slice());
    let mut clamped: [u8; 32] = digest[..32].try_into().unwrap();
    clamped[0] &= 0xf8;
    clamped[31] = clamped[31] & 0x7f | 0x40;
    Scalar::from_bytes_mod_order(clamped)
}

/// L, little endian.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

fn add_order(signature: &mut [u8; 64]) {
    let mut carry = 0_u16;
    for (byte, order) in signature[32..].iter_mut().zip(ORDER) {
        carry += u16::from(*byte) + u16::from(order);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
}

/// Keys that no verifier takes: of small order (canonical or not), of mixed order, off the curve.
#[must_use]
pub fn bad_keys() -> Vec<[u8; 32]> {
    let mut keys: Vec<[u8; 32]> = EIGHT_TORSION.iter().map(|point| point.compress().to_bytes()).collect();
    keys.push(NEUTRAL_NONCANONICAL);
    for fill in [0xff, 0x7f] {
        let mut key = [0xff; 32];
        (key[0], key[31]) = (0xed, fill);
        keys.push(key);
    }
    let good: EdwardsPoint = &Scalar::from(7_u64) * ED25519_BASEPOINT_TABLE;
    keys.extend(EIGHT_TORSION[1..].iter().map(|point| (good + point).compress().to_bytes()));
    let mut off_the_curve = [0; 32];
    off_the_curve[0] = 2;
    keys.push(off_the_curve);
    keys
}

#[cfg(test)]
mod tests {
    use throughline_protocol::code::{Code, Fault};
    use throughline_protocol::id::Principal;
    use throughline_protocol::sign::VerifyingKeys;
    use throughline_protocol::testing::key;

    use super::*;

    #[test]
    fn no_flawed_signature_and_no_bad_key_is_taken() {
        let (signer, message) = (key("account"), b"message");
        let mut keys = VerifyingKeys::default();
        assert_eq!(keys.verify(&signer.principal(), message, &signer.sign(message)), Ok(()));
        for flaw in Flaw::ALL {
            let signature = flaw.sign(&signer, message);
            let reject = keys.verify(&signer.principal(), message, &signature).unwrap_err();
            assert_eq!(reject.code, Code::Sig, "{flaw:?}");
        }
        for bad in bad_keys() {
            let reject = keys.verify(&Principal::from_key(bad), message, &signer.sign(message)).unwrap_err();
            assert!(reject.code.name().starts_with("E_KEY_"), "{bad:02x?}: {reject}");
            assert_eq!(reject.fault(), Fault::Author);
        }
    }

    /// The flaws are what they say: without the rule that refuses them they would pass.
    #[test]
    fn mixed_and_neutral_components_satisfy_their_equations() {
        let (signer, message) = (key("account"), b"message");
        let a = CompressedEdwardsY(*signer.principal().key()).decompress().unwrap();
        for (flaw, exact) in [(Flaw::MixedR, false), (Flaw::NeutralR, true), (Flaw::NoncanonicalR, true)] {
            let signature = flaw.sign(&signer, message);
            let r_bytes: [u8; 32] = signature[..32].try_into().unwrap();
            let r = CompressedEdwardsY(r_bytes).decompress().unwrap();
            let s = Scalar::from_bytes_mod_order(signature[32..].try_into().unwrap());
            let digest = Sha512::new()
                .chain_update(r_bytes)
                .chain_update(signer.principal().key())
                .chain_update(message);
            let k = Scalar::from_bytes_mod_order_wide(&digest.finalize().into());
            let rest = &s * ED25519_BASEPOINT_TABLE - k * a - r;
            assert_eq!(rest == EIGHT_TORSION[0], exact, "{flaw:?}");
            assert!(rest.is_small_order(), "{flaw:?}");
        }
    }
}
