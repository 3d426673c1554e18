//! Answers to `/throughline/chain/1` that are not what was asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use libp2p::Stream;
use throughline_protocol::id::Seq;
use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk, ChainRequest, EntryItem, HeadState};
use throughline_protocol::wire::{Message as _, frame};
use tokio::sync::mpsc;

/// What is made of the frames that an honest server would send of the whole session.
pub type Lie = Arc<dyn Fn(Vec<ChainAnswer>) -> Script + Send + Sync>;

/// Frames, and how the answer ends.
#[derive(Debug)]
pub struct Script {
    /// In order.
    pub frames: Vec<ChainAnswer>,
    /// What follows them.
    pub ending: Ending,
}

/// How an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should: `end`.
    End,
    /// The last frame again and again, for ever.
    Repeat,
    /// Nothing more, with the line kept open.
    Silence,
    /// These bytes, as they are, then nothing more with the line kept open.
    Raw(Vec<u8>),
}

/// What a hostile peer answers.
#[derive(Clone)]
pub enum Answers {
    /// Nothing: every request is dropped.
    Nothing,
    /// It claims the head of a session, and answers ranges of it with a lie.
    Session(Arc<SessionBuilder>, Lie),
    /// It claims a head that it was never shown, and answers ranges with a lie made of nothing.
    Claim(HeadState, Lie),
}

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Answers::Nothing => "Nothing",
            Answers::Session(..) => "Session",
            Answers::Claim(..) => "Claim",
        })
    }
}

/// Answers until the host is gone.
///
/// A head that somebody went for is told no more: a node that follows the session would come again at a time of its own, and what
/// a test sees of it would be of one lie or of two.
pub(super) async fn answer(mut incoming: mpsc::UnboundedReceiver<Stream>, answers: Answers) {
    let gone_for = Arc::new(AtomicBool::new(false));
    while let Some(stream) = incoming.recv().await {
        let (answers, gone_for) = (answers.clone(), Arc::clone(&gone_for));
        tokio::spawn(async move {
            // The asker leaves whenever it wants: that is what it should do.
            let _ = answer_one(stream, &answers, &gone_for).await;
        });
    }
}

async fn answer_one(mut stream: Stream, answers: &Answers, gone_for: &AtomicBool) -> std::io::Result<()> {
    let Some(body) = read_frame(&mut stream).await? else { return Ok(()) };
    let Ok(request) = ChainRequest::decode_body(&body) else { return Ok(()) };
    if let ChainAsk::Range(_) = &request.ask {
        gone_for.store(true, Ordering::SeqCst);
    }
    let script = match (&request.ask, answers) {
        (ChainAsk::Heads { .. }, _) if gone_for.load(Ordering::SeqCst) => {
            let frames = vec![ChainAnswer::Heads { owners: Vec::new(), sessions: Vec::new() }];
            Script { frames, ending: Ending::End }
        }
        (ChainAsk::Heads { .. }, Answers::Session(builder, _)) => {
            Script { frames: vec![heads(head_of(builder))], ending: Ending::End }
        }
        (ChainAsk::Heads { .. }, Answers::Claim(head, _)) => {
            Script { frames: vec![heads(head.clone())], ending: Ending::End }
        }
        (ChainAsk::Range(_), Answers::Session(builder, lie)) => lie(honest_range(builder)),
        (ChainAsk::Range(_), Answers::Claim(_, lie)) => lie(Vec::new()),
        (ChainAsk::Heads { .. } | ChainAsk::Range(_), Answers::Nothing)
        | (ChainAsk::Control { .. } | ChainAsk::Blobs { .. } | ChainAsk::Announce { .. }, _) => {
            Script { frames: Vec::new(), ending: Ending::End }
        }
    };
    for frame in &script.frames {
        write_message(&mut stream, frame).await?;
    }
    match (script.ending, script.frames.last()) {
        (Ending::Repeat, Some(last)) => loop {
            write_message(&mut stream, last).await?;
        },
        (Ending::Silence, _) => until_closed(&mut stream).await,
        (Ending::Raw(bytes), _) => {
            stream.write_all(&bytes).await?;
            stream.flush().await?;
            until_closed(&mut stream).await
        }
        (Ending::End | Ending::Repeat, _) => {
            write_message(&mut stream, &ChainAnswer::End).await?;
            stream.close().await
        }
    }
}

async fn until_closed(stream: &mut Stream) -> std::io::Result<()> {
    let mut sink = [0; 1024];
    while stream.read(&mut sink).await? > 0 {}
    // The other side finished writing; only its going away breaks this line.
    std::future::pending().await
}

async fn write_message<S: AsyncWrite + Unpin>(stream: &mut S, message: &ChainAnswer) -> std::io::Result<()> {
    let frame = message.encode_frame().map_err(|reject| std::io::Error::other(reject.to_string()))?;
    stream.write_all(&frame).await?;
    stream.flush().await
}

/// One frame's body; none at the end of the stream or for a length that no frame has.
pub(super) async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    loop {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
        match frame::read_length(&head) {
            Err(_) => return Ok(None),
            Ok(None) => {}
            Ok(Some(length)) => {
                let mut body = vec![0; length.body_bytes];
                stream.read_exact(&mut body).await?;
                return Ok(Some(body));
            }
        }
    }
}

fn heads(state: HeadState) -> ChainAnswer {
    ChainAnswer::Heads { owners: Vec::new(), sessions: vec![state] }
}

fn head_of(builder: &SessionBuilder) -> HeadState {
    let head = &builder.head().entry;
    HeadState {
        session: builder.session(),
        head: head.cid(),
        seq: head.value().seq(),
        epoch: head.value().epoch(),
        reference: None,
    }
}

/// The whole session as an honest server sends it to one that holds nothing: path, control blobs, one entry a frame.
fn honest_range(builder: &SessionBuilder) -> Vec<ChainAnswer> {
    let entries = builder.entries();
    let newest = builder.head().entry.value().seq();
    let bytes_at = |seq: Seq| usize::try_from(seq.get()).ok().and_then(|at| entries.get(at));
    let path = throughline_protocol::sync::range::path_seqs(newest, Seq::ZERO)
        .filter_map(bytes_at)
        .map(|built| Arc::clone(built.entry.bytes()));
    let controls = builder.controls().iter().map(|control| Arc::clone(control.bytes())).collect();
    let mut frames = vec![ChainAnswer::Path(path.collect()), ChainAnswer::Control(controls)];
    frames.extend(entries.iter().map(|built| {
        let item = EntryItem { entry: Arc::clone(built.entry.bytes()), payload: built.payload.clone() };
        ChainAnswer::Entries(vec![item])
    }));
    frames
}
