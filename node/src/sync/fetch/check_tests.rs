use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::wire::Message as _;

use super::*;

/// A frame of entries in which some signatures are broken.
fn frame(count: usize, broken: &[usize]) -> Vec<u8> {
    let mut builder = SessionBuilder::new("checked in order");
    let server = builder.server1.clone();
    for number in 0..count {
        builder.user(&server, &format!("message {number}"));
    }
    let items = builder.entries().iter().skip(1).enumerate().map(|(at, built)| {
        let mut bytes = built.entry.bytes().to_vec();
        if broken.contains(&at) {
            let offset = Decoded::<Entry>::decode(bytes.clone()).unwrap().signature().offset;
            bytes[offset] ^= 1;
        }
        EntryItem { entry: bytes.into(), payload: built.payload.clone() }
    });
    ChainAnswer::Entries(items.collect()).encode_body()
}

fn items(body: &[u8], ring: &KeyRing) -> Vec<Item> {
    let Frame::Items(items) = read_frame(body, ring).unwrap() else { panic!("expected entries") };
    items
}

#[test]
fn order_is_kept_and_the_first_failure_ends_it() {
    let ring = KeyRing::default();
    for broken in [vec![], vec![0], vec![30], vec![10, 49], vec![49]] {
        let read = items(&frame(50, &broken), &ring);
        let good = broken.first().copied().unwrap_or(50);
        assert_eq!(read.iter().take_while(|item| item.is_good()).count(), good, "{broken:?}");
        assert_eq!(read.len(), good + usize::from(good < 50), "nothing after it is looked at");
        for (at, item) in read.iter().enumerate() {
            let Item::Read { place, checked } = item else { panic!("expected an entry") };
            assert_eq!(place.seq().get(), at as u64 + 1);
            let is_broken = matches!(checked, Err(Failed::Signature(reject)) if reject.code == Code::Sig);
            assert_eq!(is_broken, at == good);
        }
    }
}

#[test]
fn a_payload_and_an_entry_are_told_apart() {
    let ring = KeyRing::default();
    let whole = frame(3, &[]);
    let Some(ChainAnswer::Entries(mut sent)) = read_answer(&whole).unwrap() else {
        panic!("expected entries")
    };
    let mut payload = sent[1].payload.take().unwrap().to_vec();
    payload[30] ^= 1;
    sent[1].payload = Some(payload.into());
    sent[2].entry = Arc::from(&b"no entry"[..]);
    let read = items(&ChainAnswer::Entries(sent.clone()).encode_body(), &ring);
    assert!(
        matches!(&read[1], Item::Read { checked: Err(Failed::Payload(reject)), .. } if reject.code == Code::CidMismatch)
    );
    sent.remove(1);
    let read = items(&ChainAnswer::Entries(sent).encode_body(), &ring);
    assert!(matches!(&read[1], Item::Unreadable { bytes, .. } if *bytes > 8));
}
