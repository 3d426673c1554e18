//! Two histories side by side: where they part, who signed what, where their words differ, and what the owner would sign to go
//! on with one of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::{Evidence, Judged, Mark, Selection};
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::skip;
use throughline_store::Reader;

use super::base::need_session;
use super::controls::controls_of;
use super::evidence::evidence_of;
use super::scene::{Scene, from_store, is_disputed, path_to, prev_of};
use super::{Node, shape};
use crate::api::error::Answer;

/// Entries of one branch whose words are compared.
const COMPARED_MAX: usize = 64;
/// Characters of one branch that are compared.
const COMPARED_CHARS_MAX: usize = 16_384;
/// Characters of one branch that are shown.
const SHOWN_CHARS: usize = 160;
/// Branches that are shown.
const BRANCHES_MAX: usize = 16;

/// What became of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    Undecided,
    Kept,
    Rejected,
}

impl Rank {
    fn word(self) -> &'static str {
        match self {
            Rank::Undecided => "undecided",
            Rank::Kept => "kept",
            Rank::Rejected => "rejected",
        }
    }
}

/// A dispute, or what is left of one.
struct Parting {
    at: Mark,
    tips: Vec<(Mark, Rank)>,
    why: Code,
}

impl Node {
    /// The histories of a session that exclude each other, and the evidence.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`; store errors.
    pub fn fork(&self, session: SessionId) -> Answer<Value> {
        let reader = self.reader()?;
        let row = need_session(&reader, session)?;
        let controls = controls_of(&reader, row.owner, Some(session))?;
        let scene = Scene::held(&reader, session, Some(row.clone()), controls)?;
        let judged = scene.set.judge();
        let selection = judged.selection();
        let parting = parting(&judged, &selection);
        let aliases = shape::aliases(&reader)?;
        let mut branches = Vec::new();
        let mut words = Vec::new();
        for (tip, rank) in parting.iter().flat_map(|parting| &parting.tips).take(BRANCHES_MAX) {
            let at = parting.as_ref().map_or(*tip, |parting| parting.at);
            let own: Vec<EntryCid> = above(&judged, tip.cid, at);
            words.push(words_of(&reader, &own)?);
            let signer = judged.skeleton(tip.cid).map(throughline_protocol::fork::Skeleton::signer);
            branches.push(json!({
                "head": tip.cid.to_string(), "seq": tip.seq.get(), "epoch": tip.epoch.get(),
                "entries": own.len(), "first": own.first().and_then(|cid| judged.mark(*cid)).as_ref().map(shape::mark),
                "signer": signer.map(|signer| signer.to_string()),
                "signerAlias": signer.and_then(|signer| {
                    if signer == self.principal() { Some("self") } else { aliases.get(&signer).map(String::as_str) }
                }),
                "claimedTs": claimed(&reader, tip.cid)?,
                "rank": rank.word(), "why": parting.as_ref().map(|parting| parting.why.name()),
                "base": base(&judged, session, *tip),
            }));
        }
        for (branch, differs) in branches.iter_mut().zip(differing(&words)) {
            branch["differs"] = differs;
        }
        let disputed = is_disputed(&selection);
        Ok(json!({
            "v": 1, "kind": "fork", "session": session.to_string(), "verdict": row.summary.verdict,
            "at": parting.as_ref().map(|parting| shape::mark(&parting.at)),
            "branches": branches,
            "evidence": evidence_of(self, &reader, session)?,
            "fix": disputed.then(|| format!("throughline fork {} --keep BRANCH --to PEER", session.short())),
        }))
    }
}

/// The tips in dispute, else the entries of an equivocation that was settled.
fn parting(judged: &Judged<'_>, selection: &Selection) -> Option<Parting> {
    let head = selection.head?;
    if is_disputed(selection) {
        let opened = selection.disputed.iter().all(|tip| judged.opens(tip.cid));
        let why = if opened { Code::OwnerEquivocation } else { Code::Equivocation };
        let tips = selection.disputed.iter().map(|tip| (*tip, Rank::Undecided)).collect();
        return Some(Parting { at: head, tips, why });
    }
    let (entries, at, why) = match selection.evidence.first()? {
        Evidence::Holder { entries, meet, .. } => (entries, *meet, Code::Equivocation),
        Evidence::Owner { entries, meet, .. } => (entries, *meet, Code::OwnerEquivocation),
    };
    let rank = |mark: &Mark| if judged.precedes(mark.cid, head.cid) { Rank::Kept } else { Rank::Rejected };
    let tips = entries.iter().map(|mark| (*mark, rank(mark))).collect();
    Some(Parting { at, tips, why })
}

/// The entries of a branch above where it leaves the others, oldest first.
fn above(judged: &Judged<'_>, tip: EntryCid, at: Mark) -> Vec<EntryCid> {
    let mut own: Vec<EntryCid> = std::iter::successors(Some(tip), |cid| prev_of(judged, *cid))
        .take_while(|cid| *cid != at.cid)
        .collect();
    own.reverse();
    own
}

/// What the owner's handoff on this tip would say, but for the next holder and its grant.
fn base(judged: &Judged<'_>, session: SessionId, tip: Mark) -> Value {
    let seq = tip.seq.next();
    let path = path_to(judged, tip.cid);
    let skipped = usize::try_from(skip::target(seq.get())).ok().and_then(|at| path.get(at));
    let not_before = judged.position(tip.cid).map(|position| position.ts.get());
    json!({
        "genesis": session.to_string(), "prev": tip.cid.to_string(), "seq": seq.get(), "epoch": tip.epoch.next().get(),
        "skip": skipped.filter(|cid| **cid != tip.cid).map(ToString::to_string), "notBeforeMs": not_before,
    })
}

fn claimed(reader: &Reader, cid: EntryCid) -> Answer<Option<String>> {
    let Some((_, stored)) = reader.entry(cid)? else { return Ok(None) };
    Ok(Some(shape::rfc3339(Decoded::<Entry>::decode(stored.bytes)?.value().ts)))
}

/// The words of a branch, those that are held.
fn words_of(reader: &Reader, entries: &[EntryCid]) -> Answer<Vec<String>> {
    let (mut words, mut chars) = (Vec::new(), 0);
    for cid in entries.iter().take(COMPARED_MAX) {
        let Some((_, stored)) = reader.entry(*cid)? else { continue };
        let signed = from_store(stored.bytes)?;
        let (payload, _) = shape::payload_of(reader, &signed)?;
        let text = payload.map(|payload| payload.text()).unwrap_or_default();
        for word in text.split_whitespace() {
            chars += word.chars().count() + 1;
            if chars > COMPARED_CHARS_MAX {
                return Ok(words);
            }
            words.push(word.to_owned());
        }
    }
    Ok(words)
}

/// Where each branch first says something that not all of them say: how many words are the same, and how it goes on.
fn differing(branches: &[Vec<String>]) -> Vec<Value> {
    let same = (0..).take_while(|at| {
        let said: BTreeSet<Option<&String>> = branches.iter().map(|words| words.get(*at)).collect();
        said.len() == 1 && !said.contains(&None)
    });
    let same = same.count();
    let shown = |words: &Vec<String>| {
        let rest = words.get(same..).unwrap_or_default().join(" ");
        let cut = rest.chars().count() > SHOWN_CHARS;
        let text: String = rest.chars().take(SHOWN_CHARS).collect();
        json!({"sameWords": same, "text": text, "more": cut})
    };
    branches.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_shown_from_the_first_word_that_differs() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let shown = differing(&[words("delete the staging bucket"), words("list the staging bucket")]);
        assert_eq!(shown[0]["text"], "delete the staging bucket");
        let shown = differing(&[words("now delete it"), words("now list it"), words("now")]);
        let texts: Vec<&str> = shown.iter().map(|branch| branch["text"].as_str().unwrap()).collect();
        assert_eq!((texts, &shown[0]["sameWords"]), (vec!["delete it", "list it", ""], &json!(1)));
        assert_eq!(differing(&[words("the same"), words("the same")])[1]["text"], "");
        assert_eq!(differing(&[]), Vec::<Value>::new());
    }

    #[test]
    fn long_words_are_cut_where_they_are_shown() {
        let shown = differing(&[vec!["x".repeat(1_000)], Vec::new()]);
        assert_eq!(shown[0]["text"].as_str().unwrap().chars().count(), SHOWN_CHARS);
        assert_eq!((&shown[0]["more"], &shown[1]["more"]), (&json!(true), &json!(false)));
    }
}
