//! The event stream of the API as a program reads it (Server-Sent Events), and one event as a line.

use serde_json::{Value, json};

use super::format;

/// Longest event that is kept while it arrives, in bytes; a longer one is dropped.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// Puts events together from the pieces that arrive.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pending: Vec<u8>,
}

impl Stream {
    /// Takes the next piece; answers the events that are whole now, each with its `id` and `event`.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Value> {
        self.pending.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.pending.windows(2).position(|pair| pair == b"\n\n") {
            let frame: Vec<u8> = self.pending.drain(..end + 2).collect();
            events.extend(event(&String::from_utf8_lossy(&frame)));
        }
        if self.pending.len() > EVENT_BYTES_MAX {
            self.pending.clear();
        }
        events
    }
}

/// The event of one frame; comments, which keep a connection open, are none.
fn event(frame: &str) -> Option<Value> {
    let (mut id, mut name, mut data) = (None, None, String::new());
    for line in frame.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => id = Some(value.to_owned()),
            "event" => name = Some(value.to_owned()),
            "data" => data.push_str(value),
            _ => {}
        }
    }
    if data.is_empty() {
        return None;
    }
    let mut value: Value = serde_json::from_str(&data).ok().filter(Value::is_object)?;
    let object = value.as_object_mut()?;
    object.entry("v").or_insert(json!(1));
    object.entry("kind").or_insert(json!(name.unwrap_or_else(|| "message".to_owned())));
    if let Some(id) = id {
        object.entry("id").or_insert(json!(id));
    }
    Some(value)
}

/// One event as a line: when, what, and its facts in the order of the object. A key that has a name here (`signer` and
/// `signerAlias`) stands behind it, as everywhere.
#[must_use]
pub(crate) fn line(event: &Value, now_ms: u64) -> String {
    let kind = event.get("kind").and_then(Value::as_str).unwrap_or("event");
    let at = event.get("atMs").and_then(Value::as_u64).unwrap_or(now_ms);
    let mut line = format!("{} {kind:<7}", format::time_of_day(at));
    let facts = event.as_object().into_iter().flatten();
    let is_name = |key: &str| key.strip_suffix("Alias").is_some_and(|named| event.get(named).is_some());
    let is_fact = |key: &str| !["v", "kind", "id", "atMs"].contains(&key) && !is_name(key);
    for (key, value) in facts.filter(|(key, _)| is_fact(key)) {
        let name = event.get(format!("{key}Alias")).and_then(Value::as_str);
        let shown = match (name, fact(value)) {
            (Some("self"), Some(_)) => Some("self".to_owned()),
            (Some(name), Some(key)) => Some(format!("{name} ({key})")),
            (_, fact) => fact,
        };
        if let Some(shown) = shown {
            line.push_str(&format!(" {key} {shown}"));
        }
    }
    line
}

fn fact(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(format::short(text)),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(items) => Some(items.len().to_string()),
        // A place in a session is told by its number.
        Value::Object(object) => {
            object.get("seq").map(|seq| format!("seq {seq}")).or_else(|| Some(object.len().to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_they_arrive() {
        let text =
            b": hello\n\nid: e7-1\nevent: entry\ndata: {\"session\":\"s\",\ndata: \"seq\":3}\n\nid: 2\n";
        for cut in 0..text.len() {
            let mut stream = Stream::default();
            let mut events = stream.feed(&text[..cut]);
            events.extend(stream.feed(&text[cut..]));
            assert_eq!(events, [json!({"v": 1, "kind": "entry", "id": "e7-1", "session": "s", "seq": 3})]);
        }
    }

    #[test]
    fn an_event_without_end_takes_no_memory() {
        let mut stream = Stream::default();
        for _ in 0..40 {
            assert!(stream.feed(&[b'x'; 1 << 16]).is_empty());
            assert!(stream.pending.len() <= EVENT_BYTES_MAX);
        }
    }

    #[test]
    fn an_event_is_one_line() {
        let event = json!({"v": 1, "kind": "adopt", "id": "1", "atMs": 50_532_000, "head": {"seq": 57}, "from": "server-a"});
        assert_eq!(line(&event, 0), "14:02:12 adopt   from server-a head seq 57");
    }
    #[test]
    fn a_key_stands_behind_its_name() {
        let key = throughline_protocol::id::Principal::from_key([7; 32]);
        let mut event = json!({"kind": "entry", "atMs": 0, "seq": 3, "signer": key.to_string(), "signerAlias": "server-b"});
        assert_eq!(line(&event, 0), format!("00:00:00 entry   seq 3 signer server-b ({})", key.short()));
        event["signerAlias"] = "self".into();
        assert_eq!(line(&event, 0), "00:00:00 entry   seq 3 signer self");
        event["signerAlias"] = Value::Null;
        assert_eq!(line(&event, 0), format!("00:00:00 entry   seq 3 signer {}", key.short()));
    }
}
