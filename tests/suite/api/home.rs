//! Nodes in this process, with keys and grants, driven through the router that a server and the command line use.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use throughline_node::api::client::{Call, Client, Endpoint, Reply};
use throughline_node::api::error::Problem;
use throughline_node::api::{App, router};
use throughline_node::config::{Config, Overrides};
use throughline_node::core::{Arrived, Evaluated, Node};
use throughline_node::dirs::{Dirs, Environment};
use throughline_node::keys::NodeKeys;
use throughline_protocol::block::Signed;
use throughline_protocol::build::sign;
use throughline_protocol::content::Block;
use throughline_protocol::control::{Capability, Control, Ref, Role, Tombstone};
use throughline_protocol::entry::{Authority, Body, Entry, Handoff, Place, UserMessage};
use throughline_protocol::id::{Cid, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::payload::{PayloadDraft, UserWords, Words};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::testing::{Built, SessionBuilder, key, salt};
use throughline_protocol::verify::Prechecked;
use throughline_protocol::wire::append::AppendRequest;
use throughline_protocol::wire::{Credentials, Message as _};

/// A refusal or an answer.
pub(crate) type Answer = Result<Value, Problem>;

/// A node with its own home, its owner's key at hand.
pub(crate) struct Home {
    dir: TempDir,
    pub(crate) owner: SigningKey,
    pub(crate) node: Node,
    pub(super) client: Client,
}

impl Home {
    /// A node of the owner `account`, with the grants of a laptop: writer and device.
    pub(crate) async fn new() -> Self {
        let home = Home::bare().await;
        let node = home.node.principal();
        home.grant(node, Role::Writer).await;
        home.grant(node, Role::Agent).await;
        home
    }

    /// A node without grants.
    pub(super) async fn bare() -> Self {
        let dir = tempfile::Builder::new().prefix("tl-api-").tempdir().unwrap();
        let owner = key("account");
        let (node, client) = open(dir.path(), owner.principal());
        Home { dir, owner, node, client }
    }

    /// The same home, after its process ended and began again.
    pub(super) fn reopened(self) -> Self {
        let Home { dir, owner, node, client } = self;
        drop(client);
        drop(node);
        let (node, client) = open(dir.path(), owner.principal());
        Home { dir, owner, node, client }
    }

    /// The same keys with an empty store: what is left when a disk is lost and the keys were kept.
    pub(super) fn without_store(self) -> Self {
        let Home { dir, owner, node, client } = self;
        let dirs = node.dirs().clone();
        drop(client);
        drop(node);
        for entry in std::fs::read_dir(dirs.data()).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path != dirs.keys() && path != *dirs.config_file() {
                if path.is_dir() {
                    std::fs::remove_dir_all(path).unwrap()
                } else {
                    std::fs::remove_file(path).unwrap()
                }
            }
        }
        let (node, client) = open(dir.path(), owner.principal());
        Home { dir, owner, node, client }
    }

    /// This home as a crash would have left it: of one session what was committed through `seq`, signed and guarded
    /// here, and nothing that was written later.
    pub(super) fn cut_off_after(self, session: &str, seq: u64) -> Self {
        let session: SessionId = session.parse().unwrap();
        let reader = self.node.reader().unwrap();
        let mut keys = throughline_protocol::sign::VerifyingKeys::default();
        let controls = reader.controls_of_owner(self.owner.principal()).unwrap();
        let controls: Vec<Signed<Control>> =
            controls.into_iter().map(|bytes| Signed::check(bytes, &mut keys).unwrap()).collect();
        let mut held = throughline_protocol::fork::Controls::new();
        for control in &controls {
            held.insert(control);
        }
        let mut verifier = throughline_protocol::verify::Verifier::begin(held);
        for stored in reader.entries(session, Seq::ZERO, Seq::new(seq).unwrap()).unwrap() {
            let stored = stored.unwrap();
            let payload = stored.payload.map(|cid| {
                let held = reader.payload(cid).unwrap();
                let throughline_store::PayloadState::Present(bytes) = held else { panic!("{held:?}") };
                Arc::from(bytes)
            });
            verifier.push(stored.bytes, payload).unwrap();
        }
        drop(reader);
        let home = self.without_store();
        let options = throughline_store::AdoptOptions {
            guard: throughline_store::GuardUse::Signed(home.node.principal()),
            controls,
            ..throughline_store::AdoptOptions::at(throughline_node::core::now())
        };
        home.node.store().adopt(verifier.finish().unwrap().unwrap(), options).unwrap();
        home.node.judge_again(session).unwrap();
        home
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.client.ask(Call::get(path)).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.client.ask(Call::post(path, body)).await
    }

    /// A POST under an idempotency key, with its status.
    pub(super) async fn post_as(&self, path: &str, key: &str, body: &Value) -> (u16, Value) {
        self.told(Call::post(path, body).header("idempotency-key", key)).await
    }

    /// Status and JSON of any call.
    pub(super) async fn told(&self, call: Call<'_>) -> (u16, Value) {
        let reply: Reply = self.client.send(call).await.unwrap();
        let status = reply.status.as_u16();
        (status, serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap())
    }

    pub(super) async fn send(&self, path: &str, content_type: &str, body: impl Into<HttpBody>) -> Answer {
        self.client.ask(Call::body(Method::POST, path, content_type, body)).await
    }

    /// Grants `role`, as the owner; the capability's CID.
    pub(super) async fn grant(&self, delegate: Principal, role: Role) -> Cid {
        let signed = self.capability(delegate, role);
        self.send("/v1/capabilities", "application/cbor", signed.bytes().to_vec()).await.unwrap();
        signed.cid().cid()
    }

    pub(super) fn capability(&self, delegate: Principal, role: Role) -> Signed<Control> {
        let capability = Capability {
            ts: throughline_node::core::now(),
            signer: self.owner.principal(),
            delegate,
            role: Some(role.word().to_owned()),
            path: None,
            label: None,
            audience: None,
        };
        sign(Control::Capability(capability), &self.owner).unwrap()
    }

    /// The owner revokes a capability.
    pub(super) async fn revoke(&self, capability: Cid) -> Value {
        let signed = self.tombstone_of(capability);
        self.send("/v1/tombstones", "application/cbor", signed.bytes().to_vec()).await.unwrap()
    }

    /// The owner's tombstone of a capability.
    pub(super) fn tombstone_of(&self, capability: Cid) -> Signed<Control> {
        let tombstone = Tombstone {
            ts: throughline_node::core::now(),
            signer: self.owner.principal(),
            capability,
            keep: Vec::new(),
            reason: None,
            ext: None,
        };
        sign(Control::Tombstone(tombstone), &self.owner).unwrap()
    }

    /// The owner anchors an entry; `facts` is what the API says about it.
    pub(super) async fn anchor(&self, session: &str, facts: &Value) -> Answer {
        let signed = self.anchor_of(session, facts);
        self.send("/v1/refs", "application/cbor", signed.bytes().to_vec()).await
    }

    /// The owner's Ref at the head that `facts` name.
    pub(super) fn anchor_of(&self, session: &str, facts: &Value) -> Signed<Control> {
        let session: SessionId = session.parse().unwrap();
        let value = Ref {
            ts: throughline_node::core::now(),
            signer: self.owner.principal(),
            space: None,
            capability: None,
            path: Some(session.path()),
            heads: vec![facts["head"]["cid"].as_str().unwrap().parse().unwrap()],
            genesis_blob: Some(session.genesis().cid()),
            generation: facts["epoch"].as_u64().unwrap() + 1,
            private: true,
            redirect: None,
        };
        sign(Control::Ref(value), &self.owner).unwrap()
    }

    /// A session with one trigger message; its name and head.
    pub(crate) async fn session(&self, text: &str) -> (String, String) {
        let body = json!({"title": "Test", "firstEntry": trigger(text)});
        let (status, made) = self.post_as("/v1/sessions", &format!("make {text}"), &body).await;
        assert_eq!(status, 201, "{made}");
        (of(&made, "session"), of(&made["head"], "cid"))
    }

    /// Appends one response by the node; the new head.
    pub(crate) async fn append(&self, session: &str, base: &str, text: &str) -> String {
        let body = json!({"base": base, "entry": response(text)});
        let (status, answer) =
            self.post_as(&format!("/v1/sessions/{session}/entries"), &format!("{base} {text}"), &body).await;
        assert_eq!(status, 201, "{answer}");
        of(&answer["head"], "cid")
    }

    /// What the next entry of `signer` would be, on the head that the API says.
    pub(crate) async fn message(
        &self,
        session: &str,
        signer: &SigningKey,
        authority: Option<Authority>,
        words: UserWords,
    ) -> (Signed<Entry>, Vec<u8>) {
        let base = self.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
        message_on(&base, signer, authority, words)
    }

    /// An owner's handoff on the head that the API says.
    pub(super) async fn handoff(&self, session: &str, to: Option<Principal>) -> Signed<Entry> {
        let base = self.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
        let place = place(&base);
        let place = Place { epoch: place.epoch.next(), ..place };
        let entry = Entry {
            ts: not_before(&base),
            signer: self.owner.principal(),
            authority: None,
            place: Some(place),
            body: Body::Handoff(Handoff { holder: to, ..Handoff::default() }),
            payload: None,
            ext: None,
        };
        sign(entry, &self.owner).unwrap()
    }

    /// Posts a signed entry.
    pub(crate) async fn post_signed(
        &self,
        session: &str,
        entry: &Signed<Entry>,
        payload: Option<&[u8]>,
        grants: &[&Signed<Control>],
    ) -> (u16, Value) {
        let frame = AppendRequest {
            credentials: Credentials {
                auth: None,
                grants: grants.iter().map(|grant| Arc::clone(grant.bytes())).collect(),
            },
            entry: Arc::clone(entry.bytes()),
            payload: payload.map(Arc::from),
        };
        let path = format!("/v1/sessions/{session}/entries");
        let call = Call::body(Method::POST, &path, "application/cbor", frame.encode_body());
        self.told(call).await
    }

    /// Takes a built session in, as sync does.
    pub(super) fn take_in(&self, builder: &SessionBuilder, entries: &[Built]) -> Result<Evaluated, Problem> {
        let entries = entries.iter().map(checked).collect();
        let controls = builder.controls().to_vec();
        self.node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() })
    }

    /// The verdict that lists show, and the one that verifying everything gives: they must agree.
    pub(crate) async fn verdict(&self, session: &str) -> String {
        let shown = self.get(&format!("/v1/sessions/{session}")).await.unwrap();
        let verified = self.get(&format!("/v1/sessions/{session}/verify")).await.unwrap();
        assert_eq!(shown["verdict"], verified["verdict"], "{shown}\n{verified}");
        let through = verified.pointer("/validThrough/seq");
        if let (Some(through), "valid" | "sealed" | "revoked-tail" | "fenced-tail") =
            (through, shown["verdict"].as_str().unwrap())
        {
            assert_eq!(&shown["head"]["seq"], through, "{shown}\n{verified}");
        }
        of(&shown, "verdict")
    }
}

pub(super) fn checked(built: &Built) -> Prechecked {
    Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap()
}

fn open(home: &Path, owner: Principal) -> (Node, Client) {
    let config = format!(
        "[node]\nlisten = []\nmdns = false\n\n[api]\nhttp = \"off\"\n\n[owner]\nprincipal = \"{owner}\"\n\n[log]\nlevel = \"error\"\n"
    );
    std::fs::write(home.join("config.toml"), config).unwrap();
    let nowhere = Environment::default();
    let dirs = Dirs::locate(Some(home), &nowhere).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::from_environment(&nowhere)).unwrap();
    let node = Node::open(dirs, config, "api tests").unwrap();
    let client = Client::new(Endpoint::InProcess(router(App::new(node.clone()), None)));
    (node, client)
}

/// A message that a trigger made: what a server may sign as a user message.
pub(super) fn trigger(text: &str) -> Value {
    json!({"type": "SessionUserMessage", "origin": "trigger", "body": [{"id": "b1", "type": "Paragraph", "text": text, "children": []}]})
}

/// A model's answer.
pub(super) fn response(text: &str) -> Value {
    json!({"type": "SessionModelResponse", "model": {"provider": "anthropic", "id": "claude-x"}, "content": [{"type": "text", "text": text}]})
}

/// A model's answer that asks for calls of tools, each by its id.
pub(super) fn asking(asked: &[(&str, &str)]) -> Value {
    let calls: Vec<Value> = asked.iter().map(|(id, tool)| json!({"callId": id, "name": tool})).collect();
    let parts =
        asked.iter().map(|(id, tool)| json!({"type": "toolCall", "callId": id, "name": tool, "input": "{}"}));
    json!({
        "type": "SessionModelResponse", "model": {"provider": "anthropic", "id": "claude-x"},
        "calls": calls, "content": parts.collect::<Vec<_>>(),
    })
}

/// What a user says.
pub(crate) fn says(text: &str) -> UserWords {
    UserWords { body: vec![Block::paragraph("b1", text)], ..UserWords::default() }
}

/// A user message on a signing base.
pub(crate) fn message_on(
    base: &Value,
    signer: &SigningKey,
    authority: Option<Authority>,
    words: UserWords,
) -> (Signed<Entry>, Vec<u8>) {
    let body = Body::UserMessage(UserMessage::default());
    let draft = PayloadDraft::new(Words::UserMessage(words));
    let label = format!("{base} {}", signer.principal());
    let (payload, named) = draft.build(&body, salt(&label)).unwrap();
    let entry = Entry {
        ts: not_before(base),
        signer: signer.principal(),
        authority,
        place: Some(place(base)),
        body,
        payload: Some(named),
        ext: None,
    };
    (sign(entry, signer).unwrap(), payload)
}

/// The place that a signing base says.
pub(super) fn place(base: &Value) -> Place {
    Place {
        genesis: base["genesis"].as_str().unwrap().parse().unwrap(),
        prev: base["prev"].as_str().unwrap().parse().unwrap(),
        seq: Seq::new(base["seq"].as_u64().unwrap()).unwrap(),
        epoch: throughline_protocol::id::Epoch::new(base["epoch"].as_u64().unwrap()).unwrap(),
        skip: base["skip"].as_str().map(|skip| skip.parse().unwrap()),
    }
}

fn not_before(base: &Value) -> UnixMillis {
    let not_before = UnixMillis::new(base["notBeforeMs"].as_u64().unwrap()).unwrap();
    throughline_node::core::now().max(not_before)
}

/// A text field.
pub(crate) fn of(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no `{field}` in {value}")).to_owned()
}

/// The code of a refusal.
pub(crate) fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or_else(|| panic!("expected a refusal, got {answer}"))
}
