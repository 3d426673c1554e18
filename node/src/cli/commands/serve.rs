//! `serve` and `stop`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use tokio::runtime::Builder;

use crate::address;
use crate::api::client::{Call, Client, Endpoint};
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::link::{self, Api, LOCK_PAUSE, LOCK_WAIT_MAX};
use crate::cli::output::{Outcome, Output};
use crate::cli::page::{Mark, Page};
use crate::cli::{events, format, logging, refusal, view};
use crate::config::{Config, Key, Value as Setting};
use crate::runtime;

/// Between two looks whether a node has ended.
const STOP_PAUSE: Duration = Duration::from_millis(25);

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where peers connect; may be given several times, instead of node.listen
    #[arg(long, value_name = "MADDR")]
    pub(crate) listen: Vec<String>,
    /// A loopback address and port for programs and the viewer, or off; instead of api.http
    #[arg(long, value_name = "ADDR|off")]
    pub(crate) http: Option<String>,
}

/// Runs the node until it is asked to end.
pub(crate) fn run(ctx: &Context, args: &ServeArgs) -> Answer<Outcome> {
    ctx.expect_initialised()?;
    let mut overrides = ctx.overrides();
    if !args.listen.is_empty() {
        overrides = overrides.with_flag(Key::NodeListen, Setting::List(args.listen.clone()));
    }
    if let Some(http) = &args.http {
        overrides = overrides.with_flag(Key::ApiHttp, Setting::text(http));
    }
    let config = Config::load(ctx.dirs(), &overrides).map_err(refusal::config)?;
    logging::start(&config.log.filter, ctx.verbosity(), config.log.format);
    let failed =
        |error: std::io::Error| Problem::new(Code::Internal, format!("expected threads, got: {error}"));
    let threads = Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    let (out, socket) = (ctx.out(), config.api.socket.clone());
    threads.block_on(runtime::serve(ctx.dirs(), &config, move || {
        tokio::spawn(follow(out, Client::new(Endpoint::Socket(socket))));
    }))?;
    Ok(Outcome::written())
}

/// Prints the ready line, then one line an event, as any client of the API would see them. When nobody reads stdout
/// any more the node goes on without telling.
async fn follow(out: Output, client: Client) {
    let shown = async {
        let node = client.ask(Call::get("/v1/node")).await?;
        let status = client.ask(Call::get("/v1/status")).await?;
        let mut reply = client.open(Call::get("/v1/events")).await?;
        print_ready(out, &node, &status)?;
        let mut stream = events::Stream::default();
        while let Some(chunk) = reply.chunk().await? {
            for event in stream.feed(&chunk) {
                print_event(out, &event)?;
            }
        }
        Ok::<(), Problem>(())
    };
    if let Err(problem) = shown.await
        && !refusal::is_closed_pipe(&problem)
    {
        tracing::warn!(code = %problem.code(), "events are no longer printed: {}", problem.detail());
    }
}

fn print_ready(out: Output, node: &Value, status: &Value) -> Answer<()> {
    if !out.is_text() {
        let mut ready = node.clone();
        ready["kind"] = "ready".into();
        ready["pid"] = std::process::id().into();
        return out.object(&ready).map_err(refusal::stdout);
    }
    let mut page = Page::default();
    let owner = view::at(node, "/owner").as_str().map_or("none yet".to_owned(), format::short);
    page.plain(format!("node      {}     owner {owner}", view::text(node, "/principal")));
    for addr in view::items(node, "/listen") {
        page.plain(format!("listen    {}", addr.as_str().unwrap_or_default()));
    }
    let http = match view::text(node, "/api/http") {
        "" | "off" => String::new(),
        http => format!("     http {http}"),
    };
    page.plain(format!("api       {}{http}", view::text(node, "/api/socket")));
    let totals = |what: &str| view::number(status, &format!("/totals/{what}"));
    let bad = totals("forked") + totals("cutTail") + totals("incomplete");
    page.plain(format!(
        "sessions  {} here, {} pinned, {}",
        totals("sessions"),
        totals("pinned"),
        format::count(bad, "problem", "problems"),
    ));
    page.plain("ready");
    out.page(&page).map_err(refusal::stdout)
}

fn print_event(out: Output, event: &Value) -> Answer<()> {
    if out.is_text() {
        out.page(&Page::of(events::line(event, format::now_ms()))).map_err(refusal::stdout)
    } else {
        out.object(event).map_err(refusal::stdout)
    }
}

/// Asks the running node to end, and waits until it has.
pub(crate) fn stop(ctx: &Context) -> Answer<Outcome> {
    let was_running = match ctx.api_url() {
        // Which node that is only the node knows.
        Some(_) => {
            ask_to_end(
                ctx,
                |api| matches!(api.get("/v1/health"), Err(gone) if gone.code() == Code::Unreachable),
            )?;
            true
        }
        None => match running(ctx)? {
            Some(socket) => {
                let engine = ctx.engine()?;
                ask_to_end(ctx, |_| {
                    let answers = engine.wait(async { Ok(Client::answers(&socket).await) });
                    matches!(answers, Ok(false)) && !address::is_locked(ctx.dirs())
                })?;
                true
            }
            None => false,
        },
    };
    let mut page = Page::default();
    match was_running {
        true => page.mark(Mark::Done, "the node has ended"),
        false => page.mark(Mark::Same, "no node is running"),
    }
    Ok(Outcome::done(json!({"v": 1, "kind": "stop", "state": "stopped", "wasRunning": was_running}), page))
}

/// The socket of the running node; none once nobody holds the data directory. A node that is about to begin, and a command at
/// work, are waited for.
fn running(ctx: &Context) -> Answer<Option<PathBuf>> {
    let config = ctx.config()?;
    let deadline = Instant::now() + LOCK_WAIT_MAX.min(ctx.timeout());
    ctx.engine()?.wait(async {
        loop {
            if let Some(socket) = link::running(ctx, config).await {
                return Ok(Some(socket));
            }
            if !address::is_locked(ctx.dirs()) {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Err(address::locked(ctx.dirs()));
            }
            tokio::time::sleep(LOCK_PAUSE).await;
        }
    })
}

/// Asks the node to end and waits until it `has_ended`.
fn ask_to_end(ctx: &Context, has_ended: impl Fn(&Api<'_>) -> bool) -> Answer<()> {
    let api = ctx.api()?;
    api.ask(Call::post("/v1/stop", &json!({})))?;
    let deadline = Instant::now() + ctx.timeout();
    while !has_ended(&api) {
        if Instant::now() >= deadline {
            return Err(Problem::new(Code::Timeout, "the node was asked to end and has not ended yet"));
        }
        std::thread::sleep(STOP_PAUSE);
    }
    Ok(())
}
