//! How keys are called in text: the name first, and enough of the key beside it.
//!
//! A name is what the user gave a peer (`peer add`); this node is `self`, the account that it serves `owner`: no peer can be given
//! these two. A key without a name stands alone in its short form, but in full as soon as another key that is known here looks the
//! same. JSON is never touched: it has full keys.

use std::collections::BTreeMap;

use serde_json::Value;
use throughline_protocol::id::Principal;

use super::context::Context;
use super::link::Api;
use super::view;

/// The names that are known, and the keys that were met.
#[derive(Debug, Default)]
pub(crate) struct Names {
    own: Option<Principal>,
    named: BTreeMap<Principal, String>,
    /// By short form: whose it is, or none when it is several keys'.
    shorts: BTreeMap<String, Option<Principal>>,
}

impl Names {
    /// The names of this node's address book. They are for reading, so nothing fails without them; and only text has any.
    #[must_use]
    pub(crate) fn of(ctx: &Context, api: &Api<'_>) -> Self {
        if !ctx.out().is_text() {
            return Names::default();
        }
        let answers = api.get("/v1/node").and_then(|node| Ok((node, api.get("/v1/peers")?)));
        answers.map(|(node, peers)| Names::from_answers(&node, &peers)).unwrap_or_default()
    }

    fn from_answers(node: &Value, peers: &Value) -> Self {
        let mut names = Names::default();
        let key = |value: &Value, pointer: &str| view::text(value, pointer).parse::<Principal>().ok();
        if let Some(owner) = key(node, "/owner") {
            names.name(owner, "owner");
        }
        for peer in view::items(peers, "/items") {
            if let (Some(principal), false) = (key(peer, "/principal"), view::text(peer, "/alias").is_empty())
            {
                names.name(principal, view::text(peer, "/alias"));
            }
        }
        names.own = key(node, "/principal");
        if let Some(own) = names.own {
            names.name(own, "self");
        }
        names
    }

    fn name(&mut self, principal: Principal, name: &str) {
        self.named.insert(principal, name.to_owned());
        self.meet(principal);
    }

    fn meet(&mut self, principal: Principal) {
        let whose = self.shorts.entry(principal.short()).or_insert(Some(principal));
        if *whose != Some(principal) {
            *whose = None;
        }
    }

    /// Takes note of every key in an answer, so that two that look the same are told apart.
    #[must_use]
    pub(crate) fn beside(mut self, answer: &Value) -> Self {
        self.see(answer);
        self
    }

    /// As [`Names::beside`], for one answer of several.
    pub(crate) fn see(&mut self, answer: &Value) {
        match answer {
            Value::String(text) if text.starts_with("z6Mk") => {
                if let Ok(principal) = text.parse() {
                    self.meet(principal);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.see(item)),
            Value::Object(object) => object.values().for_each(|value| self.see(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// A key, or the name of one, as a reader sees it: `server-b (z6MkhaXgZt…w8Yv)`. This node is `self`; other text stays.
    #[must_use]
    pub(crate) fn who(&self, text: &str) -> String {
        let principal = match text.parse::<Principal>() {
            Ok(principal) => principal,
            Err(_) => match self.named.iter().find(|(_, name)| *name == text) {
                Some((principal, _)) => *principal,
                None => return text.to_owned(),
            },
        };
        if Some(principal) == self.own {
            return "self".to_owned();
        }
        match self.named.get(&principal) {
            Some(name) => format!("{name} ({})", self.short(principal)),
            None => self.short(principal),
        }
    }

    /// As [`Names::who`], of an object with a `peer` and, where one is known, its `alias`: the key may be one of connections.
    #[must_use]
    pub(crate) fn peer(&self, object: &Value) -> String {
        match view::text(object, "/alias") {
            "" => self.who(view::text(object, "/peer")),
            alias => self.who(alias),
        }
    }

    /// The name of a key and the whole of it, for the line that is copied.
    #[must_use]
    pub(crate) fn full(&self, text: &str) -> String {
        let named = text.parse::<Principal>().ok().and_then(|principal| self.named.get(&principal));
        named.map_or_else(|| text.to_owned(), |name| format!("{name} ({text})"))
    }

    fn short(&self, principal: Principal) -> String {
        match self.shorts.get(&principal.short()) {
            Some(None) => principal.to_string(),
            Some(Some(other)) if *other != principal => principal.to_string(),
            Some(Some(_)) | None => principal.short(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(byte: u8) -> Principal {
        Principal::from_key([byte; 32])
    }

    fn names() -> Names {
        let node = json!({"principal": key(1).to_string(), "owner": key(2).to_string()});
        let peers = json!({"items": [
            {"alias": "server-b", "principal": key(3).to_string()}, {"alias": null, "principal": key(4).to_string()}]});
        Names::from_answers(&node, &peers)
    }

    #[test]
    fn a_name_stands_before_its_key() {
        let names = names();
        assert_eq!(names.who(&key(1).to_string()), "self");
        assert_eq!(names.who(&key(2).to_string()), format!("owner ({})", key(2).short()));
        assert_eq!(names.who(&key(3).to_string()), format!("server-b ({})", key(3).short()));
        assert_eq!(names.who("server-b"), names.who(&key(3).to_string()), "an answer may have the name only");
        assert_eq!(names.who(&key(4).to_string()), key(4).short());
        assert_eq!((names.who("nobody"), names.who("")), ("nobody".to_owned(), String::new()));
        assert_eq!(
            names.peer(&json!({"peer": key(9).to_string(), "alias": "server-b"})),
            names.who("server-b")
        );
        assert_eq!(names.full(&key(3).to_string()), format!("server-b ({})", key(3)));
    }

    #[test]
    fn keys_that_look_the_same_are_shown_in_full() {
        // No two keys that look the same are at hand: the map is what it would be after meeting them.
        let mut names = names().beside(&json!([{"signer": key(9).to_string()}]));
        assert_eq!(names.who(&key(9).to_string()), key(9).short());
        names.shorts.insert(key(9).short(), None);
        names.shorts.insert(key(3).short(), Some(key(8)));
        assert_eq!(names.who(&key(9).to_string()), key(9).to_string());
        assert_eq!(names.who(&key(3).to_string()), format!("server-b ({})", key(3)));
    }
}
