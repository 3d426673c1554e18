//! The policy, case by case; then random inputs against the invariants.

use proptest::prelude::*;

use super::super::super::range::Charged;
use super::*;
use crate::id::{Epoch, Seq};

fn peer(number: u8) -> PeerKey {
    Principal::from_key([number; 32])
}

fn owner(number: u8) -> Principal {
    Principal::from_key([100 + number; 32])
}

fn session(number: u8) -> SessionId {
    SessionId::of_genesis(EntryCid::of(&[number]))
}

fn head(branch: u8, epoch: u64, seq: u64) -> Head {
    let cid = EntryCid::of(format!("{branch} {epoch} {seq}").as_bytes());
    Head { point: Point { cid, seq: Seq::new(seq).unwrap() }, epoch: Epoch::new(epoch).unwrap() }
}

fn digest(number: u8) -> ControlDigest {
    ControlDigest { count: u64::from(number), digest: [number; 32] }
}

fn failure(code: Code, charged: Charged) -> Failure {
    Failure { reject: code.into(), charged }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// An engine that follows session 1 and is connected to the first `peers` peers, which were asked for their heads.
fn engine(limits: Limits, peers: u8) -> Engine {
    let mut engine = Engine::new(limits);
    follow(&mut engine, 1, None);
    for number in 1..=peers {
        engine.handle(at(0), Input::PeerUp { peer: peer(number) });
    }
    for output in outputs(&mut engine) {
        if let Output::AskHeads { request, .. } = output {
            engine.handle(at(0), Input::HeadsEnded { request });
        }
    }
    engine
}

fn follow(engine: &mut Engine, number: u8, held: Option<Head>) {
    let input = Input::Follow { session: session(number), owner: owner(1), interest: Interest::Pinned, held };
    engine.handle(at(0), input);
}

fn outputs(engine: &mut Engine) -> Vec<Output> {
    let outputs = std::iter::from_fn(|| engine.poll_output()).collect();
    invariants(engine);
    outputs
}

fn tell(engine: &mut Engine, now: Duration, from: u8, of: u8, head: Head) -> Vec<Output> {
    engine.handle(now, Input::HeadSeen { peer: peer(from), session: session(of), head });
    outputs(engine)
}

fn ranges(outputs: &[Output]) -> Vec<(RequestId, PeerKey, Option<Point>)> {
    let range = |output: &Output| {
        let Output::FetchRange { request, peer, resume, .. } = output else { return None };
        Some((*request, *peer, *resume))
    };
    outputs.iter().filter_map(range).collect()
}

fn charges(outputs: &[Output]) -> Vec<(PeerKey, Code)> {
    let charge = |output: &Output| {
        let Output::Charge { peer, code } = output else { return None };
        Some((*peer, *code))
    };
    outputs.iter().filter_map(charge).collect()
}

/// What holds after every step.
fn invariants(engine: &Engine) {
    let limits = &engine.limits;
    assert!(engine.peers.len() <= limits.peers_max && engine.sessions.len() <= limits.sessions_max);
    assert!(engine.ranges.len() <= limits.ranges_max, "too many ranges");
    let under_way: Vec<(&SessionId, &Range)> =
        engine.sessions.iter().filter_map(|(id, session)| Some((id, session.range.as_ref()?))).collect();
    assert_eq!(under_way.len(), engine.ranges.len(), "a range without a session, or two of one session");
    for (id, range) in &under_way {
        assert_eq!(engine.ranges.get(&range.request), Some(*id));
    }
    for (key, peer) in &engine.peers {
        let running = |range: &Range| range.peer == *key && range.arrival == Arrival::Running;
        let count = under_way.iter().filter(|(_, range)| running(range)).count();
        assert_eq!(peer.ranges, count, "slots of a peer");
        assert!(count <= limits.peer_ranges_max, "too many ranges of one peer");
    }
    for session in engine.sessions.values() {
        assert!(session.told.len() <= limits.tellers_max && session.refused.len() <= limits.refused_max);
        assert!(session.told.keys().all(|peer| engine.peers.contains_key(peer)));
        assert!(engine.owners.contains_key(&session.owner));
    }
    for owner in engine.owners.values() {
        assert!(owner.told.len() <= limits.tellers_max && owner.fetched.len() <= owner.told.len());
    }
    assert!(engine.ready.iter().all(|id| engine.sessions.contains_key(id)));
}

#[test]
fn nothing_is_fetched_that_is_not_followed() {
    let mut engine = engine(Limits::default(), 1);
    assert_eq!(tell(&mut engine, at(1), 1, 9, head(0, 0, 5)), []);
    assert_eq!(engine.dropped(), 1);
    engine.handle(at(1), Input::ControlSeen { peer: peer(1), owner: owner(9), told: digest(1) });
    assert_eq!(outputs(&mut engine), []);
}

#[test]
fn a_new_head_is_fetched_checked_adopted_and_reported() {
    let mut engine = engine(Limits::default(), 1);
    let want = head(0, 0, 9);
    let started = tell(&mut engine, at(1), 1, 1, want);
    let [(request, from, None)] = ranges(&started)[..] else { panic!("{started:?}") };
    assert_eq!(from, peer(1));
    let part = head(0, 0, 4).point;
    engine.handle(at(2), Input::Staged { request, through: part, bytes: 10 });
    assert_eq!(outputs(&mut engine), [Output::Check { request, session: session(1), through: part }]);
    // The next piece arrives while the first is verified, and is verified while the first is adopted.
    engine.handle(at(2), Input::Staged { request, through: want.point, bytes: 10 });
    assert_eq!(outputs(&mut engine), []);
    engine.handle(at(2), Input::Checked { request, result: Ok(part) });
    let both = outputs(&mut engine);
    assert_eq!(
        both,
        [
            Output::Check { request, session: session(1), through: want.point },
            Output::Adopt { request, session: session(1), through: part },
        ]
    );
    engine.handle(at(2), Input::RangeEnded { request, result: Ok(()) });
    engine.handle(at(2), Input::Checked { request, result: Ok(want.point) });
    assert_eq!(outputs(&mut engine), []);
    engine.handle(at(3), Input::Adopted { request, result: Ok(head(0, 0, 4)) });
    let moved = outputs(&mut engine);
    assert!(
        moved.contains(&Output::Adopt { request, session: session(1), through: want.point }),
        "{moved:?}"
    );
    engine.handle(at(3), Input::Adopted { request, result: Ok(want) });
    let done = outputs(&mut engine);
    assert!(done.contains(&Output::Event(Event::CaughtUp { session: session(1), head: want })), "{done:?}");
    assert_eq!(tell(&mut engine, at(4), 1, 1, want), []);
}

#[test]
fn a_head_that_is_no_news_is_not_fetched_and_a_fork_is() {
    let mut engine = Engine::new(Limits::default());
    follow(&mut engine, 1, Some(head(0, 1, 9)));
    engine.handle(at(0), Input::PeerUp { peer: peer(1) });
    outputs(&mut engine);
    for old in [head(0, 1, 9), head(0, 1, 8), head(0, 0, 99)] {
        assert_eq!(ranges(&tell(&mut engine, at(1), 1, 1, old)), []);
    }
    assert_eq!(ranges(&tell(&mut engine, at(1), 1, 1, head(7, 1, 9))).len(), 1);
}

#[test]
fn a_difference_in_control_blobs_is_fetched_before_the_range_and_once() {
    let mut engine = engine(Limits::default(), 1);
    engine.handle(at(1), Input::ControlHeld { owner: owner(1), held: digest(1) });
    engine.handle(at(1), Input::ControlSeen { peer: peer(1), owner: owner(1), told: digest(2) });
    let started = tell(&mut engine, at(1), 1, 1, head(0, 0, 5));
    let [Output::FetchControl { request, .. }] = started[..] else { panic!("{started:?}") };
    // It fails; that does not hold the entries up for ever.
    let result = Err(failure(Code::Unreachable, Charged::Nobody));
    engine.handle(at(2), Input::ControlEnded { request, result });
    let then = outputs(&mut engine);
    assert_eq!(ranges(&then).len(), 1, "{then:?}");
    // Equal digests need no fetch.
    let mut other = super::tests::engine(Limits::default(), 1);
    other.handle(at(1), Input::ControlHeld { owner: owner(1), held: digest(2) });
    other.handle(at(1), Input::ControlSeen { peer: peer(1), owner: owner(1), told: digest(2) });
    assert_eq!(ranges(&tell(&mut other, at(1), 1, 1, head(0, 0, 5))).len(), 1);
}

#[test]
fn a_broken_transfer_goes_on_at_the_last_verified_entry_from_another_peer() {
    let mut engine = engine(Limits::default(), 2);
    let want = head(0, 0, 9);
    let started = tell(&mut engine, at(1), 1, 1, want);
    let [(request, first, _)] = ranges(&started)[..] else { panic!("{started:?}") };
    tell(&mut engine, at(1), 2, 1, want);
    let part = head(0, 0, 4).point;
    engine.handle(at(1), Input::Staged { request, through: part, bytes: 1 });
    engine.handle(at(1), Input::Checked { request, result: Ok(part) });
    engine.handle(at(1), Input::PeerDown { peer: first });
    let then = outputs(&mut engine);
    let [(_, second, resume)] = ranges(&then)[..] else { panic!("{then:?}") };
    assert_eq!((second, resume), (peer(2), Some(part)));
    assert_eq!(charges(&then), []);
}

#[test]
fn a_lying_sender_is_charged_and_shunned_and_another_peer_goes_on() {
    let mut engine = engine(Limits::default(), 2);
    let want = head(0, 0, 9);
    let started = tell(&mut engine, at(1), 1, 1, want);
    let [(request, ..)] = ranges(&started)[..] else { panic!("{started:?}") };
    let result = Err(failure(Code::SyncUnsolicited, Charged::Sender));
    engine.handle(at(1), Input::RangeEnded { request, result });
    assert_eq!(charges(&outputs(&mut engine)), [(peer(1), Code::SyncUnsolicited)]);
    // Nobody else has it: nothing happens until the peer is forgiven.
    assert_eq!(ranges(&tell(&mut engine, at(2), 1, 1, head(0, 0, 10))), []);
    assert_eq!(ranges(&tell(&mut engine, at(2), 2, 1, want)).len(), 1);
}

#[test]
fn whoever_told_a_false_head_is_charged_not_who_served_it() {
    let mut engine = engine(Limits::default(), 3);
    let want = head(0, 0, 9);
    let started = tell(&mut engine, at(1), 1, 1, want);
    tell(&mut engine, at(1), 2, 1, want);
    tell(&mut engine, at(1), 3, 1, head(0, 0, 3));
    let [(request, ..)] = ranges(&started)[..] else { panic!("{started:?}") };
    let result = Err(failure(Code::Seq, Charged::Teller));
    engine.handle(at(1), Input::RangeEnded { request, result });
    let then = outputs(&mut engine);
    assert_eq!(charges(&then), [(peer(1), Code::Seq), (peer(2), Code::Seq)]);
    assert_eq!(ranges(&then).iter().map(|range| range.1).collect::<Vec<_>>(), [peer(3)]);
}

#[test]
fn without_another_peer_it_pauses_longer_each_time() {
    let mut engine = engine(Limits::default(), 1);
    let mut started = tell(&mut engine, at(1), 1, 1, head(0, 0, 9));
    let mut now = at(1);
    for pause in [1, 2, 4, 8] {
        let [(request, ..)] = ranges(&started)[..] else { panic!("{started:?}") };
        let result = Err(failure(Code::Timeout, Charged::Nobody));
        engine.handle(now, Input::RangeEnded { request, result });
        assert_eq!(ranges(&outputs(&mut engine)), []);
        let due = engine.poll_timeout().unwrap();
        assert_eq!(due, now + at(pause));
        engine.handle(due - Duration::from_millis(1), Input::Tick);
        assert_eq!(ranges(&outputs(&mut engine)), []);
        engine.handle(due, Input::Tick);
        (now, started) = (due, outputs(&mut engine));
    }
}

#[test]
fn ranges_are_bounded_per_peer_and_in_all() {
    let limits = Limits { ranges_max: 5, ..Limits::default() };
    let mut engine = engine(limits, 2);
    let mut begun = Vec::new();
    for number in 1..=10 {
        follow(&mut engine, number, None);
        begun.extend(ranges(&tell(&mut engine, at(1), 1, number, head(0, 0, 5))));
    }
    assert_eq!(begun.len(), 4, "four of one peer");
    begun.extend(ranges(&tell(&mut engine, at(1), 2, 9, head(0, 0, 5))));
    assert!(ranges(&tell(&mut engine, at(1), 2, 10, head(0, 0, 5))).is_empty(), "five in all");
    // A slot that becomes free is used at once.
    let result = Err(failure(Code::Timeout, Charged::Nobody));
    engine.handle(at(2), Input::RangeEnded { request: begun[0].0, result });
    assert_eq!(ranges(&outputs(&mut engine)).len(), 1);
}

#[test]
fn a_full_quota_stops_the_session_until_its_window_ends() {
    let limits = Limits { session_bytes_max: 100, quota_window: at(60), ..Limits::default() };
    let mut engine = engine(limits, 1);
    let started = tell(&mut engine, at(60), 1, 1, head(0, 0, 9));
    let [(request, ..)] = ranges(&started)[..] else { panic!("{started:?}") };
    engine.handle(at(61), Input::Staged { request, through: head(0, 0, 4).point, bytes: 100 });
    let then = outputs(&mut engine);
    let full = Output::Event(Event::QuotaFull { session: session(1), quota: Quota::Session });
    assert!(then.contains(&full) && then.contains(&Output::CancelRange { request }), "{then:?}");
    assert_eq!(charges(&then), []);
    engine.handle(at(100), Input::Tick);
    assert_eq!(ranges(&outputs(&mut engine)), []);
    engine.handle(at(121), Input::Tick);
    assert_eq!(ranges(&outputs(&mut engine)).len(), 1);
}

#[test]
fn heads_are_asked_on_connect_on_a_timer_and_for_a_new_session() {
    let mut engine = Engine::new(Limits::default());
    engine.handle(at(5), Input::PeerUp { peer: peer(1) });
    let asked = outputs(&mut engine);
    let [Output::AskHeads { request, .. }] = asked[..] else { panic!("{asked:?}") };
    assert_eq!(engine.poll_timeout(), None, "one comparison at a time");
    engine.handle(at(6), Input::HeadsEnded { request });
    assert_eq!((outputs(&mut engine), engine.poll_timeout()), (vec![], Some(at(65))));
    engine.handle(at(65), Input::Tick);
    assert_eq!(outputs(&mut engine).len(), 1);
    // Followed while a comparison is under way: asked again after it.
    follow(&mut engine, 1, None);
    assert_eq!(outputs(&mut engine), []);
    engine.handle(at(66), Input::HeadsEnded { request: RequestId::new(2) });
    assert!(matches!(outputs(&mut engine)[..], [Output::AskHeads { .. }]));
}

#[test]
fn an_unfollowed_session_is_cancelled_and_late_answers_are_counted() {
    let mut engine = engine(Limits::default(), 1);
    let started = tell(&mut engine, at(1), 1, 1, head(0, 0, 9));
    let [(request, ..)] = ranges(&started)[..] else { panic!("{started:?}") };
    engine.handle(at(1), Input::Unfollow { session: session(1) });
    assert_eq!(outputs(&mut engine), [Output::CancelRange { request }]);
    engine.handle(at(1), Input::RangeEnded { request, result: Ok(()) });
    assert_eq!((outputs(&mut engine), engine.dropped()), (vec![], 1));
}

#[derive(Clone, Debug)]
enum Act {
    Up(u8),
    Down(u8),
    Follow(u8, u8),
    Unfollow(u8),
    Tell(u8, u8, Head),
    Control(u8, u8, u8),
    ControlHeld(u8, u8),
    /// Answers the n-th request under way, well or badly.
    Answer(usize, u8),
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let told = (0..3_u8, 0..3_u64, 0..6_u64).prop_map(|(branch, epoch, seq)| head(branch, epoch, seq));
    let act = prop_oneof![
        2 => (1..5_u8).prop_map(Act::Up),
        1 => (1..5_u8).prop_map(Act::Down),
        2 => (1..6_u8, 1..3_u8).prop_map(|(session, owner)| Act::Follow(session, owner)),
        1 => (1..6_u8).prop_map(Act::Unfollow),
        6 => (1..5_u8, 1..6_u8, told).prop_map(|(peer, session, head)| Act::Tell(peer, session, head)),
        2 => (1..5_u8, 1..3_u8, 0..4_u8).prop_map(|(peer, owner, number)| Act::Control(peer, owner, number)),
        1 => (1..3_u8, 0..4_u8).prop_map(|(owner, number)| Act::ControlHeld(owner, number)),
        10 => (any::<usize>(), any::<u8>()).prop_map(|(at, how)| Act::Answer(at, how)),
        2 => (0..120_u64).prop_map(Act::Wait),
    ];
    prop::collection::vec(act, 0..120)
}

/// A driver that answers what is asked in any order, and a few things that were not asked.
struct Script {
    engine: Engine,
    now: Duration,
    open: Vec<Output>,
}

impl Script {
    fn run(&mut self, act: Act) {
        let input = match act {
            Act::Up(number) => Input::PeerUp { peer: peer(number) },
            Act::Down(number) => Input::PeerDown { peer: peer(number) },
            Act::Follow(number, by) => {
                let held = (number == 1).then(|| head(0, 1, 3));
                let interest = Interest::Own;
                Input::Follow { session: session(number), owner: owner(by), interest, held }
            }
            Act::Unfollow(number) => Input::Unfollow { session: session(number) },
            Act::Tell(from, of, head) => Input::HeadSeen { peer: peer(from), session: session(of), head },
            Act::Control(from, of, number) => {
                Input::ControlSeen { peer: peer(from), owner: owner(of), told: digest(number) }
            }
            Act::ControlHeld(of, number) => Input::ControlHeld { owner: owner(of), held: digest(number) },
            Act::Answer(..) if self.open.is_empty() => Input::Tick,
            Act::Answer(at, how) => {
                let at = at % self.open.len();
                self.answer(at, how)
            }
            Act::Wait(seconds) => {
                self.now += Duration::from_secs(seconds);
                Input::Tick
            }
        };
        self.engine.handle(self.now, input);
        let new: Vec<Output> = std::iter::from_fn(|| self.engine.poll_output()).collect();
        self.open.extend(new.into_iter().filter(|output| !matches!(output, Output::Event(_))));
    }

    fn answer(&mut self, at: usize, how: u8) -> Input {
        let charged = [Charged::Sender, Charged::Teller, Charged::Nobody][usize::from(how) % 3];
        let bad = failure(Code::SyncUnsolicited, charged);
        let is_good = how > 90;
        match self.open[at].clone() {
            Output::AskHeads { request, .. } => {
                self.open.swap_remove(at);
                Input::HeadsEnded { request }
            }
            Output::FetchControl { request, .. } => {
                self.open.swap_remove(at);
                Input::ControlEnded { request, result: if is_good { Ok(()) } else { Err(bad) } }
            }
            Output::FetchRange { request, want, .. } if how.is_multiple_of(4) => {
                Input::Staged { request, through: want, bytes: u64::from(how) << 20 }
            }
            Output::FetchRange { request, .. } => {
                self.open.swap_remove(at);
                Input::RangeEnded { request, result: if is_good { Ok(()) } else { Err(bad) } }
            }
            Output::Check { request, through, .. } => {
                self.open.swap_remove(at);
                Input::Checked { request, result: if is_good { Ok(through) } else { Err(bad) } }
            }
            Output::Adopt { request, through, .. } => {
                self.open.swap_remove(at);
                let head = Head { point: through, epoch: Epoch::new(1).unwrap() };
                Input::Adopted {
                    request,
                    result: if is_good { Ok(head) } else { Err(Code::HeadMoved.into()) },
                }
            }
            Output::CancelRange { .. } | Output::Charge { .. } | Output::Event(_) => {
                self.open.swap_remove(at);
                Input::Tick
            }
        }
    }
}

proptest! {
    #[test]
    fn random_inputs_never_break_the_invariants(acts in acts()) {
        let limits = Limits {
            peers_max: 3,
            sessions_max: 4,
            tellers_max: 2,
            refused_max: 3,
            ranges_max: 3,
            peer_ranges_max: 2,
            session_bytes_max: 1 << 28,
            ..Limits::default()
        };
        let mut script = Script { engine: Engine::new(limits), now: Duration::ZERO, open: Vec::new() };
        for act in acts {
            script.run(act);
            invariants(&script.engine);
        }
    }

    /// Whatever went wrong before, an honest peer that stays brings every followed session up to its head.
    #[test]
    fn an_honest_peer_always_gets_a_session_up_to_date(acts in acts()) {
        let mut script = Script { engine: Engine::new(Limits::default()), now: Duration::ZERO, open: Vec::new() };
        acts.into_iter().for_each(|act| script.run(act));
        let (honest, truth) = (peer(77), head(9, 9, 99));
        script.run(Act::Follow(2, 1));
        script.engine.handle(script.now, Input::PeerUp { peer: honest });
        script.engine.handle(script.now, Input::HeadSeen { peer: honest, session: session(2), head: truth });
        for _ in 0..2_000 {
            let new: Vec<Output> = std::iter::from_fn(|| script.engine.poll_output()).collect();
            script.open.extend(new);
            let Some(output) = script.open.pop() else {
                script.now = script.engine.poll_timeout().unwrap_or(script.now).max(script.now);
                script.engine.handle(script.now, Input::Tick);
                if script.engine.held(session(2)) == Some(truth) { break }
                continue;
            };
            for input in honest_answers(&output, honest, truth) {
                script.engine.handle(script.now, input);
            }
            invariants(&script.engine);
        }
        prop_assert_eq!(script.engine.held(session(2)), Some(truth));
    }
}

/// The honest peer serves what it told; everybody else is silent.
fn honest_answers(output: &Output, honest: PeerKey, truth: Head) -> Vec<Input> {
    match *output {
        Output::AskHeads { request, .. } => vec![Input::HeadsEnded { request }],
        Output::FetchControl { request, .. } => vec![Input::ControlEnded { request, result: Ok(()) }],
        Output::FetchRange { request, peer, want, .. } if peer == honest => vec![
            Input::Staged { request, through: want, bytes: 1 },
            Input::RangeEnded { request, result: Ok(()) },
        ],
        Output::FetchRange { request, .. } => {
            let result = Err(failure(Code::Timeout, Charged::Nobody));
            vec![Input::RangeEnded { request, result }]
        }
        Output::Check { request, through, .. } => vec![Input::Checked { request, result: Ok(through) }],
        Output::Adopt { request, through, .. } => {
            let head = Head { point: through, epoch: truth.epoch };
            vec![Input::Adopted { request, result: Ok(head) }]
        }
        Output::CancelRange { .. } | Output::Charge { .. } | Output::Event(_) => Vec::new(),
    }
}
