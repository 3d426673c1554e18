//! What happens on the network, one act for each event. It decides nothing.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::follow::{self, Scope};
use super::news;
use super::serve;
use super::shared::Shared;
use crate::net::{NetEvent, NetEvents, Verdict};

/// Announcements that are looked at at a time; more are dropped, and the timer's comparison makes up for it.
const NEWS_AT_A_TIME: usize = 32;

/// Takes events until the network is shut down.
pub(super) async fn run(shared: Arc<Shared>, mut events: NetEvents) {
    let places = Arc::new(Semaphore::new(NEWS_AT_A_TIME));
    while let Some(event) = events.recv().await {
        act(&shared, &places, event).await;
    }
}

/// Takes events until the node listens on as many addresses as it was told to.
pub(super) async fn until_listening(shared: &Arc<Shared>, events: &mut NetEvents, addresses: usize) {
    let places = Arc::new(Semaphore::new(NEWS_AT_A_TIME));
    let mut listening = 0;
    while listening < addresses {
        let Some(event) = events.recv().await else { return };
        listening += usize::from(matches!(event, NetEvent::Listening(_)));
        act(shared, &places, event).await;
    }
}

async fn act(shared: &Arc<Shared>, places: &Arc<Semaphore>, event: NetEvent) {
    match event {
        NetEvent::Connected(peer) => {
            shared.contacts.heard(peer.principal);
            follow::hint(shared, peer.peer, Scope::All);
        }
        NetEvent::Disconnected { peer } => {
            if let Some(key) = crate::net::principal_of(&peer) {
                shared.contacts.left(key);
                follow::left(shared, key);
            }
        }
        NetEvent::Listening(addr) => tracing::info!(%addr, "listening"),
        NetEvent::Gossip { id, from, owner, data } => match Arc::clone(places).try_acquire_owned() {
            Ok(place) => {
                let worker = Arc::clone(shared);
                shared.spawn(async move {
                    news::take_gossip(worker, id, from, owner, data).await;
                    drop(place);
                });
            }
            Err(_) => shared.net.report(id, Verdict::Ignore).await,
        },
        NetEvent::Incoming { peer, protocol, stream } => {
            shared.spawn(serve::serve(Arc::clone(shared), peer, protocol, stream));
        }
    }
}
