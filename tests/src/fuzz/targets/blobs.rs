//! Signed blobs of every type.

use throughline_protocol::blob::{Blob, GenericSigned, SignedAny};
use throughline_protocol::block::{Decoded, SignedBlob};
use throughline_protocol::build::Writable;
use throughline_protocol::control::{Capability, Control, Ref, Tombstone};
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::Skeleton;
use throughline_protocol::id::EntryCid;
use throughline_protocol::limits;
use throughline_protocol::seed::SeedBlob;
use throughline_protocol::sign::{SIGNATURE_BYTES, VerifyingKeys};
use throughline_protocol::view;

use super::{check_reject, same_bytes};

/// What is read is written back byte for byte, with the signature where it says; none if it is refused.
fn read<T: Writable + SignedBlob>(data: &[u8]) -> Option<Decoded<T>> {
    let decoded = match Decoded::<T>::decode(data) {
        Ok(decoded) => decoded,
        Err(reject) => {
            check_reject(&reject);
            return None;
        }
    };
    let field = *decoded.signature();
    same_bytes(&decoded.value().write(&field.signature), data);
    assert_eq!(data[field.offset..field.offset + SIGNATURE_BYTES], field.signature);
    assert_eq!(decoded.cid(), EntryCid::of(data));
    // The signature is the only thing that the signature does not cover.
    let mut zeroed = data.to_vec();
    zeroed[field.offset..field.offset + SIGNATURE_BYTES].fill(0);
    same_bytes(&decoded.value().write(&[0; SIGNATURE_BYTES]), &zeroed);
    let any = Blob::decode(data).expect("a blob of one type is a blob of any type");
    assert_eq!(any.cid(), decoded.cid());
    check_signature(data);
    Some(decoded)
}

/// Whoever looks at the signature, by type or by header only, says the same.
fn check_signature(data: &[u8]) {
    let mut keys = VerifyingKeys::default();
    let any = SignedAny::check(data, &mut keys);
    let again = SignedAny::check(data, &mut keys);
    assert_eq!(any, again, "what was verified before changes nothing");
    let generic = GenericSigned::check(data, &mut VerifyingKeys::default());
    match (&any, &generic) {
        (Ok(any), Ok(generic)) => assert_eq!(any.cid(), generic.cid),
        (Err(any), Err(generic)) => assert_eq!(any.code, generic.code),
        _ => panic!("typed: {any:?}, generic: {generic:?}"),
    }
}

pub(in crate::fuzz) fn entry(data: &[u8]) {
    let Some(decoded) = read::<Entry>(data) else { return };
    let entry = decoded.value();
    assert!(data.len() <= limits::ENTRY_BYTES_MAX);
    let shown = view::view(entry, decoded.cid(), None);
    assert_eq!(shown["cid"], decoded.cid().to_string());
    assert_eq!(shown["type"], entry.body.type_name());
    assert!(entry.body.ancestor_links().len() <= limits::ENTRY_LINKS_MAX);
    let skeleton = Skeleton::of(&decoded.clone().assume_signed());
    assert_eq!((skeleton.cid(), skeleton.owner()), (decoded.cid(), entry.owner()));
    assert_eq!(skeleton.session(), entry.session(decoded.cid()));
}

pub(in crate::fuzz) fn control(data: &[u8]) {
    let Some(decoded) = read::<Control>(data) else { return };
    assert!(data.len() <= limits::CONTROL_BYTES_MAX);
    match decoded.value() {
        Control::Capability(capability) => {
            assert_eq!(read::<Capability>(data).expect("by its own type").value(), capability);
            if let Ok(grant) = capability.grant() {
                assert!(capability.audience.is_none());
                assert_eq!(grant.scope.as_ref().map(|scope| scope.as_str()), capability.path.as_deref());
            }
        }
        Control::Tombstone(tombstone) => {
            assert_eq!(read::<Tombstone>(data).expect("by its own type").value(), tombstone);
            assert!(tombstone.keep.len() <= limits::TOMBSTONE_KEEP_MAX);
        }
        Control::Ref(reference) => {
            assert_eq!(read::<Ref>(data).expect("by its own type").value(), reference);
            if let Ok(head) = reference.session_head() {
                assert_eq!(reference.path.as_deref(), Some(&*head.session.path()));
                assert_eq!(reference.genesis_blob, Some(head.session.genesis().cid()));
            }
        }
    }
}

pub(in crate::fuzz) fn seed(data: &[u8]) {
    let Some(decoded) = read::<SeedBlob>(data) else { return };
    let blob = decoded.value();
    let again = SeedBlob::new(blob.fields().clone()).expect("its own fields");
    assert_eq!(&again, blob);
    let _ = blob.context();
}
