//! Control blobs: capabilities, tombstones, Refs.

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::control::{Capability, Control, Grant};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{Cid, Codec, HashKind, Principal, SessionId};

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::core::{ControlKind, Keeping, Revoke, Standing, controls_of, shape, standing};
use throughline_protocol::code::Code;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/control", get(of_owner))
        .route("/v1/capabilities", get(grants).post(capability))
        .route("/v1/tombstones", post(tombstone))
        .route("/v1/tombstones/preview", post(preview))
        .route("/v1/refs", post(reference))
}

async fn capability(
    State(app): State<App>,
    query: input::Query,
    input::Whole(body): input::Whole,
) -> Answer<(StatusCode, Json<Value>)> {
    take(&app, &query, ControlKind::Capability, body).await
}

async fn tombstone(
    State(app): State<App>,
    query: input::Query,
    input::Whole(body): input::Whole,
) -> Answer<(StatusCode, Json<Value>)> {
    take(&app, &query, ControlKind::Tombstone, body).await
}

async fn reference(
    State(app): State<App>,
    query: input::Query,
    input::Whole(body): input::Whole,
) -> Answer<(StatusCode, Json<Value>)> {
    take(&app, &query, ControlKind::Ref, body).await
}

async fn take(
    app: &App,
    query: &input::Query,
    kind: ControlKind,
    body: Bytes,
) -> Answer<(StatusCode, Json<Value>)> {
    let bytes = body.clone();
    let keeping = if input::flag(query, "dryRun") { Keeping::DryRun } else { Keeping::Store };
    let mut answer = app.act(move |node| node.take_control(kind, &bytes, keeping)).await?;
    let told = match app.node().network() {
        Some(network) if keeping == Keeping::Store => network.tell_control(body.to_vec()).await,
        Some(_) | None => crate::sync::Told::default(),
    };
    answer["told"] = json!({"peers": told.peers, "pending": told.pending});
    let stored = answer["unchanged"] == false && keeping == Keeping::Store;
    let status = if !stored { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(answer)))
}

async fn preview(State(app): State<App>, input::Whole(body): input::Whole) -> Answer<Json<Value>> {
    let value = input::json(&body, "PreviewRequest")?;
    let revoke =
        match (input::field::<Principal>(&value, "delegate")?, input::field::<Cid>(&value, "capability")?) {
            (Some(delegate), None) => Revoke::Delegate(delegate),
            (None, Some(capability)) => Revoke::Capability(capability),
            _ => return Err(Problem::new(Code::ApiBody, "the body needs `delegate` or `capability`")),
        };
    app.act(move |node| node.preview_revocation(revoke)).await.map(Json)
}

async fn grants(State(app): State<App>, query: input::Query) -> Answer<Json<Value>> {
    let delegate: Option<Principal> = input::maybe(&query, "delegate")?;
    let session: Option<SessionId> = input::maybe(&query, "session")?;
    let state = query.get("state").cloned();
    app.act(move |node| {
        let reader = node.reader()?;
        let aliases = shape::aliases(&reader)?;
        let within = session.map(|session| standing(&reader, session)).transpose()?;
        let mut items = Vec::new();
        for (owner, _) in reader.owners()? {
            let controls = controls_of(&reader, owner, None)?;
            for (hash, capability) in controls.capabilities() {
                let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
                let revoked = controls.revoked_by(&cid, owner);
                let word = if revoked.is_some() { "revoked" } else { "active" };
                let fits = delegate.is_none_or(|delegate| capability.delegate == delegate)
                    && state.as_deref().is_none_or(|state| state == word)
                    && within.as_ref().is_none_or(|within| reaches(capability, within));
                if fits {
                    items.push(json!({
                        "cid": cid.to_string(), "owner": owner.to_string(),
                        "delegate": capability.delegate.to_string(), "alias": aliases.get(&capability.delegate),
                        "self": capability.delegate == node.principal(),
                        "role": capability.role, "path": capability.path, "label": capability.label,
                        "grantedAt": shape::rfc3339(capability.ts), "state": word,
                        "tombstone": revoked.map(|hash| {
                            Cid::from_parts(Codec::DagCbor, HashKind::Sha256, hash).to_string()
                        }),
                    }));
                }
            }
        }
        Ok(json!({"v": 1, "kind": "grants", "items": items}))
    })
    .await
    .map(Json)
}

/// Whether a grant is one of the session's owner that covers its agent or itself.
fn reaches(capability: &Capability, session: &Standing) -> bool {
    let row = &session.row;
    let covers = |grant: Grant| grant.owner == row.owner && grant.covers(row.session, session.state.agent());
    capability.grant().is_ok_and(covers)
}

async fn of_owner(State(app): State<App>, query: input::Query) -> Answer<Json<Value>> {
    let owner: Option<Principal> = input::maybe(&query, "owner")?;
    app.act(move |node| {
        let owner = match owner {
            Some(owner) => owner,
            None => node.need_owner()?,
        };
        let reader = node.reader()?;
        let controls: Controls = controls_of(&reader, owner, None)?;
        let (mut capabilities, mut tombstones) = (Vec::new(), Vec::new());
        for bytes in reader.controls_of_owner(owner)? {
            let text = STANDARD.encode(&bytes);
            let decoded = Decoded::<Control>::decode(bytes)?;
            let cid = decoded.cid().cid();
            match decoded.value() {
                Control::Capability(capability) => capabilities.push(json!({
                    "cid": cid.to_string(), "bytes": text, "delegate": capability.delegate.to_string(),
                    "role": capability.role, "path": capability.path, "label": capability.label,
                    "state": if controls.revoked_by(&cid, owner).is_some() { "revoked" } else { "active" },
                })),
                Control::Tombstone(tombstone) => tombstones.push(json!({
                    "cid": cid.to_string(), "bytes": text, "capability": tombstone.capability.to_string(),
                    "reason": tombstone.reason,
                })),
                Control::Ref(_) => {}
            }
        }
        Ok(json!({
            "v": 1, "kind": "control", "owner": owner.to_string(),
            "capabilities": capabilities, "tombstones": tombstones,
        }))
    })
    .await
    .map(Json)
}
