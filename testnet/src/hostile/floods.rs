//! Acts of a hostile peer on its own account: more streams, bytes and questions than anybody honest sends.

use std::collections::VecDeque;

use anyhow::{Context as _, Result};
use futures::io::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::Stream;
use throughline_protocol::wire::Message as _;
use throughline_protocol::wire::chain::{ChainAnswer, ChainRequest};

use super::{Hostile, Victim};

/// Streams of a flood that are held open at once.
const HELD_MAX: usize = 48;

/// How a flood of streams went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Churned {
    /// Streams that were opened as far as this side can tell.
    pub opened: u64,
    /// Streams that could not be opened, or ended without the answer that was waited for.
    pub refused: u64,
    /// Times that the connection was gone and a new one was made.
    pub redialled: u64,
    /// The node shut the peer out, and the flood ended there.
    pub shut_out: u64,
}

/// Whether the answers to a flood of questions are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The questions are asked and what comes is left lying.
    Unread,
    /// The first frame of each answer is read.
    First,
}

impl Hostile {
    /// Opens `count` streams of a protocol, each with `bytes` written to it, the last few dozen of them held open.
    /// A connection that the node closes is made again; a node that takes none any more has won.
    ///
    /// # Errors
    /// When it hangs.
    pub fn churn(
        &self,
        victim: &Victim,
        protocol: &'static str,
        count: u64,
        bytes: &[u8],
    ) -> Result<Churned> {
        self.run(async {
            let mut held: VecDeque<Stream> = VecDeque::new();
            let mut churned = Churned::default();
            while churned.opened + churned.refused < count {
                match self.streams.open_stream(victim.peer, protocol).await {
                    Ok(mut stream) => {
                        // The node may have dropped it already: that is one of the right answers.
                        let _ = stream.write_all(bytes).await;
                        let _ = stream.flush().await;
                        churned.opened += 1;
                        held.push_back(stream);
                        if held.len() > HELD_MAX {
                            held.pop_front();
                        }
                    }
                    Err(_) => {
                        churned.refused += 1;
                        held.clear();
                        if self.dial(victim).await.is_err() {
                            churned.shut_out = 1;
                            break;
                        }
                        churned.redialled += 1;
                    }
                }
            }
            Ok(churned)
        })
    }

    /// Opens streams and writes the same bytes to each, then waits until the node has let go of all of them: the streams
    /// end, whoever ends them.
    ///
    /// # Errors
    /// When the node does not let go.
    pub fn hold(&self, victim: &Victim, protocol: &'static str, count: usize, bytes: &[u8]) -> Result<usize> {
        self.run(async {
            let held = self.open_many(victim, protocol, count, bytes).await;
            let count = held.len();
            for mut stream in held {
                let mut sink = [0; 4096];
                while matches!(stream.read(&mut sink).await, Ok(n) if n > 0) {}
            }
            Ok(count)
        })
    }

    /// Opens streams, writes the same bytes to each and keeps them open until the guard is dropped.
    ///
    /// # Errors
    /// When the node takes none at all.
    pub fn occupy(
        &self,
        victim: &Victim,
        protocol: &'static str,
        count: usize,
        bytes: &[u8],
    ) -> Result<Occupied> {
        self.run(async {
            let held = self.open_many(victim, protocol, count, bytes).await;
            anyhow::ensure!(!held.is_empty(), "the node took no stream");
            Ok(Occupied { _streams: held })
        })
    }

    /// Asks the same question on `count` streams, one after the other with a few dozen open at a time. One that gets no answer,
    /// because the node was still busy with those before or the connection is gone, is asked again, and counted as refused
    /// or redialled: whoever reads the figures decides how many of these may be.
    ///
    /// # Errors
    /// When it hangs.
    pub fn ask(&self, victim: &Victim, request: &ChainRequest, count: u64, want: Want) -> Result<Churned> {
        let frame = request.encode_frame().map_err(|reject| anyhow::anyhow!("{reject}"))?;
        match want {
            Want::Unread => self.churn(victim, throughline_protocol::wire::CHAIN_PROTOCOL, count, &frame),
            Want::First => self.run(async {
                let mut churned = Churned::default();
                while churned.opened < count {
                    match self.first_frame(victim, &frame).await {
                        Ok(Some(_)) => churned.opened += 1,
                        Ok(None) => churned.refused += 1,
                        Err(_) => {
                            churned.redialled += 1;
                            self.dial(victim).await.context("the node shut the peer out")?;
                        }
                    }
                }
                Ok(churned)
            }),
        }
    }

    /// Asks one question and reads every frame of the answer; none when the node ended the stream without one.
    ///
    /// # Errors
    /// When the stream cannot be opened or hangs.
    pub fn question(&self, victim: &Victim, request: &ChainRequest) -> Result<Vec<ChainAnswer>> {
        let frame = request.encode_frame().map_err(|reject| anyhow::anyhow!("{reject}"))?;
        self.raw(victim, &frame)
    }

    /// Writes bytes to a chain stream and reads every frame of the answer.
    ///
    /// # Errors
    /// As [`Hostile::question`].
    pub fn raw(&self, victim: &Victim, bytes: &[u8]) -> Result<Vec<ChainAnswer>> {
        self.run(async {
            let mut stream = self.opened(victim, bytes).await?;
            let mut answers = Vec::new();
            while let Ok(Some(body)) = super::lies::read_frame(&mut stream).await {
                answers.push(ChainAnswer::decode_body(&body).map_err(|reject| anyhow::anyhow!("{reject}"))?);
            }
            Ok(answers)
        })
    }

    /// As many streams as the node takes, up to `count`, each with the same bytes written to it.
    async fn open_many(
        &self,
        victim: &Victim,
        protocol: &'static str,
        count: usize,
        bytes: &[u8],
    ) -> Vec<Stream> {
        let mut held = Vec::new();
        for _ in 0..count {
            let Ok(mut stream) = self.streams.open_stream(victim.peer, protocol).await else { break };
            if stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok() {
                held.push(stream);
            }
        }
        held
    }

    async fn first_frame(&self, victim: &Victim, frame: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut stream = self.opened(victim, frame).await?;
        Ok(super::lies::read_frame(&mut stream).await?)
    }

    async fn opened(&self, victim: &Victim, bytes: &[u8]) -> Result<Stream> {
        let mut stream = self
            .streams
            .open_stream(victim.peer, throughline_protocol::wire::CHAIN_PROTOCOL)
            .await
            .context("a stream")?;
        stream.write_all(bytes).await?;
        stream.close().await?;
        Ok(stream)
    }
}

/// Streams that are held open until this is dropped.
pub struct Occupied {
    _streams: Vec<Stream>,
}

impl std::fmt::Debug for Occupied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Occupied").field("streams", &self._streams.len()).finish()
    }
}
