use super::*;
use crate::build::sign;
use crate::codec::{Map, Value, encode_map};
use crate::control::{Capability, Control};
use crate::sign::SigningKey;

fn key() -> SigningKey {
    SigningKey::from_seed(&[4; 32])
}

/// A blob of a type that nobody knows, signed by Seed's rule without the typed builder.
fn hologram() -> Vec<u8> {
    let unsigned = |signature: [u8; 64]| {
        let map = Map::new()
            .with("ts", 5_i64)
            .with("sig", signature.to_vec())
            .with("type", "Hologram")
            .with("signer", key().principal())
            .with("beam", Value::Null);
        encode_map(&map)
    };
    unsigned(key().sign(&unsigned([0; 64])))
}

#[test]
fn an_unknown_type_is_told_by_its_header_alone() {
    let mut keys = VerifyingKeys::default();
    let blob = GenericSigned::check(hologram(), &mut keys).unwrap();
    assert_eq!((blob.type_name.as_str(), blob.ts.get(), blob.signer), ("Hologram", 5, key().principal()));
    assert_eq!(Blob::decode(hologram()).unwrap_err().code, Code::Type);
    let mut forged = hologram();
    let at = forged.iter().position(|byte| *byte == 5).unwrap();
    forged[at] = 6;
    assert_eq!(GenericSigned::check(forged, &mut keys).unwrap_err().code, Code::Sig);
}

#[test]
fn the_type_decides_the_kind() {
    let capability = Capability {
        ts: UnixMillis::new(5).unwrap(),
        signer: key().principal(),
        delegate: key().principal(),
        role: Some("AGENT".to_owned()),
        path: None,
        label: None,
        audience: None,
    };
    let signed = sign(capability.clone(), &key()).unwrap();
    let blob = SignedAny::check(signed.bytes().clone(), &mut VerifyingKeys::default()).unwrap();
    let SignedAny::Control(control) = blob else { panic!("{blob:?}") };
    assert_eq!(control.value(), &Control::Capability(capability));
}
