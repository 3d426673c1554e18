//! A command on a terminal, as a person runs it.

use std::fs::File;
use std::io::Read as _;
use std::process::Stdio;
use std::sync::mpsc::channel;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::LIMIT;
use crate::invocation::Invocation;

/// What a command wrote to its terminal.
#[derive(Clone, Debug)]
pub struct Terminal {
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Every byte.
    pub bytes: Vec<u8>,
}

impl Invocation {
    /// Runs it with stdin, stdout and stderr on one terminal.
    ///
    /// # Errors
    /// When it cannot be started or does not end within [`LIMIT`].
    pub fn on_terminal(self) -> Result<Terminal> {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("a terminal")?;
        grantpt(&near)?;
        unlockpt(&near)?;
        let name = ptsname(&near, Vec::new())?;
        let far =
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).context("its far end")?;
        let mut command = self.command();
        command
            .stdin(Stdio::from(far.try_clone()?))
            .stdout(Stdio::from(far.try_clone()?))
            .stderr(Stdio::from(far));
        let mut child = command.spawn().with_context(|| format!("starting {}", self.shown()))?;
        // The command holds copies of the far end: the read below ends only when the last one is closed.
        drop(command);
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // A terminal whose far end is closed reads as an error, after all that was written.
            File::from(near).read_to_end(&mut bytes).ok();
            sender.send(bytes)
        });
        let Ok(bytes) = receiver.recv_timeout(LIMIT) else {
            child.kill().ok();
            bail!("{} did not end within {LIMIT:?}", self.shown());
        };
        Ok(Terminal { code: child.wait()?.code(), bytes })
    }
}
