use super::*;
use crate::control::Capability;
use crate::id::UnixMillis;

fn capability(signer: &SigningKey, label: &str) -> Capability {
    Capability {
        ts: UnixMillis::new(1).unwrap(),
        signer: signer.principal(),
        delegate: signer.principal(),
        role: Some("WRITER".to_owned()),
        path: None,
        label: Some(label.to_owned()),
        audience: None,
    }
}

#[test]
fn what_is_signed_is_what_a_peer_would_accept() {
    let key = SigningKey::from_seed(&[1; 32]);
    let signed = sign(capability(&key, "laptop"), &key).unwrap();
    let again = Signed::<Capability>::check(signed.bytes().clone(), &mut VerifyingKeys::default()).unwrap();
    assert_eq!(again, signed);
}

#[test]
fn another_key_signs_nothing() {
    let (key, other) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
    assert_eq!(sign(capability(&key, "laptop"), &other).unwrap_err().code, Code::Internal);
}

#[test]
fn a_schema_fault_is_found_before_signing() {
    let key = SigningKey::from_seed(&[1; 32]);
    assert_eq!(sign(capability(&key, "laptop "), &key).unwrap_err().code, Code::SchemaText);
    assert_eq!(sign(capability(&key, ""), &key).unwrap_err().code, Code::CborNoncanon);
}

#[test]
fn a_seed_type_name_inside_is_refused_and_the_own_one_is_not() {
    let key = SigningKey::from_seed(&[1; 32]);
    let refused = sign(capability(&key, "x\u{64}typegCommentx"), &key).unwrap_err();
    assert_eq!(refused.code, Code::SchemaText);
    assert!(refused.detail.contains("Comment"), "{refused}");
    // A name that only begins like one, and one with another length in its head, are other names.
    assert!(sign(capability(&key, "dtypesCapabilityTombstone"), &key).is_ok());
    assert!(sign(capability(&key, "dtypehComment"), &key).is_ok());
}
