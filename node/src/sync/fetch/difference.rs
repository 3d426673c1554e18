//! Control blobs of an owner that a peer holds and this node does not.
//!
//! They are taken in batch by batch, so that an owner of many grants is learned whole: what was taken stays when the answer ends
//! early, and is not verified again. Capabilities go first: a tombstone of one that is not held counts against a small quota.
//! Nothing is stored before its signature was checked.

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::block::{Signed, sha256};
use throughline_protocol::control::Control;
use throughline_protocol::id::Principal;
use throughline_protocol::limits;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::range::Charged;
use throughline_protocol::wire::Credentials;
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk};

use super::Provider;
use crate::api::error::Answer;
use crate::core::Node;
use crate::sync::ask::unsolicited;
use crate::sync::fault::PeerFault;
use crate::sync::shared::Shared;

/// Control blobs that are stored at once.
const BATCH: usize = 4_096;
/// Bytes of an answer that are gathered before they are looked at: some 50,000 blobs of the usual size.
const GATHERED_BYTES_MAX: u64 = 16 << 20;
/// Control blobs of one owner in an answer: as many as a store keeps, 8,192 capabilities with 64 tombstones each and
/// 1,024 tombstones of others.
const CONTROLS_MAX: usize = 8_192 * 65 + 1_024;

impl Shared {
    /// Fetches and takes in what a peer holds of an owner and this node does not; returns the bytes that came. What the peer is to
    /// blame for is charged here.
    pub(in crate::sync) async fn take_difference(
        &self,
        from: &Provider,
        credentials: &Credentials,
        owner: Principal,
    ) -> Result<u64, PeerFault> {
        let taken = self.difference(from, credentials, owner).await;
        if let Err(fault) = &taken
            && fault.charged != Charged::Nobody
        {
            self.net.charge(from.peer, fault.reject.code).await;
        }
        taken
    }

    async fn difference(
        &self,
        from: &Provider,
        credentials: &Credentials,
        owner: Principal,
    ) -> Result<u64, PeerFault> {
        let held = self.on_node(move |node| node.reader()?.control_hashes(owner).map_err(Into::into));
        let mut have = held.await.map_err(|problem| PeerFault::ours(&problem))?;
        have.truncate(limits::CONTROL_HAVE_MAX);
        let mut line = self.chain(from.peer, credentials, ChainAsk::Control { owner, have }).await?;
        let (mut gathered, mut looked_at, mut count) = (Vec::new(), 0, 0);
        while let Some(frame) = line.next().await? {
            let ChainAnswer::Control(blobs) = frame else {
                return unsolicited("expected control blobs, got another frame");
            };
            count += blobs.len();
            if count > CONTROLS_MAX {
                return unsolicited("more control blobs than anybody holds of an owner");
            }
            gathered.extend(blobs);
            if line.bytes - looked_at >= GATHERED_BYTES_MAX {
                looked_at = line.bytes;
                self.take_gathered(owner, std::mem::take(&mut gathered)).await?;
            }
        }
        self.take_gathered(owner, gathered).await?;
        Ok(line.bytes)
    }

    async fn take_gathered(&self, owner: Principal, blobs: Vec<Arc<[u8]>>) -> Result<(), PeerFault> {
        if blobs.is_empty() {
            return Ok(());
        }
        let taken = self.on_node(move |node| take(node, owner, blobs)).await;
        taken.map_err(|problem| PeerFault::ours(&problem)).and_then(|taken| taken)
    }
}

/// Checks what is not held yet, and takes it in.
fn take(node: &Node, owner: Principal, blobs: Vec<Arc<[u8]>>) -> Answer<Result<(), PeerFault>> {
    // What is named in a request is not all that is held: see [`limits::CONTROL_HAVE_MAX`].
    let held: BTreeSet<[u8; 32]> = node.reader()?.control_hashes(owner)?.into_iter().collect();
    let mut keys = VerifyingKeys::default();
    let mut controls = Vec::new();
    for blob in blobs {
        if held.contains(&sha256(&blob)) {
            continue;
        }
        let control = match Signed::<Control>::check(blob, &mut keys) {
            Ok(control) => control,
            Err(reject) => return Ok(Err(PeerFault::peers(reject))),
        };
        if !control.value().is_of(owner) {
            return Ok(unsolicited("a control blob of another owner"));
        }
        controls.push(control);
    }
    controls.sort_by_key(|control| matches!(control.value(), Control::Tombstone(_)));
    while !controls.is_empty() {
        let later = controls.split_off(BATCH.min(controls.len()));
        node.take_controls(std::mem::replace(&mut controls, later))?;
    }
    Ok(Ok(()))
}
