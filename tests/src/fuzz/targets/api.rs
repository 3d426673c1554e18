//! Requests to the local API, against a real node with a live session: whatever the body, the answer is JSON or a refusal that says why.

use std::sync::LazyLock;

use axum::http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use throughline_node::api::client::{Call, Client, Endpoint};
use throughline_node::api::{App, router};
use throughline_node::config::{Config, Overrides};
use throughline_node::core::{Node, now};
use throughline_node::dirs::{Dirs, Environment};
use throughline_node::keys::NodeKeys;
use throughline_protocol::build::sign;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Control, Role};
use throughline_protocol::testing::key;
use tokio::runtime::Runtime;

/// Routes that take a body, or whose path or query the input fills. `{s}` is the live session, `{}` the first line of the input.
const ROUTES: &[(&str, &str)] = &[
    ("POST", "/v1/sessions?dryRun=1"),
    ("POST", "/v1/sessions/{s}/entries?dryRun=1"),
    ("POST", "/v1/sessions/{s}/entries?dryRun=true"),
    ("POST", "/v1/capabilities"),
    ("POST", "/v1/tombstones"),
    ("POST", "/v1/tombstones/preview"),
    ("POST", "/v1/refs"),
    ("POST", "/v1/peers"),
    ("POST", "/v1/fetch"),
    ("POST", "/v1/import?dryRun=1"),
    ("POST", "/v1/verify"),
    ("POST", "/v1/car?dryRun=1"),
    ("POST", "/v1/sessions/{s}/moves"),
    ("POST", "/v1/sessions/{s}/verify"),
    ("PUT", "/v1/pins/{s}"),
    ("GET", "/v1/sessions?{}"),
    ("GET", "/v1/sessions/{s}/entries?{}"),
    ("GET", "/v1/sessions/{s}/entries/{}"),
    ("GET", "/v1/sessions/{}"),
    ("GET", "/v1/blobs/{}"),
    ("GET", "/v1/resolve?{}"),
    ("GET", "/v1/capabilities?{}"),
    ("GET", "/v1/{}"),
    ("DELETE", "/v1/pins/{}"),
    ("DELETE", "/v1/peers/{}"),
];

const CONTENT_TYPES: &[&str] = &[
    "application/json",
    "application/cbor",
    "application/vnd.ipld.car",
    "text/plain",
    "application/x-ndjson",
];

/// A node of this process with one session, in a directory that goes with the process.
struct Scene {
    runtime: Runtime,
    client: Client,
    session: String,
    _home: TempDir,
}

static SCENE: LazyLock<Scene> = LazyLock::new(Scene::set_up);

impl Scene {
    fn set_up() -> Self {
        let home = tempfile::Builder::new().prefix("tl-fuzz-").tempdir().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (client, session) = runtime.block_on(async {
            let node = open(&home);
            let client = Client::new(Endpoint::InProcess(router(App::new(node.clone()), None)));
            for role in [Role::Writer, Role::Agent] {
                let grant = grant(&node, role);
                client
                    .ask(Call::body(Method::POST, "/v1/capabilities", "application/cbor", grant))
                    .await
                    .unwrap();
            }
            let created = json!({"title": "Fuzz", "firstEntry": {
                "type": "SessionUserMessage", "origin": "trigger",
                "body": [{"id": "b1", "type": "Paragraph", "text": "begin", "children": []}],
            }});
            let call = Call::post("/v1/sessions", &created).header("idempotency-key", "fuzz");
            let answer = client.ask(call).await.unwrap();
            (client, answer["session"].as_str().unwrap().to_owned())
        });
        Scene { runtime, client, session, _home: home }
    }
}

fn open(home: &TempDir) -> Node {
    let owner = key("account").principal();
    let config = format!(
        "[node]\nlisten = []\nmdns = false\n[api]\nhttp = \"off\"\n[owner]\nprincipal = \"{owner}\"\n[log]\nlevel = \"error\"\n"
    );
    let dirs = Dirs::locate(Some(home.path()), &Environment::default()).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::of_text(&dirs, &config, &Overrides::default()).unwrap();
    Node::open(dirs, config, "fuzz").unwrap()
}

fn grant(node: &Node, role: Role) -> Vec<u8> {
    let owner = key("account");
    let capability = Capability {
        ts: now(),
        signer: owner.principal(),
        delegate: node.principal(),
        role: Some(role.word().to_owned()),
        path: None,
        label: None,
        audience: None,
    };
    sign(Control::Capability(capability), &owner).unwrap().bytes().to_vec()
}

/// The first byte chooses the route, the second the content type and whether there is an idempotency key; the rest is the body.
pub(in crate::fuzz) fn api(data: &[u8]) {
    let [route, kind, body @ ..] = data else { return };
    let (method, path) = ROUTES[usize::from(*route) % ROUTES.len()];
    let content_type = CONTENT_TYPES[usize::from(*kind & 0x7f) % CONTENT_TYPES.len()];
    let first_line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let path = path.replace("{s}", &SCENE.session).replace("{}", &String::from_utf8_lossy(first_line));
    let mut call =
        Call::body(Method::from_bytes(method.as_bytes()).unwrap(), &path, content_type, body.to_vec());
    if *kind & 0x80 == 0 {
        call = call.header("idempotency-key", "one");
    }
    let answered = SCENE.runtime.block_on(async {
        let reply = SCENE.client.send(call).await?;
        let (status, kind) = (reply.status, reply.headers.get("content-type").cloned());
        reply.bytes().await.map(|bytes| (status, kind, bytes))
    });
    let (status, content_type, bytes) = match answered {
        Ok(answered) => answered,
        // The request itself could not be written: a path that is no URI.
        Err(problem) => return assert_eq!(problem.code(), Code::ApiPath, "{problem:?}"),
    };
    let content_type = content_type.map_or(String::new(), |kind| kind.to_str().unwrap().to_owned());
    if status.is_success() || status.is_redirection() {
        return;
    }
    assert!(content_type.starts_with("application/problem+json"), "{status} {content_type} {method} {path}");
    let problem: Value = serde_json::from_slice(&bytes).unwrap();
    let code: Code =
        problem["code"].as_str().unwrap_or_default().parse().unwrap_or_else(|_| panic!("{problem}"));
    assert!(code != Code::Internal && status.as_u16() != 500, "{method} {path}: {problem}");
}
