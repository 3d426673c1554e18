//! A holder that does not answer when it is asked to stand still: what is known of its last words, and what it means to go on
//! without them. It decides nothing; whoever signs the handoff does.

use serde_json::{Value, json};
use throughline_protocol::code::Code;

use super::link::Api;
use super::{format, view};
use crate::api::error::{Answer, Problem};

/// What a person has to know before a silent server is left behind.
#[derive(Debug)]
pub(crate) struct Silence {
    session: String,
    move_id: Value,
    /// What the holder is called here.
    from: String,
    /// What the next command calls the target.
    to: String,
    asked_for_ms: u64,
    /// The newest entry that is held here, as `{"cid","seq"}`.
    held: Value,
    /// How that is dated: when the holder told it, else when it was written.
    dated: String,
    /// The newest seq that the holder told, if it is above what is held.
    told_above: Option<u64>,
}

impl Silence {
    /// Of a move that asks whether to go on without its source. What dates the newest entry is left out where it cannot be found
    /// out; which entry that is may not be.
    ///
    /// # Errors
    /// What is held here cannot be found out.
    pub(crate) fn of(api: &Api<'_>, answer: &Value) -> Answer<Self> {
        let session = view::text(answer, "/session");
        let status = api.get(&view::path("/v1/status", &[("session", Some(session))]))?;
        let shown = view::at(&status, "/sessions/0").clone();
        let seq = held_seq(&shown)?;
        let entry = api.get(&format!("/v1/sessions/{session}/entries/{seq}")).unwrap_or_default();
        Ok(Silence::from(answer, &shown, view::at(&entry, "/claimedTsMs").as_u64()))
    }

    fn from(answer: &Value, shown: &Value, written_ms: Option<u64>) -> Self {
        let holder = view::text(shown, "/holder/principal");
        let told = view::items(shown, "/replicas").iter().find(|peer| view::text(peer, "/peer") == holder);
        let held = view::at(shown, "/tip").clone();
        let seq = view::number(&held, "/seq");
        let from = format::short(view::text(answer, "/from/peer"));
        let told_seq = told.map(|told| view::number(told, "/head/seq"));
        let dated = match (told, written_ms) {
            (Some(told), _) if told_seq == Some(seq) => {
                format!(", as {from} told {}", format::ago(view::number(told, "/seenAgeMs")))
            }
            (_, Some(written)) => {
                format!(", written {}", format::ago(format::now_ms().saturating_sub(written)))
            }
            (_, None) => String::new(),
        };
        Silence {
            session: view::text(answer, "/session").to_owned(),
            move_id: answer["move"].clone(),
            to: view::text(answer, "/to/peer").to_owned(),
            asked_for_ms: view::number(answer, "/elapsedMs"),
            told_above: told_seq.filter(|told| *told > seq),
            from,
            held,
            dated,
        }
    }

    /// What going on would cut off.
    fn loss(&self) -> String {
        let Silence { from, dated, .. } = self;
        let seq = view::number(&self.held, "/seq");
        match self.told_above {
            Some(told) => format!(
                "the newest entry held here is seq {seq}{dated}, and {from} told of seq {told}: what comes after seq {seq} \
                 would be cut off, and kept as evidence where it turns up"
            ),
            None => format!(
                "the newest entry held here is seq {seq}{dated}: if {from} wrote more, that would be cut off, and kept as \
                 evidence where it turns up"
            ),
        }
    }

    fn tried(&self) -> String {
        format!(
            "expected {} to stand still for the handoff, got no answer in {}",
            self.from,
            format::elapsed(self.asked_for_ms)
        )
    }

    /// Asks whether the server is left. Without a Yes nothing more is asked of the node.
    ///
    /// # Errors
    /// The [`Silence::problem`] after a No, and where no answer is had.
    pub(crate) fn is_left(&self, ask: impl FnOnce(&str) -> Answer<bool>) -> Answer<()> {
        match ask(&self.question()) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(self.problem()),
        }
    }

    /// What somebody at the terminal is asked.
    fn question(&self) -> String {
        let seq = view::number(&self.held, "/seq");
        format!("{}; {}. Hand over from seq {seq}?", self.tried(), self.loss())
    }

    /// The refusal where nobody can be asked. The move stays as it is: there is nobody to tell that it is off.
    pub(crate) fn problem(&self) -> Problem {
        let Silence { session, to, from, .. } = self;
        let short = format::short(session);
        let detail =
            format!("{}; nothing is signed, {from} is still the holder; {}", self.tried(), self.loss());
        let mut problem = Problem::new(Code::Unreachable, detail)
            .with("session", session.as_str())
            .with("move", self.move_id.clone())
            .with("held", self.held.clone())
            .with("askedForMs", self.asked_for_ms)
            .hint(format!(
                "throughline move {session} --to {to} --source offline --yes   (when {from} is back: throughline move \
                 --resume {short}; to call it off: throughline move --abort {short})"
            ));
        if let Some(told) = self.told_above {
            problem = problem.with("lost", json!({"throughSeq": told}));
        }
        problem
    }
}

/// The seq of the newest entry that is held here.
///
/// # Errors
/// `E_INCOMPLETE`: the node does not say.
fn held_seq(shown: &Value) -> Answer<u64> {
    let missing =
        || Problem::new(Code::Incomplete, "expected the newest entry that is held here, the node names none");
    view::at(shown, "/tip/seq").as_u64().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Value {
        json!({
            "phase": "freeze", "state": "needs-confirmation", "session": "S", "move": "M", "elapsedMs": 30_000,
            "from": {"peer": "server-a"}, "to": {"peer": "server-b"},
        })
    }

    fn session(told: u64) -> Value {
        json!({
            "tip": {"cid": "bafy", "seq": 57}, "holder": {"principal": "z6MkA"},
            "replicas": [
                {"peer": "z6MkB", "head": {"seq": 99}, "seenAgeMs": 1},
                {"peer": "z6MkA", "head": {"seq": told}, "seenAgeMs": 240_000},
            ],
        })
    }

    #[test]
    fn the_first_refusal_says_what_was_tried_what_may_be_lost_and_the_command() {
        let problem = Silence::from(&answer(), &session(57), Some(0)).problem();
        assert_eq!(problem.code(), Code::Unreachable);
        for said in
            ["server-a", "no answer in 30.0 s", "nothing is signed", "seq 57, as server-a told 4 min ago"]
        {
            assert!(problem.detail().contains(said), "{said}: {problem}");
        }
        let hint = problem.fact("hint").and_then(Value::as_str).unwrap_or_default();
        assert!(hint.contains("throughline move S --to server-b --source offline --yes"), "{hint}");
        assert_eq!(problem.fact("held").map(|held| held["seq"].clone()), Some(57.into()));
        assert!(problem.fact("lost").is_none());
    }

    #[test]
    fn only_a_yes_leaves_the_server_and_a_no_ends_with_how_the_move_goes_on() {
        let silence = Silence::from(&answer(), &session(57), Some(0));
        let asked = |said: Answer<bool>| {
            silence.is_left(|question| {
                assert!(question.ends_with("Hand over from seq 57?"), "{question}");
                said
            })
        };
        asked(Ok(true)).unwrap();
        for said in [Ok(false), Err(Code::Prompt.into())] {
            let problem = asked(said).unwrap_err();
            assert_eq!((problem.code(), problem.fact("move")), (Code::Unreachable, Some(&"M".into())));
            let hint = problem.fact("hint").and_then(Value::as_str).unwrap_or_default();
            for act in ["--source offline --yes", "move --resume S", "move --abort S"] {
                assert!(hint.contains(act), "{hint}");
            }
        }
    }

    #[test]
    fn entries_that_it_told_of_and_nobody_gave_are_named() {
        let silence = Silence::from(&answer(), &session(60), None);
        assert!(silence.question().contains("server-a told of seq 60"), "{}", silence.question());
        assert_eq!(silence.problem().fact("lost"), Some(&json!({"throughSeq": 60})));
    }

    #[test]
    fn no_seq_is_made_up_where_the_node_names_none() {
        assert_eq!(held_seq(&session(57)).unwrap(), 57);
        for shown in [Value::Null, json!({"tip": null}), json!({"tip": {"seq": "57"}})] {
            assert_eq!(held_seq(&shown).unwrap_err().code(), Code::Incomplete);
        }
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let mut shown = session(57);
        shown["replicas"] = json!([]);
        let silence = Silence::from(&answer(), &shown, None);
        assert!(silence.question().contains("is seq 57: if server-a wrote more"), "{}", silence.question());
        let dated = Silence::from(&answer(), &shown, Some(format::now_ms()));
        assert!(dated.question().contains("seq 57, written just now"), "{}", dated.question());
    }
}
