//! The three machines in a small world: two servers and a stranger, an owner, a bag of messages that loses, repeats and
//! reorders, and crashes of anybody at any step, from what was durable. The invariants are checked after every step.
//!
//! A failure prints its seed; `SEEDS` below replays it.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use super::driver::{self, Confirmation, Driver, Message, Origin, Outcome, Phase, Plan, View};
use super::model_node::{Job, Node, node};
use super::testing::{Random, epoch, move_id, opening, point, principal, session};
use super::*;

const SEEDS: std::ops::Range<u64> = 0..4_000;
const SERVERS: [&str; 3] = ["server1", "server2", "stranger"];

#[derive(Clone, Debug)]
enum Letter {
    Command { life: u32, request: RequestId, to: usize, move_id: MoveId, message: Message },
    Reply { life: u32, request: RequestId, reply: Reply },
    Ask { life: u32, request: RequestId, to: usize },
    View { life: u32, request: RequestId, view: View },
    Gossip { to: usize, opening: Opening },
}

#[derive(Clone, Debug)]
enum OwnerJob {
    Persist(Ticket, Vec<u8>),
    Grant(RequestId),
    Sign(RequestId, driver::Unsigned),
}

struct World {
    random: Random,
    now: Duration,
    nodes: Vec<Node>,
    driver: Driver,
    journal: Option<Vec<u8>>,
    owner_jobs: Vec<OwnerJob>,
    life: u32,
    bag: Vec<Letter>,
    /// Commands that were ever sent: a stranger may send them again.
    history: Vec<Letter>,
    /// Requests at nodes: what answers them.
    open: BTreeMap<RequestId, (u32, RequestId)>,
    requests: u64,
    /// Every opening that ever got into the durable journal.
    openings: BTreeMap<Epoch, Opening>,
    plan: Plan,
    left_source: bool,
    /// The newest entry of the epoch that ends in the copy of the driver's own node.
    held: Point,
    /// Signatures that came when that node held more than they would have left.
    overtaken_signatures: u32,
    /// The source of the first move, while it is down for good: nothing reaches it.
    dead: Option<usize>,
    /// How the source stood when the first move gave it up.
    given_up: Option<GivenUp>,
    /// What another device of the owner opened while the first move was taken back, and this one learned of.
    rival: Option<Opening>,
    fair: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// It was down, and stood still: nothing but the next epoch may move it.
    Frozen,
    /// It was up, or did not stand still.
    Otherwise,
}

fn plan(number: u8, ends: u64, from: usize, to: usize, offline: bool, held: Point) -> Plan {
    let server = principal(SERVERS[from]);
    Plan {
        move_id: move_id(number),
        session: session(),
        epoch: epoch(ends),
        origin: if offline { Origin::Offline(Some(server)) } else { Origin::Online(server) },
        target: principal(SERVERS[to]),
        peers: vec![principal("stranger")],
        held: Some(held),
        told: None,
    }
}

fn index_of(server: Principal) -> usize {
    SERVERS.iter().position(|name| principal(name) == server).unwrap()
}

/// Signing is slow and every run signs much the same.
fn signed_opening(facts: &driver::Unsigned) -> Opening {
    type Key = (EntryCid, Epoch, Principal);
    static MADE: LazyLock<Mutex<BTreeMap<Key, Opening>>> = LazyLock::new(Mutex::default);
    let key = (facts.prev.cid, facts.epoch, facts.holder);
    let make = || opening(facts.prev, facts.epoch.get(), Some(facts.holder));
    MADE.lock().unwrap().entry(key).or_insert_with(make).clone()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let offline = random.percent(20);
        // Now and then a server hands over to itself: that is how a restored one gets its right back.
        let to = if random.percent(10) { 0 } else { 1 };
        let held = point("genesis", 0, 3);
        let plan = plan(1, 0, 0, to, offline, held);
        World {
            driver: Driver::new(Duration::ZERO, plan.clone(), Limits::default()),
            plan,
            random,
            now: Duration::ZERO,
            nodes: SERVERS.map(node).into_iter().collect(),
            journal: None,
            owner_jobs: Vec::new(),
            life: 0,
            bag: Vec::new(),
            history: Vec::new(),
            open: BTreeMap::new(),
            requests: 0,
            openings: BTreeMap::new(),
            left_source: offline,
            held,
            overtaken_signatures: 0,
            dead: None,
            given_up: None,
            rival: None,
            fair: false,
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => self.deliver(),
            45..65 => self.work(),
            65..75 => self.own_work(),
            75..82 => self.pass_time(),
            82..88 => self.append(),
            88..90 => self.gossip(),
            90 => self.replicate(),
            // Somebody who sees that nothing goes on.
            91..94 if self.fair && self.dead.is_some() => self.leave_source(),
            _ if self.fair => self.pass_time(),
            91..94 => self.lose(),
            94..96 => self.replay(),
            96..98 => {
                let at = self.random.below(self.nodes.len());
                if self.dead != Some(at) {
                    self.nodes[at].crash(&mut self.random);
                }
            }
            98 => self.crash_owner(),
            _ => self.user(),
        }
        self.drain();
    }

    fn deliver(&mut self) {
        if self.bag.is_empty() {
            return;
        }
        let at = self.random.below(self.bag.len());
        if let Letter::Command { to, .. } | Letter::Ask { to, .. } | Letter::Gossip { to, .. } = &self.bag[at]
            && self.dead == Some(*to)
        {
            return self.lose_at(at);
        }
        let again = !self.fair && self.random.percent(15);
        let letter = if again { self.bag[at].clone() } else { self.bag.swap_remove(at) };
        match letter {
            Letter::Command { life, request, to, move_id, message } => {
                self.requests += 1;
                let asked = RequestId::new(self.requests);
                self.open.insert(asked, (life, request));
                self.command(to, asked, move_id, message);
            }
            Letter::Reply { life, request, reply } if life == self.life => {
                self.driver.handle(self.now, driver::Input::Replied { request, reply });
            }
            Letter::View { life, request, view } if life == self.life => {
                // It was fetched and verified here, and so it is held here.
                if let Some(head) = view.head.filter(|_| view.epoch() == self.plan.epoch) {
                    self.hold(head);
                }
                self.driver.handle(self.now, driver::Input::Seen { request, view: Some(Box::new(view)) });
            }
            Letter::Ask { life, request, to } => {
                let view = self.nodes[to].view(&mut self.random);
                self.bag.push(Letter::View { life, request, view });
            }
            Letter::Gossip { to, opening } => self.nodes[to].learn(&opening),
            Letter::Reply { .. } | Letter::View { .. } => {}
        }
    }

    fn command(&mut self, to: usize, request: RequestId, move_id: MoveId, message: Message) {
        let running = self.random.percent(25);
        let node = &mut self.nodes[to];
        // A server that never held the session has nothing to freeze and nothing to thaw.
        let to_source = |node: &mut Node, input| {
            if let Some(source) = &mut node.source {
                source.handle(input);
            }
        };
        match message {
            Message::Freeze { epoch } => {
                let held = node.source.as_ref().map(Source::epoch).unwrap_or_default();
                let head = node.heads.get(&held).copied().unwrap_or(point("none", 0, 0));
                let turn = if running { source::Turn::Running } else { source::Turn::Idle { head } };
                to_source(node, source::Input::Freeze { request, move_id, epoch, turn });
            }
            Message::Retire { opening, receipt } => {
                node.store.insert(opening.epoch(), opening.clone());
                to_source(node, source::Input::Retire { request, opening: opening.clone(), receipt });
                node.target.handle(target::Input::Learned { opening });
            }
            Message::Offer { epoch, head, .. } => {
                let providers = Vec::new();
                node.target.handle(target::Input::Offer { request, move_id, epoch, head, providers });
            }
            Message::Prepare => node.target.handle(target::Input::Prepare { request, move_id }),
            Message::Activate { opening, .. } => {
                if let Some(source) = &mut node.source {
                    source.handle(source::Input::Learned { opening: opening.clone() });
                }
                node.target.handle(target::Input::Activate { request, move_id, opening });
            }
            Message::Abort => {
                // Both roles hear it. The source's answer counts, if there is one.
                let unheard = RequestId::new(0);
                let has_source = node.source.is_some();
                to_source(node, source::Input::Abort { request, move_id });
                let request = if has_source { unheard } else { request };
                node.target.handle(target::Input::Abort { request, move_id });
            }
        }
    }

    fn work(&mut self) {
        let at = self.random.below(self.nodes.len());
        let node = &mut self.nodes[at];
        if node.jobs.is_empty() || self.dead == Some(at) {
            return;
        }
        // One writer: writes happen in the order they were asked for.
        let job = node.jobs.remove(0);
        node.run(job, &mut self.random, self.fair);
    }

    fn own_work(&mut self) {
        if self.owner_jobs.is_empty() {
            return;
        }
        match self.owner_jobs.remove(0) {
            OwnerJob::Persist(ticket, journal) => {
                let fails = !self.fair && self.random.percent(3);
                // What a failed write left on disk nobody knows.
                if !fails || self.random.percent(50) {
                    self.persist(journal);
                }
                let reject = Code::StoreIo.into();
                let failed = driver::Input::PersistFailed { ticket, reject };
                let written = driver::Input::Persisted { ticket };
                self.driver.handle(self.now, if fails { failed } else { written });
            }
            OwnerJob::Grant(request) => {
                let fails = !self.fair && self.random.percent(3);
                let result = if fails { Err(Code::CapMissing.into()) } else { Ok(None) };
                self.driver.handle(self.now, driver::Input::Granted { request, result });
            }
            OwnerJob::Sign(request, facts) => {
                let fails = !self.fair && self.random.percent(3);
                let result = if fails { Err(Code::OwnerKey.into()) } else { Ok(signed_opening(&facts)) };
                self.driver.handle(self.now, driver::Input::Held { head: self.held });
                self.driver.handle(self.now, driver::Input::Signed { request, result });
                self.overtaken_signatures += u32::from(self.held.seq > facts.prev.seq);
                self.nothing_that_is_held_is_cut();
            }
        }
    }

    fn persist(&mut self, journal: Vec<u8>) {
        let read = Driver::from_bytes(self.now, &journal, Limits::default()).unwrap();
        if let Some(opening) = read.opening() {
            let known = self.openings.entry(opening.epoch()).or_insert_with(|| opening.clone());
            assert_eq!(known, opening, "two handoffs of one epoch in the journal");
        }
        self.journal = Some(journal);
    }

    fn pass_time(&mut self) {
        let longest = if self.random.percent(4) { 6 } else { 5 };
        let ms = [20, 50, 100, 300, 1_000, 31_000][self.random.below(longest)];
        self.now += Duration::from_millis(ms);
        self.driver.handle(self.now, driver::Input::Tick);
    }

    fn append(&mut self) {
        let at = self.random.below(self.nodes.len());
        let node = &mut self.nodes[at];
        if let Some(held) = node.permit()
            && self.dead != Some(at)
        {
            let head = node.heads[&held];
            node.heads.insert(held, point(node.name, held.get(), head.seq.get() + 1));
        }
    }

    fn gossip(&mut self) {
        let (from, to) = (self.random.below(self.nodes.len()), self.random.below(self.nodes.len()));
        if let Some(opening) = self.nodes[from].highest().cloned() {
            self.bag.push(Letter::Gossip { to, opening });
        }
    }

    /// The driver's own node hears of what a server wrote in the epoch that ends, as it does of any session. The driver is told at
    /// once, or not before the owner signs.
    fn replicate(&mut self) {
        let at = self.random.below(self.nodes.len());
        let Some(head) = self.nodes[at].heads.get(&self.plan.epoch).copied() else { return };
        self.hold(head);
        if self.random.percent(50) {
            self.driver.handle(self.now, driver::Input::Held { head: self.held });
        }
    }

    fn hold(&mut self, head: Point) {
        if head.seq > self.held.seq {
            self.held = head;
        }
    }

    fn lose(&mut self) {
        if self.bag.is_empty() {
            return;
        }
        let at = self.random.below(self.bag.len());
        self.lose_at(at);
    }

    fn lose_at(&mut self, at: usize) {
        let letter = self.bag.swap_remove(at);
        let (life, input) = match letter {
            Letter::Command { life, request, .. } | Letter::Reply { life, request, .. } => {
                (life, driver::Input::Lost { request, code: Code::Unreachable })
            }
            Letter::Ask { life, request, .. } | Letter::View { life, request, .. } => {
                (life, driver::Input::Seen { request, view: None })
            }
            Letter::Gossip { .. } => return,
        };
        // Half of the losses are noticed by the transport, the others by nobody.
        if life == self.life && self.random.percent(50) {
            self.driver.handle(self.now, input);
        }
    }

    fn replay(&mut self) {
        if !self.history.is_empty() {
            let at = self.random.below(self.history.len());
            self.bag.push(self.history[at].clone());
        }
    }

    fn crash_owner(&mut self) {
        for job in std::mem::take(&mut self.owner_jobs) {
            if let OwnerJob::Persist(_, journal) = job
                && self.random.percent(50)
            {
                self.persist(journal);
            }
        }
        self.life += 1;
        self.driver = match &self.journal {
            Some(journal) => Driver::from_bytes(self.now, journal, Limits::default()).unwrap(),
            // Nothing was sent yet: the move never began.
            None => Driver::new(self.now, self.plan.clone(), Limits::default()),
        };
        // Whoever starts a driver tells it first what its own copy has.
        self.driver.handle(
            self.now,
            match self.rival.clone() {
                Some(opening) => driver::Input::Learned { opening },
                None => driver::Input::Held { head: self.held },
            },
        );
    }

    fn user(&mut self) {
        match self.random.below(3) {
            0 if self.random.percent(30) => {
                let was_signed = self.driver.opening().is_some();
                let result = self.driver.abort(self.now);
                assert!(!(was_signed && result.is_ok()), "aborted after the handoff was signed");
            }
            1 => self.leave_source(),
            _ => self.driver.handle(self.now, driver::Input::Retry),
        }
    }

    fn leave_source(&mut self) {
        self.left_source |= self.driver.phase() == Phase::Freeze;
        self.driver.handle(self.now, driver::Input::LeaveSource);
    }

    /// The source goes down, and nothing that is under way reaches it any more.
    fn bury_source(&mut self) {
        let source = index_of(self.plan.origin.server().unwrap());
        self.nodes[source].crash(&mut self.random);
        self.dead = Some(source);
    }

    /// It comes back as it was when it went down.
    fn raise_source(&mut self) {
        if let Some(source) = self.dead.take() {
            self.nodes[source].crash(&mut self.random);
        }
    }

    /// Turns outputs into letters and jobs.
    fn drain(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let mut answers = Vec::new();
            while let Some(output) = node.source.as_mut().and_then(Source::poll_output) {
                match output {
                    source::Output::Persist { ticket, row } => {
                        node.jobs.push(Job::PersistSource(ticket, row))
                    }
                    source::Output::Answer { request, reply } => answers.push((request, reply)),
                    source::Output::EndTurn { .. } => {}
                }
            }
            while let Some(output) = node.target.poll_output() {
                match output {
                    target::Output::Persist { ticket, row } => {
                        node.jobs.push(Job::PersistTarget(ticket, row))
                    }
                    target::Output::Answer { request, reply } => answers.push((request, reply)),
                    target::Output::Fetch { ticket, head, .. } => node.jobs.push(Job::Fetch(ticket, head)),
                    target::Output::Prepare { ticket } => node.jobs.push(Job::Prepare(ticket)),
                    target::Output::Adopt { ticket, opening, row } => {
                        node.jobs.push(Job::Adopt(ticket, opening, row));
                    }
                    target::Output::DropStaging => node.jobs.retain(|job| !matches!(job, Job::Fetch(..))),
                }
            }
            for (request, reply) in answers {
                if let Some((life, request)) = self.open.remove(&request) {
                    self.bag.push(Letter::Reply { life, request, reply });
                }
            }
        }
        while let Some(output) = self.driver.poll_output() {
            self.owner_output(output);
        }
    }

    fn owner_output(&mut self, output: driver::Output) {
        let life = self.life;
        match output {
            driver::Output::Persist { ticket, journal } => {
                self.owner_jobs.push(OwnerJob::Persist(ticket, journal));
            }
            driver::Output::NeedGrant { request, .. } => self.owner_jobs.push(OwnerJob::Grant(request)),
            driver::Output::NeedSignature { request, facts, .. } => {
                self.owner_jobs.push(OwnerJob::Sign(request, facts));
            }
            driver::Output::Send { request, to, message } => {
                if let Message::Activate { opening, .. } | Message::Retire { opening, .. } = &message {
                    assert!(self.openings.contains_key(&opening.epoch()), "sent before it was journaled");
                }
                if let Some(journal) = &self.journal {
                    let held = Driver::from_bytes(self.now, journal, Limits::default()).unwrap();
                    let is_source = self.plan.origin.server() == Some(to);
                    assert!(!(held.gave_up_source() && is_source), "sent to a source that was given up");
                }
                let is_source = self.plan.origin.server() == Some(to);
                let may_thaw = is_source && self.driver.drew_in_source() && message == Message::Abort;
                assert!(
                    !(self.rival.is_some() && may_thaw),
                    "the source is told to thaw in an epoch that is over"
                );
                let move_id = self.plan.move_id;
                let letter = Letter::Command { life, request, to: index_of(to), move_id, message };
                self.history.push(letter.clone());
                self.bag.push(letter);
            }
            driver::Output::AskPeer { request, peer } => {
                self.bag.push(Letter::Ask { life, request, to: index_of(peer) });
            }
            // What is on the wire cannot be called back.
            driver::Output::Cancel
            | driver::Output::Entered { .. }
            | driver::Output::Copied { .. }
            | driver::Output::Waiting { .. }
            | driver::Output::Finished(_) => {}
        }
    }

    // ---- the end -----------------------------------------------------------------------------------------------

    /// Everything is delivered from now on: the move has to end, and to end well.
    fn settle(&mut self) -> Outcome {
        self.fair = true;
        for _ in 0..40_000 {
            self.step();
            self.check();
            let is_idle = self.bag.is_empty() && self.owner_jobs.is_empty();
            if let Some(outcome) = self.driver.outcome()
                && self.driver.is_over()
                && is_idle
                && self
                    .nodes
                    .iter()
                    .enumerate()
                    .all(|(at, node)| self.dead == Some(at) || node.jobs.is_empty())
            {
                return outcome.clone();
            }
        }
        panic!("no end: phase {:?}", self.driver.phase());
    }

    fn check_end(&mut self, outcome: &Outcome) {
        let (ends, opens) = (self.plan.epoch, self.plan.epoch.next());
        let (from, to) = (index_of(self.plan.origin.server().unwrap()), index_of(self.plan.target));
        match outcome {
            Outcome::Done { source } => {
                assert_eq!(self.nodes[to].permit(), Some(opens), "{:?}", self.nodes[to].source);
                if *source == Confirmation::Unconfirmed {
                    let opening = self.openings[&opens].clone();
                    self.nodes[from].learn(&opening);
                }
                assert!(from == to || self.nodes[from].permit().is_none());
            }
            Outcome::RolledBack { source, .. } | Outcome::Aborted { source } => {
                assert!(!self.openings.contains_key(&opens));
                if *source == Confirmation::Unconfirmed {
                    self.give_up(from);
                } else if self.given_up.is_none() {
                    assert_eq!(
                        self.nodes[from].permit(),
                        Some(ends),
                        "{outcome:?} {:?}",
                        self.nodes[from].source
                    );
                }
                // A target that did not hear the abort keeps a staging area, which expires; never more than that.
                let staged = self.nodes[to].target.stage();
                assert!(!matches!(staged, target::Stage::Staging { opening: Some(_), .. }));
            }
            Outcome::Superseded { .. } => panic!("nobody opened a later epoch"),
        }
    }

    /// What was under way to a server that is down went down with it: that is what [`GivenUp::Frozen`] stands on. An abort
    /// that is delivered later all the same thaws a server that does not know the next epoch; what it writes then is fenced.
    fn give_up(&mut self, source: usize) {
        let is_still = |node: &Node| {
            let standing = node.source.as_ref().map(Source::standing);
            matches!(standing, Some(source::Standing::Frozen { .. }))
        };
        self.given_up = Some(GivenUp::Otherwise);
        if self.dead == Some(source) {
            let stays = |letter: &Letter| !matches!(letter, Letter::Command { to, .. } if *to == source);
            self.bag.retain(stays);
            self.history.retain(stays);
            if is_still(&self.nodes[source]) {
                self.given_up = Some(GivenUp::Frozen);
            }
        }
    }

    /// Another move, in the other direction if the first was done; letters of the first are still around. From a source
    /// that was given up without it: it may stand still until the next epoch.
    fn again(&mut self, outcome: &Outcome) {
        let to = index_of(self.plan.target);
        let moved = matches!(outcome, Outcome::Done { .. });
        let (ends, from) = if moved { (1, to) } else { (0, 0) };
        let to = if from == 0 { 1 } else { 0 };
        let offline = self.given_up.is_some();
        if moved {
            // It took in its own handoff.
            self.held = self.openings[&epoch(1)].point();
        }
        self.plan = plan(2, ends, from, to, offline, self.held);
        self.left_source = offline;
        self.life += 1;
        self.journal = None;
        self.driver = Driver::new(self.now, self.plan.clone(), Limits::default());
        self.fair = false;
    }
}

fn chaos(world: &mut World, steps: usize) {
    for _ in 0..steps {
        world.step();
        world.check();
    }
}

#[derive(Default, Debug)]
struct Tally {
    done: u32,
    rolled_back: u32,
    aborted: u32,
    /// Moves that ended without their source, and those among them whose source stood still.
    given_up: [u32; 2],
    /// Second moves that were done after that.
    done_after: u32,
    /// Signatures that came when more was held than they stood on.
    overtaken_signatures: u32,
}

struct Ran {
    outcomes: [Outcome; 2],
    given_up: Option<GivenUp>,
    overtaken_signatures: u32,
}

fn run(seed: u64) -> Ran {
    let mut world = World::new(seed);
    let steps = 20 + world.random.below(250);
    chaos(&mut world, steps);
    // A server that is to take over from itself would be waited for, and rightly.
    if world.plan.origin.server() != Some(world.plan.target) && world.random.percent(25) {
        world.bury_source();
        let steps = world.random.below(100);
        chaos(&mut world, steps);
    }
    let first = world.settle();
    world.check_end(&first);
    world.again(&first);
    let steps = 20 + world.random.below(250);
    chaos(&mut world, steps);
    world.raise_source();
    let steps = world.random.below(100);
    chaos(&mut world, steps);
    let second = world.settle();
    let (given_up, overtaken_signatures) = (world.given_up, world.overtaken_signatures);
    world.check_end(&second);
    world.check();
    Ran { outcomes: [first, second], given_up, overtaken_signatures }
}

#[test]
fn every_schedule_keeps_one_holder_and_ends() {
    let mut tally = Tally::default();
    for seed in SEEDS {
        let outcomes = std::panic::catch_unwind(|| run(seed));
        let Ok(Ran { outcomes, given_up, overtaken_signatures }) = outcomes else { panic!("seed {seed}") };
        tally.overtaken_signatures += overtaken_signatures;
        if let Some(stood) = given_up {
            tally.given_up[0] += 1;
            tally.given_up[1] += u32::from(stood == GivenUp::Frozen);
            tally.done_after += u32::from(matches!(outcomes[1], Outcome::Done { .. }));
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Done { .. } => tally.done += 1,
                Outcome::RolledBack { .. } => tally.rolled_back += 1,
                Outcome::Aborted { .. } | Outcome::Superseded { .. } => tally.aborted += 1,
            }
        }
    }
    // A model that never gets anywhere would keep every invariant.
    assert!(tally.done > 1_000 && tally.rolled_back > 100 && tally.aborted > 20, "{tally:?}");
    assert!(tally.given_up[1] > 50 && tally.done_after > 50, "{tally:?}");
    assert!(tally.overtaken_signatures > 20, "{tally:?}");
}

#[path = "model_invariants.rs"]
mod invariants;
#[path = "model_overtaken_tests.rs"]
mod overtaken;
