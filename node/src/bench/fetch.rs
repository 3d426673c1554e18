//! A cold fetch between two nodes of this process over loopback, against one raw stream of the same bytes.
//!
//! The fetch is that of a user: a node that never saw the session or the peer dials, asks for everything, verifies it,
//! stores it durably and adopts it. The raw stream does the same without meaning: dial, open one stream of the same
//! transport, read as many bytes. Both begin without a connection. What signatures alone cost is told beside it, on one core
//! and on all: the work of a fetch that verifies, one act after the other and with nothing else done.
//!
//! How the two compare depends on how many bytes an entry brings along, so several sizes of payloads are measured. The first
//! is the one that the goal was first measured with.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::id::{Seq, SessionId};
use throughline_protocol::limits;
use throughline_store::PayloadState;
use tokio::sync::oneshot;
use zeroize::Zeroizing;

use super::chain::Record;
use super::home::{self, Home, Owner};
use super::report::{Report, Samples};
use super::verify::{Bare, rate};
use super::{Plan, Subject, words};
use crate::api::client::{Call, Client, Endpoint};
use crate::api::error::{Answer, Problem};
use crate::core::random;
use crate::net::{self, FrameError, NetConfig, NetError, NetEvent, NetEvents, NetHandle, Protocol};
use crate::runtime::{self, NetworkNeed};

/// Entries of the session.
const ENTRIES: u64 = 2_000;
/// Text of a message, in bytes. 2,000: an ordinary turn with a tool's output. 500: the mean of the payloads that short
/// transcripts of coding agents become. 16,000: about the largest that the store keeps in a table. 64,000: a file read whole.
const MESSAGE_BYTES: [usize; 4] = [2_000, 500, 16_000, 64_000];

/// Measures.
pub(super) fn run(plan: Plan) -> Answer<Report> {
    let entries = plan.count.unwrap_or(ENTRIES).max(2);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Problem::new(Code::Internal, format!("no runtime: {error}")))?;
    let mut report = Report::of(Subject::Fetch);
    report.fact("entries", entries);
    let sizes = plan.payload_bytes.map_or(MESSAGE_BYTES.to_vec(), |bytes| vec![bytes]);
    report.fact("payloadBytes", sizes.clone());
    // None is removed before the last round: a file system that passes over what was just freed, as ext4 does, makes files
    // up to three times slower after that.
    let mut kept = Vec::new();
    let mut bytes = Vec::new();
    for size in sizes {
        let owner = Owner::new()?;
        let source = Home::new(&owner)?;
        let filled = fill(&owner, &source, entries, size)?;
        bytes.push(filled.bytes);
        let times = runtime.block_on(measure(plan, &owner, &source, &filled, &mut kept))?;
        kept.push(source);
        tell(&mut report, size, &filled, times);
    }
    report.fact("bytes", bytes);
    Ok(report)
}

/// Seconds of each round.
struct Times {
    raw: Samples,
    /// The raw stream, then the signatures on one core.
    one_core: Samples,
    /// The raw stream, then the signatures on all cores.
    all_cores: Samples,
    fetch: Samples,
}

fn tell(report: &mut Report, size: usize, filled: &Filled, times: Times) {
    let Times { raw, one_core, all_cores, fetch } = times;
    let name = |what: &str| format!("payloads of {size} B: {what}");
    report.ratio(name("cold fetch over raw stream"), "≤ 1.5", fetch.over(&raw));
    report.ratio(name("cold fetch over raw and signatures, one core"), "stated", fetch.over(&one_core));
    report.ratio(name("cold fetch over raw and signatures, all cores"), "stated", fetch.over(&all_cores));
    let count = usize::try_from(filled.entries).unwrap_or(usize::MAX);
    let per_s = fetch.map(|seconds| rate(count, Duration::from_secs_f64(seconds)));
    report.figure(name("raw stream, dialled, same bytes, QUIC"), "s", raw);
    report.figure(name("raw, then verify_strict on one core"), "s", one_core);
    report.figure(name("raw, then verify_strict on all cores"), "s", all_cores);
    report.figure(name("cold fetch: dial, ask, verify, store, adopt"), "s", fetch);
    report.figure(name("cold fetch"), "entries/s", per_s);
}

/// A session on the source.
struct Filled {
    session: SessionId,
    entries: u64,
    /// Of all entries and payloads.
    bytes: usize,
    /// Its messages and signatures, for the library alone.
    bare: Bare,
}

fn fill(owner: &Owner, source: &Home, entries: u64, size: usize) -> Answer<Filled> {
    let node = source.open()?;
    node.take_controls(vec![owner.grant(source.principal(), Role::Writer)?])?;
    let (session, mut head) = home::begin(&node, words::message(0, size))?;
    // The genesis and the first message are there.
    let numbers: Vec<u64> = (2..entries).collect();
    for numbers in numbers.chunks(limits::APPEND_ENTRIES_MAX) {
        let drafts = numbers.iter().map(|number| words::message(*number, size)).collect();
        head = home::append(&node, session, head, drafts)?;
    }
    let reader = node.reader()?;
    let mut bytes = 0;
    let mut records = Vec::new();
    for stored in reader.entries(session, Seq::ZERO, Seq::new(entries)?)? {
        let stored = stored?;
        bytes += stored.bytes.len();
        if let Some(cid) = stored.payload
            && let PayloadState::Present(payload) = reader.payload(cid)?
        {
            bytes += payload.len();
        }
        records.push(Record { entry: stored.bytes.into(), payload: None });
    }
    Ok(Filled { session, entries, bytes, bare: Bare::of(&records)? })
}

/// The homes that were fetched into are added to `kept`.
async fn measure(
    plan: Plan,
    owner: &Owner,
    source: &Home,
    filled: &Filled,
    kept: &mut Vec<Home>,
) -> Answer<Times> {
    // Every reader is known before the source begins to serve: it alone holds its data directory then.
    let readers: Vec<Home> = (0..plan.rounds).map(|_| Home::new(owner)).collect::<Answer<_>>()?;
    {
        let node = source.open()?;
        let grants = readers.iter().map(|home| owner.grant(home.principal(), Role::Agent));
        node.take_controls(grants.collect::<Answer<_>>()?)?;
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let serving = serve(source).await?;
    let mut times = [(); 4].map(|()| Samples::new());
    for home in &readers {
        let raw = raw(filled.bytes).await?;
        let (one, all) = (filled.bare.verify()?, filled.bare.verify_on(cores)?);
        let fetched = fetch(home, &serving, filled).await?;
        for (samples, time) in times.iter_mut().zip([raw, raw + one, raw + all, fetched]) {
            samples.push(seconds(time));
        }
    }
    serving.stop().await?;
    kept.extend(readers);
    let [raw, one_core, all_cores, fetch] = times;
    Ok(Times { raw, one_core, all_cores, fetch })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// The source, serving as `throughline serve` does.
struct Serving {
    api: Client,
    ticket: String,
    task: tokio::task::JoinHandle<Answer<()>>,
}

async fn serve(home: &Home) -> Answer<Serving> {
    let (dirs, config) = (home.dirs().clone(), home.config().clone());
    let (ready, told) = oneshot::channel();
    let task = tokio::spawn(async move {
        runtime::serve(&dirs, &config, || {
            // Nobody waits any more only when the bench has ended.
            let _ = ready.send(());
        })
        .await
    });
    if told.await.is_err() {
        let ended = task.await.unwrap_or_else(|_| Err(Code::Internal.into()));
        return Err(ended.err().unwrap_or_else(|| Code::Internal.into()));
    }
    let api = Client::new(Endpoint::Socket(home.config().api.socket.clone()));
    let node = api.ask(Call::get("/v1/node")).await?;
    let ticket = node["ticket"].as_str().map(str::to_owned);
    let ticket = ticket.ok_or_else(|| Problem::new(Code::Internal, "a node that serves has no ticket"))?;
    Ok(Serving { api, ticket, task })
}

impl Serving {
    async fn stop(self) -> Answer<()> {
        self.api.ask(Call::post("/v1/stop", &json!({}))).await?;
        self.task.await.unwrap_or_else(|_| Err(Code::Internal.into()))
    }
}

/// Fetches into a home that holds nothing.
async fn fetch(home: &Home, from: &Serving, filled: &Filled) -> Answer<Duration> {
    let (api, guard) = runtime::open_in_process(home.dirs(), home.config(), NetworkNeed::On).await?;
    api.ask(Call::post("/v1/peers", &json!({"alias": "source", "ticket": from.ticket}))).await?;
    let body = json!({
        "session": filled.session.to_string(), "from": ["source"], "payloads": "referenced", "adopt": true,
    });
    let began = Instant::now();
    let answer = api.ask(Call::post("/v1/fetch", &body)).await?;
    let elapsed = began.elapsed();
    drop(guard);
    expect_whole(&answer, filled.entries)?;
    Ok(elapsed)
}

fn expect_whole(answer: &Value, entries: u64) -> Answer<()> {
    let checked = &answer["checks"]["chain"]["entries"];
    if answer["verdict"] == "valid" && checked.as_u64() == Some(entries) {
        return Ok(());
    }
    let what =
        format!("expected {entries} valid entries, got {} with verdict {}", checked, answer["verdict"]);
    Err(Problem::new(Code::Internal, what))
}

/// Dials, opens one stream and reads `size_bytes`.
async fn raw(size_bytes: usize) -> Answer<Duration> {
    let (sender, mut events) = start("/ip4/127.0.0.1/udp/0/quic-v1")?;
    let (reader, _kept) = start("/ip4/127.0.0.1/udp/0/quic-v1")?;
    listening(&mut events).await?;
    let sending = tokio::spawn(send(events, vec![0x5a; limits::FRAME_TARGET_BYTES], size_bytes));
    let addrs = sender.listen_addrs().await;
    let began = Instant::now();
    reader.dial(sender.peer_id(), addrs).await.map_err(broke)?;
    let mut stream = reader.open(sender.peer_id(), Protocol::Chain).await.map_err(broke)?;
    stream.finish().await.map_err(cut)?;
    let mut left = size_bytes;
    while left > 0 {
        let frame = stream.read().await.map_err(cut)?;
        let Some(frame) = frame else { return Err(Code::Incomplete.into()) };
        left = left.saturating_sub(frame.len());
    }
    let elapsed = began.elapsed();
    sending.await.unwrap_or_else(|_| Err(Code::Internal.into()))?;
    reader.shutdown().await;
    sender.shutdown().await;
    Ok(elapsed)
}

fn start(listen: &str) -> Answer<(NetHandle, NetEvents)> {
    let listen = listen.parse().map_err(|_| Problem::from(Code::Internal))?;
    net::spawn(NetConfig::loopback(Zeroizing::new(random()?), vec![listen])).map_err(broke)
}

async fn listening(events: &mut NetEvents) -> Answer<()> {
    while let Some(event) = events.recv().await {
        if matches!(event, NetEvent::Listening(_)) {
            return Ok(());
        }
    }
    Err(Code::Unreachable.into())
}

/// Answers the first stream with that many bytes, a frame at a time.
async fn send(mut events: NetEvents, frame: Vec<u8>, size_bytes: usize) -> Answer<()> {
    while let Some(event) = events.recv().await {
        let NetEvent::Incoming { mut stream, .. } = event else { continue };
        let mut left = size_bytes;
        while left > 0 {
            let part = &frame[..left.min(frame.len())];
            stream.write(part).await.map_err(cut)?;
            left -= part.len();
        }
        return stream.finish().await.map_err(cut);
    }
    Err(Code::Unreachable.into())
}

fn broke(error: NetError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

fn cut(error: FrameError) -> Problem {
    Problem::new(error.code(), error.to_string())
}
