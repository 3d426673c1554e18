//! The sessions of a session's sub-agents: whatever is done to the one leaves the others as they are, and that is said. It decides
//! nothing.

use serde_json::Value;
use throughline_protocol::id::SessionId;

use super::link::Api;
use super::page::{Mark, Page};
use super::{format, view};

/// Commands that are written out; how many more there are is told.
const SHOWN_MAX: usize = 3;

/// The sessions held here that came from `session` and that `stays` says stay as they are, in full. What cannot be read is left out.
pub(crate) fn of(api: &Api<'_>, session: SessionId, stays: impl Fn(&Value) -> bool) -> Vec<String> {
    let (parent, mut found, mut cursor) = (session.to_string(), Vec::new(), None::<String>);
    loop {
        let query = [("parent", Some(parent.as_str())), ("cursor", cursor.as_deref())];
        let Ok(page) = api.get(&view::path("/v1/sessions", &query)) else { return found };
        let items = view::items(&page, "/items").iter().filter(|item| stays(item));
        found.extend(items.map(|item| view::text(item, "/session").to_owned()));
        cursor = view::at(&page, "/next").as_str().map(str::to_owned);
        if cursor.is_none() {
            return found;
        }
    }
}

/// Says how many there are, and what would take them along.
pub(crate) fn tell(page: &mut Page, found: &[String], how: &str, command: impl Fn(&str) -> String) {
    if found.is_empty() {
        return;
    }
    let count = format::count(found.len() as u64, "session of its sub-agents", "sessions of its sub-agents");
    page.mark(Mark::Note, format!("{count} {how}:"));
    for session in found.iter().take(SHOWN_MAX) {
        page.plain(format!("  {}", command(&format::short(session))));
    }
    if found.len() > SHOWN_MAX {
        page.plain(format!("  and {} more: throughline list", found.len() - SHOWN_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::Styles;

    #[test]
    fn what_would_take_them_along_is_written_out_for_the_first() {
        let told = |found: &[String]| {
            let mut page = Page::default();
            tell(&mut page, found, "stay with a", |session| format!("throughline move {session} --to b"));
            page.render(Styles::plain())
        };
        assert_eq!(told(&[]), "");
        let many: Vec<String> = ["s1", "s2", "s3", "s4", "s5"].map(str::to_owned).to_vec();
        let shown = told(&many);
        assert!(shown.contains("5 sessions of its sub-agents stay with a:"), "{shown}");
        assert!(shown.contains("throughline move s3 --to b") && !shown.contains("s4"), "{shown}");
        assert!(shown.contains("and 2 more"), "{shown}");
    }
}
