//! The commands, one file each; beside them what a move ends with, leaving its holder, and what `publish` counts. [`run`] is the only place that
//! knows all of them.

pub(super) mod about;
pub(super) mod anchor;
pub(super) mod api;
pub(super) mod append;
pub(super) mod attach;
pub(super) mod bench;
pub(super) mod config;
pub(super) mod demo;
pub(super) mod explain;
pub(super) mod export;
pub(super) mod fetch;
pub(super) mod fork;
pub(super) mod fsck;
pub(super) mod grant;
pub(super) mod handoff;
mod handoff_leave;
mod handoff_report;
pub(super) mod id;
pub(super) mod import;
pub(super) mod init;
pub(super) mod key;
mod leaving;
pub(super) mod list;
pub(super) mod log;
pub(super) mod peer;
pub(super) mod pin;
pub(super) mod publish;
pub(super) mod revoke;
pub(super) mod serve;
pub(super) mod show;
pub(super) mod status;
mod unfetched;
pub(super) mod verify;

use super::args::Command;
use super::context::Context;
use super::output::Outcome;
use crate::api::error::Answer;

/// Runs the command.
///
/// # Errors
/// The refusal that the command ends with.
pub(crate) fn run(ctx: &Context, command: &Command) -> Answer<Outcome> {
    match command {
        Command::Demo(args) => demo::run(ctx, args),
        Command::Init(args) => init::run(ctx, args),
        Command::Serve(args) => serve::run(ctx, args),
        Command::Stop => serve::stop(ctx),
        Command::Id(args) => id::run(ctx, args),
        Command::Status(args) => status::run(ctx, args),
        Command::List(args) => list::run(ctx, args),
        Command::Show(args) => show::run(ctx, args),
        Command::Log(args) => log::run(ctx, args),
        Command::Verify(args) => verify::run(ctx, args),
        Command::Fork(args) => fork::run(ctx, args),
        Command::Explain(args) => explain::run(args),
        Command::Import(args) => import::run(ctx, args),
        Command::Append(args) => append::run(ctx, args),
        Command::Attach(args) => attach::run(ctx, args),
        Command::Grant(args) => grant::run(ctx, args),
        Command::Grants(args) => grant::list(ctx, args),
        Command::Revoke(args) => revoke::run(ctx, args),
        Command::Publish(args) => publish::run(ctx, args),
        Command::Anchor(args) => anchor::run(ctx, args),
        Command::Key(command) => key::run(ctx, command),
        Command::Move(args) => handoff::run(ctx, args),
        Command::Fetch(args) => fetch::fetch(ctx, args),
        Command::Audit(args) => fetch::audit(ctx, args),
        Command::Pin(args) => pin::pin(ctx, args),
        Command::Unpin(args) => pin::unpin(ctx, args),
        Command::Peer(command) => peer::run(ctx, command),
        Command::Export(args) => export::run(ctx, args),
        Command::Fsck(args) => fsck::run(ctx, args),
        Command::Bench(args) => bench::run(ctx, args),
        Command::Api(command) => api::run(ctx, command),
        Command::Config(command) => config::run(ctx, command),
        Command::Completions(args) => about::completions(ctx, args),
        Command::Version => about::version(),
    }
}
