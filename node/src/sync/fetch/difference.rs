//! Control blobs of an owner that a peer holds and this node does not.

use throughline_protocol::block::Signed;
use throughline_protocol::control::Control;
use throughline_protocol::id::Principal;
use throughline_protocol::limits;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::range::Charged;
use throughline_protocol::wire::Credentials;

use super::Provider;
use crate::sync::ask::{is_of_owner, unsolicited};
use crate::sync::fault::PeerFault;
use crate::sync::shared::Shared;

impl Shared {
    /// Fetches and takes in what a peer holds of an owner and this node does not; returns the bytes that came.
    pub(in crate::sync) async fn take_difference(
        &self,
        from: &Provider,
        credentials: &Credentials,
        owner: Principal,
    ) -> Result<u64, PeerFault> {
        let have = self.on_node(move |node| {
            let mut have = node.reader()?.control_hashes(owner)?;
            have.truncate(limits::CONTROL_HAVE_MAX);
            Ok(have)
        });
        let have = have.await.map_err(|problem| PeerFault::ours(&problem))?;
        let sent = self.ask_control(from.peer, credentials, owner, have).await?;
        let bytes = sent.bytes;
        let taken = self.on_node(move |node| {
            let mut keys = VerifyingKeys::default();
            let mut controls = Vec::with_capacity(sent.blobs.len());
            for blob in sent.blobs {
                let control = match Signed::<Control>::check(blob, &mut keys) {
                    Ok(control) => control,
                    Err(reject) => return Ok(Err(PeerFault::peers(reject))),
                };
                if !is_of_owner(control.value(), owner) {
                    return Ok(unsolicited("a control blob of another owner"));
                }
                controls.push(control);
            }
            node.take_controls(controls)?;
            Ok(Ok(()))
        });
        let taken = taken.await.map_err(|problem| PeerFault::ours(&problem)).and_then(|taken| taken);
        if let Err(fault) = &taken
            && fault.charged != Charged::Nobody
        {
            self.net.charge(from.peer, fault.reject.code).await;
        }
        taken.map(|()| bytes)
    }
}
