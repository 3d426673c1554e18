use std::collections::VecDeque;
use std::future::pending;

use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::wire::Message as _;
use throughline_protocol::wire::chain::{ChainAnswer, EntryItem};

use super::super::check::Item;
use super::*;

const IDLE: Duration = Duration::from_secs(60);

/// Gives what it was made with, then nothing for ever.
struct Given {
    bodies: VecDeque<Vec<u8>>,
    taken: u32,
}

impl Given {
    fn new(bodies: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Given { bodies: bodies.into_iter().collect(), taken: 0 }
    }
}

impl Source for Given {
    async fn body(&mut self) -> Result<Vec<u8>, PeerFault> {
        match self.bodies.pop_front() {
            Some(body) => {
                self.taken += 1;
                Ok(body)
            }
            None => pending().await,
        }
    }
}

/// One frame for each entry of a session, then the end.
fn frames(entries: usize) -> Vec<Vec<u8>> {
    let mut builder = SessionBuilder::new("pipeline");
    let server = builder.server1.clone();
    for number in 0..entries {
        builder.user(&server, &format!("message {number}"));
    }
    let items = builder.entries().iter().map(|built| {
        let item = EntryItem { entry: Arc::clone(built.entry.bytes()), payload: built.payload.clone() };
        ChainAnswer::Entries(vec![item]).encode_body()
    });
    items.chain([ChainAnswer::End.encode_body()]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_come_out_in_order_whatever_thread_read_them() {
    let (feed, mut frames_out) = pipeline();
    let taking = tokio::task::spawn_blocking(move || {
        let mut seqs = Vec::new();
        loop {
            let items = match frames_out.next().unwrap().0 {
                Frame::Items(items) => items,
                Frame::End => return seqs,
                Frame::Path(_) | Frame::Control(_) | Frame::Other => panic!("expected entries"),
            };
            for item in items {
                let Item::Read { place, checked: Ok(_) } = item else { panic!("expected a good entry") };
                seqs.push(place.seq().get());
            }
        }
    });
    // It says nothing after the end; that nobody takes any more ends the feed.
    feed.run(&mut Given::new(frames(200)), IDLE).await;
    assert_eq!(taking.await.unwrap(), (0..=200).collect::<Vec<u64>>());
}

#[tokio::test(start_paused = true)]
async fn no_more_is_received_than_there_is_room_for() {
    let (feed, frames_out) = pipeline();
    let frame = 1 << 20;
    let mut source = Given::new((0..64).map(|_| vec![0; frame]));
    // The clock moves only when nothing else can: then the feed waits for room.
    let waited = timeout(Duration::from_secs(1), feed.run(&mut source, IDLE)).await;
    assert!(waited.is_err());
    assert_eq!(source.taken, AHEAD_BYTES_MAX / (1 << 20) + 1, "what there is room for, and one frame");
    drop(frames_out);
}

#[tokio::test(start_paused = true)]
async fn small_frames_are_bounded_in_number_too() {
    let (feed, frames_out) = pipeline();
    let mut source = Given::new((0..10_000).map(|_| vec![0]));
    assert!(timeout(Duration::from_secs(1), feed.run(&mut source, IDLE)).await.is_err());
    assert_eq!(source.taken, AHEAD_BYTES_MAX / FRAME_COST_MIN + 1);
    drop(frames_out);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_it_and_so_does_nobody_taking() {
    let (feed, mut frames_out) = pipeline();
    feed.run(&mut Given::new([]), IDLE).await;
    let fault = tokio::task::spawn_blocking(move || frames_out.next().err().unwrap()).await.unwrap();
    assert_eq!(fault.reject.code, Code::Timeout);

    let (feed, frames_out) = pipeline();
    drop(frames_out);
    feed.run(&mut Given::new([vec![0]]), IDLE).await;
}
