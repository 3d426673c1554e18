use throughline_protocol::code::Code;
use throughline_protocol::evidence::Exhibit;
use throughline_protocol::testing::ts;

use super::*;
use crate::fixture::*;
use crate::{EventPage, Forget};

const LIMITS: EvidenceLimits = EvidenceLimits { total_bytes_max: 1 << 20, session_files_max: 8 };

fn put(exhibit: &Exhibit, on_other: OnOther) -> PutEvidence {
    PutEvidence { exhibit: exhibit.clone(), on_other, at: now(), limits: LIMITS }
}

#[test]
fn an_accusation_is_kept_once_and_told_once() {
    let home = Home::new();
    let store = home.open();
    let ((session, first), (_, second)) = (fork("twice", "a"), fork("twice", "b"));
    let id = session.session();
    assert_eq!(first.accusation(), second.accusation());
    assert_ne!(first.id(), second.id());
    assert_eq!(store.run(put(&first, OnOther::Keep)).unwrap(), Put::New);
    assert_eq!(store.run(put(&first, OnOther::Replace)).unwrap(), Put::Held);
    assert_eq!(store.run(put(&second, OnOther::Keep)).unwrap(), Put::Held);
    let untold = || store.reader().unwrap().sessions_with_untold_evidence(9).unwrap();
    assert_eq!(untold(), [id]);
    store.run(MarkTold { session: id, accusation: first.accusation(), at: ts(7) }).unwrap();
    assert_eq!(untold(), []);
    assert_eq!(store.run(put(&second, OnOther::Replace)).unwrap(), Put::Replaced);
    let kept = store.reader().unwrap().evidence(id).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((&kept[0].bytes[..], kept[0].told), (&second.bytes()[..], Some(ts(7))));
    assert_eq!(untold(), [], "the accusation was told, whatever shows it");
    let EventPage::Events(events) = store.reader().unwrap().events_since(0, 9).unwrap() else {
        panic!("the log is whole")
    };
    let told = events.iter().filter(|event| matches!(event.change, Change::Evidence { .. }));
    assert_eq!(told.count(), 1);
}

#[test]
fn evidence_survives_a_restart_and_goes_with_its_session() {
    let home = Home::new();
    let (session, exhibit) = fork("goes", "a");
    let id = session.session();
    let (other, foreign) = fork("stays", "a");
    {
        let store = home.open();
        store.adopt(whole(&session), at()).unwrap();
        store.run(put(&exhibit, OnOther::Keep)).unwrap();
        store.run(put(&foreign, OnOther::Keep)).unwrap();
    }
    let store = home.open();
    let reader = || store.reader().unwrap();
    assert_eq!(reader().sessions_with_untold_evidence(9).unwrap().len(), 2);
    assert_eq!(reader().sessions_with_untold_evidence(1).unwrap().len(), 1);
    assert_eq!(&reader().evidence(id).unwrap()[0].bytes[..], &exhibit.bytes()[..]);
    let accusation = foreign.accusation();
    store.run(DropEvidence { session: other.session(), accusation }).unwrap();
    assert_eq!(reader().evidence(other.session()).unwrap(), []);
    store.run(put(&foreign, OnOther::Keep)).unwrap();
    let tip = session.head().entry.cid();
    store.run(Forget { session: id, expected_tip: tip, at: now() }).unwrap();
    assert_eq!(reader().evidence(id).unwrap(), []);
    assert_eq!(reader().evidence(other.session()).unwrap().len(), 1, "of a session that is not held");
}

#[test]
fn the_room_for_evidence_is_bounded() {
    let home = Home::new();
    let store = home.open();
    let (_, exhibit) = fork("one", "a");
    let size = exhibit.bytes().len() as u64;
    let limits = EvidenceLimits { total_bytes_max: size, session_files_max: 0 };
    let full = PutEvidence { limits, ..put(&exhibit, OnOther::Keep) };
    assert_eq!(store.run(full).unwrap_err().code(), Code::Quota);
    let limits = EvidenceLimits { session_files_max: 1, ..limits };
    assert_eq!(store.run(PutEvidence { limits, ..put(&exhibit, OnOther::Keep) }).unwrap(), Put::New);
    let (_, other) = fork("other", "a");
    let full = PutEvidence { limits, ..put(&other, OnOther::Keep) };
    assert_eq!(store.run(full).unwrap_err().code(), Code::Quota);
    assert_eq!(store.run(PutEvidence { limits, ..put(&exhibit, OnOther::Keep) }).unwrap(), Put::Held);
}
