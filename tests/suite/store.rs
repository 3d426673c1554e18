//! The store under `kill -9`, and two processes on one data directory.
//!
//! The child is this very test binary, run again with [`DIR`] set: it appends to several sessions at once and says each entry
//! that it would send. It is killed in the middle of its n-th call that changes the disk, each n in turn ([`KillDisk`]), or
//! by the parent at a random moment. The parent then opens the store and checks what the store promises: nothing that was said
//! is lost, nothing is half there, a key that was used gives the same answer, and no place in a session was ever signed
//! twice.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use throughline_protocol::build::sign;
use throughline_protocol::code::Code;
use throughline_protocol::content::Block;
use throughline_protocol::entry::{Authority, Body, Entry, Origin, Place, UserMessage};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{EntryCid, Seq};
use throughline_protocol::payload::{PayloadDraft, UserWords, Words};
use throughline_protocol::testing::{SessionBuilder, salt, ts};
use throughline_protocol::verify::{ChainState, VerifiedSegment, Verifier};
use throughline_store::testing::KillDisk;
use throughline_store::{
    Adopt, AdoptOptions, Adopted, GuardUse, Idempotency, KeyOrigin, OpenError, OpenOptions, Scope, Store,
    Used,
};

/// Names the data directory to a child.
const DIR: &str = "THROUGHLINE_TEST_STORE_DIR";
/// Names the round to a child: no two rounds sign the same bytes.
const ROUND: &str = "THROUGHLINE_TEST_STORE_ROUND";
/// Tells a child to open the store and wait until its input ends.
const HOLD: &str = "THROUGHLINE_TEST_STORE_HOLD";
/// Tells a child at which call it dies; 0 is never.
const KILL_AT: &str = "THROUGHLINE_TEST_STORE_KILL_AT";
/// Sessions that a child appends to, a thread each.
const SESSIONS: usize = 3;
/// Names how often a child is killed, for a long run; [`ROUNDS`] without it.
const KILL_ROUNDS: &str = "THROUGHLINE_KILL_ROUNDS";
/// Rounds of killing.
const ROUNDS: u64 = 520;
/// Of so many rounds one is killed by the parent, at a random moment.
const RANDOM_EVERY: u64 = 13;
/// The n-th calls at which a child dies: an open, the first entries of each session, and more.
const CALLS: u64 = 130;
/// Rounds on one data directory.
const ROUNDS_OF_DIR: u64 = 65;

fn options(command: &str) -> OpenOptions {
    OpenOptions { key_origin: KeyOrigin::MadeWithStore, ..OpenOptions::new(ts(0), command) }
}

fn builder(session: usize) -> SessionBuilder {
    SessionBuilder::new(&format!("kill {session}"))
}

fn controls(builder: &SessionBuilder) -> Controls {
    let mut controls = Controls::new();
    for control in builder.controls() {
        controls.insert(control);
    }
    controls
}

fn key_of(builder: &SessionBuilder, seq: Seq, result: Vec<u8>) -> Idempotency {
    let mut request = [0; 32];
    request[..8].copy_from_slice(&seq.get().to_be_bytes());
    let scope = Scope::Session(builder.session());
    Idempotency { scope, key: format!("request {seq}"), request, result, expires: None }
}

/// Not a test of its own: what a child process does.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let calls = std::env::var(KILL_AT).map_or(0, |calls| calls.parse().unwrap());
    let store = match calls {
        0 => Store::open(dir.as_ref(), options("child")).unwrap(),
        calls => Store::open_on(Arc::new(KillDisk::at_call(calls)), dir.as_ref(), options("child")).unwrap(),
    };
    if std::env::var_os(HOLD).is_some() {
        println!("held");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let round = std::env::var(ROUND).unwrap();
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            let (store, round) = (&store, &round);
            scope.spawn(move || append_until_killed(store, session, round));
        }
    });
}

fn append_until_killed(store: &Store, session: usize, round: &str) {
    let builder = builder(session);
    let reader = store.reader().unwrap();
    if reader.session(builder.session()).unwrap().is_none() {
        let mut verifier = Verifier::begin(controls(&builder));
        let genesis = builder.head();
        verifier.push(Arc::clone(genesis.entry.bytes()), genesis.payload.clone()).unwrap();
        let segment = verifier.take_segment().unwrap().unwrap();
        let options = AdoptOptions {
            guard: GuardUse::Activated,
            controls: builder.controls().to_vec(),
            ..AdoptOptions::at(ts(0))
        };
        store.adopt(segment, options).unwrap();
    } else {
        // What was signed last is sent again, whether it was sent before or not.
        let row = reader.guard(builder.session()).unwrap().expect("a session that was taken over has a row");
        assert_eq!(EntryCid::of(&row.bytes), row.cid);
        println!("sent {session} {} {}", row.seq, row.cid);
        replay(store, &builder, round);
    }
    loop {
        let (segment, cid, seq) = next(store, &builder, round);
        let key = key_of(&builder, seq, cid.digest().to_vec());
        match store.run(Adopt { segment, options: signed(&builder, key) }).unwrap() {
            Adopted::Now { tip, .. } => {
                assert_eq!((tip.cid, tip.seq), (cid, seq));
                println!("sent {session} {seq} {cid}");
            }
            Adopted::Replayed { .. } => panic!("seq {seq} was answered before"),
        }
    }
}

/// A client whose answer was lost asks again: the key that was committed gives the entry that was committed.
fn replay(store: &Store, builder: &SessionBuilder, round: &str) {
    let tip = store.reader().unwrap().session(builder.session()).unwrap().unwrap().tip;
    if tip.seq == Seq::ZERO {
        return;
    }
    let (segment, other, _) = next(store, builder, round);
    let key = key_of(builder, tip.seq, other.digest().to_vec());
    match store.run(Adopt { segment, options: signed(builder, key) }).unwrap() {
        Adopted::Replayed { result } => assert_eq!(result, tip.cid.digest()),
        Adopted::Now { .. } => panic!("the request of seq {} was executed twice", tip.seq),
    }
}

fn signed(builder: &SessionBuilder, key: Idempotency) -> AdoptOptions {
    AdoptOptions {
        guard: GuardUse::Signed(builder.server1.key.principal()),
        idempotency: Some(key),
        ..AdoptOptions::at(ts(0))
    }
}

/// Signs the next entry of a session; every fifth has a payload that becomes a file.
fn next(store: &Store, builder: &SessionBuilder, round: &str) -> (VerifiedSegment, EntryCid, Seq) {
    let reader = store.reader().unwrap();
    let session = builder.session();
    let state = ChainState::from_bytes(&reader.chain_state(session).unwrap().unwrap()).unwrap();
    let prev = state.tip();
    let row = reader.session(session).unwrap().unwrap();
    reader.check_guard(&row, prev.epoch, prev).unwrap().expect("the guard lets its own entry be followed");
    let seq = prev.seq.next();
    let skip = state.path().next_skip().1;
    let length = if seq.get().is_multiple_of(5) { 20_000 } else { 100 };
    let words = UserWords { body: vec![Block::paragraph("b1", "x".repeat(length))], ..UserWords::default() };
    let body = Body::UserMessage(UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() });
    let salt = salt(&format!("{session}/{seq}/{round}"));
    let (payload, named) = PayloadDraft::new(Words::UserMessage(words)).build(&body, salt).unwrap();
    let server = &builder.server1;
    let capability = server.capability.as_ref().unwrap();
    let entry = Entry {
        ts: ts(seq.get() * 1_000),
        signer: server.key.principal(),
        authority: Some(Authority {
            space: builder.owner.key.principal(),
            capability: capability.cid().cid(),
        }),
        place: Some(Place {
            genesis: session.genesis(),
            prev: prev.cid,
            seq,
            epoch: prev.epoch,
            skip: (skip != prev.cid).then_some(skip),
        }),
        body,
        payload: Some(named),
        ext: None,
    };
    let entry = sign(entry, &server.key).unwrap();
    let cid = entry.cid();
    let mut verifier = Verifier::resume(state, controls(builder));
    verifier.push(Arc::clone(entry.bytes()), Some(payload.into())).unwrap();
    (verifier.take_segment().unwrap().unwrap(), cid, seq)
}

/// Runs this binary again as a child.
fn spawn(dir: &Path, environment: &[(&str, &str)]) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::child", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// `sent <session> <seq> <cid>`, wherever in a line of the test harness it stands.
fn parse(line: &str) -> Option<(usize, Seq, EntryCid)> {
    let mut words = line.split_once("sent ")?.1.split_whitespace();
    let session = words.next()?.parse().ok()?;
    let seq = Seq::new(words.next()?.parse().ok()?).ok()?;
    Some((session, seq, words.next()?.parse().ok()?))
}

/// Everything that any child ever said it sent.
type Sent = BTreeMap<(usize, Seq), EntryCid>;

fn note(sent: &mut Sent, line: &str) {
    if let Some((session, seq, cid)) = parse(line) {
        let first = *sent.entry((session, seq)).or_insert(cid);
        assert_eq!(first, cid, "session {session} was signed twice at seq {seq}");
    }
}

/// How often a child is killed. What is no number of rounds is refused: a long run must not be a short one by a slip.
fn rounds(asked: Option<&str>) -> Result<u64, String> {
    let Some(asked) = asked else { return Ok(ROUNDS) };
    match asked.parse() {
        Ok(rounds) if rounds > 0 => Ok(rounds),
        _ => Err(format!("{KILL_ROUNDS}: expected a number of rounds from 1 on, got {asked:?}")),
    }
}

#[test]
fn rounds_are_as_many_as_asked_for() {
    assert_eq!(rounds(None), Ok(ROUNDS));
    assert_eq!(rounds(Some("10000")), Ok(10_000));
    for wrong in ["", "0", "-1", "10,000", "many"] {
        let error = rounds(Some(wrong)).unwrap_err();
        assert!(error.contains(KILL_ROUNDS) && error.contains(wrong), "{error}");
    }
}

#[test]
fn nothing_sent_is_lost_and_nothing_is_signed_twice_under_kill_9() {
    let rounds = rounds(std::env::var(KILL_ROUNDS).ok().as_deref()).unwrap();
    let started = std::time::Instant::now();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut total = 0;
    for from in (0..rounds).step_by(usize::try_from(ROUNDS_OF_DIR).unwrap()) {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("data");
        let mut sent = Sent::new();
        for round in from..(from + ROUNDS_OF_DIR).min(rounds) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            killed(&dir, &mut sent, round, state);
            check(&dir, &sent, round);
        }
        total += sent.len();
        // For a long run with `--nocapture`: how far it is.
        let done = (from + ROUNDS_OF_DIR).min(rounds);
        println!("{done} of {rounds} kills, {total} entries sent, {} s", started.elapsed().as_secs());
    }
    // The first rounds of a directory end before anything is sent.
    assert!(
        total > usize::try_from(rounds / 4).unwrap() || rounds < ROUNDS_OF_DIR,
        "only {total} entries were sent"
    );
}

/// Runs a child until it is killed; notes what it said.
fn killed(dir: &Path, sent: &mut Sent, round: u64, random: u64) {
    let is_random = round.is_multiple_of(RANDOM_EVERY);
    let kill_at = if is_random { 0 } else { round % CALLS + 1 };
    let environment = [(ROUND, round.to_string()), (KILL_AT, kill_at.to_string())];
    let (mut child, mut lines) =
        spawn(dir, &[0, 1].map(|at| (environment[at].0, environment[at].1.as_str())));
    if is_random {
        let mut line = String::new();
        let mut left = random % 16;
        while left > 0 {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "round {round}: the child ended by itself");
            left -= u64::from(parse(&line).is_some());
            note(sent, &line);
        }
        child.kill().unwrap();
    }
    // What it said before it died counts as well; a line that was cut off does not.
    for line in lines.lines() {
        note(sent, &line.unwrap());
    }
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "round {round}: expected a kill, got {status}");
}

fn check(dir: &Path, sent: &Sent, round: u64) {
    let store = Store::open(dir, options("parent")).unwrap();
    let reader = store.reader().unwrap();
    for session in 0..SESSIONS {
        let builder = builder(session);
        let Some(row) = reader.session(builder.session()).unwrap() else { continue };
        let mut expected_seq = 0;
        for entry in reader.entries(builder.session(), Seq::ZERO, row.tip.seq).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.seq.get(), expected_seq, "round {round}");
            expected_seq += 1;
            if let Some(cid) = sent.get(&(session, entry.seq)) {
                assert_eq!(*cid, entry.cid, "round {round}: another entry stands where one was sent");
            }
            if entry.seq > Seq::ZERO {
                let key = key_of(&builder, entry.seq, Vec::new());
                let used = reader.idempotency(&key.scope, &key.key, &key.request).unwrap();
                assert_eq!(used, Used::Same(entry.cid.digest().to_vec()), "round {round}");
            }
        }
        assert_eq!(expected_seq, row.tip.seq.get() + 1, "round {round}");
        let last = sent.range((session, Seq::ZERO)..(session + 1, Seq::ZERO)).next_back();
        if let Some(((_, seq), _)) = last {
            assert!(*seq <= row.tip.seq, "round {round}: seq {seq} was sent and is lost");
        }
        let guard = reader.guard(builder.session()).unwrap().expect("a row beside every entry");
        assert_eq!((guard.cid, guard.seq), (row.tip.cid, row.tip.seq), "round {round}");
    }
    // The whole of it, payload files included, is costly: now and then, and at the end.
    if round.is_multiple_of(ROUNDS_OF_DIR / 2) || (round + 1).is_multiple_of(ROUNDS_OF_DIR) {
        let found = store.fsck().unwrap();
        assert!(found.is_clean(), "round {round}: {:?}", found.problems);
    }
}

#[test]
fn a_second_process_is_told_who_holds_the_directory() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let (mut child, mut lines) = spawn(&dir, &[(HOLD, "1")]);
    let mut line = String::new();
    while !line.contains("held") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the child ended by itself");
    }
    let error = Store::open(&dir, options("parent")).err().expect("the directory is held");
    assert_eq!(error.code(), Code::Locked);
    let OpenError::Locked { pid, command, .. } = error else { panic!("{error}") };
    assert_eq!((pid, command.as_str()), (child.id(), "child"));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    Store::open(&dir, options("parent")).unwrap();
}
