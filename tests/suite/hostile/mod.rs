//! Hostile peers against real nodes: `cargo test -p throughline-tests --test suite hostile::`.
//!
//! In every test a node of the account (the *victim*) and an honest one run as processes, and a peer that misbehaves on purpose is on
//! the same wire. Whatever that peer does: the victim goes on serving the honest one, its memory grows by at most
//! [`GROWTH_BYTES_MAX`], the peer that did it is charged and nobody else, and nothing that does not verify is stored or
//! served.

mod floods;
mod lies;

use anyhow::{Context as _, Result};
use serde_json::Value;
use std::sync::Arc;
use throughline_protocol::entry::Class;
use throughline_protocol::testing::{self, Reach, SessionBuilder};
use throughline_testnet::hostile::Hostile;
use throughline_testnet::{Lab, Node};

use crate::journeys::{fixtures, lab, plain_home, session_at, text};

/// What an attack may cost a node in memory, in bytes.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// A public session of the test account with this many messages, published up to its head.
fn session(label: &str, messages: usize) -> SessionBuilder {
    let mut builder = SessionBuilder::with_genesis(label, |genesis| genesis.class = Class::Public);
    let (owner, server) = (Arc::clone(&builder.owner), Arc::clone(&builder.server1));
    for number in 0..messages {
        builder.user(&server, &format!("message {number} of {label}"));
    }
    builder.reference(&owner, messages, Reach::Publishes);
    builder
}

/// What a list of peers has against one of them; null when it has nothing.
fn charges_of(peers: &Value, peer: &Hostile) -> Value {
    let rows = peers["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let row = rows.iter().find(|row| row["peer"] == peer.peer_id().as_str());
    row.map(|row| row["charges"].clone()).unwrap_or_default()
}

/// The victim, which holds one public session, and an honest node, which holds nothing yet.
struct Scene {
    lab: Lab,
    victim: Node,
    honest: Node,
    /// What the victim holds.
    held: SessionBuilder,
    before_bytes: u64,
}

impl Scene {
    fn new(label: &str) -> Result<Self> {
        let lab = lab()?;
        let account = testing::key("account").principal().to_string();
        let victim = plain_home(&lab, "victim", &account)?.serve()?;
        let honest = plain_home(&lab, "honest", &account)?.serve()?;
        let held = session(label, 200);
        let scene = Scene { lab, victim, honest, held, before_bytes: 0 };
        scene.import(&scene.victim, &scene.held)?;
        // What is allocated once for the first of everything is no growth.
        scene.honest_is_served("warm")?;
        scene.victim.forget_peak_memory()?;
        Ok(Scene { before_bytes: scene.victim.memory()?.now_bytes, ..scene })
    }

    fn import(&self, node: &Node, builder: &SessionBuilder) -> Result<()> {
        let car = fixtures::car(builder, builder.entries());
        let file = self.lab.file(&format!("{}.car", builder.session()), car)?;
        let imported = node.home().cli(&["import", file.to_str().context("a path")?]).json()?;
        let imported = imported.object().context("an object")?;
        assert_eq!(imported["adopted"], true, "{imported}");
        Ok(())
    }

    /// Gives the victim a new session, which the honest node then fetches whole.
    fn honest_is_served(&self, label: &str) -> Result<()> {
        let builder = session(&format!("{} {label}", self.held.session()), 30);
        self.import(&self.victim, &builder)?;
        let session = builder.session().to_string();
        self.honest.home().json(&["fetch", &session, "--from", &self.victim.ticket()?])?;
        let got = session_at(&self.honest, &session)?;
        assert_eq!(text(&got, "/head/cid")?, builder.head().entry.cid().to_string());
        Ok(())
    }

    /// What the victim has against a peer now.
    fn charges(&self, peer: &Hostile) -> Result<Value> {
        Ok(charges_of(&self.victim.api().get("/v1/peers")?.expect(200)?, peer))
    }

    /// Waits until the victim has this against a peer: what one side has sent the other has not judged yet.
    fn await_charges(&self, peer: &Hostile, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let peers = self.victim.until_asked(what, "/v1/peers", |peers| is_so(&charges_of(peers, peer)))?;
        Ok(charges_of(&peers, peer))
    }

    /// What holds after every attack, and while it goes on.
    fn stands(&self, what: &str) -> Result<()> {
        self.honest_is_served(what)?;
        let memory = self.victim.memory()?;
        let growth = memory.peak_bytes.saturating_sub(self.before_bytes);
        println!("{what}: {} KiB before, at most {} KiB more", self.before_bytes >> 10, growth >> 10);
        assert!(growth <= GROWTH_BYTES_MAX, "{what}: memory grew by {growth} bytes");
        // Nobody honest is charged.
        let peers = self.victim.api().get("/v1/peers")?.expect(200)?;
        let honest = self.honest.api().get("/v1/node")?.expect(200)?;
        let honest = text(&honest, "/peerId")?;
        let rows = peers["items"].as_array().context("peers")?;
        let row = rows.iter().find(|row| row["peer"] == honest).context("the honest peer was just here")?;
        assert!(row["charges"].is_null(), "{row}");
        let checked = self.victim.home().cli(&["fsck"]).json()?.expect(0)?;
        assert_eq!(checked["problemCount"], 0, "{checked}");
        Ok(())
    }
}
