//! Frames over in-memory pipes, with a paused clock where time matters.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::*;

fn frames(io: DuplexStream) -> FrameStream<Compat<DuplexStream>> {
    FrameStream::new(io.compat(), FrameTiming::default())
}

/// Reads everything from a stream that holds `bytes` and then ends.
async fn read_all(bytes: &[u8]) -> Result<Vec<Vec<u8>>, FrameError> {
    let (mut peer, ours) = duplex(bytes.len().max(1));
    peer.write_all(bytes).await.unwrap();
    drop(peer);
    let (mut stream, mut out) = (frames(ours), Vec::new());
    while let Some(frame) = stream.read().await? {
        out.push(frame);
    }
    Ok(out)
}

fn encode(frame: &[u8]) -> Vec<u8> {
    let (prefix, used) = encode_length(frame.len());
    [&prefix[..used], frame].concat()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read(
        sent in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..6),
        pipe in 1_usize..5_000,
    ) {
        let read = block_on(async {
            let (ours, theirs) = duplex(pipe);
            let (mut writer, mut reader) = (frames(ours), frames(theirs));
            let frames = sent.clone();
            let write = async move {
                for frame in &frames {
                    writer.write(frame).await.unwrap();
                }
                writer.finish().await.unwrap();
                writer
            };
            let read = async {
                let mut read = Vec::new();
                while let Some(frame) = reader.read().await.unwrap() {
                    read.push(frame);
                }
                read
            };
            tokio::join!(write, read).1
        });
        prop_assert_eq!(read, sent);
    }

    #[test]
    fn a_length_has_one_prefix(length in 0..=limits::FRAME_BYTES_MAX) {
        let (prefix, used) = encode_length(length);
        prop_assert_eq!(decode_length(&prefix[..used]).unwrap(), Some((length, used)));
        for cut in 0..used {
            prop_assert_eq!(decode_length(&prefix[..cut]).unwrap(), None);
        }
    }

    #[test]
    fn any_cut_is_noticed(frame in prop::collection::vec(any::<u8>(), 0..400), at in any::<prop::sample::Index>()) {
        let bytes = encode(&frame);
        let cut = at.index(bytes.len()) + 1;
        let read = block_on(read_all(&bytes[..cut]));
        if cut == bytes.len() {
            prop_assert_eq!(read.unwrap(), vec![frame]);
        } else {
            prop_assert!(matches!(read, Err(FrameError::Cut)));
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = block_on(read_all(&bytes));
    }
}

#[tokio::test]
async fn the_largest_frame_passes() {
    let frame = vec![7; limits::FRAME_BYTES_MAX];
    assert_eq!(read_all(&encode(&frame)).await.unwrap(), [frame]);
}

#[tokio::test]
async fn bad_lengths_are_refused_before_any_body() {
    let over = encode_length(limits::FRAME_BYTES_MAX + 1).0;
    let cases: [&[u8]; 6] = [
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0xff, 0x7f],
        &over,
        &[0x80, 0x00],
        &[0x81, 0x80, 0x00],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01],
    ];
    for bytes in cases {
        let (mut peer, ours) = duplex(64);
        peer.write_all(bytes).await.unwrap();
        let mut stream = frames(ours);
        let error = stream.read().await.unwrap_err();
        assert_eq!(error.code(), Code::FrameLen, "{bytes:x?}: {error}");
        assert!(stream.inbox.capacity() <= 2 * STEP_BYTES);
    }
}

#[tokio::test]
async fn a_frame_over_the_limit_is_not_sent() {
    let (ours, mut peer) = duplex(64);
    let mut stream = frames(ours);
    let error = stream.write(&vec![0; limits::FRAME_BYTES_MAX + 1]).await.unwrap_err();
    assert_eq!(error.code(), Code::FrameLen);
    drop(stream);
    assert_eq!(peer.read(&mut [0; 1]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_declared_length_allocates_nothing() {
    let (mut peer, ours) = duplex(64);
    peer.write_all(&encode(&vec![0; limits::FRAME_BYTES_MAX])[..10]).await.unwrap();
    drop(peer);
    let mut stream = frames(ours);
    assert!(matches!(stream.read().await, Err(FrameError::Cut)));
    assert!(stream.inbox.capacity() <= 2 * STEP_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_times_out() {
    let (_peer, ours) = duplex(64);
    let began = Instant::now();
    let error = frames(ours).read().await.unwrap_err();
    assert!(matches!(error, FrameError::Timeout { slow: Slow::Idle }));
    assert_eq!(error.code(), Code::Timeout);
    assert_eq!(began.elapsed().as_secs(), FrameTiming::default().idle.as_secs());
}

/// Sends `step` bytes of a large frame every `pause` until nobody listens.
async fn drip(mut peer: DuplexStream, step: usize, pause: Duration) {
    let bytes = encode(&vec![0; 2_000_000]);
    for part in bytes.chunks(step) {
        if peer.write_all(part).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_dripping_peer_times_out() {
    let (peer, ours) = duplex(64 * 1024);
    let began = Instant::now();
    let dripping = tokio::spawn(drip(peer, 1, Duration::from_secs(9)));
    let error = frames(ours).read().await.unwrap_err();
    assert!(matches!(error, FrameError::Timeout { slow: Slow::Rate }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(11));
    dripping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_rate_counts_after_the_grace() {
    for (step, passes) in [(8 * 1024, false), (16 * 1024, true)] {
        let (peer, ours) = duplex(64 * 1024);
        let dripping = tokio::spawn(drip(peer, step, Duration::from_secs(1)));
        let read = frames(ours).read().await;
        assert_eq!(read.is_ok(), passes, "{step} bytes a second");
        dripping.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn time_spent_elsewhere_is_not_the_peers() {
    let (mut peer, ours) = duplex(64);
    let mut stream = frames(ours);
    peer.write_all(&[1, 9, 2]).await.unwrap();
    assert_eq!(stream.read().await.unwrap(), Some(vec![9]));
    tokio::time::advance(Duration::from_secs(60)).await;
    let rest = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        peer.write_all(&[1, 2]).await.unwrap();
    };
    assert_eq!(tokio::join!(stream.read(), rest).0.unwrap(), Some(vec![1, 2]));
}

#[tokio::test(start_paused = true)]
async fn reading_in_short_tries_does_not_stop_the_clock() {
    let (peer, ours) = duplex(64);
    let dripping = tokio::spawn(drip(peer, 1, Duration::from_secs(3)));
    let mut stream = frames(ours);
    let mut tries = 0;
    let error = loop {
        match tokio::time::timeout(Duration::from_secs(1), stream.read()).await {
            Ok(done) => break done.unwrap_err(),
            Err(_) => tries += 1,
        }
        assert!(tries < 20);
    };
    assert!(matches!(error, FrameError::Timeout { slow: Slow::Rate }), "{error}");
    drop(stream);
    dripping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_though_its_peer_keeps_sending() {
    let (mut peer, ours) = duplex(64);
    let sending = tokio::spawn(async move {
        while peer.write_all(&[1, 0]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut stream = frames(ours);
    let error = loop {
        if let Err(error) = stream.read().await {
            break error;
        }
    };
    assert!(matches!(error, FrameError::Timeout { slow: Slow::Total }), "{error}");
    assert_eq!(stream.opened.elapsed().as_secs(), FrameTiming::default().total.as_secs());
    drop(stream);
    sending.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_times_out() {
    let (ours, _peer) = duplex(64);
    let error = frames(ours).write(&[0; 1_000]).await.unwrap_err();
    assert!(matches!(error, FrameError::Timeout { slow: Slow::Rate }), "{error}");
}
