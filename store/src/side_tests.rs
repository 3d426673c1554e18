use throughline_protocol::code::Code;
use throughline_protocol::testing::SessionBuilder as Builder;
use throughline_protocol::verify::Prechecked;

use crate::fixture::*;
use crate::*;

pub(crate) const SIDE_LIMITS: SideLimits =
    SideLimits { total_bytes_max: 100_000, session_bytes_max: 100_000 };

/// The heads of branches, to be kept beside a session.
pub(crate) fn beside(session: &Builder, branches: &[&Builder], limits: SideLimits) -> PutSide {
    let entry = |branch: &&Builder| {
        let head = branch.head();
        let checked = Prechecked::of(head.entry.clone(), head.payload.clone()).unwrap();
        (checked, SideStatus::Forked)
    };
    let entries = branches.iter().map(entry).collect();
    PutSide { session: session.session(), entries, needed: 0, at: now(), limits }
}

#[test]
fn evidence_is_kept_within_its_quota() {
    let (home, builder) = (Home::new(), session("evidence", 1));
    let mut branch = builder.at(0).branch("b");
    push(&mut branch, "the other history");
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let keep =
        |builder, total_bytes_max| beside(builder, &[builder], SideLimits { total_bytes_max, ..SIDE_LIMITS });
    let kept = |stored| SideKept { stored, dropped: 0 };
    assert_eq!(store.run(keep(&branch, 10)).unwrap_err().code(), Code::Quota);
    assert_eq!(store.run(keep(&branch, 10_000)).unwrap(), kept(1));
    assert_eq!(store.run(keep(&branch, 10_000)).unwrap(), kept(0));
    assert_eq!(store.run(keep(&builder, 10_000)).unwrap(), kept(0), "on the main chain");
    let foreign = beside(&builder, &[&branch, &session("foreign", 1)], SIDE_LIMITS);
    assert_eq!(store.run(foreign).unwrap_err().code(), Code::SessionMismatch);
    let side = store.reader().unwrap().side_entry(branch.head().entry.cid()).unwrap().unwrap();
    assert_eq!((side.status, side.since), (SideStatus::Forked, now()));
    let (fenced, main) = (branch.head().entry.cid(), builder.head().entry.cid());
    let statuses = [(fenced, SideStatus::Fenced), (main, SideStatus::Fenced)].into();
    store.run(RestateSide { session: builder.session(), statuses }).unwrap();
    let side = store.reader().unwrap().side_entry(fenced).unwrap().unwrap();
    assert_eq!((side.status, side.since), (SideStatus::Fenced, now()));
    assert_eq!(store.reader().unwrap().payload(side.payload.unwrap()).unwrap(), present(&branch));
    assert_clean(&store, builder.controls());
}

fn present(builder: &Builder) -> PayloadState {
    PayloadState::Present(builder.head().payload.clone().unwrap().to_vec())
}

#[test]
fn one_session_does_not_take_the_room_of_all() {
    let (home, builder) = (Home::new(), session("flooded", 1));
    let branches: Vec<Builder> = (0..4)
        .map(|number| {
            let mut branch = builder.at(0).branch(&format!("b{number}"));
            push(&mut branch, &"flood ".repeat(300));
            branch
        })
        .collect();
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let entry_bytes = branches[0].head().entry.bytes().len() as u64;
    let words_bytes = branches[0].head().payload.as_ref().unwrap().len() as u64;
    // Room for one entry with its words and one without.
    let session_bytes_max = 2 * entry_bytes + words_bytes;
    let limits = SideLimits { session_bytes_max, ..SIDE_LIMITS };
    let all: Vec<&Builder> = branches.iter().collect();
    assert_eq!(store.run(beside(&builder, &all, limits)).unwrap(), SideKept { stored: 2, dropped: 2 });
    let payload = |at: usize| branches[at].head().entry.value().payload.unwrap().cid;
    let reader = store.reader().unwrap();
    assert_eq!(reader.payload(payload(0)).unwrap(), present(&branches[0]));
    assert_eq!(reader.payload(payload(1)).unwrap(), PayloadState::Absent);
    // What shows the fork is kept all the same, without words; what only repeats it is not.
    let needed = PutSide { needed: 1, ..beside(&builder, &all[2..], limits) };
    assert_eq!(store.run(needed).unwrap(), SideKept { stored: 1, dropped: 1 });
    // Another session has its own room.
    let other = session("calm", 1);
    let mut branch = other.at(0).branch("b");
    push(&mut branch, "small");
    store.adopt(whole(&other), at()).unwrap();
    assert_eq!(store.run(beside(&other, &[&branch], limits)).unwrap(), SideKept { stored: 1, dropped: 0 });
    assert_clean(&store, builder.controls());
}

#[test]
fn the_words_of_a_branch_stay_when_it_becomes_the_chain_and_go_with_the_session() {
    let (home, builder) = (Home::new(), session("side words", 1));
    let mut branch = builder.at(0).branch("b");
    push(&mut branch, &"large ".repeat(5_000));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    store.run(beside(&builder, &[&branch], SIDE_LIMITS)).unwrap();
    let payload = branch.head().entry.value().payload.unwrap().cid;
    let reader = || store.reader().unwrap();
    assert_eq!(reader().payload(payload).unwrap(), present(&branch));
    let which = Which::Entries(vec![branch.head().entry.cid()]);
    let session = builder.session();
    let drop = DropPayloads { session, which, later: Later::Accept, at: now() };
    assert_eq!(store.run(drop).unwrap(), 1);
    assert_eq!(reader().payload(payload).unwrap(), PayloadState::Absent, "and not those of the main chain");
    let own = builder.head().entry.value().payload.unwrap().cid;
    assert_eq!(reader().payload(own).unwrap(), present(&builder));
    let forget = Forget { session, expected_tip: builder.head().entry.cid(), at: now() };
    store.run(forget).unwrap();
    assert_eq!(reader().stats().unwrap().blocks, 0);
    assert_clean(&store, builder.controls());
}
