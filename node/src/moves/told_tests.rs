use std::time::Duration;

use serde_json::json;
use throughline_protocol::handoff::Limits;
use throughline_protocol::handoff::driver::{Confirmation, Input, Origin, Outcome, Output, Plan};
use throughline_protocol::id::{EntryCid, Epoch, Principal};
use throughline_protocol::testing;

use super::*;

fn key(name: &str) -> Principal {
    testing::key(name).principal()
}

fn driver() -> Driver {
    let plan = Plan {
        move_id: MoveId::from_bytes([5; 16]),
        session: SessionId::of_genesis(EntryCid::from_digest([3; 32])),
        epoch: Epoch::ZERO,
        origin: Origin::Online(key("a")),
        target: key("b"),
        peers: Vec::new(),
        held: None,
        told: None,
    };
    let mut driver = Driver::new(Duration::ZERO, plan, Limits::default());
    settle(&mut driver);
    driver
}

/// Everything that it wants written is written, and nobody is asked.
fn settle(driver: &mut Driver) {
    while let Some(output) = driver.poll_output() {
        if let Output::Persist { ticket, .. } = output {
            driver.handle(Duration::ZERO, Input::Persisted { ticket });
        }
    }
}

/// A move of which nothing was drawn in, so that its end needs nobody.
fn ended() -> Driver {
    let mut driver = driver();
    driver.abort(Duration::ZERO).unwrap();
    settle(&mut driver);
    assert_eq!(driver.outcome(), Some(&Outcome::Aborted { source: Confirmation::Confirmed }));
    driver
}

fn rolling_back() -> Driver {
    let mut driver = driver();
    let bytes = driver.to_bytes();
    driver = Driver::from_bytes(Duration::ZERO, &bytes, Limits::default()).unwrap();
    let mut granted = None;
    while let Some(output) = driver.poll_output() {
        if let Output::NeedGrant { request, .. } = output {
            granted = Some(request);
        }
    }
    let request = granted.expect("a driver asks for the grant first");
    driver.handle(Duration::ZERO, Input::Granted { request, result: Ok(None) });
    settle(&mut driver);
    driver.abort(Duration::ZERO).unwrap();
    settle(&mut driver);
    assert_eq!((driver.phase(), driver.outcome()), (Phase::RollBack, None));
    driver
}

fn names() -> Names {
    Names { from: Some("server-a".to_owned()), to: "server-b".to_owned() }
}

fn halted(why: Halt) -> Course {
    Course::Halted(Halted { why, from: Some("server-a".to_owned()), to: "server-b".to_owned() })
}

#[test]
fn the_state_of_the_driver_decides_where_a_move_stands() {
    let refused = Outcome::RolledBack { cause: Reject::from(Code::Frozen), source: Confirmation::Confirmed };
    let waiting = |code| State::Waiting(Reject::from(code));
    let asks = || State::NeedsConfirmation("why".to_owned());
    let cases = [
        (driver(), State::Running, Course::UnderWay),
        (driver(), asks(), halted(Halt::NeedsConfirmation)),
        (driver(), State::NeedsHandoff(json!({})), halted(Halt::NeedsHandoff)),
        (driver(), waiting(Code::Timeout), halted(Halt::Waiting(Code::Timeout))),
        (driver(), State::Ended(refused.clone()), Course::Over),
        (rolling_back(), State::Running, halted(Halt::RollingBack(Code::Unreachable))),
        (rolling_back(), waiting(Code::Timeout), halted(Halt::RollingBack(Code::Timeout))),
        (rolling_back(), State::Ended(refused), Course::Over),
    ];
    for (driver, state, course) in cases {
        let mut progress = Progress::new();
        progress.state = state;
        let told = Told::of(&driver, &progress, &names());
        assert_eq!(told.course(), course, "{:#}", told.object());
        let is_over = course == Course::Over;
        assert_eq!(told.is_over(), is_over);
        assert_eq!(told.is_rolling_back(), !is_over && driver.phase() == Phase::RollBack);
    }
}

/// Every word that a decision could rest on says something else than the state.
#[test]
fn the_words_that_are_shown_decide_nothing() {
    let words = [
        "running",
        "waiting",
        "needs-handoff",
        "done",
        "aborted",
        "rolled-back",
        "words of another language",
    ];
    let phases = ["rollback", "freeze", "handoff", "finished", "words of another language"];
    let lies = words.iter().flat_map(|state| phases.iter().map(move |phase| (*state, *phase)));
    for (state, phase) in lies {
        let earlier = || {
            json!({
                "state": state, "phase": phase, "error": {"code": "E_SEALED"},
                "from": {"peer": "server-a"}, "to": {"peer": "server-b"},
            })
        };
        let told = Told::parked(&driver(), earlier(), Some(Code::StoreIo));
        assert_eq!(told.course(), halted(Halt::Waiting(Code::StoreIo)), "{state} {phase}");
        assert_eq!((&told.object()["state"], &told.object()["phase"]), (&json!("waiting"), &json!(phase)));

        let told = Told::parked(&rolling_back(), earlier(), None);
        assert_eq!(told.course(), halted(Halt::RollingBack(Code::Unreachable)), "{state} {phase}");
        assert!(told.is_rolling_back() && !told.is_over() && !told.is_running());

        let told = Told::parked(&ended(), earlier(), None);
        assert_eq!(told.course(), Course::Over, "{state} {phase}");
        assert!(told.is_over() && !told.is_rolling_back());
        assert_eq!((&told.object()["state"], &told.object()["error"]), (&json!("aborted"), &json!(null)));

        // A word of a running move changes nothing either.
        let mut told = Told::of(&driver(), &Progress::new(), &names());
        told.object = earlier();
        assert_eq!((told.course(), told.is_running()), (Course::UnderWay, true));
    }
}
