//! Files and CARs: upload, download, import, export.

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::io::Write as _;
use throughline_protocol::code::Code;
use throughline_protocol::id::{Cid, EntryCid, SessionId};
use throughline_store::Stored;
use tokio::sync::mpsc;

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::api::openapi::{REPR_DIGEST, X_FILENAME};
use crate::api::pace::Paced;
use crate::core::{AgentName, ImportRequest, LEASE_MS, Node, Outgoing, check_sub_agents};
use throughline_protocol::entry::Class;

/// Pieces of a body between the network and the thread that works on them.
const PIECES: usize = 8;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/blobs", post(upload))
        .route("/v1/blobs/{cid}", get(download).head(whether_here))
        .route("/v1/import", post(import))
        .route("/v1/car", post(take_car))
        .route("/v1/verify", post(verify_car))
        .layer(DefaultBodyLimit::disable())
}

/// Gives the body's bytes, piece by piece, to an act on a thread that may block. Memory stays at a few pieces.
async fn streamed<T: Send + 'static>(
    app: &App,
    body: Body,
    act: impl FnOnce(&Node, &mut dyn FnMut() -> Answer<Option<Bytes>>) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let (sender, mut pieces) = mpsc::channel::<Answer<Bytes>>(PIECES);
    let pump = tokio::spawn(async move {
        let mut body = Paced::new(body);
        while let Some(piece) = body.next().await.transpose() {
            let ended = piece.is_err();
            if sender.send(piece).await.is_err() || ended {
                return;
            }
        }
    });
    let done = app.act(move |node| act(node, &mut || pieces.blocking_recv().transpose())).await;
    pump.abort();
    done
}

async fn upload(
    State(app): State<App>,
    query: input::Query,
    headers: HeaderMap,
    body: Body,
) -> Answer<(StatusCode, Json<Value>)> {
    let session: Option<SessionId> = input::maybe(&query, "session")?;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let media_type =
        text(header::CONTENT_TYPE.as_str()).unwrap_or_else(|| "application/octet-stream".to_owned());
    let name = text(X_FILENAME);
    let digest = text(REPR_DIGEST).map(|digest| expected_digest(&digest)).transpose()?;
    let stored = streamed(&app, body, move |node, next| {
        let mut incoming = node.begin_file(session);
        while let Some(piece) = next()? {
            incoming.push(&piece)?;
        }
        let stored = incoming.finish()?;
        match digest {
            Some(expected) if expected != stored.sha256 => {
                Err(Problem::new(Code::CidMismatch, "the bytes do not match their Repr-Digest"))
            }
            _ => Ok(stored),
        }
    })
    .await?;
    let status = if stored.stored == Stored::New { StatusCode::CREATED } else { StatusCode::OK };
    let answer = json!({
        "v": 1, "kind": "blob", "cid": stored.cid.to_string(), "sizeBytes": stored.size_bytes,
        "mediaType": media_type, "name": name, "blocks": stored.blocks, "leaseMs": LEASE_MS,
        "unchanged": stored.stored == Stored::Held,
    });
    Ok((status, Json(answer)))
}

/// `sha-256=:<base64>:` of RFC 9530.
fn expected_digest(text: &str) -> Answer<[u8; 32]> {
    use base64::Engine as _;
    let bad = || Problem::new(Code::ApiBody, "expected Repr-Digest: sha-256=:…:");
    let body =
        text.trim().strip_prefix("sha-256=:").and_then(|rest| rest.strip_suffix(':')).ok_or_else(bad)?;
    let bytes = base64::engine::general_purpose::STANDARD.decode(body).map_err(|_| bad())?;
    bytes.try_into().map_err(|_| bad())
}

/// Whether an upload of a file can be skipped: all of it is here, for the session if one is named.
async fn whether_here(
    State(app): State<App>,
    Path(cid): Path<String>,
    query: input::Query,
) -> Answer<StatusCode> {
    let cid: Cid = input::cid(&cid)?;
    let session: Option<SessionId> = input::maybe(&query, "session")?;
    app.act(move |node| if node.has_file(session, cid)? { Ok(StatusCode::OK) } else { Err(not_here(cid)) })
        .await
}

fn not_here(cid: Cid) -> Problem {
    Problem::new(Code::NotFoundYet, format!("block {} is not held here", cid.short()))
}

async fn download(
    State(app): State<App>,
    Path(cid): Path<String>,
    query: input::Query,
) -> Answer<Response<Body>> {
    let cid: Cid = input::cid(&cid)?;
    let session: Option<SessionId> = input::maybe(&query, "session")?;
    let body = sent(&app, move |node, send| {
        let reader = node.reader()?;
        if let Some(session) = session
            && !reader.is_here(session, &cid)?
        {
            return Err(not_here(cid));
        }
        let mut file = Outgoing::open(reader, cid)?.ok_or_else(|| not_here(cid))?;
        while let Some(bytes) = file.piece()? {
            send(bytes)?;
        }
        Ok(())
    })
    .await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::ETAG, format!("\"{cid}\"")),
        (header::CACHE_CONTROL, "private, immutable, max-age=31536000".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "sandbox".to_owned()),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, body).into_response())
}

/// A body that an act writes on a thread that may block. A failure before the first bytes is a refusal; a later one breaks
/// the stream off, so that a cut body never looks whole.
async fn sent(
    app: &App,
    act: impl FnOnce(&Node, &mut dyn FnMut(Vec<u8>) -> Answer<()>) -> Answer<()> + Send + 'static,
) -> Answer<Body> {
    let (sender, mut pieces) = mpsc::channel::<Result<Bytes, Problem>>(PIECES);
    let node = app.node().clone();
    tokio::task::spawn_blocking(move || {
        let gone = || Problem::from(Code::Interrupted);
        let done = act(&node, &mut |bytes| sender.blocking_send(Ok(bytes.into())).map_err(|_| gone()));
        if let Err(problem) = done {
            let _ = sender.blocking_send(Err(problem));
        }
    });
    let first = match pieces.recv().await {
        Some(Err(problem)) => return Err(problem),
        first => first,
    };
    let stream = futures::stream::unfold((first, pieces), |(first, mut pieces)| async move {
        let piece = match first {
            Some(piece) => piece,
            None => pieces.recv().await?,
        };
        Some((piece, (None, pieces)))
    });
    Ok(Body::from_stream(stream))
}

async fn import(State(app): State<App>, query: input::Query, body: Body) -> Answer<Json<Value>> {
    let class = match query.get("class").map(String::as_str) {
        None => match app.node().config().sessions.default_class {
            crate::config::DefaultClass::Internal => Class::Internal,
            crate::config::DefaultClass::Confidential => Class::Confidential,
        },
        Some("confidential") => Class::Confidential,
        // The other word that is taken.
        Some(_) => Class::Internal,
    };
    let parts = query.get("subAgents").map_or(Ok(Vec::new()), |text| sub_agents(text))?;
    let mut request = ImportRequest {
        path: query.get("path").cloned().unwrap_or_default(),
        agent: input::maybe(&query, "agent")?,
        class,
        dry_run: input::flag(&query, "dryRun"),
        sub_agents: Vec::new(),
    };
    streamed(&app, body, move |node, next| {
        let mut spool = Spool::new(node, next);
        let mut files = Vec::new();
        for (name, length) in parts {
            let file = spool.take(Some(length))?;
            request.sub_agents.push((name, file.path().to_owned()));
            files.push(file);
        }
        let transcript = spool.take(None)?;
        node.import(transcript.path(), &request)
    })
    .await
    .map(Json)
}

/// The sub-agents whose files stand before the transcript in the body: `name:length,name:length`.
fn sub_agents(text: &str) -> Answer<Vec<(AgentName, u64)>> {
    let expected = || Problem::new(Code::ApiQuery, "expected `name:bytes,…` in `subAgents`");
    let part = |part: &str| {
        let (name, length) = part.split_once(':')?;
        Some((AgentName::parse(name)?, length.parse().ok()?))
    };
    let parts: Vec<(AgentName, u64)> =
        text.split(',').map(|text| part(text).ok_or_else(expected)).collect::<Answer<_>>()?;
    check_sub_agents(&parts.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())?;
    Ok(parts)
}

/// A body on its way into files of the staging directory; each is gone when it is dropped.
struct Spool<'a> {
    node: &'a Node,
    next: &'a mut dyn FnMut() -> Answer<Option<Bytes>>,
    /// What came behind the end of the last file.
    rest: Bytes,
    size: u64,
}

impl<'a> Spool<'a> {
    fn new(node: &'a Node, next: &'a mut dyn FnMut() -> Answer<Option<Bytes>>) -> Self {
        Spool { node, next, rest: Bytes::new(), size: 0 }
    }

    /// The next `length` bytes; none takes all that is left.
    fn take(&mut self, length: Option<u64>) -> Answer<tempfile::NamedTempFile> {
        let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("spooling the body: {error}"));
        let dir = self.node.dirs().staging();
        std::fs::create_dir_all(&dir).map_err(io)?;
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(io)?;
        let mut left = length;
        while left != Some(0) {
            let Some(piece) = self.piece(left)? else {
                match left {
                    None => break,
                    Some(left) => {
                        let what = format!("the body ends {left} bytes before the end of a sub-agent's file");
                        return Err(Problem::new(Code::ApiBody, what));
                    }
                }
            };
            file.write_all(&piece).map_err(io)?;
            left = left.map(|left| left.saturating_sub(piece.len() as u64));
        }
        file.flush().map_err(io)?;
        Ok(file)
    }

    /// Some of the bytes that come next, at most `length`.
    fn piece(&mut self, length: Option<u64>) -> Answer<Option<Bytes>> {
        if self.rest.is_empty() {
            let Some(piece) = (self.next)()? else { return Ok(None) };
            let size_max = self.node.config().limits.staging_bytes_max;
            self.size += piece.len() as u64;
            if self.size > size_max {
                let what = format!("the body is larger than limits.staging_max, {size_max} bytes");
                return Err(Problem::new(Code::Quota, what));
            }
            self.rest = piece;
        }
        let length = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(usize::MAX);
        Ok(Some(self.rest.split_to(length.min(self.rest.len()))))
    }
}

/// The whole body in one file.
fn spool(node: &Node, next: &mut dyn FnMut() -> Answer<Option<Bytes>>) -> Answer<tempfile::NamedTempFile> {
    Spool::new(node, next).take(None)
}

async fn take_car(State(app): State<App>, query: input::Query, body: Body) -> Answer<Json<Value>> {
    let dry_run = input::flag(&query, "dryRun");
    streamed(&app, body, move |node, next| {
        let spool = spool(node, next)?;
        node.take_car(spool.path(), dry_run)
    })
    .await
    .map(Json)
}

async fn verify_car(State(app): State<App>, query: input::Query, body: Body) -> Answer<Json<Value>> {
    let began = std::time::Instant::now();
    let head: Option<EntryCid> = input::maybe(&query, "head")?;
    let payloads = super::sessions::payload_use(query.get("payloads").map(String::as_str))?;
    let mut answer = streamed(&app, body, move |node, next| {
        let spool = spool(node, next)?;
        node.verify_car(spool.path(), head, payloads)
    })
    .await?;
    answer["elapsedMs"] = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).into();
    Ok(Json(answer))
}

/// A session as CAR, streamed.
pub(super) async fn export(app: &App, session: SessionId, with_payloads: bool) -> Answer<Response<Body>> {
    let body = sent(app, move |node, send| node.export_car(session, with_payloads, send)).await?;
    let name = format!("attachment; filename=\"{}.car\"", session.short());
    let headers = [
        (header::CONTENT_TYPE, "application/vnd.ipld.car; version=1".to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, body).into_response())
}
