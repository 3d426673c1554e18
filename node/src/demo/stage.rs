//! The demo's directory and its end: however the story goes, every process is ended and the directory removed.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use throughline_protocol::code::Code;
use tokio::signal::unix::{SignalKind, signal};

use super::actor::Actor;
use super::{Afterwards, Line, Transcript, story};
use crate::api::error::{Answer, Problem};

/// The four nodes and where they live.
pub(super) struct Stage {
    dir: TempDir,
    /// The server that the session comes from.
    pub(super) server_a: Actor,
    /// The server that it goes to.
    pub(super) server_b: Actor,
    /// The owner's machine; it has the owner key.
    pub(super) desktop: Actor,
    /// Somebody else's machine.
    pub(super) stranger: Actor,
}

/// Sets the stage, plays the story, clears the stage.
pub(super) async fn perform(
    transcript: &Transcript,
    afterwards: Afterwards,
    tell: &mut dyn FnMut(Line<'_>),
) -> Answer<Value> {
    let began = Instant::now();
    let mut stage = Stage::new()?;
    let played = tokio::select! {
        played = story::play(&mut stage, transcript, tell) => played,
        signal = interrupted() => Err(signal),
    };
    let kept = stage.clear(afterwards).await?;
    if let Some(path) = &kept {
        tell(Line { label: "kept", text: &path.display().to_string() });
    }
    let mut report = played?;
    report["elapsedMs"] = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).into();
    if let Some(path) = kept {
        report["kept"] = path.display().to_string().into();
    }
    Ok(report)
}

impl Stage {
    fn new() -> Answer<Self> {
        let io =
            |error: std::io::Error| Problem::new(Code::StoreIo, format!("no temporary directory: {error}"));
        // Short, because the path of a socket has 108 bytes.
        let dir = tempfile::Builder::new().prefix("tl-demo-").tempdir().map_err(io)?;
        let exe = std::env::current_exe().map_err(|error| {
            Problem::new(Code::Internal, format!("this program does not know its path: {error}"))
        })?;
        let actor = |name| Actor::new(name, &exe, dir.path());
        Ok(Stage {
            server_a: actor("server-a")?,
            server_b: actor("server-b")?,
            desktop: actor("desktop")?,
            stranger: actor("stranger")?,
            dir,
        })
    }

    /// A path in the directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Ends every process, then removes the directory or tells where it is.
    async fn clear(mut self, afterwards: Afterwards) -> Answer<Option<PathBuf>> {
        for actor in [&mut self.server_a, &mut self.server_b, &mut self.desktop, &mut self.stranger] {
            actor.kill().await?;
        }
        match afterwards {
            Afterwards::Keep => Ok(Some(self.dir.keep())),
            Afterwards::Remove => {
                let path = self.dir.path().display().to_string();
                let removed = self.dir.close();
                removed.map_err(|error| {
                    Problem::new(Code::StoreIo, format!("{path} could not be removed: {error}"))
                })?;
                Ok(None)
            }
        }
    }
}

/// Waits for Ctrl-C or a request to end.
async fn interrupted() -> Problem {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Problem::new(
        Code::Interrupted,
        "the demo was interrupted; its nodes were ended and its directory is gone",
    )
}
