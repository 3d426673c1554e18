//! `append`: entries given as JSON; the node signs them as holder.

use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::EntryCid;
use throughline_protocol::limits;

use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::output::{Outcome, Shape};
use crate::cli::page::{Mark, Page};
use crate::cli::{format, refusal, resolve, view};

/// Largest request that is read, in bytes: a page of entries with their payloads.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// Arguments of `append`.
#[derive(Debug, Args)]
pub(crate) struct AppendArgs {
    /// The session
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// The entries: one JSON object, an array, or one object a line; - or nothing is stdin
    #[arg(value_name = "FILE|-", default_value = "-")]
    pub(crate) file: String,
    /// The entry that the first one follows; `head` takes what is newest here
    #[arg(long, value_name = "CID|head", default_value = "head")]
    pub(crate) base: String,
    /// Makes a repeated request one: the same key and body append once. Needs --base CID: `head` is another entry when the request
    /// comes again
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

/// Appends them in one commit.
pub(crate) fn run(ctx: &Context, args: &AppendArgs) -> Answer<Outcome> {
    if args.idempotency_key.is_some() && args.base == "head" {
        let what = "expected --base CID with --idempotency-key, got `head`, which is another entry when the request comes again";
        return Err(Problem::new(Code::Usage, what)
            .hint("throughline append S FILE --base CID --idempotency-key KEY"));
    }
    let base = base(&args.base)?;
    let entries = entries(&read(&args.file)?)?;
    let api = ctx.api()?;
    let session = resolve::session(&api, &args.session)?;
    let base = match base {
        Some(cid) => cid.to_string(),
        None => {
            let base = api.get(&format!("/v1/sessions/{session}/base"))?;
            view::text(&base, "/prev").to_owned()
        }
    };
    let key = match &args.idempotency_key {
        Some(key) => key.clone(),
        None => random_key()?,
    };
    let body = match <[Value; 1]>::try_from(entries) {
        Ok([entry]) => json!({"base": base, "entry": entry}),
        Err(entries) => json!({"base": base, "entries": entries}),
    };
    let path = format!("/v1/sessions/{session}/entries");
    let answer = api.ask(Call::post(&path, &body).header("idempotency-key", key))?;
    if ctx.out().shape() == Shape::Lines {
        let entries = view::items(&answer, "/entries");
        for entry in entries {
            let mut line = entry.clone();
            (line["v"], line["kind"], line["session"]) =
                (json!(1), json!("appended"), json!(session.to_string()));
            ctx.out().object(&line).map_err(refusal::stdout)?;
        }
        ctx.out().end(entries.len() as u64, &Value::Null).map_err(refusal::stdout)?;
        return Ok(Outcome::written());
    }
    let mut page = Page::default();
    let mark = if view::flag(&answer, "/replayed") { Mark::Same } else { Mark::Done };
    for entry in view::items(&answer, "/entries") {
        let (seq, kind) = (view::number(entry, "/seq"), view::text(entry, "/type"));
        page.mark(mark, format!("seq {seq}  {kind}  {}", format::short(view::text(entry, "/cid"))));
    }
    page.plain(format!("head {}", view::text(&answer, "/head/cid")));
    Ok(Outcome::done(answer, page))
}

/// The entry that `--base` names; none is the head.
fn base(text: &str) -> Answer<Option<EntryCid>> {
    if text == "head" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        refusal::usage(format!("expected head or the CID of an entry with --base, got {text:?}"))
            .hint("pass --base head, or the CID of an entry")
    })
}

fn read(file: &str) -> Answer<String> {
    let mut text = String::new();
    let path = Path::new(file);
    let mut input: Box<dyn std::io::Read> = if file == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(|error| refusal::input(path, error))?)
    };
    let read = input.by_ref().take(INPUT_BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Ok(length) if length as u64 > INPUT_BYTES_MAX => {
            Err(Problem::new(Code::TooBig, format!("expected at most {}", format::bytes(INPUT_BYTES_MAX))))
        }
        Ok(_) => Ok(text),
        Err(error) => Err(refusal::input(path, error)),
    }
}

/// One object, an array of them, or one a line.
fn entries(text: &str) -> Answer<Vec<Value>> {
    let stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut entries = Vec::new();
    for value in stream {
        match value {
            Ok(Value::Array(items)) => entries.extend(items),
            Ok(value) => entries.push(value),
            Err(error) => {
                return Err(Problem::new(Code::Json, format!("expected entries as JSON, got: {error}")));
            }
        }
    }
    if let Some(at) = entries.iter().position(|entry| !entry["type"].is_string()) {
        return Err(Problem::new(
            Code::Json,
            format!("expected an object with a type as entry {}, got another value", at + 1),
        ));
    }
    if entries.is_empty() || entries.len() > limits::APPEND_ENTRIES_MAX {
        let detail = format!("expected 1 to {} entries, got {}", limits::APPEND_ENTRIES_MAX, entries.len());
        return Err(refusal::usage(detail));
    }
    Ok(entries)
}

/// Without a key of the caller's every run is a request of its own.
fn random_key() -> Answer<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Problem::new(Code::Internal, format!("expected random bytes, got: {error}")))?;
    Ok(format!("cli-{}", URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_alone_in_an_array_or_one_a_line() {
        let one = r#"{"type":"SessionUserMessage"}"#;
        assert_eq!(entries(one).unwrap().len(), 1);
        assert_eq!(entries(&format!("[{one},{one}]")).unwrap().len(), 2);
        assert_eq!(entries(&format!("{one}\n{one}\n\n{one}\n")).unwrap().len(), 3);
    }

    #[test]
    fn what_is_no_entry_is_refused() {
        assert_eq!(entries("").unwrap_err().code(), Code::Usage);
        assert_eq!(entries("[]").unwrap_err().code(), Code::Usage);
        assert_eq!(entries("7").unwrap_err().code(), Code::Json);
        assert_eq!(entries(r#"{"type":"a"}{"#).unwrap_err().code(), Code::Json);
        let many = r#"{"type":"a"} "#.repeat(limits::APPEND_ENTRIES_MAX + 1);
        assert_eq!(entries(&many).unwrap_err().code(), Code::Usage);
    }
}
