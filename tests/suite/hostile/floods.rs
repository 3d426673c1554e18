//! Peers that ask for more than anybody honest does.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use serde_json::Value;
use throughline_protocol::id::{Cid, Codec, Seq, UnixMillis};
use throughline_protocol::testing::{self, Reach, SessionBuilder};
use throughline_protocol::wire::announce::{self, Hint};
use throughline_protocol::wire::chain::{ChainAsk, ChainRequest, EntryAt, Payloads, RangeAsk};
use throughline_protocol::wire::{CHAIN_PROTOCOL, Credentials, Message as _, proof};
use throughline_testnet::hostile::{Answers, Hostile, Road, Victim, Want};

use super::{Scene, session};

/// Whether the charges against a peer shut it out.
fn is_shut_out(charges: &Value) -> bool {
    charges["blockedForMs"].is_u64()
}

fn asking(ask: ChainAsk) -> ChainRequest {
    ChainRequest { credentials: Credentials::default(), ask }
}

fn whole(builder: &SessionBuilder) -> ChainRequest {
    let head = &builder.head().entry;
    asking(ChainAsk::Range(RangeAsk {
        session: builder.session(),
        want: EntryAt { cid: head.cid(), seq: head.value().seq() },
        have: Vec::new(),
        payloads: Payloads::With,
    }))
}

/// Many streams of one peer, over both roads.
#[test]
fn ten_thousand_streams_do_not_wear_a_node_out() -> Result<()> {
    let scene = Scene::new("streams")?;
    for (name, road) in [("streams over tcp", Road::Tcp), ("streams over quic", Road::Quic)] {
        let peer = Hostile::start(name, Answers::Nothing)?;
        let victim = peer.connect(&scene.victim.ticket()?, road)?;
        // Half a frame: the node waits for the rest as long as it thinks right.
        let churned = std::thread::scope(|scope| {
            let flood = scope.spawn(|| peer.churn(&victim, CHAIN_PROTOCOL, 10_000, &[0x80]));
            scene.honest_is_served(&format!("during {name}"))?;
            flood.join().map_err(|_| anyhow!("the flood panicked"))?
        })?;
        println!("{name}: {churned:?}");
        // Half a frame is no fault, so nobody is shut out for it: all of them came, and most were dropped at the cap.
        assert_eq!((churned.opened + churned.refused, churned.shut_out), (10_000, 0), "{churned:?}");
        assert!(churned.opened > 5_000, "{churned:?}");
        scene.stands(name)?;
    }
    Ok(())
}

#[test]
fn slow_bytes_are_not_waited_for() -> Result<()> {
    let scene = Scene::new("slow bytes")?;
    let peer = Hostile::start("slow", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    // A frame of a mebibyte of which three bytes come: the rate ends it, and every place is free again.
    let held = peer.hold(&victim, CHAIN_PROTOCOL, 16, &[0x80, 0x80, 0x40, 0xa1, 0x61, 0x6b])?;
    assert!(held > 0);
    assert!(scene.charges(&peer)?.is_null(), "slow lines are no proof of ill will");
    scene.stands("slow bytes")
}

#[test]
fn one_peer_that_holds_its_places_leaves_the_others_theirs() -> Result<()> {
    let scene = Scene::new("places")?;
    let peer = Hostile::start("places", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    let occupied = peer.occupy(&victim, CHAIN_PROTOCOL, 60, &[0x80])?;
    scene.stands("held places")?;
    drop(occupied);
    Ok(())
}

#[test]
fn frames_that_no_honest_program_sends_are_charged_until_the_peer_is_shut_out() -> Result<()> {
    let scene = Scene::new("frames")?;
    // Longer than any frame may be; a length that is not minimal; not CBOR; not the canonical form; trailing bytes.
    let request = asking(ChainAsk::Blobs { cids: vec![Cid::sha256(Codec::Raw, b"x")] });
    let frame = request.encode_frame().map_err(|reject| anyhow!("{reject}"))?;
    let body = request.encode_body();
    let mut trailing = body.clone();
    trailing.push(0xf6);
    let frames: [(&str, Vec<u8>); 5] = [
        ("too long", vec![0xff, 0xff, 0xff, 0x7f]),
        ("not minimal", [&[0x80, 0x00][..], &body].concat()),
        ("not cbor", frame_of(&[0xff; 40])?),
        ("indefinite", frame_of(&indefinite(&body))?),
        ("trailing", frame_of(&trailing)?),
    ];
    let codes = ["E_FRAME_LEN", "E_FRAME_LEN", "E_CBOR_SYNTAX", "E_CBOR_INDEF", "E_CBOR_TRAILING"];
    for ((name, bytes), code) in frames.iter().zip(codes) {
        let peer = Hostile::start(name, Answers::Nothing)?;
        let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
        assert!(peer.raw(&victim, bytes)?.is_empty(), "{name} is not answered");
        let charges = scene.await_charges(&peer, &format!("{name}: a charge"), Value::is_object)?;
        assert_eq!(
            (charges["code"].as_str(), charges["count"].as_u64()),
            (Some(code), Some(1)),
            "{name}: {charges}"
        );
        // Again and again: in the end it is shut out, and stays so.
        peer.churn(&victim, CHAIN_PROTOCOL, 200, bytes)?;
        scene.await_charges(&peer, &format!("{name}: a peer that is shut out"), is_shut_out)?;
    }
    // The frame that they were made of is answered.
    let peer = Hostile::start("honest frame", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    assert!(!peer.raw(&victim, &frame)?.is_empty());
    scene.stands("frames that no honest program sends")
}

fn frame_of(body: &[u8]) -> Result<Vec<u8>> {
    throughline_protocol::wire::frame::encode(body).map_err(|reject| anyhow!("{reject}"))
}

/// The same map with an indefinite length.
fn indefinite(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xbf];
    bytes.extend(&body[1..]);
    bytes.push(0xff);
    bytes
}

#[test]
fn floods_of_wants_are_answered_at_the_askers_pace() -> Result<()> {
    let scene = Scene::new("wants")?;
    let peer = Hostile::start("wants", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    let range = whole(&scene.held);
    assert!(peer.question(&victim, &range)?.len() > 2, "it is served like anybody");
    let flood =
        |name: &str, peer: &Hostile, victim: &Victim, ask: &ChainRequest, count, want| -> Result<()> {
            let asked = peer.ask(victim, ask, count, want)?;
            println!("{name}: {asked:?}");
            assert_eq!(asked.opened, count, "{name}: every question of the flood was asked: {asked:?}");
            if want == Want::First {
                // They come one at a time, so nothing is a reason not to answer but a connection that a busy machine lost.
                let again = asked.refused + asked.redialled;
                assert!(again <= count / 50, "{name}: questions are answered the first time: {asked:?}");
            }
            Ok(())
        };
    flood("ranges that nobody reads", &peer, &victim, &range, 1_000, Want::Unread)?;
    let nowhere = (0..64_u32).map(|number| Cid::sha256(Codec::Raw, &number.to_be_bytes())).collect();
    let peer = Hostile::start("wants of nothing", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Quic)?;
    flood("blobs", &peer, &victim, &asking(ChainAsk::Blobs { cids: nowhere }), 1_000, Want::First)?;
    let owner = testing::key("account").principal();
    let have =
        (0..4_096_u32).map(|number| throughline_protocol::block::sha256(&number.to_be_bytes())).collect();
    flood("control", &peer, &victim, &asking(ChainAsk::Control { owner, have }), 500, Want::First)?;
    let heads = ChainAsk::Heads { owners: Vec::new(), sessions: vec![scene.held.session(); 1_024] };
    flood("heads", &peer, &victim, &asking(heads), 500, Want::First)?;
    scene.stands("wants")
}

/// Announcements of heads by a server that the owner did grant, of sessions that do not exist.
#[test]
fn a_flood_of_heads_stores_nothing() -> Result<()> {
    let scene = Scene::new("heads")?;
    let peer = Hostile::start("heads", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    for number in 0..300_u32 {
        let message = head_message(&format!("no such session {number}"), 900)?;
        peer.question(&victim, &asking(ChainAsk::Announce { message: message.into() }))?;
    }
    let listed = scene.victim.api().get("/v1/sessions?limit=500")?.expect(200)?;
    let items = listed["items"].as_array().map(Vec::len);
    // The one that it held and the one that made it warm.
    assert_eq!(items, Some(2), "{listed}");
    scene.stands("heads of nothing")
}

/// A Ref of `server1` to the newest entry of a session, with its grant.
fn head_message(label: &str, seq: u64) -> Result<Vec<u8>> {
    let mut builder = session(label, 1);
    let server = Arc::clone(&builder.server1);
    let reference = builder.reference(&server, 1, Reach::Publishes);
    let control = server.capability.iter().map(|grant| Arc::clone(grant.bytes())).collect();
    let seq = Seq::new(seq).map_err(|reject| anyhow!("{reject}"))?;
    let message = announce::Message {
        blob: Arc::clone(reference.bytes()),
        control,
        hint: Hint { seq, ..Hint::default() },
    };
    message.encode().map_err(|reject| anyhow!("{reject}"))
}

#[test]
fn a_flood_of_gossip_is_judged_and_forgotten() -> Result<()> {
    let scene = Scene::new("gossip")?;
    let topic = announce::topic(testing::key("account").principal());
    let peer = Hostile::start("gossip", Answers::Nothing)?;
    peer.follow(&topic)?;
    peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    let good = head_message("gossiped", 1)?;
    let mut loose = good.clone();
    loose.push(0);
    // Junk, one message many times, its non-canonical twin, and one that is larger than any may be.
    let junk = (0..3_000_u32).map(|number| [&b"junk "[..], &number.to_be_bytes()].concat());
    let replayed = std::iter::repeat_n(good, 1_000);
    let twins = std::iter::repeat_n(loose, 500);
    let large = std::iter::repeat_n(vec![7; 60_000], 100);
    let messages: Vec<Vec<u8>> = junk.chain(replayed).chain(twins).chain(large).collect();
    peer.await_follower(&topic)?;
    // Either the whole flood came, or its sender was shut out for what it had sent; what a full queue lost is sent again.
    let (mut sent, mut rounds) = (0, 0);
    while rounds == 0 || (sent <= 1_000 && !is_shut_out(&scene.charges(&peer)?)) {
        rounds += 1;
        anyhow::ensure!(rounds < 100, "the flood did not happen: {sent} sent, {}", scene.charges(&peer)?);
        for part in messages.chunks(64) {
            sent += peer.publish(&topic, part.to_vec())?;
        }
    }
    let charges = scene.await_charges(&peer, "junk that is charged to whoever sent it", Value::is_object)?;
    println!("gossip: {sent} of {} messages sent, then {charges}", messages.len());
    scene.stands("gossip")
}

#[test]
fn a_proof_that_was_seen_elsewhere_proves_nothing() -> Result<()> {
    let scene = Scene::new("proofs")?;
    let peer = Hostile::start("replayer", Answers::Nothing)?;
    let victim = peer.connect(&scene.victim.ticket()?, Road::Tcp)?;
    // A session that only its parties may see.
    let mut internal = SessionBuilder::new("internal");
    let server = Arc::clone(&internal.server1);
    internal.user(&server, "not for everybody");
    scene.import(&scene.victim, &internal)?;
    let key = testing::key("account");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis();
    let now = UnixMillis::new(u64::try_from(now)?).map_err(|reject| anyhow!("{reject}"))?;
    let old = UnixMillis::new(now.get() - 3_600_000).map_err(|reject| anyhow!("{reject}"))?;
    let ends = victim.ends();
    let elsewhere = proof::Ends { mine: ends.mine, theirs: testing::key("another node").principal() };
    let stolen = proof::Ends { mine: testing::key("the real peer").principal(), theirs: ends.theirs };
    let asked = |ends, ts| -> Result<usize> {
        let proof = proof::build(&key, ends, ts).map_err(|reject| anyhow!("{reject}"))?;
        let mut request = whole(&internal);
        request.credentials.auth = Some(Arc::clone(proof.bytes()));
        Ok(peer.question(&victim, &request)?.len())
    };
    for (name, ends, ts) in [("elsewhere", elsewhere, now), ("stolen", stolen, now), ("old", ends, old)] {
        assert_eq!(asked(ends, ts)?, 1, "{name}: only the refusal");
    }
    assert!(asked(ends, now)? > 2, "the owner's own proof, made for this connection, is believed");
    scene.stands("replayed proofs")
}
