//! Single blobs by CID, from whoever has them: what `fsck --repair` puts back. Bytes count only if they hash to what was asked;
//! the peer decides who may see what, as for every other request.

use std::collections::BTreeSet;

use throughline_protocol::block::Block;
use throughline_protocol::id::{Cid, Principal};
use throughline_protocol::limits;

use super::super::fault::PeerFault;
use super::super::shared::Shared;
use super::providers::{Provider, Tries};
use crate::api::error::Answer;

/// What came of asking for blobs.
#[derive(Clone, Debug, Default)]
pub struct BlobsCame {
    /// Blocks that hash to what was asked for.
    pub blocks: Vec<Block>,
    /// Who gave some: alias, principal or connection key.
    pub from: BTreeSet<String>,
    /// How many peers answered.
    pub peers_asked: usize,
}

impl Shared {
    /// Asks one provider after the other for blobs of what `owner` owns, until all came.
    ///
    /// # Errors
    /// `E_PEER_UNKNOWN` for a name that nobody has. That nobody could be reached is no error: nothing came.
    pub(in crate::sync) async fn blobs(
        &self,
        from: &[String],
        owner: Option<Principal>,
        wanted: BTreeSet<Cid>,
    ) -> Answer<BlobsCame> {
        let mut came = BlobsCame::default();
        let mut open = wanted;
        for provider in self.providers(from).await?.asked {
            if open.is_empty() {
                break;
            }
            let before = came.blocks.len();
            match self.blobs_of(&provider, owner, &open, &mut came.blocks).await? {
                Ok(()) => came.peers_asked += 1,
                Err(fault) => {
                    tracing::debug!(peer = provider.name(), %fault, "blobs did not come");
                    if fault.charged != throughline_protocol::sync::range::Charged::Nobody {
                        self.net.charge(provider.peer, fault.reject.code).await;
                    }
                }
            }
            if came.blocks.len() > before {
                came.from.insert(provider.name());
            }
            for block in &came.blocks[before..] {
                open.remove(&block.cid());
            }
        }
        Ok(came)
    }

    async fn blobs_of(
        &self,
        provider: &Provider,
        owner: Option<Principal>,
        wanted: &BTreeSet<Cid>,
        blocks: &mut Vec<Block>,
    ) -> Answer<Result<(), PeerFault>> {
        let idle = self.node()?.config().limits.idle_timeout;
        let credentials = self.credentials(provider.peer, owner, provider.grant.clone()).await?;
        let wanted: Vec<Cid> = wanted.iter().copied().collect();
        let mut tries = Tries::default();
        for cids in wanted.chunks(limits::BLOBS_MAX) {
            let before = blocks.len();
            loop {
                let asked = match self.reach(provider, idle).await {
                    Ok(_) => self.ask_blocks(provider.peer, &credentials, cids, idle, blocks).await,
                    Err(fault) => return Ok(Err(fault)),
                };
                let Err(fault) = asked else { break };
                if let Err(fault) = tries.again(fault).await {
                    return Ok(Err(fault));
                }
                // The same are asked for again.
                blocks.truncate(before);
            }
        }
        Ok(Ok(()))
    }
}
