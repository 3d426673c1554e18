//! The command line as it is parsed. Each command's own arguments stand with the command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::commands as c;
use super::format::parse_duration;
use super::output::{Loudness, Shape};
use super::progress::ProgressMode;

/// Throughline: every turn of an AI-agent session is a signed, hash-linked entry, so any machine can fetch the
/// session from anybody, check it alone, and carry it on.
#[derive(Debug, Parser)]
#[command(name = "throughline", version, max_term_width = 100)]
#[command(
    after_help = "S is a session: its CID, at least 4 characters after bafyrei, a tls1… ticket, hm://…/session-<cid> \
or ipfs://<cid>.\nE is an entry: S:31, S:head, S:-1 or its CID. P is a peer: an alias or a full principal.\n\
Exit codes: 0 done, 1 bug or OS, 2 usage, 3 invalid, 4 not decidable yet, 5 forked or frozen, 6 valid with a cut \
tail,\n7 conflict, 8 refused, 9 unreachable, 10 local state, 11 done with losses, 130 interrupted."
)]
pub(crate) struct Cli {
    /// The flags of every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global")]
pub(crate) struct Global {
    /// One directory that holds everything, for tests and for several nodes on a machine [env: THROUGHLINE_HOME]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The API to talk to: unix:/path or http://127.0.0.1:7420
    #[arg(long, global = true, value_name = "URL", env = "THROUGHLINE_API", hide_env_values = true)]
    pub(crate) api: Option<String>,
    /// Write exactly one JSON object to stdout, for success and for failure
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write one JSON object a line, the last one {"kind":"end",…}
    #[arg(long, global = true, conflicts_with = "json")]
    pub(crate) jsonl: bool,
    /// Write no hints and no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Write absolute times and the log; twice for more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: When,
    /// How progress is written to stderr
    #[arg(
        long,
        global = true,
        value_name = "HOW",
        default_value = "auto",
        env = "THROUGHLINE_PROGRESS",
        hide_env_values = true
    )]
    pub(crate) progress: ProgressMode,
    /// How long a peer or node may send nothing
    #[arg(long, global = true, value_name = "IDLE", default_value = "30s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// Answer yes to every question
    #[arg(short, long, global = true)]
    pub(crate) yes: bool,
    /// Never ask; an answer that is needed is an error that names the flag
    #[arg(long, global = true)]
    pub(crate) no_input: bool,
}

impl Global {
    /// The form of the result.
    #[must_use]
    pub(crate) fn shape(&self) -> Shape {
        match (self.json, self.jsonl) {
            (true, _) => Shape::Json,
            (false, true) => Shape::Lines,
            (false, false) => Shape::Text,
        }
    }

    /// How much goes to stderr.
    #[must_use]
    pub(crate) fn loudness(&self) -> Loudness {
        match (self.quiet, self.verbose) {
            (true, _) => Loudness::Quiet,
            (false, 0) => Loudness::Normal,
            (false, _) => Loudness::Verbose,
        }
    }
}

/// When to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// How the owner key is opened; only commands that sign as the owner have it.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct OwnerArgs {
    /// Read the owner key's passphrase from this file descriptor
    #[arg(long, value_name = "N")]
    pub(crate) passphrase_fd: Option<u32>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Two servers, a desktop and a stranger in a temporary directory: import, move, kill, revoke, forge, verify
    Demo(c::demo::DemoArgs),
    /// Make keys, config and data directory; safe to repeat
    Init(c::init::InitArgs),
    /// Run the node in the foreground
    Serve(c::serve::ServeArgs),
    /// Ask the running node to end cleanly
    Stop,
    /// Principal, network identity and ticket of this node
    Id(c::id::IdArgs),
    /// Who holds what and who has which head
    Status(c::status::StatusArgs),
    /// The sessions held here
    #[command(visible_alias = "ls")]
    List(c::list::ListArgs),
    /// One session, one entry or one block
    Show(c::show::ShowArgs),
    /// The transcript
    Log(c::log::LogArgs),
    /// The five checks: hash, chain, signature, authority, head
    #[command(
        after_help = "Exit 0 only for valid and sealed; 3 corrupt, 4 incomplete, 5 forked or frozen, 6 valid with a cut tail."
    )]
    Verify(c::verify::VerifyArgs),
    /// Histories that exclude each other, side by side; their evidence; the owner's way out
    #[command(after_help = "Exit as verify: 5 forked or frozen, 6 valid with a cut tail.")]
    Fork(c::fork::ForkArgs),
    /// What an error code or a verdict means and what to do next
    Explain(c::explain::ExplainArgs),
    /// Bring in a Claude Code transcript or a session CAR
    #[command(
        after_help = "Exit 11 when a line is not JSON or a payload is missing: the rest came in, and the loss is listed."
    )]
    Import(c::import::ImportArgs),
    /// Append entries given as JSON
    #[command(
        after_help = "An entry is a SessionUserMessage, SessionModelResponse, SessionToolCall, SessionNote or SessionSeal. Fields, limits and an \
                      example of each: docs/ENTRIES.md, and as schemas: throughline api openapi"
    )]
    Append(c::append::AppendArgs),
    /// Store a file and print its CID; twice is once
    Attach(c::attach::AttachArgs),
    /// Let a peer write or read sessions (owner key)
    Grant(c::grant::GrantArgs),
    /// Take grants back: anchors first, then the tombstone (owner key)
    Revoke(c::revoke::RevokeArgs),
    /// Capabilities and what became of them
    Grants(c::grant::GrantsArgs),
    /// Make a session public, after a preview of what would leave (owner key)
    Publish(c::publish::PublishArgs),
    /// Sign a Ref at the current head: "I have seen this" (owner key)
    Anchor(c::anchor::AnchorArgs),
    /// The owner key
    #[command(subcommand)]
    Key(c::key::KeyCommand),
    /// Move a session to another server (owner key)
    Move(c::handoff::MoveArgs),
    /// Bring a session here and adopt it if it verifies
    Fetch(c::fetch::FetchArgs),
    /// Fetch into staging, verify, report, and keep nothing unless asked
    #[command(
        after_help = "Exit 0 only for valid and sealed; 3 corrupt, 4 not found yet or incomplete, 5 forked or frozen, 6 valid with a cut tail."
    )]
    Audit(c::fetch::AuditArgs),
    /// Keep sessions here and serve them
    Pin(c::pin::PinArgs),
    /// Let sessions go
    Unpin(c::pin::PinArgs),
    /// The peers this node knows
    #[command(subcommand)]
    Peer(c::peer::PeerCommand),
    /// Write a session to a CAR file
    Export(c::export::ExportArgs),
    /// Hash and verify again all that is stored
    Fsck(c::fsck::FsckArgs),
    /// Measure this machine in temporary directories: ratios against a baseline of the same run
    Bench(c::bench::BenchArgs),
    /// The local API: where it is, its token, its description
    #[command(subcommand)]
    Api(c::api::ApiCommand),
    /// The configuration
    #[command(subcommand)]
    Config(c::config::ConfigCommand),
    /// A completion script for a shell
    Completions(c::about::CompletionsArgs),
    /// The version of this program and of the protocol
    Version,
}
