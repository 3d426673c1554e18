//! Sessions that are held in part, before the owner signs what decides about them for good: an anchor keeps what is held here, and what
//! is not here may be cut everywhere.

use serde_json::{Value, json};
use throughline_protocol::code::Code;

use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, view};

/// What is not here although a known peer told it.
#[derive(Debug)]
pub(super) struct Unfetched {
    items: Vec<Value>,
    /// Sessions of which something came.
    pub(super) fetched: u64,
}

impl Unfetched {
    /// Has known peers asked for what they hold of these sessions, and what is missing fetched; `E_UNREACHABLE` is no answer here.
    ///
    /// # Errors
    /// When this node itself cannot find out.
    pub(super) fn of(ctx: &Context, api: &Api<'_>, sessions: &[String]) -> Answer<Self> {
        if sessions.is_empty() {
            return Ok(Unfetched { items: Vec::new(), fetched: 0 });
        }
        let body = json!({"sessions": sessions, "timeoutMs": format::millis(ctx.timeout())});
        let answer = api.ask(Call::post("/v1/unfetched", &body))?;
        Ok(Unfetched {
            items: view::items(&answer, "/items").to_vec(),
            fetched: view::number(&answer, "/fetched"),
        })
    }

    /// For `--json`.
    pub(super) fn json(&self) -> Value {
        Value::from(self.items.clone())
    }

    /// One line a session: what is held, what was told, by whom, and how much would be cut.
    pub(super) fn tell(&self, page: &mut Page) {
        for item in &self.items {
            let by: Vec<&str> = view::items(item, "/by").iter().filter_map(Value::as_str).collect();
            page.mark(
                Mark::Warning,
                format!(
                    "{} is held in part: through seq {}, {} told seq {}; {} would be cut",
                    format::short(view::text(item, "/session")),
                    view::number(item, "/held/seq"),
                    by.join(", "),
                    view::number(item, "/told/seq"),
                    format::count(view::number(item, "/cutEntries"), "entry", "entries"),
                ),
            );
        }
    }

    /// Makes sure that somebody agrees to cut what is not here: by `--cut-unfetched`, or at the terminal. `--yes` is not enough.
    ///
    /// # Errors
    /// `E_INCOMPLETE` where nobody does.
    pub(super) fn agree(&self, ctx: &Context, is_given: bool) -> Answer<()> {
        let Some(first) = self.items.first() else { return Ok(()) };
        let mut page = Page::default();
        self.tell(&mut page);
        ctx.out().aside(&page);
        if is_given {
            return Ok(());
        }
        if !ctx.is_unattended() && ctx.confirm("Go on, and cut what is not here?")? {
            return Ok(());
        }
        let count = format::count(self.items.len() as u64, "session is", "sessions are");
        let what = format!("{count} held in part, and what is not here would be cut; nothing was signed");
        let session = view::text(first, "/session");
        Err(Problem::new(Code::Incomplete, what).with("unfetched", self.json()).hint(format!(
            "throughline fetch {session} while a peer that has it answers, or pass --cut-unfetched"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::Styles;

    #[test]
    fn what_would_be_cut_is_told_session_by_session() {
        let item = json!({
            "session": "bafyS", "title": "Scratch", "held": {"seq": 255}, "told": {"seq": 301}, "by": ["laptop"],
            "cutEntries": 46,
        });
        let mut page = Page::default();
        Unfetched { items: vec![item], fetched: 0 }.tell(&mut page);
        let text = page.render(Styles::plain());
        assert!(
            text.contains("held in part: through seq 255, laptop told seq 301; 46 entries would be cut"),
            "{text}"
        );
    }
}
