//! The driver, step by step.

use super::super::super::testing::{epoch, move_id, opening, point, principal, receipt, session};
use super::super::super::{Answer, Reply};
use super::*;

fn plan(origin: Origin) -> Plan {
    Plan {
        move_id: move_id(1),
        session: session(),
        epoch: epoch(0),
        origin,
        target: principal("server2"),
        peers: vec![principal("stranger")],
        held: None,
        told: None,
    }
}

fn online() -> Plan {
    plan(Origin::Online(principal("server1")))
}

fn head() -> Point {
    point("server1", 0, 7)
}

fn handoff() -> Opening {
    opening(head(), 1, Some(principal("server2")))
}

/// A driver and what it wants, with every journal write done at once.
struct Desk {
    driver: Driver,
    now: Duration,
    wants: Vec<Output>,
    journals: Vec<Vec<u8>>,
}

impl Desk {
    fn new(plan: Plan) -> Self {
        Desk::of(Driver::new(Duration::ZERO, plan, Limits::default()))
    }

    fn of(driver: Driver) -> Self {
        let mut desk = Desk { driver, now: Duration::ZERO, wants: Vec::new(), journals: Vec::new() };
        desk.drain();
        desk
    }

    /// The same move after a crash.
    fn crashed(&self) -> Self {
        let journal = self.journals.last().unwrap();
        let driver = Driver::from_bytes(self.now, journal, Limits::default()).unwrap();
        let mut desk = Desk { driver, now: self.now, wants: Vec::new(), journals: self.journals.clone() };
        desk.drain();
        desk
    }

    fn drain(&mut self) {
        while let Some(output) = self.driver.poll_output() {
            if let Output::Persist { ticket, journal } = output {
                let read = Journal::read(&journal).unwrap();
                assert_eq!((read.to_bytes(), read), (journal.clone(), self.driver.journal.clone()));
                self.journals.push(journal);
                self.driver.handle(self.now, Input::Persisted { ticket });
            } else {
                self.wants.push(output);
            }
        }
    }

    fn feed(&mut self, input: Input) {
        self.wants.clear();
        self.driver.handle(self.now, input);
        self.drain();
    }

    fn wait(&mut self, by: Duration) {
        self.now += by;
        self.feed(Input::Tick);
    }

    fn request(&self) -> RequestId {
        let request = |output: &Output| {
            let (Output::NeedGrant { request, .. }
            | Output::Send { request, .. }
            | Output::NeedSignature { request, .. }) = output
            else {
                return None;
            };
            Some(*request)
        };
        self.wants.iter().find_map(request).unwrap_or_else(|| panic!("nothing asked: {:?}", self.wants))
    }

    fn sent(&self) -> Vec<(Principal, Message)> {
        let sent = |output: &Output| {
            let Output::Send { to, message, .. } = output else { return None };
            Some((*to, message.clone()))
        };
        self.wants.iter().filter_map(sent).collect()
    }

    fn reply(&mut self, reply: Reply) {
        let request = self.request();
        self.feed(Input::Replied { request, reply });
    }

    fn grant(&mut self) {
        let request = self.request();
        self.feed(Input::Granted { request, result: Ok(None) });
    }

    /// Answers everybody who is asked; `of` says what each one's copy came to.
    fn see(&mut self, of: impl Fn(Principal) -> Option<View>) {
        for output in self.wants.clone() {
            if let Output::AskPeer { request, peer } = output {
                self.feed(Input::Seen { request, view: of(peer).map(Box::new) });
            }
        }
    }

    /// Goes on to `phase`, with everybody helpful.
    fn advance_to(&mut self, phase: Phase) {
        while self.driver.phase() != phase {
            match self.driver.phase() {
                Phase::Grant => self.grant(),
                Phase::Freeze => self.reply(Ok(frozen())),
                Phase::Copy => self.reply(Ok(Answer::Offered { head: head() })),
                Phase::Prepare => self.reply(Ok(Answer::Prepared(Readiness::default()))),
                Phase::Survey | Phase::Ask => self.see(|_| Some(seen(0, head()))),
                Phase::Sign => {
                    let request = self.request();
                    self.feed(Input::Signed { request, result: Ok(handoff()) });
                }
                Phase::Activate => self.reply(Ok(active())),
                Phase::Retire => self.reply(Ok(retired())),
                Phase::RollBack | Phase::Finished => panic!("ended: {:?}", self.driver.outcome()),
            }
        }
    }
}

fn at(phase: Phase) -> Desk {
    let mut desk = Desk::new(online());
    desk.advance_to(phase);
    desk
}

fn frozen() -> Answer {
    Answer::Frozen { epoch: epoch(0), head: head(), move_id: move_id(1) }
}

fn active() -> Answer {
    Answer::Active { epoch: epoch(1), receipt: Some(receipt("server2", &handoff())) }
}

fn retired() -> Answer {
    Answer::Retired { epoch: epoch(1), opening: handoff().point() }
}

fn thawed() -> Answer {
    Answer::Active { epoch: epoch(0), receipt: None }
}

fn seen(opens: u64, head: Point) -> View {
    let opened = (opens > 0).then(|| opening(head, opens, Some(principal("server2"))));
    View { opening: opened, head: Some(head), told: None, receipt: None }
}

fn aborts() -> Vec<(Principal, Message)> {
    let mut both = vec![(principal("server1"), Message::Abort), (principal("server2"), Message::Abort)];
    both.sort_by_key(|(to, _)| *to);
    both
}

#[test]
fn the_whole_way_with_every_step_in_the_journal_before_it_is_taken() {
    let mut desk = Desk::new(online());
    desk.advance_to(Phase::Finished);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Done { source: Confirmation::Confirmed }));
    let phases: Vec<Phase> = desk.journals.iter().map(|bytes| Journal::read(bytes).unwrap().phase).collect();
    use Phase::*;
    assert_eq!(phases, [Grant, Freeze, Copy, Prepare, Ask, Sign, Activate, Retire, Finished]);
    assert_eq!(desk.driver.receipt(), Some(&receipt("server2", &handoff())));
    assert_eq!(desk.driver.poll_timeout(), None);
}

#[test]
fn without_a_grant_the_source_is_never_frozen() {
    let mut desk = Desk::new(online());
    let request = desk.request();
    desk.feed(Input::Granted { request, result: Err(Code::CapMissing.into()) });
    assert_eq!(desk.sent(), []);
    assert_eq!(desk.driver.outcome(), Some(&rolled_back(Code::CapMissing)));
}

#[test]
fn a_failure_before_the_handoff_thaws_the_source_and_empties_the_target() {
    let refused = Answer::Refused { reason: "model-missing".to_owned() };
    let failures: [(Phase, Reply, Code); 3] = [
        (Phase::Copy, Err(Code::CapMissing.into()), Code::CapMissing),
        (Phase::Prepare, Ok(refused), Code::Refused),
        (Phase::Prepare, Err(Code::EpochOld.into()), Code::EpochOld),
    ];
    for (phase, reply, code) in failures {
        let mut desk = at(phase);
        desk.reply(reply);
        let mut sent = desk.sent();
        sent.sort_by_key(|(to, _)| *to);
        assert_eq!(sent, aborts());
        for output in desk.wants.clone() {
            let Output::Send { request, to, .. } = output else { continue };
            let answer = if to == principal("server1") { thawed() } else { Answer::Idle { epoch: None } };
            desk.feed(Input::Replied { request, reply: Ok(answer) });
        }
        let Some(Outcome::RolledBack { cause, source: Confirmation::Confirmed }) = desk.driver.outcome()
        else {
            panic!("{phase:?}")
        };
        assert_eq!(cause.code, code);
    }
}

#[test]
fn a_rollback_waits_for_the_source_and_not_for_the_target() {
    let mut desk = at(Phase::Copy);
    desk.driver.abort(desk.now).unwrap();
    desk.wants.clear();
    desk.drain();
    let to_source = |desk: &Desk| {
        desk.wants.iter().find_map(|output| {
            let Output::Send { request, to, .. } = output else { return None };
            (*to == principal("server1")).then_some(*request)
        })
    };
    desk.wait(Limits::default().idle_max);
    assert!(desk.wants.contains(&Output::Waiting { phase: Phase::RollBack, code: Code::Timeout }));
    assert_eq!(desk.driver.outcome(), None);
    desk.wait(Limits::default().retry_max);
    let request = to_source(&desk).expect("asked again");
    desk.feed(Input::Replied { request, reply: Ok(thawed()) });
    assert_eq!(desk.driver.outcome(), None);
    desk.wait(Limits::default().idle_max);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Confirmed }));
}

/// A move that is taken back at `phase` and waits for a source that does not answer.
fn waits_for_the_source(phase: Phase) -> Desk {
    let mut desk = at(phase);
    desk.driver.abort(desk.now).unwrap();
    desk.wants.clear();
    desk.drain();
    assert!(desk.sent().iter().any(|(to, _)| *to == principal("server1")));
    desk.wait(Limits::default().idle_max);
    assert_eq!(desk.driver.outcome(), None);
    desk
}

#[test]
fn a_source_that_was_given_up_is_sent_nothing_again() {
    let mut desk = waits_for_the_source(Phase::Copy);
    desk.wait(Limits::default().retry_max);
    let late = desk.request();
    desk.feed(Input::LeaveSource);
    // The target is still told; the source is not, now or after a crash or an hour.
    for mut desk in [desk.crashed(), desk] {
        assert!(desk.driver.gave_up_source());
        for _ in 0..4 {
            assert!(desk.sent().iter().all(|(to, _)| *to == principal("server2")), "{:?}", desk.wants);
            desk.feed(Input::Retry);
        }
        desk.feed(Input::Replied { request: late, reply: Ok(thawed()) });
        assert_eq!(desk.driver.outcome(), None);
        desk.wait(Limits::default().idle_max);
        assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Unconfirmed }));
        assert_eq!(desk.crashed().driver.outcome(), desk.driver.outcome());
    }
}

#[test]
fn a_move_that_nobody_else_has_to_hear_of_ends_as_soon_as_the_source_is_given_up() {
    let mut desk = waits_for_the_source(Phase::Freeze);
    desk.feed(Input::LeaveSource);
    assert_eq!(desk.sent(), []);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Unconfirmed }));
    // A server that would have taken over from itself is one server.
    let mut desk = Desk::new(Plan { target: principal("server1"), ..online() });
    desk.advance_to(Phase::Copy);
    desk.driver.abort(desk.now).unwrap();
    desk.drain();
    desk.feed(Input::LeaveSource);
    assert_eq!(desk.sent(), []);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Unconfirmed }));
}

#[test]
fn a_source_that_was_heard_is_not_given_up() {
    let mut desk = at(Phase::Copy);
    desk.driver.abort(desk.now).unwrap();
    desk.wants.clear();
    desk.drain();
    let asked = desk.wants.iter().find_map(|output| {
        let Output::Send { request, to, .. } = output else { return None };
        (*to == principal("server1")).then_some(*request)
    });
    desk.feed(Input::Replied { request: asked.unwrap(), reply: Ok(thawed()) });
    desk.feed(Input::LeaveSource);
    assert!(!desk.driver.gave_up_source());
    desk.wait(Limits::default().idle_max);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Confirmed }));
}

#[test]
fn to_take_back_again_is_to_ask_again() {
    let mut desk = waits_for_the_source(Phase::Freeze);
    desk.now += Limits::default().retry_max;
    desk.wants.clear();
    desk.driver.abort(desk.now).unwrap();
    desk.drain();
    assert_eq!(desk.sent(), [(principal("server1"), Message::Abort)]);
    desk.reply(Ok(thawed()));
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Confirmed }));
    assert_eq!(desk.driver.abort(desk.now).unwrap_err().code, Code::MoveState);
}

#[test]
fn giving_up_sends_no_last_abort() {
    let mut desk = waits_for_the_source(Phase::Freeze);
    desk.now += Limits::default().retry_max;
    desk.wants.clear();
    // As one act: the abort is asked for again, and then the source is given up before anything was performed.
    desk.driver.abort(desk.now).unwrap();
    desk.driver.handle(desk.now, Input::LeaveSource);
    desk.drain();
    assert_eq!(desk.sent(), []);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Unconfirmed }));
}

#[test]
fn what_is_under_way_ends_before_the_next_phase_is_written() {
    let mut desk = waits_for_the_source(Phase::Copy);
    // Nobody waits for the first aborts any more, and they may still be under way.
    desk.wait(Limits::default().answer_max);
    desk.wants.clear();
    desk.driver.handle(desk.now, Input::LeaveSource);
    assert_eq!(desk.driver.poll_output(), Some(Output::Cancel));
    let Some(Output::Persist { ticket, .. }) = desk.driver.poll_output() else { panic!("a write") };
    desk.driver.handle(desk.now, Input::Persisted { ticket });
    desk.drain();
    // What was answered or lost is over by itself.
    let request = desk.request();
    desk.feed(Input::Lost { request, code: Code::Unreachable });
    desk.wait(Limits::default().idle_max);
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Unconfirmed }));
    let is_cancelled = at(Phase::Retire).wants.contains(&Output::Cancel);
    assert!(!is_cancelled, "the whole way was answered");
}

fn overtakes() -> Input {
    Input::Learned { opening: opening(head(), 1, Some(principal("stranger"))) }
}

#[test]
fn a_later_epoch_that_is_learned_while_it_is_taken_back_retires_the_source() {
    let mut desk = waits_for_the_source(Phase::Freeze);
    desk.feed(overtakes());
    for mut desk in [desk.crashed(), desk] {
        let [(to, Message::Retire { opening, receipt: None })] = &desk.sent()[..] else {
            panic!("{:?}", desk.wants)
        };
        assert_eq!((*to, opening.epoch()), (principal("server1"), epoch(1)));
        // No news, and nothing to do again.
        let before = desk.journals.len();
        let request = desk.request();
        desk.feed(overtakes());
        assert_eq!((desk.sent(), desk.journals.len()), (Vec::new(), before));
        desk.feed(Input::Replied { request, reply: Ok(retired()) });
        assert_eq!(desk.driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Confirmed }));
        assert_eq!(desk.driver.overtaken_by().map(Opening::epoch), Some(epoch(1)));
        desk.feed(overtakes());
        assert_eq!(desk.wants, []);
    }
}

#[test]
fn a_source_that_was_given_up_or_never_drawn_in_is_told_of_no_epoch() {
    let mut desk = waits_for_the_source(Phase::Copy);
    desk.feed(Input::LeaveSource);
    desk.feed(overtakes());
    assert_eq!(desk.sent(), []);
    let mut desk = Desk::new(online());
    desk.feed(overtakes());
    assert_eq!(desk.sent(), []);
    let Some(Outcome::RolledBack { cause, .. }) = desk.driver.outcome() else { panic!("over") };
    assert_eq!((cause.code, desk.driver.drew_in_source()), (Code::EpochOld, false));
}

fn rolled_back(code: Code) -> Outcome {
    Outcome::RolledBack { cause: code.into(), source: Confirmation::Confirmed }
}

#[test]
fn a_frozen_answer_of_another_move_or_epoch_is_not_ours() {
    let mut desk = at(Phase::Freeze);
    desk.reply(Ok(Answer::Frozen { epoch: epoch(0), head: head(), move_id: move_id(2) }));
    assert_eq!(desk.driver.phase(), Phase::RollBack);
}

#[test]
fn a_long_turn_is_waited_for_and_silence_is_told() {
    let mut desk = at(Phase::Freeze);
    for _ in 0..20 {
        desk.reply(Ok(thawed()));
        desk.wait(Duration::from_secs(8));
        assert_eq!(desk.driver.phase(), Phase::Freeze);
        assert_eq!(desk.sent().len(), 1, "asked again");
    }
    desk.wait(Limits::default().idle_max);
    assert!(matches!(desk.wants[..], [Output::Waiting { phase: Phase::Freeze, .. }]), "{:?}", desk.wants);
    // A person decides not to wait.
    desk.feed(Input::LeaveSource);
    assert_eq!(desk.driver.phase(), Phase::Survey);
}

#[test]
fn a_slow_copy_never_times_out_and_a_dead_one_does() {
    let mut desk = at(Phase::Copy);
    for seq in 0..20 {
        desk.reply(Ok(Answer::Fetching { through: Some(Seq::new(seq).unwrap()), bytes: 0 }));
        desk.wait(Duration::from_secs(20));
        assert_eq!(desk.driver.phase(), Phase::Copy);
    }
    // The entries are there, and words and files come.
    for megabytes in 1..20 {
        let through = Some(Seq::new(19).unwrap());
        desk.reply(Ok(Answer::Fetching { through, bytes: megabytes << 20 }));
        desk.wait(Duration::from_secs(20));
        assert_eq!(desk.driver.phase(), Phase::Copy);
    }
    desk.reply(Ok(Answer::Fetching { through: Some(Seq::new(19).unwrap()), bytes: 19 << 20 }));
    desk.wait(Limits::default().idle_max);
    assert_eq!(desk.driver.phase(), Phase::RollBack);
    // It answered to the last: that it got nothing more is no timeout.
    assert_eq!(desk.driver.journal.cause.as_ref().unwrap().code, Code::Incomplete);
}

#[test]
fn without_the_source_the_highest_verified_head_is_taken_and_the_cut_is_said() {
    let mut desk = Desk::new(Plan {
        held: Some(point("server1", 0, 3)),
        told: Some(point("server1", 0, 9)),
        ..plan(Origin::Offline(Some(principal("server1"))))
    });
    desk.grant();
    assert_eq!(desk.driver.phase(), Phase::Survey);
    let asked: Vec<Principal> = desk.driver.heard.keys().copied().collect();
    assert!(!asked.contains(&principal("server1")));
    desk.see(|peer| {
        let seq = if peer == principal("stranger") { 7 } else { 5 };
        // What a peer only tells is no head to stand on.
        let told = Some(point("liar", 0, 8));
        Some(View { told, ..seen(0, point("server1", 0, seq)) })
    });
    assert_eq!(desk.driver.base(), Some(head()));
    assert_eq!(desk.driver.cut(), Some(point("server1", 0, 9)));
    desk.advance_to(Phase::Retire);
    // Nobody waits for it.
    let request = desk.request();
    desk.feed(Input::Lost { request, code: Code::Unreachable });
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Done { source: Confirmation::Unconfirmed }));
}

#[test]
fn a_higher_head_that_turns_up_late_is_handed_over() {
    let mut desk = Desk::new(plan(Origin::Offline(None)));
    desk.advance_to(Phase::Ask);
    let later = point("server1", 0, 8);
    desk.see(|_| Some(seen(0, later)));
    assert_eq!((desk.driver.phase(), desk.driver.base()), (Phase::Copy, Some(later)));
}

#[test]
fn a_later_epoch_ends_the_move_and_the_source_learns_it_instead_of_thawing() {
    let mut desk = at(Phase::Ask);
    desk.see(|_| Some(seen(1, head())));
    assert_eq!(desk.driver.phase(), Phase::RollBack);
    let sent = desk.crashed().sent();
    let to_source: Vec<_> = sent.iter().filter(|(to, _)| *to == principal("server1")).collect();
    assert!(matches!(to_source[..], [(_, Message::Retire { .. })]), "{to_source:?}");
}

#[test]
fn nothing_is_signed_before_the_target_has_said_which_epoch_it_knows() {
    let mut desk = at(Phase::Ask);
    desk.see(|peer| (peer != principal("server2")).then(|| seen(0, head())));
    assert_eq!(desk.driver.phase(), Phase::Ask);
    desk.wait(Limits::default().idle_max);
    assert_eq!(desk.driver.phase(), Phase::RollBack);
}

#[test]
fn another_handoff_than_the_one_asked_for_is_not_sent() {
    let other = [
        opening(point("server1", 0, 6), 1, Some(principal("server2"))),
        opening(head(), 2, Some(principal("server2"))),
        opening(head(), 1, Some(principal("stranger"))),
        opening(head(), 1, None),
    ];
    for opening in other {
        let mut desk = at(Phase::Sign);
        let request = desk.request();
        desk.feed(Input::Signed { request, result: Ok(opening) });
        assert_eq!((desk.driver.phase(), desk.driver.opening()), (Phase::RollBack, None));
    }
}

#[test]
fn a_handoff_is_sent_only_when_the_journal_holds_it() {
    let mut desk = at(Phase::Sign);
    let request = desk.request();
    desk.driver.handle(desk.now, Input::Signed { request, result: Ok(handoff()) });
    let Some(Output::Persist { ticket, .. }) = desk.driver.poll_output() else { panic!("a write first") };
    assert_eq!(desk.driver.poll_output(), None);
    assert_eq!(desk.driver.abort(desk.now).unwrap_err().code, Code::MoveState);
    // The write fails: nobody knows what is in the journal, so nothing goes out, neither it nor an abort, until it is written.
    let mut broken = desk.driver.clone();
    broken.handle(desk.now, Input::PersistFailed { ticket, reject: Code::StoreIo.into() });
    let waiting = Output::Waiting { phase: Phase::Activate, code: Code::StoreIo };
    assert_eq!(broken.poll_output(), Some(waiting));
    assert_eq!(broken.abort(desk.now).unwrap_err().code, Code::MoveState);
    let due = broken.poll_timeout().unwrap();
    broken.handle(due - Duration::from_millis(1), Input::Tick);
    assert_eq!(broken.poll_output(), None);
    broken.handle(due, Input::Tick);
    let Some(Output::Persist { ticket: again, .. }) = broken.poll_output() else { panic!("a write again") };
    assert_eq!((broken.poll_output(), broken.poll_timeout()), (None, None));
    broken.handle(due, Input::Persisted { ticket: again });
    let mut sent = std::iter::from_fn(|| broken.poll_output());
    let is_ours =
        |message: &Message| matches!(message, Message::Activate { opening, .. } if *opening == handoff());
    assert!(sent.any(|output| matches!(&output, Output::Send { message, .. } if is_ours(message))));
    desk.driver.handle(desk.now, Input::Persisted { ticket });
    desk.drain();
    assert!(matches!(desk.sent()[..], [(_, Message::Activate { .. })]));
}

#[test]
fn a_lost_activation_is_asked_about_and_sent_again_with_the_same_bytes() {
    let mut desk = at(Phase::Activate);
    let request = desk.request();
    desk.feed(Input::Lost { request, code: Code::Timeout });
    let [Output::AskPeer { request, peer }] = desk.wants[..] else { panic!("{:?}", desk.wants) };
    assert_eq!(peer, principal("server2"));
    // That it is not there says nothing: it is sent again.
    desk.feed(Input::Seen { request, view: Some(Box::new(seen(0, head()))) });
    desk.wait(Limits::default().retry_max);
    let [(_, Message::Activate { opening, .. })] = &desk.sent()[..] else { panic!("{:?}", desk.wants) };
    assert_eq!(opening, &handoff());
    desk.wait(Limits::default().idle_max);
    assert!(desk.wants.contains(&Output::Waiting { phase: Phase::Activate, code: Code::Timeout }));
    // After a crash too; then its epoch says that it is done.
    let mut again = desk.crashed();
    assert!(matches!(&again.sent()[..], [(_, Message::Activate { opening, .. })] if *opening == handoff()));
    let request = again.request();
    again.feed(Input::Lost { request, code: Code::Timeout });
    let [Output::AskPeer { request, .. }] = again.wants[..] else { panic!("{:?}", again.wants) };
    let view = View { receipt: Some(receipt("server2", &handoff())), ..seen(1, head()) };
    again.feed(Input::Seen { request, view: Some(Box::new(view)) });
    assert_eq!(again.driver.phase(), Phase::Retire);
}

#[test]
fn a_refused_activation_never_rolls_back() {
    let mut desk = at(Phase::Activate);
    desk.reply(Err(Code::StoreIo.into()));
    assert_eq!(desk.driver.phase(), Phase::Activate);
    desk.reply_is_not_thawing();
}

impl Desk {
    fn reply_is_not_thawing(&mut self) {
        for _ in 0..10 {
            self.wait(Limits::default().idle_max);
            assert!(self.sent().iter().all(|(_, message)| matches!(message, Message::Activate { .. })));
        }
        assert_eq!(self.driver.abort(self.now).unwrap_err().code, Code::MoveState);
    }
}

#[test]
fn a_receipt_of_somebody_else_is_none() {
    let mut desk = at(Phase::Activate);
    let forged = receipt("stranger", &handoff());
    desk.reply(Ok(Answer::Active { epoch: epoch(1), receipt: Some(forged) }));
    assert_eq!((desk.driver.phase(), desk.driver.receipt()), (Phase::Activate, None));
}

#[test]
fn a_handoff_of_a_later_epoch_supersedes_this_one() {
    let mut desk = at(Phase::Activate);
    desk.feed(Input::Learned { opening: opening(handoff().point(), 2, Some(principal("stranger"))) });
    assert_eq!(desk.driver.outcome(), Some(&Outcome::Superseded { epoch: epoch(2) }));
}

#[test]
fn it_resumes_at_every_phase() {
    use Phase::*;
    for phase in [Grant, Freeze, Copy, Prepare, Ask, Sign, Activate, Retire] {
        let mut desk = at(phase).crashed();
        // Signed but not in the journal: everybody is asked again.
        let expected = if matches!(phase, Ask | Sign) { Prepare } else { phase };
        assert_eq!(desk.driver.phase(), expected);
        desk.advance_to(Finished);
        assert_eq!(desk.driver.outcome(), Some(&Outcome::Done { source: Confirmation::Confirmed }));
        assert_eq!(
            desk.crashed().wants,
            [Output::Finished(Outcome::Done { source: Confirmation::Confirmed })]
        );
    }
}

#[test]
fn unknown_answers_are_dropped_and_counted() {
    let mut desk = at(Phase::Copy);
    let request = desk.request();
    desk.reply(Ok(Answer::Offered { head: head() }));
    desk.feed(Input::Replied { request, reply: Err(Code::CapMissing.into()) });
    assert_eq!((desk.driver.phase(), desk.driver.dropped()), (Phase::Prepare, 1));
}

#[test]
fn a_journal_that_contradicts_itself_is_damage() {
    let mut journal = at(Phase::Activate).driver.journal;
    journal.opening = None;
    let bytes = journal.to_bytes();
    let reject = Driver::from_bytes(Duration::ZERO, &bytes, Limits::default()).unwrap_err();
    assert_eq!(reject.code, Code::StoreCorrupt);
}

#[test]
fn phases_have_the_words_that_people_read() {
    let words: Vec<&str> =
        [Phase::Freeze, Phase::Copy, Phase::Prepare, Phase::Sign, Phase::Activate, Phase::Retire]
            .map(Phase::word)
            .to_vec();
    assert_eq!(words, ["freeze", "copy", "prepare", "handoff", "active", "retired"]);
}

#[test]
fn who_waits_less_hears_of_silence_sooner() {
    let mut desk = Desk::new(online());
    let second = Duration::from_secs(1);
    desk.driver.wait_at_most(second);
    desk.advance_to(Phase::Freeze);
    desk.wait(second);
    let silent = |output: &Output| matches!(output, Output::Waiting { phase: Phase::Freeze, .. });
    assert!(desk.wants.iter().any(silent), "{:?}", desk.wants);
}

#[path = "driver_held_tests.rs"]
mod held;
