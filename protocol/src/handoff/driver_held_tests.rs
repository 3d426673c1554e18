//! What this node holds itself while a source is left that may live.

use super::*;

impl Desk {
    /// Goes on from the copy to the signature, with everybody at `head`.
    fn advance_to_sign(&mut self, head: Point) {
        self.reply(Ok(Answer::Offered { head }));
        self.reply(Ok(Answer::Prepared(Readiness::default())));
        self.see(|_| Some(seen(0, head)));
        assert_eq!(self.driver.phase(), Phase::Sign);
    }
}

/// A move that waits for the owner's signature under a handoff on [`head`]. The source told of more than anybody has.
fn signs_without_the_source() -> Desk {
    let left = plan(Origin::Offline(Some(principal("server1"))));
    let mut desk = Desk::new(Plan { held: Some(head()), told: Some(point("server1", 0, 9)), ..left });
    desk.advance_to(Phase::Sign);
    assert_eq!((desk.driver.base(), desk.driver.cut()), (Some(head()), Some(point("server1", 0, 9))));
    desk
}

#[test]
fn what_arrives_here_while_the_owner_is_asked_is_handed_over_and_not_cut() {
    let newer = point("server1", 0, 8);
    // As high as the base, and not it: another entry took its place here.
    for held in [newer, point("server1", 0, 9), point("instead", 0, 7)] {
        let mut desk = signs_without_the_source();
        let asked = desk.request();
        desk.feed(Input::Held { head: held });
        assert_eq!((desk.driver.phase(), desk.driver.base()), (Phase::Copy, Some(held)));
        let cut = point("server1", 0, 9);
        assert_eq!(desk.driver.cut(), (held != cut).then_some(cut));
        assert!(matches!(&desk.sent()[..], [(_, Message::Offer { head, .. })] if *head == held));
        // What was asked for before is signed too late.
        let dropped = desk.driver.dropped();
        desk.feed(Input::Signed { request: asked, result: Ok(handoff()) });
        assert_eq!((desk.driver.opening(), desk.driver.dropped()), (None, dropped + 1));
        let mut desk = desk.crashed();
        desk.advance_to_sign(held);
        let on =
            |output: &Output| matches!(output, Output::NeedSignature { facts, .. } if facts.prev == held);
        assert!(desk.wants.iter().any(on), "{:?}", desk.wants);
    }
}

#[test]
fn what_is_held_already_changes_nothing_and_before_the_signature_it_waits_for_step_4() {
    let mut desk = signs_without_the_source();
    for held in [head(), point("server1", 0, 6)] {
        desk.feed(Input::Held { head: held });
        assert_eq!((desk.driver.phase(), &desk.wants[..]), (Phase::Sign, &[][..]));
    }
    let mut desk = Desk::new(plan(Origin::Offline(Some(principal("server1")))));
    desk.advance_to(Phase::Copy);
    let newer = point("server1", 0, 8);
    desk.driver.handle(desk.now, Input::Held { head: newer });
    assert_eq!((desk.driver.phase(), desk.driver.base()), (Phase::Copy, Some(head())));
    desk.advance_to(Phase::Ask);
    desk.see(|_| Some(seen(0, head())));
    assert_eq!((desk.driver.phase(), desk.driver.base()), (Phase::Copy, Some(newer)));
    // Once it is signed it only goes forward, and a source that stands still wrote nothing more.
    for mut desk in [at(Phase::Activate), at(Phase::Sign)] {
        let phase = desk.driver.phase();
        desk.feed(Input::Held { head: newer });
        assert_eq!((desk.driver.phase(), desk.driver.base()), (phase, Some(head())));
    }
}
