//! `api`: the local API for other programs.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use clap::{Args, Subcommand};
use serde_json::json;
use throughline_protocol::code::Code;

use crate::api::error::{Answer, Problem};
use crate::api::token::{self, Scope, Tokens};
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::cli::{link, refusal};

/// Commands of `api`.
#[derive(Debug, Subcommand)]
pub(crate) enum ApiCommand {
    /// Where the API answers while a node runs
    Path,
    /// Print the token for programs that use TCP; the socket needs none
    Token(TokenArgs),
    /// Print the OpenAPI description: with --json too the document itself, as OpenAPI defines it, without v and kind
    Openapi,
    /// Run curl against the running node: paths such as /v1/status, and any option of curl
    Curl(CurlArgs),
}

/// Arguments of `api token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    /// What it allows
    #[arg(long, value_name = "SCOPE", default_value = "write", value_parser = ["read", "write"])]
    pub(crate) scope: String,
}

/// Arguments of `api curl`.
#[derive(Debug, Args)]
pub(crate) struct CurlArgs {
    /// Handed to curl
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}

/// Runs one.
pub(crate) fn run(ctx: &Context, command: &ApiCommand) -> Answer<Outcome> {
    match command {
        ApiCommand::Path => path(ctx),
        ApiCommand::Token(args) => print_token(ctx, args),
        ApiCommand::Openapi => {
            let answer = ctx.api()?.get("/v1/openapi.json")?;
            let mut page = Page::default();
            page.block(0, serde_json::to_string_pretty(&answer).unwrap_or_default());
            Ok(Outcome::done(answer, page))
        }
        ApiCommand::Curl(args) => curl(ctx, args),
    }
}

fn path(ctx: &Context) -> Answer<Outcome> {
    let config = ctx.config()?;
    let running = ctx.engine()?.wait(async { Ok(link::running(ctx, config).await) })?;
    let socket = running.as_ref().unwrap_or(&config.api.socket).display().to_string();
    let http = config.api.http.map(|address| format!("http://{address}"));
    let mut page = Page::default();
    page.row(["socket".to_owned(), socket.clone()]);
    page.row(["http".to_owned(), http.clone().unwrap_or_else(|| "off".to_owned())]);
    Ok(Outcome::done(json!({"v": 1, "kind": "api-path", "socket": socket, "http": http}), page))
}

/// The token itself is the result here, and nowhere else.
fn print_token(ctx: &Context, args: &TokenArgs) -> Answer<Outcome> {
    ctx.expect_initialised()?;
    ctx.dirs().create().map_err(refusal::dirs)?;
    let scope = if args.scope == "read" { Scope::Read } else { Scope::Write };
    let tokens = Tokens::open(ctx.dirs().run()).map_err(refusal::key)?;
    let file = tokens.path(scope).ok_or_else(|| Problem::from(Code::Internal))?;
    let token = token::read(&file).map_err(refusal::key)?;
    let token = token.as_str();
    let json = json!({"v": 1, "kind": "api-token", "scope": scope.word(), "path": file.display().to_string(), "token": token});
    Ok(Outcome::done(json, Page::of(token)))
}

/// Becomes curl, over the socket.
fn curl(ctx: &Context, args: &CurlArgs) -> Answer<Outcome> {
    let config = ctx.config()?;
    let Some(socket) = ctx.engine()?.wait(async { Ok(link::running(ctx, config).await) })? else {
        let detail = format!("expected a running node at {}, got none", config.api.socket.display());
        return Err(Problem::new(Code::Unreachable, detail).hint("throughline serve"));
    };
    let error = Command::new("curl").args(arguments(&socket, &args.args)).exec();
    Err(refusal::usage(format!("expected to run curl, got: {error}")))
}

/// Options of one letter that take a value, which may follow in the same word: `man curl`.
const TAKE_A_VALUE: &str = "AbcCdDeEFhHKmoPQrtTuUwxXyYz";

/// Whether a word says what curl is to tell of its progress.
fn tells_of_progress(arg: &str) -> bool {
    if let Some(long) = arg.strip_prefix("--") {
        let name = long.strip_prefix("no-").unwrap_or(long);
        return matches!(name, "silent" | "progress-bar" | "progress-meter");
    }
    let letters = arg.strip_prefix('-').unwrap_or_default();
    letters
        .chars()
        .take_while(|letter| !TAKE_A_VALUE.contains(*letter))
        .any(|letter| matches!(letter, 's' | '#'))
}

/// curl's arguments: the socket first, no progress but errors, bare paths as URLs, and JSON as the content type of data that
/// names none. What the user says of the progress stands.
fn arguments(socket: &Path, given: &[String]) -> Vec<String> {
    let mut out = vec!["--unix-socket".to_owned(), socket.display().to_string()];
    if !given.iter().any(|arg| tells_of_progress(arg)) {
        out.push("-sS".to_owned());
    }
    let sends = |arg: &String| arg.starts_with("-d") || arg.starts_with("--data") || arg == "--json";
    let typed = given.iter().any(|arg| arg.to_ascii_lowercase().contains("content-type:"));
    if given.iter().any(sends) && !typed {
        out.extend(["-H".to_owned(), "content-type: application/json".to_owned()]);
    }
    out.extend(
        given
            .iter()
            .map(|arg| if arg.starts_with("/v1/") { format!("http://localhost{arg}") } else { arg.clone() }),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curl_gets_the_socket_a_url_and_a_content_type() {
        let given = ["-sX", "POST", "/v1/fsck", "-d", "{}"].map(str::to_owned);
        let got = arguments(Path::new("/run/api.sock"), &given);
        let expected = [
            "--unix-socket",
            "/run/api.sock",
            "-H",
            "content-type: application/json",
            "-sX",
            "POST",
            "http://localhost/v1/fsck",
            "-d",
            "{}",
        ];
        assert_eq!(got, expected);
        for (given, is_quiet) in [
            (&["/v1/status"][..], true),
            (&["-XPOST", "-Hs: s", "/v1/stop"], true),
            (&["--silent"], false),
            (&["-vs"], false),
            (&["-#"], false),
            (&["--no-silent"], false),
            (&["--progress-bar"], false),
        ] {
            let given: Vec<String> = given.iter().map(|&arg| arg.to_owned()).collect();
            assert_eq!(
                arguments(Path::new("/s"), &given).iter().any(|arg| arg == "-sS"),
                is_quiet,
                "{given:?}"
            );
        }
        let own = ["-d", "x", "-H", "Content-Type: application/cbor", "/v1/refs"].map(str::to_owned);
        assert!(!arguments(Path::new("/s"), &own).iter().any(|arg| arg == "content-type: application/json"));
    }
}
