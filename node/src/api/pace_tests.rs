use std::convert::Infallible;

use axum::Router;
use axum::routing::post;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::sleep;

use super::*;
use crate::api::gate::Via;
use crate::api::listen::Doors;

/// A body of `pieces` pieces of `size` bytes, one every `every`.
fn dripping(pieces: u32, size: usize, every: Duration) -> Body {
    Body::from_stream(futures::stream::unfold(0, move |sent| async move {
        if sent == pieces {
            return None;
        }
        sleep(every).await;
        Some((Ok::<_, Infallible>(Bytes::from(vec![b'x'; size])), sent + 1))
    }))
}

/// How many bytes of a body came, and what ended it.
async fn read(body: Body) -> (usize, Answer<()>) {
    let (mut paced, mut size) = (Paced::new(body), 0);
    loop {
        match paced.next().await {
            Ok(Some(bytes)) => size += bytes.len(),
            Ok(None) => return (size, Ok(())),
            Err(problem) => return (size, Err(problem)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_streamed_body_that_drips_is_refused() {
    let (came, ended) = read(dripping(1_000, 1, Duration::from_secs(1))).await;
    assert_eq!(ended.unwrap_err().code(), Code::ApiTimeout);
    assert_eq!(came, 30, "a byte earns a 1,024th of its second: the 31st would come after the end");
    let (came, ended) = read(dripping(2, 1 << 20, ALLOWANCE + Duration::from_millis(1))).await;
    assert_eq!((came, ended.unwrap_err().code()), (0, Code::ApiTimeout), "silence alone");
}

#[tokio::test(start_paused = true)]
async fn a_streamed_body_that_is_slow_comes_in_whole() {
    // An hour at the lowest pace, and pauses that large pieces make up for.
    for (pieces, size, every) in
        [(3_600, 1_024, Duration::from_secs(1)), (20, 32_768, Duration::from_secs(29))]
    {
        let (came, ended) = read(dripping(pieces, size, every)).await;
        ended.unwrap();
        assert_eq!(came, usize::try_from(pieces).unwrap() * size);
    }
}

#[tokio::test(start_paused = true)]
async fn time_that_the_node_takes_is_not_the_senders() {
    let mut paced = Paced::new(Body::from(vec![0; 10]));
    sleep(10 * ALLOWANCE).await;
    assert_eq!(paced.next().await.unwrap().unwrap().len(), 10);
    sleep(10 * ALLOWANCE).await;
    assert!(paced.next().await.unwrap().is_none());
}

/// A route for each way of reading a body, as those of the API do.
fn reading() -> Router {
    let stream = async |body: Body| read(body).await.1.map(|()| "all");
    let at_once = async |body: Body| {
        Ok::<_, Problem>(if whole(body.collect()).await?.is_ok() { "all" } else { "part" })
    };
    Router::new().route("/stream", post(stream)).route("/whole", post(at_once))
}

/// On the wire: the sender is told with 408, and its place at the door is free again.
#[tokio::test(start_paused = true)]
async fn who_drips_is_told_and_shown_the_door() {
    for path in ["/stream", "/whole"] {
        let (_stop, stopped) = watch::channel(false);
        let doors = Doors::new(reading(), stopped);
        let (client, server) = tokio::io::duplex(1 << 16);
        doors.serve(server, Via::Socket).await;
        let (mut answer, mut request) = tokio::io::split(client);
        let drip = async {
            let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n");
            request.write_all(head.as_bytes()).await.unwrap();
            // Until the other side closes.
            while request.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        let read = async {
            let mut told = Vec::new();
            answer.read_to_end(&mut told).await.unwrap();
            String::from_utf8(told).unwrap()
        };
        let ((), told) = tokio::join!(drip, read);
        assert!(told.starts_with("HTTP/1.1 408 "), "{told}");
        assert!(told.contains("content-type: application/problem+json"), "{told}");
        let problem: Value = serde_json::from_str(told.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(problem["code"], "E_API_TIMEOUT", "{path}");
    }
}
