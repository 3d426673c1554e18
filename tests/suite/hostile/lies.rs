//! Servers that lie to a node that fetches from them.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use throughline_protocol::control::Role;
use throughline_protocol::id::Seq;
use throughline_protocol::testing::{self, Reach, SessionBuilder};
use throughline_protocol::wire::chain::{ChainAnswer, HeadState};
use throughline_testnet::Request;
use throughline_testnet::hostile::{Answers, Ending, Hostile, Lie, Script};

use super::{Scene, session};
use crate::journeys::{await_verdict, session_at, text};

/// Frames before the entries: path and control blobs.
const HEAD_FRAMES: usize = 2;

fn lie(change: impl Fn(&mut Vec<ChainAnswer>) + Send + Sync + 'static, ending: Ending) -> Lie {
    Arc::new(move |mut frames| {
        change(&mut frames);
        Script { frames, ending: ending.clone() }
    })
}

/// Fetches a session of 40 entries from a liar: what the fetch is refused with, and the seq of the newest entry that the
/// victim holds of it afterwards, which is the true one at that seq. The truth is fetched when somebody tells it.
fn fetch_from(
    scene: &Scene,
    name: &str,
    change: Lie,
    code: &str,
    charged: Option<&str>,
) -> Result<Option<u64>> {
    let held = fetch_lies(scene, name, change, code, charged)?;
    let truth = session(name, 40);
    let held = held.map(|(seq, cid)| -> Result<u64> {
        assert_eq!(cid, truth.entries()[usize::try_from(seq)?].entry.cid().to_string());
        Ok(seq)
    });
    fetch_truth(scene, &truth)?;
    held.transpose()
}

/// The truth is still welcome.
fn fetch_truth(scene: &Scene, truth: &SessionBuilder) -> Result<()> {
    let id = truth.session().to_string();
    scene.import(&scene.honest, truth)?;
    // The exit code tells also of what else is held beside the head; here only the head matters.
    scene.victim.home().cli(&["fetch", &id, "--from", &scene.honest.ticket()?]).json()?;
    let whole = session_at(&scene.victim, &id)?;
    assert_eq!(text(&whole, "/head/cid")?, truth.head().entry.cid().to_string());
    Ok(())
}

fn fetch_lies(
    scene: &Scene,
    name: &str,
    change: Lie,
    code: &str,
    charged: Option<&str>,
) -> Result<Option<(u64, String)>> {
    let truth = session(name, 40);
    let liar = Hostile::start(name, Answers::Session(Arc::new(truth.clone()), change))?;
    let id = truth.session().to_string();
    // Only who falls silent is waited for to the end: as long as a slow machine may take to connect and to hear a head.
    let patience = if code == "E_TIMEOUT" { "10s" } else { "90s" };
    let args = ["fetch", &id, "--from", &liar.ticket(), "--timeout", patience];
    let refused = scene.victim.home().cli(&args).json()?;
    let refused = refused.object().context("an object")?;
    assert_eq!(refused["error"]["code"], code, "{name}: {refused}");
    let charges = scene.charges(&liar)?;
    assert_eq!(charges["code"].as_str(), charged, "{name}: {charges}");
    let held = scene.victim.api().get(&format!("/v1/sessions/{id}"))?;
    if held.status != 200 {
        return Ok(None);
    }
    let head = held.expect(200)?["head"].clone();
    Ok(Some((head["seq"].as_u64().context("a seq")?, text(&head, "/cid")?.to_owned())))
}

#[test]
fn wrong_bytes_are_refused_where_they_stand() -> Result<()> {
    let scene = Scene::new("wrong bytes")?;
    let flip = |at: usize| {
        lie(
            move |frames| {
                if let ChainAnswer::Entries(items) = &mut frames[HEAD_FRAMES + at] {
                    let mut bytes = items[0].payload.as_deref().unwrap_or_default().to_vec();
                    bytes[20] ^= 1;
                    items[0].payload = Some(bytes.into());
                }
            },
            Ending::End,
        )
    };
    let held = fetch_from(&scene, "flipped payload", flip(11), "E_CID_MISMATCH", Some("E_CID_MISMATCH"))?;
    assert_eq!(held, Some(10));
    scene.stands("wrong bytes")
}

#[test]
fn another_branch_than_the_promised_one_is_refused() -> Result<()> {
    let scene = Scene::new("other branch")?;
    let other = {
        let mut other = session("branch", 40).at(20).branch("other");
        let server = Arc::clone(&other.server1);
        (0..20).for_each(|number| {
            other.user(&server, &format!("another {number}"));
        });
        other
    };
    let signed: Vec<String> = other.entries().iter().map(|built| built.entry.cid().to_string()).collect();
    let swap = lie(
        move |frames| {
            for (at, built) in other.entries().iter().enumerate().skip(21) {
                if let ChainAnswer::Entries(items) = &mut frames[HEAD_FRAMES + at] {
                    items[0].entry = Arc::clone(built.entry.bytes());
                    items[0].payload.clone_from(&built.payload);
                }
            }
        },
        Ending::End,
    );
    let held = fetch_lies(&scene, "branch", swap, "E_SYNC_UNSOLICITED", Some("E_SYNC_UNSOLICITED"))?;
    // The server did sign that branch, so what links is kept until the path says that it is not what was promised: before
    // the entry with the head's skip.
    let (seq, cid) = held.context("a session")?;
    assert_eq!(cid, signed[usize::try_from(seq)?]);
    assert!((20..40).contains(&seq), "{seq}");
    // The owner's Ref names the other one: it is the head, and the server's second history stays as evidence.
    fetch_truth(&scene, &session("branch", 40))?;
    scene.stands("another branch")
}

#[test]
fn a_withheld_middle_and_an_endless_answer_end_the_transfer() -> Result<()> {
    let scene = Scene::new("withheld")?;
    let code = "E_SYNC_UNSOLICITED";
    let gap = lie(|frames| drop(frames.drain(HEAD_FRAMES + 10..HEAD_FRAMES + 30)), Ending::End);
    assert_eq!(fetch_from(&scene, "gap", gap, code, Some(code))?, Some(9));
    let endless = lie(|_| {}, Ending::Repeat);
    assert_eq!(fetch_from(&scene, "endless", endless, code, Some(code))?, Some(40));
    let silent = lie(|frames| frames.truncate(HEAD_FRAMES + 5), Ending::Silence);
    assert_eq!(fetch_from(&scene, "silent", silent, "E_TIMEOUT", None)?, Some(4), "slow is no crime");
    scene.stands("withheld middle, endless answer, silence")
}

#[test]
fn a_frame_beyond_every_size_costs_nothing_and_is_charged() -> Result<()> {
    let scene = Scene::new("oversized answer")?;
    let huge = lie(Vec::clear, Ending::Raw(vec![0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]));
    assert_eq!(fetch_from(&scene, "huge", huge, "E_FRAME_LEN", Some("E_FRAME_LEN"))?, None);
    // Declared within the limit and never sent.
    let declared = lie(Vec::clear, Ending::Raw(vec![0x80, 0x80, 0x80, 0x01]));
    assert_eq!(fetch_from(&scene, "declared", declared, "E_TIMEOUT", None)?, None);
    scene.stands("oversized answers")
}

#[test]
fn an_endless_chain_is_only_a_claim() -> Result<()> {
    let scene = Scene::new("endless chain")?;
    let told = session("claimed", 3);
    let head = HeadState {
        session: told.session(),
        head: told.head().entry.cid(),
        seq: Seq::new((1 << 53) - 2).map_err(|reject| anyhow::anyhow!("{reject}"))?,
        epoch: told.head().entry.value().epoch(),
        reference: None,
    };
    let liar = Hostile::start("endless chain", Answers::Claim(head, lie(|_| {}, Ending::End)))?;
    let id = told.session().to_string();
    let args = ["fetch", &id, "--from", &liar.ticket(), "--timeout", "90s"];
    let refused = scene.victim.home().cli(&args).json()?;
    let refused = refused.object().context("an object")?;
    assert_eq!(refused["error"]["code"], "E_SYNC_UNSOLICITED", "{refused}");
    assert_eq!(scene.charges(&liar)?["code"], "E_SYNC_UNSOLICITED");
    scene.victim.api().get(&format!("/v1/sessions/{id}"))?.expect(404)?;
    scene.stands("an endless chain")
}

/// The owner anchored entry 20 and revoked the server, which went on.
fn revoked() -> SessionBuilder {
    let mut builder = session("revoked", 40).at(20);
    let (owner, server) = (Arc::clone(&builder.owner), Arc::clone(&builder.server1));
    builder.reference(&owner, 20, Reach::Publishes);
    let granted = server.capability.clone().expect("a grant");
    builder.tombstone(&granted, Vec::new());
    (0..5).for_each(|number| {
        builder.user(&server, &format!("after the end {number}"));
    });
    builder
}

#[test]
fn a_dropped_tombstone_is_made_up_for_by_whoever_has_it() -> Result<()> {
    let scene = Scene::new("dropped tombstone")?;
    let truth = revoked();
    let tombstones: Vec<Arc<[u8]>> = truth
        .controls()
        .iter()
        .filter(|control| matches!(control.value(), throughline_protocol::control::Control::Tombstone(_)))
        .map(|control| Arc::clone(control.bytes()))
        .collect();
    assert_eq!(tombstones.len(), 1);
    let drop_it = lie(
        move |frames| {
            if let ChainAnswer::Control(held) = &mut frames[1] {
                held.retain(|blob| !tombstones.contains(blob));
            }
        },
        Ending::End,
    );
    let liar = Hostile::start("dropped", Answers::Session(Arc::new(truth.clone()), drop_it))?;
    let id = truth.session().to_string();
    scene.victim.home().json(&["fetch", &id, "--from", &liar.ticket()])?;
    let fooled = scene.victim.home().json(&["verify", &id])?;
    assert_eq!(fooled["verdict"], "valid", "known as of now: {fooled}");
    // Somebody honest holds the revocation; comparing digests brings it to a party, and what is held is judged again.
    scene.import(&scene.honest, &truth)?;
    let party = scene.victim.principal()?.parse().map_err(|reject| anyhow::anyhow!("{reject}"))?;
    let grant = testing::capability(&testing::key("account"), party, Role::Reader, None);
    let request = Request::new("POST", "/v1/capabilities").body("application/cbor", grant.bytes().to_vec());
    scene.honest.api().send(&request)?.expect(201)?;
    scene.victim.home().json(&["peer", "add", "honest", &scene.honest.ticket()?])?;
    await_verdict(&scene.victim, &id, "revoked-tail")?;
    let verified = scene.victim.home().cli(&["verify", &id]).json()?.expect(6)?;
    assert_eq!(verified["verdict"], "revoked-tail", "{verified}");
    scene.stands("a dropped tombstone")
}
