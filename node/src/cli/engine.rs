//! The async runtime of a command, built when a command first needs it, and what Ctrl-C does.
//!
//! The first Ctrl-C ends what is being waited for: a commit that began is finished by the node, and the command says
//! so. The second ends the process at once, which is still safe. While a question is on the screen, the first does.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throughline_protocol::code::Code;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::api::error::{Answer, Problem};
use crate::outcome::Exit;

/// How long tasks may take to end when the command does.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The runtime.
pub(crate) struct Engine {
    runtime: Option<Runtime>,
    interrupted: watch::Receiver<bool>,
    asking: Arc<AtomicBool>,
}

impl Engine {
    /// Starts it.
    ///
    /// # Errors
    /// `E_INTERNAL` when the operating system gives no threads.
    pub(crate) fn start() -> Answer<Self> {
        let failed =
            |error: std::io::Error| Problem::new(Code::Internal, format!("expected threads, got: {error}"));
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
        let (sender, interrupted) = watch::channel(false);
        let asking = Arc::new(AtomicBool::new(false));
        let waiting = Arc::clone(&asking);
        runtime.spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if waiting.load(Ordering::Relaxed) || sender.send_replace(true) {
                    std::process::exit(i32::from(Exit::Interrupted.number()));
                }
            }
        });
        Ok(Engine { runtime: Some(runtime), interrupted, asking })
    }

    /// Waits for `work`, or for Ctrl-C.
    ///
    /// # Errors
    /// What `work` gives, or `E_INTERRUPTED`.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = Answer<T>>) -> Answer<T> {
        let mut interrupted = self.interrupted.clone();
        let either = async {
            tokio::select! {
                done = work => done,
                _ = interrupted.wait_for(|interrupted| *interrupted) => Err(Problem::from(Code::Interrupted)),
            }
        };
        match &self.runtime {
            Some(runtime) => runtime.block_on(either),
            None => Err(Problem::from(Code::Internal)),
        }
    }

    /// Asks a person: Ctrl-C ends the process meanwhile.
    pub(crate) fn ask<T>(&self, question: impl FnOnce() -> T) -> T {
        self.asking.store(true, Ordering::Relaxed);
        let answer = question();
        self.asking.store(false, Ordering::Relaxed);
        answer
    }

    /// Waits for the end of `work`, whoever interrupts.
    pub(crate) fn finish(&self, work: impl Future<Output = ()>) {
        if let Some(runtime) = &self.runtime {
            runtime.block_on(work);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        }
    }
}
