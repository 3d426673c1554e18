//! Tables against the library, with signatures that differ where implementations differ.

use curve25519_dalek::constants::{ED25519_BASEPOINT_POINT, EIGHT_TORSION};
use ed25519_dalek::Signer as _;
use proptest::prelude::*;

use super::*;

/// The group order, little endian (RFC 8032 §5.1).
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

fn signature(r: [u8; 32], s: [u8; 32]) -> [u8; 64] {
    let mut both = [0; 64];
    both[..32].copy_from_slice(&r);
    both[32..].copy_from_slice(&s);
    both
}

/// What the library says, what the tables say.
fn verdicts(key: &PublicKey, message: &[u8], signature: &[u8; 64]) -> (bool, bool) {
    let library = key.verify(message, signature, Tables::None);
    let tables = EdwardsBasepointTable::create(&-key.point);
    (library, key.verify_with(&tables, message, signature))
}

fn secret(seed: [u8; 32]) -> Scalar {
    let mut wide = [0; 64];
    wide[..32].copy_from_slice(&seed);
    Scalar::from_bytes_mod_order_wide(&wide)
}

fn challenge(r: &[u8; 32], key: &[u8; 32], message: &[u8]) -> Scalar {
    let hash = Sha512::new().chain_update(r).chain_update(key).chain_update(message);
    Scalar::from_bytes_mod_order_wide(&hash.finalize().into())
}

/// A key that no check has seen, for points that the key checks refuse.
fn unchecked(point: EdwardsPoint) -> PublicKey {
    let bare = ed25519_dalek::VerifyingKey::from_bytes(&point.compress().to_bytes()).unwrap();
    PublicKey { point, bare, seen: AtomicU32::new(0), tables: OnceLock::new() }
}

#[test]
fn a_signer_s_own_key_passes_the_key_checks() {
    for seed in 0..64 {
        let signer = ed25519_dalek::SigningKey::from_bytes(&[seed; 32]);
        let (own, checked) =
            (PublicKey::of_signer(&signer), PublicKey::check(&signer.verifying_key().to_bytes()).unwrap());
        assert_eq!((own.point, own.bare), (checked.point, checked.bare));
    }
}

#[test]
fn tables_come_with_the_signature_after_the_first_ones() {
    let signer = ed25519_dalek::SigningKey::from_bytes(&[3; 32]);
    let (key, signature) = (PublicKey::of_signer(&signer), signer.sign(b"message").to_bytes());
    for _ in 0..5 {
        assert!(!key.has_tables());
        assert!(key.verify(b"message", &signature, Tables::After(5)));
    }
    assert!(key.verify(b"message", &signature, Tables::None));
    assert!(!key.has_tables());
    assert!(key.verify(b"message", &signature, Tables::After(5)));
    assert!(key.has_tables());
    assert!(key.verify(b"message", &signature, Tables::None));
    assert!(!key.verify(b"massage", &signature, Tables::None));
}

#[test]
fn every_r_of_small_order_is_refused() {
    // S·B − k·A is of small order when S = k·a: such signatures are easily made by whoever has the key.
    let a = secret([9; 32]);
    let key = PublicKey::check(&(ED25519_BASEPOINT_POINT * a).compress().to_bytes()).unwrap();
    for torsion in EIGHT_TORSION {
        let r = torsion.compress().to_bytes();
        let s = challenge(&r, key.bare.as_bytes(), b"message") * a;
        assert_eq!(verdicts(&key, b"message", &signature(r, s.to_bytes())), (false, false));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_signature_verifies_until_a_bit_of_it_is_another(
        seed: [u8; 32],
        message in proptest::collection::vec(any::<u8>(), 0..200),
        bit in 0_usize..512,
    ) {
        let signer = ed25519_dalek::SigningKey::from_bytes(&seed);
        let key = PublicKey::of_signer(&signer);
        let mut signature = signer.sign(&message).to_bytes();
        prop_assert_eq!(verdicts(&key, &message, &signature), (true, true));
        signature[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(verdicts(&key, &message, &signature), (false, false));
    }

    #[test]
    fn s_above_the_order_is_refused(seed: [u8; 32], message: [u8; 8]) {
        let signer = ed25519_dalek::SigningKey::from_bytes(&seed);
        let mut signature = signer.sign(&message).to_bytes();
        let mut carry = 0_u16;
        for (byte, order) in signature[32..].iter_mut().zip(ORDER) {
            carry += u16::from(*byte) + u16::from(order);
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        prop_assert_eq!(carry, 0);
        prop_assert_eq!(verdicts(&PublicKey::of_signer(&signer), &message, &signature), (false, false));
    }

    /// Keys and R with a component of small order: where verification with the cofactor, or of a batch, accepts more.
    #[test]
    fn torsion_makes_no_difference_between_them(
        seed: [u8; 32],
        nonce: [u8; 32],
        message: [u8; 8],
        in_key in 0_usize..8,
        in_r in 0_usize..8,
    ) {
        let (a, n) = (secret(seed), secret(nonce));
        let key = unchecked(ED25519_BASEPOINT_POINT * a + EIGHT_TORSION[in_key]);
        let r = (ED25519_BASEPOINT_POINT * n + EIGHT_TORSION[in_r]).compress().to_bytes();
        let s = n + challenge(&r, key.bare.as_bytes(), &message) * a;
        let (library, tables) = verdicts(&key, &message, &signature(r, s.to_bytes()));
        prop_assert_eq!(library, tables);
        if in_key == 0 {
            prop_assert_eq!(tables, in_r == 0);
        }
    }

    #[test]
    fn any_bytes_have_one_verdict(seed: [u8; 32], message: [u8; 8], r: [u8; 32], s: [u8; 32], high in 0_u8..32) {
        let key = PublicKey::of_signer(&ed25519_dalek::SigningKey::from_bytes(&seed));
        let mut s = s;
        s[31] = high;
        prop_assert_eq!(verdicts(&key, &message, &signature(r, s)), (false, false));
    }
}
