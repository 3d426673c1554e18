//! A holder that does not answer when it is asked to stand still, or that is not asked: what is known of its last words, and what it
//! means to go on without them. It decides nothing; whoever signs the handoff does.

use serde_json::{Value, json};
use throughline_protocol::code::Code;

use super::link::Api;
use super::{format, view};
use crate::api::error::{Answer, Problem};

/// Whether the holder was asked to stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// For so long, in milliseconds, without an answer.
    ForMs(u64),
    /// It is not. It was heard last so many milliseconds ago; none: nothing was heard of it.
    Not(Option<u64>),
}

/// What a person has to know before a silent server is left behind.
#[derive(Debug)]
pub(crate) struct Silence {
    session: String,
    move_id: Value,
    /// What the holder is called here.
    from: String,
    /// What the next command calls the target.
    to: String,
    asked: Asked,
    /// The newest entry that is held here, as `{"cid","seq"}`.
    held: Value,
    /// How that is dated: when the holder told it, else when it was written.
    dated: String,
    /// How long ago the holder told its head, if it did.
    heard_ms: Option<u64>,
    /// The newest seq that the holder told, if it is above what is held.
    told_above: Option<u64>,
}

impl Silence {
    /// Of a move that is to go without its source from the beginning, to a target that is called `to`.
    ///
    /// # Errors
    /// What is held here cannot be found out.
    pub(crate) fn unasked(api: &Api<'_>, planned: &Value, to: &str) -> Answer<Self> {
        let silence = Silence::of(api, planned)?;
        Ok(Silence { asked: Asked::Not(silence.heard_ms), to: to.to_owned(), ..silence })
    }

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
            asked: Asked::ForMs(view::number(answer, "/elapsedMs")),
            heard_ms: told.map(|told| view::number(told, "/seenAgeMs")),
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
        let from = &self.from;
        match self.asked {
            Asked::ForMs(ms) => {
                let took = format::elapsed(ms);
                format!("expected {from} to stand still for the handoff, got no answer in {took}")
            }
            Asked::Not(heard) => {
                let heard = heard.map_or("nothing was heard of it yet".to_owned(), |ms| {
                    format!("last heard {}", format::ago(ms))
                });
                format!("{from} is left without being asked ({heard})")
            }
        }
    }

    /// Both of them.
    pub(crate) fn says(&self) -> String {
        format!("{}; {}", self.tried(), self.loss())
    }

    /// The same for programs: the newest entry that is held here, how long ago the holder was heard, and what it told beyond that entry.
    pub(crate) fn facts(&self) -> Value {
        json!({"held": self.held, "heardAgeMs": self.heard_ms, "toldSeq": self.told_above})
    }

    /// The command that leaves the holder.
    fn command(&self) -> String {
        format!("throughline move {} --to {} --source offline --yes", self.session, self.to)
    }

    /// The refusal of a move that nobody agreed to. Nothing began.
    pub(crate) fn unsaid(&self) -> Problem {
        let detail = format!("{}: nobody is here to agree to that; nothing is signed", self.says());
        let problem = Problem::new(Code::Prompt, detail)
            .with("session", self.session.as_str())
            .with("held", self.held.clone())
            .hint(self.command());
        self.with_lost(problem)
    }

    fn with_lost(&self, problem: Problem) -> Problem {
        match self.told_above {
            Some(told) => problem.with("lost", json!({"throughSeq": told})),
            None => problem,
        }
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
    pub(crate) fn question(&self) -> String {
        let seq = view::number(&self.held, "/seq");
        format!("{}. Hand over from seq {seq}?", self.says())
    }

    /// The refusal where nobody can be asked. The move stays as it is: there is nobody to tell that it is off.
    pub(crate) fn problem(&self) -> Problem {
        let Silence { session, from, .. } = self;
        let command = self.command();
        let short = format::short(session);
        let detail =
            format!("{}; nothing is signed, {from} is still the holder; {}", self.tried(), self.loss());
        let problem = Problem::new(Code::Unreachable, detail)
            .with("session", session.as_str())
            .with("move", self.move_id.clone())
            .with("held", self.held.clone())
            .hint(format!(
                "{command}   (when {from} is back: throughline move --resume {short}; to call it off: throughline move --abort \
                 {short})"
            ));
        let problem = match self.asked {
            Asked::ForMs(ms) => problem.with("askedForMs", ms),
            Asked::Not(_) => problem,
        };
        self.with_lost(problem)
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
    fn who_is_not_asked_is_said_to_be_left_and_when_it_was_heard() {
        let planned = json!({"state": "planned", "session": "S", "move": null, "from": {"peer": "server-a"}});
        let silence = Silence::from(&planned, &session(60), None);
        let silence = Silence { asked: Asked::Not(silence.heard_ms), to: "server-b".to_owned(), ..silence };
        for said in
            ["server-a is left without being asked (last heard 4 min ago)", "seq 57", "told of seq 60"]
        {
            assert!(silence.question().contains(said), "{said}: {}", silence.question());
        }
        let refused = silence.unsaid();
        assert_eq!(refused.code(), Code::Prompt);
        assert_eq!(
            refused.fact("hint"),
            Some(&"throughline move S --to server-b --source offline --yes".into())
        );
        assert_eq!(
            silence.facts(),
            json!({"held": {"cid": "bafy", "seq": 57}, "heardAgeMs": 240_000, "toldSeq": 60})
        );
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
