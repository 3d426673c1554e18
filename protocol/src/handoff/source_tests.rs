//! The source, command by command.

use super::super::testing::{epoch, move_id, opening, point, principal, receipt, session};
use super::*;

fn source() -> Source {
    Source::holder(session(), principal("server1"), epoch(0), Limits::default())
}

fn request(number: u64) -> RequestId {
    RequestId::new(number)
}

fn freeze(number: u64, id: u8) -> Input {
    let turn = Turn::Idle { head: point("server1", 0, 7) };
    Input::Freeze { request: request(number), move_id: move_id(id), epoch: epoch(0), turn }
}

fn abort(number: u64, id: u8) -> Input {
    Input::Abort { request: request(number), move_id: move_id(id) }
}

fn to_server2(number: u64) -> Opening {
    opening(point("server1", number - 1, 7), number, Some(principal("server2")))
}

fn outputs(source: &mut Source) -> Vec<Output> {
    std::iter::from_fn(|| source.poll_output()).collect()
}

/// Feeds an input and does every write; gives the answers.
fn settle(source: &mut Source, input: Input) -> Vec<Reply> {
    source.handle(input);
    let mut replies = Vec::new();
    while let Some(output) = source.poll_output() {
        match output {
            Output::Persist { ticket, row } => {
                let read =
                    Source::from_bytes(session(), principal("server1"), &row, Limits::default()).unwrap();
                assert_eq!(read.to_bytes(), row, "a row reads back to itself");
                source.handle(Input::Persisted { ticket });
                assert_eq!(read.standing(), source.standing());
            }
            Output::Answer { reply, .. } => replies.push(reply),
            Output::EndTurn { .. } => {}
        }
    }
    replies
}

fn code(replies: &[Reply]) -> Code {
    let [Err(reject)] = replies else { panic!("expected one refusal, got {replies:?}") };
    reject.code
}

#[test]
fn nothing_is_answered_or_appended_while_the_freeze_is_being_written() {
    let mut source = source();
    assert_eq!(source.permit(), Ok(epoch(0)));
    source.handle(freeze(1, 1));
    let [Output::Persist { ticket, .. }] = outputs(&mut source)[..] else { panic!("a write first") };
    assert_eq!(source.permit().unwrap_err().code, Code::Frozen);
    source.handle(Input::Persisted { ticket });
    let frozen = Answer::Frozen { epoch: epoch(0), head: point("server1", 0, 7), move_id: move_id(1) };
    assert_eq!(outputs(&mut source), [Output::Answer { request: request(1), reply: Ok(frozen) }]);
    assert_eq!(source.permit().unwrap_err().code, Code::Frozen);
}

#[test]
fn a_running_turn_ends_first() {
    let mut source = source();
    let turn = Turn::Running;
    source.handle(Input::Freeze { request: request(1), move_id: move_id(1), epoch: epoch(0), turn });
    let active = Answer::Active { epoch: epoch(0), receipt: None };
    assert_eq!(
        outputs(&mut source),
        [Output::EndTurn { move_id: move_id(1) }, Output::Answer { request: request(1), reply: Ok(active) },]
    );
    // The turn's entries still go in; no other turn begins.
    assert_eq!(source.permit(), Ok(epoch(0)));
    assert_eq!(source.permit_turn().unwrap_err().code, Code::Frozen);
    settle(&mut source, abort(2, 1));
    assert_eq!(source.permit_turn(), Ok(epoch(0)));
}

#[test]
fn only_the_same_move_thaws_and_a_late_freeze_of_it_does_nothing() {
    let mut source = source();
    settle(&mut source, freeze(1, 1));
    assert_eq!(code(&settle(&mut source, freeze(2, 2))), Code::Frozen);
    assert_eq!(code(&settle(&mut source, abort(3, 2))), Code::MoveState);
    assert_eq!(source.permit().unwrap_err().code, Code::Frozen);
    settle(&mut source, abort(4, 1));
    assert_eq!(source.permit(), Ok(epoch(0)));
    assert_eq!(code(&settle(&mut source, freeze(5, 1))), Code::MoveState);
    assert_eq!(source.permit(), Ok(epoch(0)));
}

#[test]
fn an_abort_that_overtakes_its_freeze_wins() {
    let mut source = source();
    settle(&mut source, abort(1, 1));
    assert_eq!(code(&settle(&mut source, freeze(2, 1))), Code::MoveState);
    assert_eq!(source.permit(), Ok(epoch(0)));
}

#[test]
fn an_opening_learned_from_anybody_ends_the_right_for_good() {
    let mut source = source();
    settle(&mut source, freeze(1, 1));
    source.handle(Input::Learned { opening: to_server2(1) });
    assert_eq!(source.permit().unwrap_err().code, Code::Retired, "at once, before it is written");
    settle(&mut source, Input::Status { request: request(2) });
    let replies = settle(&mut source, abort(3, 1));
    assert!(matches!(replies[..], [Ok(Answer::Retired { .. })]), "{replies:?}");
    assert_eq!(source.permit().unwrap_err().code, Code::Retired);
    assert!(!source.is_released(), "nobody acknowledged it: the bytes stay");
}

#[test]
fn it_is_released_by_the_receipt_of_the_holder_that_the_handoff_names() {
    let mut source = source();
    let opening = to_server2(1);
    let retire =
        |number, receipt| Input::Retire { request: request(number), opening: to_server2(1), receipt };
    let foreign = Some(receipt("stranger", &opening));
    assert_eq!(code(&settle(&mut source, retire(1, foreign))), Code::RefMismatch);
    assert_eq!(source.permit(), Ok(epoch(0)), "a message that does not fit changes nothing");
    settle(&mut source, Input::Learned { opening: to_server2(1) });
    let replies = settle(&mut source, retire(2, Some(receipt("server2", &opening))));
    assert!(matches!(replies[..], [Ok(Answer::Retired { .. })]), "{replies:?}");
    assert!(source.is_released());
}

#[test]
fn the_later_epoch_wins_and_an_earlier_one_changes_nothing() {
    let mut source = source();
    settle(&mut source, Input::Learned { opening: to_server2(2) });
    settle(&mut source, Input::Learned { opening: to_server2(1) });
    assert_eq!(source.epoch(), epoch(2));
    // Handed back in epoch 3: adopted by the target of this server, which says so.
    let back = opening(point("server2", 2, 9), 3, Some(principal("server1")));
    settle(&mut source, Input::Learned { opening: back.clone() });
    assert_eq!(source.permit().unwrap_err().code, Code::Retired, "not before it is adopted");
    settle(&mut source, Input::Adopted { opening: back });
    assert_eq!(source.permit(), Ok(epoch(3)));
    assert_eq!(code(&settle(&mut source, freeze(1, 1))), Code::EpochOld);
    let stale = Input::Retire { request: request(2), opening: to_server2(2), receipt: None };
    assert_eq!(code(&settle(&mut source, stale)), Code::EpochOld);
    assert_eq!(source.permit(), Ok(epoch(3)));
}

#[test]
fn an_opening_that_names_another_server_is_never_adopted_here() {
    let mut source = source();
    settle(&mut source, Input::Adopted { opening: to_server2(1) });
    assert_eq!(source.permit(), Ok(epoch(0)));
}

#[test]
fn after_a_failed_write_nothing_is_promised() {
    let mut source = source();
    source.handle(freeze(1, 1));
    let [Output::Persist { ticket, .. }] = outputs(&mut source)[..] else { panic!("a write first") };
    source.handle(Input::PersistFailed { ticket });
    let [Output::Answer { reply: Err(reject), .. }] = &outputs(&mut source)[..] else { panic!("an error") };
    assert_eq!(reject.code, Code::StoreIo);
    assert_eq!(source.permit().unwrap_err().code, Code::StoreReadOnly);
    assert_eq!(code(&settle(&mut source, abort(2, 1))), Code::StoreReadOnly);
}

#[test]
fn what_waits_is_bounded_and_an_opening_is_never_lost() {
    let mut source = source();
    source.handle(freeze(0, 1));
    let max = u64::try_from(Limits::default().waiting_max).unwrap();
    (1..=max + 1).for_each(|number| source.handle(Input::Status { request: request(number) }));
    source.handle(Input::Retire { request: request(99), opening: to_server2(1), receipt: None });
    let told = outputs(&mut source);
    let quota = told.iter().filter(
        |output| matches!(output, Output::Answer { reply: Err(reject), .. } if reject.code == Code::Quota),
    );
    assert_eq!(quota.count(), 2);
    let Some(Output::Persist { ticket, .. }) = told.first() else { panic!("a write first") };
    settle(&mut source, Input::Persisted { ticket: *ticket });
    assert_eq!(source.epoch(), epoch(1));
    source.handle(Input::Persisted { ticket: Ticket(77) });
    assert_eq!(source.dropped(), 1);
}

#[test]
fn aborted_moves_are_remembered_up_to_the_limit() {
    let mut source = source();
    (0..=40).for_each(|id| drop(settle(&mut source, abort(u64::from(id), id))));
    assert_eq!(code(&settle(&mut source, freeze(100, 40))), Code::MoveState);
    // The oldest is forgotten; freezing for it is then a new move.
    assert!(matches!(settle(&mut source, freeze(101, 0))[..], [Ok(Answer::Frozen { .. })]));
}

#[test]
fn a_damaged_row_is_named() {
    let me = principal("server1");
    let mut row = source().to_bytes();
    row.pop();
    let reject = Source::from_bytes(session(), me, &row, Limits::default()).unwrap_err();
    assert_eq!(reject.code, Code::StoreCorrupt);
}
