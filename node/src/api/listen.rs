//! The two doors of the local API: a unix socket and, when enabled, TCP on loopback.
//!
//! Each connection has a header deadline and a header size bound; the number of connections is bounded. The socket
//! is 0600 in a 0700 directory and the caller's uid is checked besides. A socket file that nobody answers on is
//! removed; one that somebody answers on is another node's, whose home names the same socket, and anything else is no
//! node's at all.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use super::gate::Via;
use crate::taken;

/// Connections served at a time, over both doors.
const CONNECTIONS_MAX: usize = 64;
/// Time for a request's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of headers of one request.
const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Serves until the stop signal; each door is its own task.
pub struct Doors {
    router: Router,
    permits: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Doors {
    /// Doors that lead to `router` and close when `stop` becomes true.
    #[must_use]
    pub fn new(router: Router, stop: watch::Receiver<bool>) -> Self {
        Doors { router, permits: Arc::new(Semaphore::new(CONNECTIONS_MAX)), stop }
    }

    /// Opens the unix socket.
    ///
    /// # Errors
    /// When it cannot be bound; the path may be too long for a socket (about 107 bytes). `AddrInUse` when somebody answers
    /// on it, `AlreadyExists` when something stands there that is no socket.
    pub async fn open_socket(&self, path: &Path) -> io::Result<tokio::task::JoinHandle<()>> {
        make_way(path).await?;
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let own_uid = rustix::process::getuid().as_raw();
        let (doors, mut stop) = (self.share(), self.stop.clone());
        Ok(tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stopped(&mut stop) => return,
                };
                let Ok((stream, _)) = accepted else { continue };
                // E_API_PEERUID: closed without an answer, as if nobody were here.
                if stream.peer_cred().is_ok_and(|peer| peer.uid() == own_uid) {
                    doors.serve(stream, Via::Socket).await;
                }
            }
        }))
    }

    /// Opens TCP.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn open_tcp(
        &self,
        addr: std::net::SocketAddr,
    ) -> io::Result<(std::net::SocketAddr, tokio::task::JoinHandle<()>)> {
        let listener = TcpListener::bind(addr).await?;
        let bound = listener.local_addr()?;
        let (doors, mut stop) = (self.share(), self.stop.clone());
        let task = tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stopped(&mut stop) => return,
                };
                if let Ok((stream, _)) = accepted {
                    doors.serve(stream, Via::Tcp).await;
                }
            }
        });
        Ok((bound, task))
    }

    fn share(&self) -> Doors {
        Doors { router: self.router.clone(), permits: self.permits.clone(), stop: self.stop.clone() }
    }

    /// Waits for a free place, then serves the connection in its own task.
    pub(super) async fn serve<S>(&self, stream: S, via: Via)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Ok(permit) = self.permits.clone().acquire_owned().await else { return };
        let (router, mut stop) = (self.router.clone(), self.stop.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
                let mut request: Request = request.map(axum::body::Body::new);
                request.extensions_mut().insert(via);
                router.clone().oneshot(request)
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(HEADER_BYTES_MAX);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    // An answer that is under way may end; a stream of events may not hold the process.
                    let _ = tokio::time::timeout(Duration::from_secs(2), connection).await;
                }
            }
            drop(permit);
        });
    }
}

/// Removes the socket that a crash left. What somebody uses, and what is no socket, stays.
async fn make_way(path: &Path) -> io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something stands there that is no socket"));
    }
    if let Ok(answered) = UnixStream::connect(path).await {
        let pid = answered.peer_cred().ok().and_then(|peer| peer.pid());
        let who = pid.map_or_else(|| "another process".to_owned(), taken::process);
        return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("it is in use by {who}")));
    }
    std::fs::remove_file(path)
}

/// Ends when the stop signal comes, or when nobody can send it any more.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
