//! What a person waits for: `status` with many sessions, `--help`; and how large the program is and what it takes idle.
//!
//! Processes are this very program, started cold on a home of their own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use throughline_protocol::code::Code;
use throughline_protocol::control::Role;

use super::home::{self, Home, Owner};
use super::machine::{self, Process};
use super::report::{Report, Samples};
use super::verify::mib;
use super::{Plan, Subject, words};
use crate::api::client::{Call, Client, Endpoint};
use crate::api::error::{Answer, Problem};
use crate::runtime::{self, NetworkNeed};

/// Sessions held.
const SESSIONS: u64 = 1_000;
/// Threads that make them.
const MAKERS: usize = 8;
/// Text of a message, in bytes.
const MESSAGE_BYTES: usize = 200;

/// Measures.
pub(super) fn run(plan: Plan) -> Answer<Report> {
    let sessions = plan.count.unwrap_or(SESSIONS).max(1);
    let owner = Owner::new()?;
    let home = Home::new(&owner)?;
    fill(&owner, &home, sessions)?;
    let program = std::env::current_exe().map_err(|error| {
        Problem::new(Code::Internal, format!("this program does not know its path: {error}"))
    })?;
    let mut report = Report::of(Subject::Status);
    report.fact("sessions", sessions);
    let mut times = [(); 4].map(|()| Samples::new());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Problem::new(Code::Internal, format!("no runtime: {error}")))?;
    for _ in 0..plan.rounds {
        times[0].push(ms(runtime.block_on(in_process(&home))?));
        times[1].push(ms(cold(&program, home.path(), &["status", "--all"])?));
        times[2].push(ms(cold(&program, home.path(), &["--help"])?));
    }
    let served = Served::start(&program, home.path())?;
    for _ in 0..plan.rounds {
        times[3].push(ms(cold(&program, home.path(), &["status", "--all"])?));
    }
    let mut idle = Samples::new();
    if let Some(bytes) = runtime.block_on(served.idle_bytes(&home))? {
        idle.push(mib(bytes));
    }
    drop(served);
    let [call, alone, help, asked] = times;
    report.ratio("status --all of a running node, ms over 100 ms", "< 1", over(&asked, 100.0));
    report.ratio("status --all without a node, ms over 100 ms", "< 1", over(&alone, 100.0));
    report.ratio("--help, ms over 20 ms", "< 1", over(&help, 20.0));
    report.figure("GET /v1/status in this process", "ms", call);
    report.figure("throughline status --all, a node runs", "ms", asked);
    report.figure("throughline status --all, no node runs", "ms", alone);
    report.figure("throughline --help", "ms", help);
    report.figure("resident memory of an idle node", "MiB", idle);
    report.figure("size of this program", "MiB", size(&program)?);
    Ok(report)
}

fn fill(owner: &Owner, home: &Home, sessions: u64) -> Answer<()> {
    let node = home.open()?;
    node.take_controls(vec![owner.grant(home.principal(), Role::Writer)?])?;
    std::thread::scope(|scope| {
        let make = |maker: u64| {
            let node = &node;
            scope.spawn(move || {
                (maker..sessions).step_by(MAKERS).try_for_each(|number| {
                    home::begin(node, words::message(number, MESSAGE_BYTES)).map(|_| ())
                })
            })
        };
        let making: Vec<_> = (0..MAKERS as u64).map(make).collect();
        making.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(Code::Internal.into())))
    })
}

/// One request to a node of this process; opening it is not counted.
async fn in_process(home: &Home) -> Answer<Duration> {
    let (api, guard) = runtime::open_in_process(home.dirs(), home.config(), NetworkNeed::Off).await?;
    let began = Instant::now();
    api.ask(Call::get("/v1/status")).await?;
    let elapsed = began.elapsed();
    drop(guard);
    Ok(elapsed)
}

/// A process from its start to its end.
fn cold(program: &Path, home: &Path, words: &[&str]) -> Answer<Duration> {
    let mut command = command(program, home);
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let status = command.status().map_err(|error| cannot_run(program, &error))?;
    let elapsed = began.elapsed();
    if status.success() {
        return Ok(elapsed);
    }
    Err(Problem::new(Code::Internal, format!("`throughline {}` ended with {status}", words.join(" "))))
}

fn command(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("THROUGHLINE_") {
            command.env_remove(name);
        }
    }
    command.arg("--home").arg(home).arg("--no-input").stdin(Stdio::null());
    command
}

fn cannot_run(program: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Code::Internal, format!("{} could not be run: {error}", program.display()))
}

/// A process that serves; killed when dropped.
struct Served {
    child: Child,
    // Read no further, but open: a closed pipe would end the node at its next line.
    _lines: BufReader<std::process::ChildStdout>,
}

impl Served {
    fn start(program: &Path, home: &Path) -> Answer<Self> {
        let mut command = command(program, home);
        command.args(["serve", "--json"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| cannot_run(program, &error))?;
        let Some(stdout) = child.stdout.take() else { return Err(Code::Internal.into()) };
        let mut served = Served { child, _lines: BufReader::new(stdout) };
        let mut line = String::new();
        while !line.contains("\"ready\"") {
            line.clear();
            if served._lines.read_line(&mut line).map_or(true, |read| read == 0) {
                return Err(Problem::new(Code::Internal, "`throughline serve` ended before it was ready"));
            }
        }
        Ok(served)
    }

    /// Resident memory once it has answered a small request.
    async fn idle_bytes(&self, home: &Home) -> Answer<Option<u64>> {
        let api = Client::new(Endpoint::Socket(home.config().api.socket.clone()));
        api.ask(Call::get("/v1/node")).await?;
        Ok(machine::resident_bytes(Process::Other(self.child.id())))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(program: &Path) -> Answer<Samples> {
    let bytes = std::fs::metadata(program).map_err(|error| cannot_run(program, &error))?.len();
    let mut samples = Samples::new();
    samples.push(mib(bytes));
    Ok(samples)
}

fn over(times: &Samples, limit_ms: f64) -> Samples {
    times.map(|time| time / limit_ms)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
