//! The table of routes: every route of the local API, with what it reads and what it answers.
//!
//! A test holds the router to it: a route that stands here is routed, and the other way round. It must never say of a route what
//! follows from its bodies: that is for the schemas.

use super::parameters::{
    AFTER, AGENT, ANY, APPEND_KEY, BEFORE, CLASS, CURSOR, DELEGATE, DIGEST, DRY_RUN, EVENT_KINDS, FILENAME,
    FORMAT, GRANT_STATE, HEAD, Header, KEPT_KEY, LIMIT, OF_SESSION, OWNER, PARENT, PATH, PAYLOADS_CHECKED,
    PAYLOADS_OF_CAR, Parameter, REFERENCE, RESUME_AFTER, REVERSE, SESSION, STATE, SUB_AGENTS, TOLD_HEAD,
    TYPES, WAIT_MS,
};

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// `get`, `post`, …
    pub method: &'static str,
    /// The path with its parameters in braces.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Query parameters; any other is refused.
    pub query: &'static [Parameter],
    /// Headers that are read, beside those of bodies; any other is not seen.
    pub headers: &'static [Header],
    /// What bodies it takes.
    pub takes: &'static [Media],
    /// What its answer may be.
    pub gives: &'static [Media],
    /// Statuses of an answer that is no refusal.
    pub statuses: &'static [u16],
}

/// A content type, and the schema of what comes under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// Such as `application/json`.
    pub kind: &'static str,
    /// A schema among the components of the document.
    pub schema: &'static str,
}

const fn media(kind: &'static str, schema: &'static str) -> Media {
    Media { kind, schema }
}

const fn as_json(schema: &'static str) -> Media {
    media(JSON, schema)
}

const JSON: &str = "application/json";
const CBOR: &str = "application/cbor";
const CAR: &str = "application/vnd.ipld.car";
const DAG_CBOR: &str = "application/vnd.ipld.dag-cbor";
const OCTETS: &str = "application/octet-stream";
const EVENTS: &str = "text/event-stream";
/// The headers of a POST that appends nothing.
const KEPT: &[Header] = &[KEPT_KEY];

const DONE: &[u16] = &[200];
/// 201 when something was made, 200 when it was there already or was only tried.
const MADE: &[u16] = &[200, 201];

const fn get(
    path: &'static str,
    query: &'static [Parameter],
    gives: &'static [Media],
    summary: &'static str,
) -> Route {
    Route { method: "get", path, summary, query, headers: &[], takes: &[], gives, statuses: DONE }
}

const fn post(
    path: &'static str,
    takes: &'static [Media],
    gives: &'static [Media],
    summary: &'static str,
) -> Route {
    Route { method: "post", path, summary, query: &[], headers: KEPT, takes, gives, statuses: DONE }
}

/// A write that can be tried: `?dryRun=1` checks everything and stores nothing. Other writes refuse the parameter.
const fn write(
    path: &'static str,
    takes: &'static [Media],
    gives: &'static [Media],
    summary: &'static str,
) -> Route {
    Route { method: "post", path, summary, query: &[DRY_RUN], headers: KEPT, takes, gives, statuses: MADE }
}

/// A write that appends: as [`write`], and its key is kept with its entries.
const fn append(
    path: &'static str,
    takes: &'static [Media],
    gives: &'static [Media],
    summary: &'static str,
) -> Route {
    Route { headers: &[APPEND_KEY], ..write(path, takes, gives, summary) }
}

/// Every route of the API.
pub const ROUTES: &[Route] = &[
    get("/v1/health", &[], &[as_json("Health")], "Whether the node answers; needs no token"),
    get("/v1/openapi.json", &[], &[as_json("Document")], "This description"),
    get("/v1/node", &[], &[as_json("NodeInfo")], "Keys, addresses and ticket of this node"),
    get("/v1/status", &[SESSION], &[as_json("answer.status")], "Who holds what and who has which head"),
    get(
        "/v1/resolve",
        &[REFERENCE, ANY],
        &[as_json("Resolved")],
        "A session reference to a session id; with any=1 a short id to whatever CID it begins",
    ),
    get(
        "/v1/sessions",
        &[AGENT, OWNER, PARENT, STATE, LIMIT, CURSOR],
        &[as_json("answer.sessions")],
        "The sessions held here",
    ),
    append(
        "/v1/sessions",
        &[as_json("SessionRequest")],
        &[as_json("SessionMade")],
        "A draft session; with firstEntry the session and its first entry in one commit",
    ),
    get("/v1/sessions/{session}", &[], &[as_json("Session")], "One session"),
    get("/v1/sessions/{session}/base", &[], &[as_json("Base")], "What a signer of the next entry needs"),
    get(
        "/v1/sessions/{session}/anchor",
        &[],
        &[as_json("AnchorFacts")],
        "What an owner's Ref at the head would say",
    ),
    get(
        "/v1/sessions/{session}/entries",
        &[AFTER, BEFORE, LIMIT, TYPES, REVERSE, PAYLOADS_OF_CAR],
        &[as_json("answer.entries"), media(CAR, "Bytes")],
        "A page of entries; as CAR the whole session",
    ),
    get(
        "/v1/sessions/{session}/entries/{entry}",
        &[],
        &[as_json("answer.entry"), media(DAG_CBOR, "Bytes")],
        "One entry by CID, seq or `head`; as DAG-CBOR its exact bytes",
    ),
    append(
        "/v1/sessions/{session}/entries",
        &[as_json("AppendRequest"), media(CBOR, "AppendFrame")],
        &[as_json("answer.append")],
        "Append: JSON that the node signs as holder, or an entry that owner, device or contributor signed",
    ),
    get(
        "/v1/sessions/{session}/verify",
        &[PAYLOADS_CHECKED, TOLD_HEAD],
        &[as_json("answer.verify")],
        "The five checks over what is held",
    ),
    post(
        "/v1/sessions/{session}/verify",
        &[as_json("VerifyRequest")],
        &[as_json("answer.verify")],
        "The five checks over what is held",
    ),
    Route {
        method: "post",
        path: "/v1/verify",
        summary: "The five checks over a CAR; nothing is stored",
        query: &[HEAD, PAYLOADS_CHECKED],
        headers: KEPT,
        takes: &[media(CAR, "Bytes")],
        gives: &[as_json("answer.verify")],
        statuses: DONE,
    },
    get(
        "/v1/sessions/{session}/fork",
        &[],
        &[as_json("answer.fork")],
        "Histories that exclude each other, side by side, and the evidence",
    ),
    Route {
        statuses: DONE,
        ..write(
            "/v1/sessions/{session}/fork/return",
            &[as_json("Nothing")],
            &[as_json("ForkReturned")],
            "The words of a tail that a handoff cut off come back as new entries",
        )
    },
    get(
        "/v1/sessions/{session}/evidence",
        &[],
        &[as_json("EvidenceList")],
        "The evidence that is held of a session",
    ),
    get(
        "/v1/sessions/{session}/evidence/{id}",
        &[],
        &[media(CAR, "Bytes")],
        "A file of evidence that anybody can verify alone",
    ),
    Route {
        method: "post",
        path: "/v1/evidence",
        summary: "Check a file of evidence and keep it; what it shows is judged with all that is held",
        query: &[DRY_RUN],
        headers: KEPT,
        takes: &[media(CAR, "Bytes")],
        gives: &[as_json("answer.evidence")],
        statuses: DONE,
    },
    get("/v1/control", &[OWNER], &[as_json("Control")], "Capabilities and tombstones of an owner"),
    get(
        "/v1/capabilities",
        &[DELEGATE, SESSION, GRANT_STATE],
        &[as_json("answer.grants")],
        "Grants and what became of them",
    ),
    write(
        "/v1/capabilities",
        &[media(CBOR, "SignedBlob")],
        &[as_json("ControlTaken")],
        "Take an owner-signed capability",
    ),
    write(
        "/v1/tombstones",
        &[media(CBOR, "SignedBlob")],
        &[as_json("ControlTaken")],
        "Take an owner-signed tombstone",
    ),
    post(
        "/v1/tombstones/preview",
        &[as_json("PreviewRequest")],
        &[as_json("Preview")],
        "What a revocation would keep and cut",
    ),
    write(
        "/v1/refs",
        &[media(CBOR, "SignedBlob")],
        &[as_json("ControlTaken")],
        "Take an owner-signed or device-signed Ref",
    ),
    get("/v1/pins", &[], &[as_json("Pins")], "Pinned sessions"),
    get("/v1/pins/{session}", &[], &[as_json("Pin")], "Whether a session is pinned"),
    Route {
        method: "put",
        path: "/v1/pins/{session}",
        summary: "Keep a session here and serve it",
        query: &[],
        headers: &[],
        takes: &[],
        gives: &[as_json("Pin")],
        statuses: DONE,
    },
    Route {
        method: "delete",
        path: "/v1/pins/{session}",
        summary: "Let a session go",
        query: &[],
        headers: &[],
        takes: &[],
        gives: &[as_json("Pin")],
        statuses: DONE,
    },
    Route {
        method: "post",
        path: "/v1/fetch",
        summary: "Fetch a session, verify it and, unless told otherwise, adopt it; as SSE with its progress",
        query: &[],
        headers: KEPT,
        takes: &[as_json("FetchRequest")],
        gives: &[as_json("answer.fetch"), media(EVENTS, "EventStream")],
        statuses: DONE,
    },
    post(
        "/v1/unfetched",
        &[as_json("UnfetchedRequest")],
        &[as_json("Unfetched")],
        "Fetch what known peers hold of sessions above what is here; what is still held in part",
    ),
    Route {
        method: "post",
        path: "/v1/import",
        summary: "Import a transcript",
        query: &[FORMAT, PATH, AGENT, CLASS, SUB_AGENTS, DRY_RUN],
        headers: KEPT,
        takes: &[media("application/jsonl", "Bytes"), media(OCTETS, "Bytes")],
        gives: &[as_json("answer.import")],
        statuses: DONE,
    },
    Route {
        method: "post",
        path: "/v1/car",
        summary: "Verify a session CAR and adopt it",
        query: &[DRY_RUN],
        headers: KEPT,
        takes: &[media(CAR, "Bytes")],
        gives: &[as_json("CarTaken")],
        statuses: DONE,
    },
    Route {
        method: "post",
        path: "/v1/blobs",
        summary: "Store a file of any type; streamed, above 1 MiB as UnixFS",
        query: &[OF_SESSION],
        headers: &[KEPT_KEY, FILENAME, DIGEST],
        takes: &[media("*/*", "Bytes")],
        gives: &[as_json("Blob")],
        statuses: MADE,
    },
    get(
        "/v1/blobs/{cid}",
        &[OF_SESSION],
        &[media(OCTETS, "Bytes")],
        "A file or block, streamed; HEAD says whether an upload of it can be skipped",
    ),
    get("/v1/peers", &[], &[as_json("Peers")], "Known peers"),
    Route {
        method: "post",
        path: "/v1/peers",
        summary: "Add a peer by its ticket",
        query: &[],
        headers: KEPT,
        takes: &[as_json("PeerRequest")],
        gives: &[as_json("Peer")],
        statuses: MADE,
    },
    Route {
        method: "delete",
        path: "/v1/peers/{alias}",
        summary: "Forget a peer",
        query: &[],
        headers: &[],
        takes: &[],
        gives: &[as_json("Peer")],
        statuses: DONE,
    },
    get("/v1/moves", &[], &[as_json("Moves")], "Moves that this node drives or takes part in"),
    Route {
        method: "post",
        path: "/v1/sessions/{session}/moves",
        summary: "Begin a move",
        query: &[],
        headers: KEPT,
        takes: &[as_json("MoveRequest")],
        gives: &[as_json("answer.move")],
        statuses: MADE,
    },
    get(
        "/v1/sessions/{session}/moves/{move}",
        &[WAIT_MS],
        &[as_json("answer.move")],
        "A move; waits for its next state if asked",
    ),
    post(
        "/v1/sessions/{session}/moves/{move}/confirm",
        &[as_json("ConfirmRequest")],
        &[as_json("answer.move")],
        "Go on although something is lacking: a yes to what the move asks",
    ),
    post(
        "/v1/sessions/{session}/moves/{move}/handoff",
        &[media(CBOR, "SignedBlob")],
        &[as_json("answer.move")],
        "The owner-signed handoff: no way back from here",
    ),
    post(
        "/v1/sessions/{session}/moves/{move}/resume",
        &[as_json("ResumeRequest")],
        &[as_json("answer.move")],
        "Go on after a crash or a lost reply",
    ),
    post(
        "/v1/sessions/{session}/moves/{move}/abort",
        &[as_json("AbortRequest")],
        &[as_json("answer.move")],
        "Roll back, while there is a way back",
    ),
    Route {
        method: "get",
        path: "/v1/events",
        summary: "Events after their commit, as SSE",
        query: &[SESSION, EVENT_KINDS],
        headers: &[RESUME_AFTER],
        takes: &[],
        gives: &[media(EVENTS, "EventStream")],
        statuses: DONE,
    },
    Route {
        method: "post",
        path: "/v1/fsck",
        summary: "Hash and verify again all that is stored; with repair, fetch and make again what is damaged; as SSE with its progress",
        query: &[DRY_RUN],
        headers: KEPT,
        takes: &[as_json("FsckRequest")],
        gives: &[as_json("answer.fsck"), media(EVENTS, "EventStream")],
        statuses: DONE,
    },
    post("/v1/stop", &[as_json("Nothing")], &[as_json("Stopping")], "End the node cleanly"),
];
