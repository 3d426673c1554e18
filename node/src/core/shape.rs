//! The JSON shapes that the API and the command line share. Ids are always full; fields are only ever added.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::str::FromStr;

use serde_json::{Value, json};
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::clock;
use throughline_protocol::content::Content;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::{Body, Entry, Note};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Principal, Seq, UnixMillis};
use throughline_protocol::payload::{Payload, Words};
use throughline_protocol::view;
use throughline_store::{Ahead, PayloadState, Reader, SessionRow, SessionState, StoredEntry};

use super::now;
use crate::api::error::Answer;

/// A position: `{"cid", "seq", "epoch"}`.
#[must_use]
pub fn mark(mark: &Mark) -> Value {
    json!({"cid": mark.cid.to_string(), "seq": mark.seq.get(), "epoch": mark.epoch.get()})
}

/// Unix milliseconds as RFC 3339 in UTC, with milliseconds.
#[must_use]
pub fn rfc3339(at: UnixMillis) -> String {
    let (days, rest) = (at.get() / 86_400_000, at.get() % 86_400_000);
    let (year, month, day) = civil(days);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Days since 1970-01-01 as a civil date (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// What a session may be in here, as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its holder may append.
    Active,
    /// It stands still for a move.
    Frozen,
    /// This node handed it over.
    Retired,
    /// It has ended.
    Sealed,
    /// Nobody holds it.
    Suspended,
}

impl State {
    /// All of them.
    pub const ALL: [State; 5] =
        [State::Active, State::Frozen, State::Retired, State::Sealed, State::Suspended];

    /// Their words.
    pub const WORDS: [&str; 5] = [
        State::Active.word(),
        State::Frozen.word(),
        State::Retired.word(),
        State::Sealed.word(),
        State::Suspended.word(),
    ];

    /// The state of a session that is held.
    #[must_use]
    pub fn of(row: &SessionRow) -> Self {
        match row.state {
            SessionState::Frozen { .. } => State::Frozen,
            SessionState::Retired { .. } => State::Retired,
            SessionState::Active if row.summary.verdict == "sealed" => State::Sealed,
            SessionState::Active if row.summary.holder.is_none() => State::Suspended,
            SessionState::Active => State::Active,
        }
    }

    /// The word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Frozen => "frozen",
            State::Retired => "retired",
            State::Sealed => "sealed",
            State::Suspended => "suspended",
        }
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = State::ALL.into_iter().find(|state| state.word() == word);
        found.ok_or_else(|| format!("expected one of {}", State::WORDS.join(", ")))
    }
}

/// Names of peers, for reading.
pub type Aliases = BTreeMap<Principal, String>;

/// The names that the user gave to principals.
///
/// # Errors
/// When the store cannot be read.
pub fn aliases(reader: &Reader) -> Answer<Aliases> {
    Ok(crate::sync::peers::list(reader)?.into_iter().map(|peer| (peer.principal, peer.alias)).collect())
}

/// A session as lists and `status` show it, with what [`Lookout`](super::problems::Lookout) found of it.
#[must_use]
pub fn session(row: &SessionRow, own: Principal, aliases: &Aliases, problems: Vec<Value>) -> Value {
    let summary = &row.summary;
    let head = summary.head.unwrap_or(row.tip);
    json!({
        "session": row.session.to_string(),
        "title": summary.title,
        "agent": row.agent,
        "owner": row.owner.to_string(),
        "class": summary.class.word(),
        "state": State::of(row).word(),
        "holder": summary.holder.map(|holder| json!({
            "principal": holder.to_string(), "alias": aliases.get(&holder), "self": holder == own,
        })),
        "epoch": head.epoch.get(),
        "head": {"cid": head.cid.to_string(), "seq": head.seq.get()},
        "tip": {"cid": row.tip.cid.to_string(), "seq": row.tip.seq.get()},
        "pending": summary.pending,
        "anchoredThrough": summary.anchored_through.map(Seq::get),
        "verdict": summary.verdict,
        "problems": problems,
        "changedAt": rfc3339(row.changed),
    })
}

/// A stored entry with its payload, as `log` and the entries route show it.
///
/// # Errors
/// When the store's bytes are damaged.
pub fn log_entry(
    reader: &Reader,
    row: &SessionRow,
    stored: &StoredEntry,
    own: Principal,
    aliases: &Aliases,
) -> Answer<Value> {
    let signed = Decoded::<Entry>::decode(stored.bytes.as_slice())?.assume_signed();
    let (payload, payload_state) = payload_of(reader, &signed)?;
    let entry = signed.value();
    let status = if payload_state == "redacted" { "redacted-payload" } else { status_of(row, stored.seq) };
    Ok(json!({
        "v": 1, "kind": "entry",
        "session": row.session.to_string(),
        "seq": stored.seq.get(),
        "cid": stored.cid.to_string(),
        "prev": entry.prev().map(|prev| prev.to_string()),
        "epoch": entry.epoch().get(),
        "type": entry.body.type_name(),
        "signer": entry.signer.to_string(),
        "signerAlias": if entry.signer == own { Some("self") } else { aliases.get(&entry.signer).map(String::as_str) },
        "role": role_word(reader, entry, row)?,
        "claimedTs": rfc3339(entry.ts),
        "claimedTsMs": entry.ts.get(),
        "aheadMs": ahead_ms(row, stored.seq, entry.ts),
        "status": status,
        "anchored": row.summary.anchored_through.is_some_and(|through| stored.seq <= through),
        "summary": one_line(entry, payload.as_ref()),
        "body": view::entry_to_json(&signed, payload.as_ref()),
        "links": links(reader, payload.as_ref())?,
        "payload": payload_state,
        "source": payload.as_ref().and_then(Payload::source).map(|source| json!({
            "format": source.format, "line": source.line, "claimedTs": source.ts,
        })),
    }))
}

/// How far an entry's time is ahead: of this clock when it came, for the one that is noted, else of this clock now.
fn ahead_ms(row: &SessionRow, seq: Seq, ts: UnixMillis) -> Option<u64> {
    let noted = row.ahead.filter(|ahead| ahead.seq == seq).map(|ahead| ahead.by_ms);
    noted.or_else(|| clock::ahead_ms(ts, UnixMillis::default(), now()))
}

/// The newest entry that was ahead when it came, as `verify` and `fetch` tell it.
#[must_use]
pub fn ahead(ahead: &Ahead) -> Value {
    json!({"seq": ahead.seq.get(), "claimedTs": rfc3339(ahead.ts), "aheadMs": ahead.by_ms})
}

/// How an entry of the main chain counts.
fn status_of(row: &SessionRow, seq: Seq) -> &'static str {
    match (row.summary.head, row.summary.verdict.as_str()) {
        // Nothing counts: the genesis was signed under a grant that was revoked.
        (None, "revoked-tail") => "revoked",
        (None, _) => "unverified",
        (Some(head), _) if seq <= head.seq => "valid",
        (Some(_), "forked" | "frozen") => "forked",
        (Some(_), _) => "pending",
    }
}

/// As what the signer acted: the owner, or by the role of the grant that the entry cites.
fn role_word(reader: &Reader, entry: &Entry, row: &SessionRow) -> Answer<&'static str> {
    let Some(cited) = entry.capability().filter(|_| entry.signer != row.owner) else { return Ok("owner") };
    let Some(bytes) = reader.control(&cited)? else { return Ok("delegate") };
    let decoded = Decoded::<Control>::decode(bytes)?;
    let Control::Capability(capability) = decoded.value() else { return Ok("delegate") };
    Ok(match capability.grant().map(|grant| grant.role) {
        Ok(Role::Agent) => "device",
        Ok(Role::Writer) => "holder",
        Ok(Role::Contributor) => "contributor",
        Ok(Role::Reader) | Err(_) => "delegate",
    })
}

/// The payload, and one word: `none`, `present`, `absent` or `redacted`.
///
/// # Errors
/// When the store's bytes are damaged.
pub fn payload_of(reader: &Reader, signed: &Signed<Entry>) -> Answer<(Option<Payload>, &'static str)> {
    let Some(named) = signed.value().payload else { return Ok((None, "none")) };
    Ok(match reader.payload(named.cid)? {
        PayloadState::Present(bytes) => (Some(Payload::check(signed.value(), bytes)?), "present"),
        PayloadState::Dropped => (None, "redacted"),
        PayloadState::Absent => (None, "absent"),
    })
}

fn links(reader: &Reader, payload: Option<&Payload>) -> Answer<Vec<Value>> {
    let Some(payload) = payload else { return Ok(Vec::new()) };
    let attachments = payload.attachments().iter().map(|file| (file.cid, file.size, file.name.clone()));
    let media = payload.content().iter().filter_map(|content| {
        let Content::Media(media) = content else { return None };
        Some((media.cid, media.size, media.name.clone()))
    });
    attachments
        .chain(media)
        .map(|(cid, size, name)| {
            let present = reader.find(&cid)?.is_some();
            Ok(json!({"cid": cid.to_string(), "present": present, "sizeBytes": size, "name": name}))
        })
        .collect()
}

/// One line for a person, of untrusted words: escaped where it is shown.
fn one_line(entry: &Entry, payload: Option<&Payload>) -> String {
    let words = payload.map(Payload::text).unwrap_or_default();
    let mut line = match &entry.body {
        Body::ToolCall(call) => format!("{} {}", call.name, call.outcome.word()),
        Body::ModelResponse(response) if words.is_empty() => {
            response.calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>().join(", ")
        }
        Body::Handoff(handoff) => handoff
            .holder
            .map_or_else(|| "suspended".to_owned(), |holder| format!("handed over to {}", holder.short())),
        Body::Seal(seal) => format!("sealed after {} entries", seal.count),
        Body::Note(Note::Class(class)) => format!("class {}", class.word()),
        Body::Note(note) if words.is_empty() => note.kind().to_owned(),
        Body::Genesis(genesis) if words.is_empty() => genesis.agent.to_string(),
        Body::Genesis(_) | Body::UserMessage(_) | Body::ModelResponse(_) | Body::Note(_) => String::new(),
    };
    if let (Body::ToolCall(_), Some(Words::ToolCall(tool))) = (&entry.body, payload.map(Payload::words))
        && let Some(input) = &tool.input
    {
        let _ = write!(line, " {input}");
    }
    if line.is_empty() {
        line = words;
    }
    let flat: String = line.split_whitespace().collect::<Vec<_>>().join(" ");
    if flat.chars().count() > 160 { flat.chars().take(159).chain(['…']).collect() } else { flat }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        let text = |ms| rfc3339(UnixMillis::new(ms).unwrap());
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(text(1_767_225_600_001), "2026-01-01T00:00:00.001Z");
        assert_eq!(text(4_107_542_399_999), "2100-02-28T23:59:59.999Z");
    }
}
