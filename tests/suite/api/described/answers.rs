//! What the routes answer is what the document says of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value, json};
use throughline_node::api::client::Call;
use throughline_node::api::openapi::{self, ROUTES, Route};
use throughline_protocol::build::sign;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Body, Entry, Handoff};
use throughline_protocol::id::{Epoch, SessionId};
use throughline_protocol::testing::key;
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_store::{SessionState, SetState};

use super::{Home, begun, of, response};
use crate::api::home::{place, trigger};
use crate::support::schema::Schemas;
use crate::support::tests::{all, root};

/// Routes whose answers take more than one node, and the test that asks for them there. The first two are held to the same
/// schemas by it; the last answers with the object of every other route of moves.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("post", "/v1/fetch", "check_38_answers_are_what_their_schemas_say"),
    ("post", "/v1/evidence", "check_38_answers_are_what_their_schemas_say"),
    (
        "post",
        "/v1/sessions/{session}/moves/{move}/confirm",
        "check_19_a_script_leaves_a_dead_server_only_when_it_says_so",
    ),
];

const MOVE: &str = "/v1/sessions/{session}/moves/{move}";

/// Asks a node and holds its answers to the document; remembers the routes.
struct Asked {
    home: Home,
    schemas: Schemas,
    met: RefCell<BTreeSet<(&'static str, &'static str)>>,
    /// Calls so far: each JSON body goes under a key of its own.
    calls: Cell<usize>,
}

/// The body of a call.
enum Sent<'a> {
    Nothing,
    Json(&'a Value),
    Bytes(&'static str, Vec<u8>),
}

fn route(method: &Method, template: &str) -> &'static Route {
    let method = method.as_str().to_lowercase();
    let found = ROUTES.iter().find(|route| route.method == method && route.path == template);
    found.unwrap_or_else(|| panic!("no route {method} {template}"))
}

fn in_json(route: &Route) -> Option<&'static str> {
    route.gives.iter().find(|media| media.kind == "application/json").map(|media| media.schema)
}

/// A path with its braces filled, in order.
fn filled(template: &str, fill: &[&str]) -> String {
    fill.iter().fold(template.to_owned(), |path, value| {
        let (before, rest) = path.split_once('{').unwrap();
        let (_, after) = rest.split_once('}').unwrap();
        format!("{before}{value}{after}")
    })
}

impl Asked {
    /// The answer of a call to a route.
    async fn call(
        &self,
        method: Method,
        template: &str,
        fill: &[&str],
        query: &str,
        sent: Sent<'_>,
    ) -> Value {
        let path = filled(template, fill) + query;
        let route = route(&method, template);
        let request = match sent {
            Sent::Nothing if method == Method::GET => Call::get(&path),
            Sent::Nothing => Call::body(method, &path, "application/json", ""),
            Sent::Json(body) => {
                self.calls.set(self.calls.get() + 1);
                Call::json(method, &path, body).header("idempotency-key", self.calls.get().to_string())
            }
            Sent::Bytes(kind, bytes) => Call::body(method, &path, kind, bytes),
        };
        let (status, answer) = self.home.told(request).await;
        assert!(route.statuses.contains(&status), "{} {path}: {status} {answer}", route.method);
        let schema = in_json(route).unwrap_or_else(|| panic!("{path} answers no JSON"));
        let faults = self.schemas.faults_by(schema, &answer);
        assert!(faults.is_empty(), "{} {path} by {schema}\n{}\n{answer}", route.method, faults.join("\n"));
        self.met.borrow_mut().insert((route.method, route.path));
        answer
    }

    async fn get(&self, template: &str, fill: &[&str]) -> Value {
        self.call(Method::GET, template, fill, "", Sent::Nothing).await
    }

    async fn post(&self, template: &str, fill: &[&str], body: &Value) -> Value {
        self.call(Method::POST, template, fill, "", Sent::Json(body)).await
    }

    async fn bytes(&self, template: &str, fill: &[&str], kind: &'static str, bytes: Vec<u8>) -> Value {
        self.call(Method::POST, template, fill, "", Sent::Bytes(kind, bytes)).await
    }
}

fn example(below: &str) -> Vec<u8> {
    std::fs::read(root().join("examples").join(below)).unwrap()
}

async fn sessions(asked: &Asked) {
    let draft = asked.post("/v1/sessions", &[], &json!({"title": "A draft"})).await;
    asked.get("/v1/sessions/{session}", &[&of(&draft, "session")]).await;
    asked.post("/v1/sessions", &[], &json!({"firstEntry": trigger("begin")})).await;
    let tried = json!({"firstEntry": trigger("hello")});
    asked.call(Method::POST, "/v1/sessions", &[], "?dryRun=1", Sent::Json(&tried)).await;
    let (session, base) = begun(&asked.home, "asked").await;
    let one = &[session.as_str()][..];
    asked.get("/v1/sessions", &[]).await;
    for template in ["", "/base", "/anchor", "/entries", "/verify", "/fork", "/evidence"] {
        asked.get(&format!("/v1/sessions/{{session}}{template}"), one).await;
    }
    for query in ["", "?dryRun=1"] {
        let nothing = json!({});
        let sent = Sent::Json(&nothing);
        asked.call(Method::POST, "/v1/sessions/{session}/fork/return", one, query, sent).await;
    }
    asked.call(Method::GET, "/v1/sessions/{session}/entries", one, "?before=0", Sent::Nothing).await;
    asked.get("/v1/sessions/{session}/entries/{entry}", &[&session, "head"]).await;
    let append = json!({"base": base, "entry": response("more")});
    asked.post("/v1/sessions/{session}/entries", one, &append).await;
    asked.post("/v1/sessions/{session}/verify", one, &json!({"payloads": "all"})).await;
    for method in [Method::PUT, Method::GET, Method::DELETE] {
        asked.call(method, "/v1/pins/{session}", one, "", Sent::Nothing).await;
    }
    asked.get("/v1/pins", &[]).await;
    for query in [format!("?s={session}"), format!("?s={}&any=1", &session[7..15])] {
        asked.call(Method::GET, "/v1/resolve", &[], &query, Sent::Nothing).await;
    }
    let facts = asked.get("/v1/sessions/{session}/anchor", one).await;
    let anchor = asked.home.anchor_of(&session, &facts);
    asked.bytes("/v1/refs", &[], "application/cbor", anchor.bytes().to_vec()).await;
}

async fn controls(asked: &Asked) {
    let (other, own) = (key("server2").principal(), asked.home.node.principal());
    let grant = asked.home.capability(other, Role::Writer);
    asked.bytes("/v1/capabilities", &[], "application/cbor", grant.bytes().to_vec()).await;
    asked.get("/v1/capabilities", &[]).await;
    for delegate in [other, own] {
        asked.post("/v1/tombstones/preview", &[], &json!({"delegate": delegate.to_string()})).await;
    }
    let tombstone = asked.home.tombstone_of(grant.cid().cid());
    asked.bytes("/v1/tombstones", &[], "application/cbor", tombstone.bytes().to_vec()).await;
    asked.get("/v1/control", &[]).await;
}

async fn files(asked: &Asked) {
    asked.bytes("/v1/blobs", &[], "text/plain", b"a file".to_vec()).await;
    asked.bytes("/v1/import", &[], "application/jsonl", example("sessions/claude-code.jsonl")).await;
    for fixture in ["valid", "forked"] {
        let car = example(&format!("fixtures/{fixture}.car"));
        asked.bytes("/v1/verify", &[], "application/vnd.ipld.car", car.clone()).await;
        asked.bytes("/v1/car", &[], "application/vnd.ipld.car", car).await;
    }
}

async fn peers(asked: &Asked) {
    let (principal, peer) = (key("server2").principal(), key("peer2").principal());
    let ticket = PeerTicket { principal, peer, addresses: vec!["/ip4/127.0.0.1/tcp/4001".to_owned()] };
    let body = json!({"alias": "server-b", "ticket": Ticket::Peer(ticket).to_string()});
    asked.post("/v1/peers", &[], &body).await;
    asked.get("/v1/peers", &[]).await;
    asked.call(Method::DELETE, "/v1/peers/{alias}", &["server-b"], "", Sent::Nothing).await;
}

/// A move once it stands still; it waits for the next state.
async fn settled(asked: &Asked, fill: &[&str]) -> Value {
    loop {
        let shown = asked.call(Method::GET, MOVE, fill, "?waitMs=10000", Sent::Nothing).await;
        if shown["state"] != "running" {
            return shown;
        }
    }
}

/// A move from this node to itself is one of two servers in everything but the network.
async fn moves(asked: &Asked) {
    throughline_node::moves::attach(&asked.home.node).unwrap();
    let (session, _) = begun(&asked.home, "moved").await;
    let begin = "/v1/sessions/{session}/moves";
    let held = asked.post(begin, &[&session], &json!({"to": "self"})).await;
    assert_eq!((&held["state"], &held["move"]), (&json!("held"), &Value::Null), "{held}");
    // A holder that stands still for a move which nobody drives is handed its session anew.
    let to = SessionState::Frozen { epoch: Epoch::ZERO, move_id: [5; 16] };
    let id: SessionId = session.parse().unwrap();
    let at = throughline_node::core::now();
    asked.home.node.store().run(SetState { session: id, from: SessionState::Active, to, at }).unwrap();
    for to in ["self".to_owned(), key("stranger").principal().to_string()] {
        let body = json!({"to": to, "source": "offline", "dryRun": true});
        let told = asked.post(begin, &[&session], &body).await;
        assert_eq!(told["state"], if to == "self" { "planned" } else { "needs-grant" });
    }
    let begun = asked
        .post(begin, &[&session], &json!({"to": "self", "source": "offline", "timeoutMs": 30_000}))
        .await;
    let fill = [session.as_str(), begun["move"].as_str().unwrap()];
    assert_eq!(settled(asked, &fill).await["state"], "needs-handoff");
    asked.post(&format!("{MOVE}/resume"), &fill, &json!({"timeoutMs": 30_000})).await;
    asked.post(&format!("{MOVE}/abort"), &fill, &json!({"source": "auto"})).await;
    assert_eq!(settled(asked, &fill).await["state"], "aborted");

    let begun = asked
        .post(begin, &[&session], &json!({"to": "self", "source": "offline", "timeoutMs": 30_000}))
        .await;
    let fill = [session.as_str(), begun["move"].as_str().unwrap()];
    let shown = settled(asked, &fill).await;
    assert_eq!(shown["state"], "needs-handoff", "{shown}");
    let facts = &shown["sign"];
    let handoff = Handoff {
        holder: Some(asked.home.node.principal()),
        grant: facts["grant"].as_str().map(|grant| grant.parse().unwrap()),
        ..Handoff::default()
    };
    let entry = Entry {
        ts: throughline_node::core::now(),
        signer: asked.home.owner.principal(),
        authority: None,
        place: Some(place(facts)),
        body: Body::Handoff(handoff),
        payload: None,
        ext: None,
    };
    let signed = sign(entry, &asked.home.owner).unwrap();
    asked.bytes(&format!("{MOVE}/handoff"), &fill, "application/cbor", signed.bytes().to_vec()).await;
    assert_eq!(settled(asked, &fill).await["state"], "done");
    asked.get("/v1/moves", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_what_the_document_says() {
    let schemas = Schemas::of_document(openapi::document());
    let asked = Asked { home: Home::new().await, schemas, met: RefCell::default(), calls: Cell::new(0) };
    for template in ["/v1/health", "/v1/openapi.json", "/v1/node", "/v1/status"] {
        asked.get(template, &[]).await;
    }
    sessions(&asked).await;
    controls(&asked).await;
    files(&asked).await;
    peers(&asked).await;
    moves(&asked).await;
    asked.get("/v1/status", &[]).await;
    asked.post("/v1/fsck", &[], &json!({})).await;
    asked.call(Method::POST, "/v1/fsck", &[], "?dryRun=1", Sent::Json(&json!({"repair": true}))).await;
    asked.post("/v1/stop", &[], &json!({})).await;
    let tests = all();
    for (method, path, test) in ELSEWHERE {
        assert!(tests.contains_key(*test), "{path} is asked for by {test}, which is not there");
        assert!(!asked.met.borrow().contains(&(*method, *path)), "{path} is met here: take it off the list");
        asked.met.borrow_mut().insert((method, path));
    }
    let met = asked.met.borrow();
    let unmet = ROUTES.iter().filter(|route| in_json(route).is_some());
    let unmet: Vec<&str> =
        unmet.filter(|route| !met.contains(&(route.method, route.path))).map(|route| route.path).collect();
    assert!(unmet.is_empty(), "routes whose answers were held to nothing: {unmet:?}");
}
