//! The policy, case by case; then random inputs against what must always hold.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn peer(number: u8) -> PeerKey {
    Principal::from_key([number; 32])
}

fn session(number: u8) -> SessionId {
    SessionId::of_genesis(head(number))
}

fn head(number: u8) -> EntryCid {
    EntryCid::from_digest([number; 32])
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn hint(engine: &mut Engine, number: u8, standing: Standing, scope: Scope) -> Vec<Output> {
    engine.handle(at(0), Input::Hint { peer: peer(number), standing, scope });
    outputs(engine)
}

fn end(engine: &mut Engine, now: Duration, number: u8, end: End) -> Vec<Output> {
    engine.handle(now, Input::Compared { peer: peer(number), end });
    outputs(engine)
}

fn outputs(engine: &mut Engine) -> Vec<Output> {
    let outputs = std::iter::from_fn(|| engine.poll_output()).collect();
    invariants(engine);
    outputs
}

fn compare(number: u8, scope: Scope) -> Output {
    Output::Compare { peer: peer(number), scope }
}

/// What holds after every step.
fn invariants(engine: &Engine) {
    let limits = &engine.limits;
    let running: Vec<Standing> = engine
        .peers
        .values()
        .filter_map(|peer| match peer.state {
            State::Running(_, standing) => Some(standing),
            State::Queued | State::Pausing(_) => None,
        })
        .collect();
    let count = |of: Standing| running.iter().filter(|standing| **standing == of).count();
    let most = |of: Standing| match of {
        Standing::Known(_) => limits.places_of_one,
        Standing::Stranger => limits.places_of_strangers,
    };
    assert_eq!(engine.running.len(), running.len(), "places");
    for standing in &running {
        let held = engine.running.iter().filter(|held| *held == standing).count();
        assert_eq!(held, count(*standing), "places");
        assert!(held <= most(*standing));
    }
    assert!(running.len() <= limits.places);
    assert!(engine.peers.len() <= limits.peers_max && engine.busy.len() <= limits.busy_max);
    let queued: BTreeSet<PeerKey> = engine.queue.iter().copied().collect();
    assert_eq!(queued.len(), engine.queue.len(), "a peer waits twice");
    for (key, peer) in &engine.peers {
        assert_eq!(queued.contains(key), peer.state == State::Queued);
        assert!(peer.next.is_some() || matches!(peer.state, State::Running(..)), "nothing goes on");
    }
    assert!(queued.iter().all(|key| engine.peers.contains_key(key)));
    // Nobody waits for a place that is free.
    for key in &engine.queue {
        let standing = engine.peers[key].standing;
        let is_free = running.len() < limits.places && count(standing) < most(standing);
        assert!(!is_free, "{standing:?} waits for nothing");
    }
}

/// A known peer that proved no other principal than its key.
fn known(number: u8) -> Standing {
    Standing::Known(peer(number))
}

#[test]
fn one_comparison_with_a_peer_runs_and_one_waits() {
    let mut engine = Engine::new(Limits::default());
    let known = known(1);
    assert_eq!(hint(&mut engine, 1, known, Scope::All), [compare(1, Scope::All)]);
    let one = Scope::Session(session(1));
    assert_eq!(hint(&mut engine, 1, known, one), []);
    assert_eq!(hint(&mut engine, 1, known, one), []);
    assert_eq!(end(&mut engine, at(0), 1, End::Done), [compare(1, one)]);
    // Two different things wait: everything covers both.
    assert_eq!(hint(&mut engine, 1, known, one), []);
    assert_eq!(hint(&mut engine, 1, known, Scope::Session(session(2))), []);
    assert_eq!(end(&mut engine, at(0), 1, End::Done), [compare(1, Scope::All)]);
    assert_eq!(end(&mut engine, at(0), 1, End::Done), []);
    assert_eq!(end(&mut engine, at(0), 1, End::Done), [], "it was answered already");
}

#[test]
fn strangers_leave_places_for_known_peers() {
    let limits = Limits { places: 4, places_of_strangers: 3, places_of_one: 3, ..Limits::default() };
    let mut engine = Engine::new(limits);
    for number in 1..=3 {
        assert_eq!(hint(&mut engine, number, Standing::Stranger, Scope::All), [compare(number, Scope::All)]);
    }
    assert_eq!(hint(&mut engine, 4, Standing::Stranger, Scope::All), []);
    assert_eq!(hint(&mut engine, 5, known(5), Scope::All), [compare(5, Scope::All)]);
    assert_eq!(hint(&mut engine, 6, known(6), Scope::All), [], "all places are taken");
    // Whose turn it is has its place when one is free that it may have.
    assert_eq!(end(&mut engine, at(0), 5, End::Done), [compare(6, Scope::All)]);
    assert_eq!(end(&mut engine, at(0), 1, End::Done), [compare(4, Scope::All)]);
    // One that proves who it is while it waits does not wait among strangers any longer.
    assert_eq!(hint(&mut engine, 7, Standing::Stranger, Scope::All), []);
    assert_eq!(end(&mut engine, at(0), 6, End::Done), []);
    assert_eq!(hint(&mut engine, 7, known(7), Scope::All), [compare(7, Scope::All)]);
}

#[test]
fn one_party_with_many_keys_leaves_places_for_others() {
    let mut engine = Engine::new(Limits { places: 3, places_of_one: 2, ..Limits::default() });
    let party = Standing::Known(peer(100));
    for number in [1, 2] {
        assert_eq!(hint(&mut engine, number, party, Scope::All), [compare(number, Scope::All)]);
    }
    assert_eq!(hint(&mut engine, 3, party, Scope::All), []);
    assert_eq!(hint(&mut engine, 4, known(4), Scope::All), [compare(4, Scope::All)]);
    assert_eq!(end(&mut engine, at(0), 4, End::Done), [], "it waits for its own");
    assert_eq!(end(&mut engine, at(0), 1, End::Done), [compare(3, Scope::All)]);
}

#[test]
fn known_peers_are_asked_before_strangers_when_a_transfer_has_ended() {
    let mut engine = Engine::new(Limits::default());
    for (number, standing) in [(1, Standing::Stranger), (2, known(2)), (3, Standing::Stranger), (4, known(4))]
    {
        engine.handle(at(0), Input::Busy { peer: peer(number), standing, session: session(1) });
    }
    engine.handle(at(0), Input::Settled { session: session(1) });
    let one = Scope::Session(session(1));
    assert_eq!(outputs(&mut engine), [2, 4, 1, 3].map(|number| compare(number, one)));
}

#[test]
fn what_may_pass_is_tried_again_after_a_pause_that_doubles_and_not_for_ever() {
    let mut engine = Engine::new(Limits::default());
    hint(&mut engine, 1, known(1), Scope::All);
    let mut now = at(0);
    for pause in [100, 200, 400] {
        assert_eq!(end(&mut engine, now, 1, End::MayPass), []);
        assert_eq!(engine.poll_timeout(), Some(now + at(pause)));
        engine.handle(now + at(pause - 1), Input::Tick);
        assert_eq!(outputs(&mut engine), []);
        now += at(pause);
        engine.handle(now, Input::Tick);
        assert_eq!(outputs(&mut engine), [compare(1, Scope::All)]);
    }
    assert_eq!(end(&mut engine, now, 1, End::MayPass), []);
    assert_eq!(engine.poll_timeout(), None);
    assert_eq!(hint(&mut engine, 1, known(1), Scope::All), [compare(1, Scope::All)]);
}

#[test]
fn a_pause_holds_no_place_and_keeps_what_was_hinted_meanwhile() {
    let mut engine = Engine::new(Limits { places: 1, places_of_one: 1, ..Limits::default() });
    let one = Scope::Session(session(1));
    hint(&mut engine, 1, known(1), one);
    assert_eq!(hint(&mut engine, 2, known(2), one), []);
    assert_eq!(end(&mut engine, at(0), 1, End::MayPass), [compare(2, one)]);
    assert_eq!(hint(&mut engine, 1, known(1), Scope::Session(session(2))), []);
    assert_eq!(end(&mut engine, at(50), 2, End::Done), []);
    engine.handle(at(100), Input::Tick);
    assert_eq!(outputs(&mut engine), [compare(1, Scope::All)]);
}

#[test]
fn who_had_news_of_a_session_that_was_being_fetched_is_asked_when_that_is_done() {
    let mut engine = Engine::new(Limits::default());
    for number in [1, 2, 3] {
        let busy = Input::Busy { peer: peer(number), standing: known(number), session: session(1) };
        engine.handle(at(0), busy);
    }
    engine.handle(at(0), Input::Left { peer: peer(3) });
    engine.handle(at(0), Input::Settled { session: session(2) });
    assert_eq!(outputs(&mut engine), []);
    engine.handle(at(0), Input::Settled { session: session(1) });
    let one = Scope::Session(session(1));
    assert_eq!(outputs(&mut engine), [compare(1, one), compare(2, one)]);
    engine.handle(at(0), Input::Settled { session: session(1) });
    assert_eq!(outputs(&mut engine), [], "once");
}

#[test]
fn nothing_is_begun_with_a_peer_that_left() {
    let mut engine = Engine::new(Limits { places: 1, places_of_one: 1, ..Limits::default() });
    hint(&mut engine, 1, known(1), Scope::All);
    hint(&mut engine, 1, known(1), Scope::All);
    hint(&mut engine, 2, known(2), Scope::All);
    engine.handle(at(0), Input::Left { peer: peer(1) });
    engine.handle(at(0), Input::Left { peer: peer(2) });
    assert_eq!(end(&mut engine, at(0), 1, End::MayPass), []);
    assert_eq!((engine.poll_timeout(), engine.peers.len()), (None, 0));
}

#[test]
fn claims_that_come_to_nothing_are_left_and_charged_when_somebody_is_to_blame() {
    let mut engine = Engine::new(Limits::default());
    let who = (peer(1), known(1));
    let failed = |engine: &mut Engine, number: u8, fault| {
        let (peer, standing) = who;
        let (session, head) = (session(number), head(number));
        engine.handle(at(0), Input::Failed { peer, standing, session, head, fault });
        outputs(engine)
    };
    assert_eq!(engine.weigh(at(0), who, session(1), head(1)), Weight::Fetch);
    for number in 1..=3 {
        assert_eq!(failed(&mut engine, number, Some(Code::SyncUnsolicited)), []);
    }
    assert_eq!(engine.weigh(at(0), who, session(9), head(9)), Weight::Leave);
    assert_eq!(failed(&mut engine, 4, None), [], "nobody is to blame");
    let charge = Output::Charge { peer: peer(1), code: Code::SyncUnsolicited };
    assert_eq!(failed(&mut engine, 5, Some(Code::SyncUnsolicited)), [charge]);
    engine.handle(at(0), Input::Kept { peer: peer(1) });
    assert_eq!(engine.weigh(at(0), who, session(1), head(1)), Weight::Fetch);
}

#[derive(Clone, Debug)]
enum Act {
    Hint(u8, Standing, Scope),
    Left(u8),
    Busy(u8, Standing, u8),
    Settled(u8),
    /// Ends the n-th comparison under way.
    End(usize, End),
    /// Ends one that is not.
    Stray(u8),
    Wait(u64),
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![(40..44_u8).prop_map(known), Just(Standing::Stranger)]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let scope = prop_oneof![Just(Scope::All), (0..4_u8).prop_map(|number| Scope::Session(session(number)))];
    let how = prop_oneof![Just(End::Done), Just(End::MayPass)];
    let act = prop_oneof![
        6 => (0..9_u8, standing(), scope).prop_map(|(peer, standing, scope)| Act::Hint(peer, standing, scope)),
        1 => (0..9_u8).prop_map(Act::Left),
        2 => (0..9_u8, standing(), 0..4_u8).prop_map(|(peer, standing, of)| Act::Busy(peer, standing, of)),
        1 => (0..4_u8).prop_map(Act::Settled),
        8 => (any::<usize>(), how).prop_map(|(at, how)| Act::End(at, how)),
        1 => (0..9_u8).prop_map(Act::Stray),
        2 => (0..500_u64).prop_map(Act::Wait),
    ];
    prop::collection::vec(act, 0..150)
}

/// Runs the comparisons that the engine asks for, and knows what was hinted and not compared since.
struct Script {
    engine: Engine,
    now: Duration,
    running: Vec<PeerKey>,
    /// What was hinted and is owed a comparison that begins later.
    owed: BTreeMap<PeerKey, Vec<Scope>>,
}

impl Script {
    fn new() -> Self {
        let limits = Limits { places: 3, places_of_strangers: 2, places_of_one: 2, ..Limits::default() };
        Script {
            engine: Engine::new(limits),
            now: Duration::ZERO,
            running: Vec::new(),
            owed: BTreeMap::new(),
        }
    }

    fn run(&mut self, act: &Act) {
        let input = match *act {
            Act::Hint(number, standing, scope) => {
                self.owed.entry(peer(number)).or_default().push(scope);
                Input::Hint { peer: peer(number), standing, scope }
            }
            Act::Left(number) => {
                self.owed.remove(&peer(number));
                Input::Left { peer: peer(number) }
            }
            Act::Busy(number, standing, of) => {
                Input::Busy { peer: peer(number), standing, session: session(of) }
            }
            Act::Settled(of) => {
                let waiting = self.engine.busy.keys().filter(|(id, _)| *id == session(of));
                for (_, key) in waiting {
                    self.owed.entry(*key).or_default().push(Scope::Session(session(of)));
                }
                Input::Settled { session: session(of) }
            }
            Act::End(at, end) if !self.running.is_empty() => {
                let at = at % self.running.len();
                Input::Compared { peer: self.running.swap_remove(at), end }
            }
            Act::Stray(number) if !self.running.contains(&peer(number)) => {
                Input::Compared { peer: peer(number), end: End::MayPass }
            }
            Act::End(..) | Act::Stray(_) => Input::Tick,
            Act::Wait(millis) => {
                self.now += at(millis);
                Input::Tick
            }
        };
        self.engine.handle(self.now, input);
        self.perform();
    }

    fn perform(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            let Output::Compare { peer, scope } = output else { panic!("{output:?}") };
            assert!(!self.running.contains(&peer), "two comparisons with one peer");
            self.running.push(peer);
            let owed = self.owed.remove(&peer).unwrap_or_default();
            assert!(owed.iter().all(|owed| scope == Scope::All || scope == *owed), "{owed:?} by {scope:?}");
        }
        invariants(&self.engine);
    }
}

proptest! {
    /// Whatever happens, every hint of a peer that stays is followed by a comparison that covers it; then all is quiet.
    #[test]
    fn no_hint_is_lost(acts in acts()) {
        let mut script = Script::new();
        acts.iter().for_each(|act| script.run(act));
        for _ in 0..2_000 {
            if !script.running.is_empty() {
                script.run(&Act::End(0, End::Done));
            } else if let Some(due) = script.engine.poll_timeout() {
                script.now = script.now.max(due);
                script.run(&Act::Wait(0));
            } else {
                break;
            }
        }
        prop_assert_eq!(&script.owed, &BTreeMap::new());
        prop_assert_eq!((script.engine.peers.len(), script.running.len()), (0, 0));
    }

    /// Strangers that never let go of their places do not keep a known peer from being compared.
    #[test]
    fn slow_strangers_stop_no_known_peer(acts in acts(), number in 20..30_u8) {
        let mut script = Script::new();
        for act in &acts {
            let is_of_strangers = matches!(
                act,
                Act::Hint(_, Standing::Stranger, _) | Act::Busy(_, Standing::Stranger, _)
                    | Act::Left(_) | Act::Settled(_) | Act::Wait(_)
            );
            if is_of_strangers { script.run(act) }
        }
        script.run(&Act::Hint(number, known(number), Scope::All));
        prop_assert!(script.running.contains(&peer(number)));
    }
}
