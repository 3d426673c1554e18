//! HTTP/1.1 as far as the local API needs it, over a unix socket or TCP. Every request has a connection of its own.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::LIMIT;
use crate::sse::Events;

/// Where the API is.
#[derive(Clone, Debug)]
pub enum Door {
    /// The unix socket.
    Socket(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// A request that was not sent yet.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// A request without a body.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        Request { method: method.to_owned(), path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    /// A POST of a JSON body.
    #[must_use]
    pub fn post(path: &str, body: &Value) -> Self {
        Request::new("POST", path).body("application/json", body.to_string())
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    /// With a header; one of the same name is replaced.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        set(&mut self.headers, name, value);
        self
    }
}

fn set(headers: &mut Vec<(String, String)>, name: &str, value: &str) {
    headers.retain(|(held, _)| !held.eq_ignore_ascii_case(name));
    headers.push((name.to_owned(), value.to_owned()));
}

/// A client of one node's API.
#[derive(Clone, Debug)]
pub struct Api {
    door: Door,
    headers: Vec<(String, String)>,
}

impl Api {
    /// A client that goes through `door`.
    #[must_use]
    pub fn new(door: Door) -> Self {
        Api { door, headers: vec![("host".to_owned(), "localhost".to_owned())] }
    }

    /// A client whose requests all carry a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        set(&mut self.headers, name, value);
        self
    }

    /// A GET.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn get(&self, path: &str) -> Result<Reply> {
        self.send(&Request::new("GET", path))
    }

    /// A POST of a JSON body.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        self.send(&Request::post(path, body))
    }

    /// Sends a request and reads the whole answer. A refusal is an answer.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn send(&self, request: &Request) -> Result<Reply> {
        let mut answer = self.open(request)?;
        let mut body = Vec::new();
        answer.body.read_to_end(&mut body).with_context(|| format!("{} {}", request.method, request.path))?;
        Ok(Reply { status: answer.status, headers: answer.headers, body })
    }

    /// Follows the server-sent events, from after `last` when it is given.
    ///
    /// # Errors
    /// When the node refuses.
    pub fn events(&self, query: &str, last: Option<&str>) -> Result<Events> {
        let mut request =
            Request::new("GET", &format!("/v1/events{query}")).header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let answer = self.open(&request)?;
        ensure!(answer.status == 200, "expected 200 for events, got {}", answer.status);
        Ok(Events::new(answer.body))
    }

    fn open(&self, request: &Request) -> Result<Answer> {
        let stream = self.door.connect().with_context(|| format!("connecting for {}", request.path))?;
        let mut headers = self.headers.clone();
        for (name, value) in &request.headers {
            set(&mut headers, name, value);
        }
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
        for (name, value) in &headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if request.method != "GET" || !request.body.is_empty() {
            head.push_str(&format!("content-length: {}\r\n", request.body.len()));
        }
        head.push_str("connection: close\r\n\r\n");
        let mut writer = stream.try_clone()?;
        // A node may refuse before it has read all of a body: the answer counts, not the broken pipe.
        let sent = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&request.body));
        let answer = Answer::read(BufReader::new(stream));
        match (answer, sent) {
            (Ok(answer), _) => Ok(answer),
            (Err(_), Err(error)) => Err(error).with_context(|| format!("sending {}", request.path)),
            (Err(error), Ok(())) => Err(error.context(format!("{} {}", request.method, request.path))),
        }
    }
}

/// An answer that was read.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Reply {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(held, _)| held.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("expected JSON\n{self}"))
    }

    /// The body, after the status was checked.
    ///
    /// # Errors
    /// When the node answered otherwise.
    pub fn expect(&self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "expected {status}\n{self}");
        self.json()
    }

    /// The problem, after status and code were checked.
    ///
    /// # Errors
    /// When the node answered otherwise.
    pub fn refused(&self, status: u16, code: &str) -> Result<Value> {
        let problem = self.expect(status)?;
        ensure!(problem["code"] == code, "expected {code}\n{self}");
        ensure!(
            self.header("content-type") == Some("application/problem+json"),
            "expected a problem\n{self}"
        );
        Ok(problem)
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = String::from_utf8_lossy(&self.body[..self.body.len().min(4_096)]);
        write!(f, "answer {}: {shown}", self.status)
    }
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

impl Answer {
    fn read(mut stream: BufReader<Wire>) -> Result<Self> {
        let status_line = line(&mut stream)?;
        let status = status_line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .with_context(|| format!("expected a status line, got {status_line:?}"))?;
        let mut headers = Vec::new();
        loop {
            let line = line(&mut stream)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').with_context(|| format!("not a header: {line:?}"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let find =
            |name: &str| headers.iter().find(|(held, _)| held == name).map(|(_, value)| value.as_str());
        let framing = match (find("transfer-encoding"), find("content-length")) {
            (Some("chunked"), _) => Framing::Chunked { left: 0, first: true },
            (Some(other), _) => bail!("an unknown transfer encoding {other}"),
            (None, Some(length)) => Framing::Length(length.parse().context("content-length")?),
            (None, None) => Framing::ToEnd,
        };
        Ok(Answer { status, headers, body: Body { stream, framing } })
    }
}

fn line(stream: &mut BufReader<Wire>) -> Result<String> {
    let mut line = String::new();
    ensure!(stream.read_line(&mut line)? > 0, "the connection closed before the answer was whole");
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The body of an answer, as it arrives.
pub struct Body {
    stream: BufReader<Wire>,
    framing: Framing,
}

enum Framing {
    Length(u64),
    Chunked { left: u64, first: bool },
    ToEnd,
    Ended,
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = match &mut self.framing {
            Framing::Ended | Framing::Length(0) => return Ok(0),
            Framing::ToEnd => return self.stream.read(out),
            Framing::Length(left) => *left,
            Framing::Chunked { left, first } => {
                if *left == 0 {
                    *left = chunk_length(&mut self.stream, !*first)?;
                    *first = false;
                }
                if *left == 0 {
                    self.framing = Framing::Ended;
                    return Ok(0);
                }
                *left
            }
        };
        let most = usize::try_from(available).unwrap_or(usize::MAX).min(out.len());
        let read = self.stream.read(&mut out[..most])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the body is cut short"));
        }
        if let Framing::Length(left) | Framing::Chunked { left, .. } = &mut self.framing {
            *left -= read as u64;
        }
        Ok(read)
    }
}

fn chunk_length(stream: &mut BufReader<Wire>, after_chunk: bool) -> io::Result<u64> {
    let mut text = String::new();
    if after_chunk {
        stream.read_line(&mut text)?;
        text.clear();
    }
    stream.read_line(&mut text)?;
    let digits = text.trim().split(';').next().unwrap_or_default();
    u64::from_str_radix(digits, 16)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("not a chunk length: {text:?}")))
}

/// One connection.
#[derive(Debug)]
pub enum Wire {
    /// Over the unix socket.
    Socket(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
}

impl Door {
    fn connect(&self) -> Result<Wire> {
        Ok(match self {
            Door::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                Wire::Socket(stream)
            }
            Door::Tcp(authority) => {
                let stream = TcpStream::connect(authority)?;
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                Wire::Tcp(stream)
            }
        })
    }
}

impl Wire {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Wire::Socket(stream) => Wire::Socket(stream.try_clone()?),
            Wire::Tcp(stream) => Wire::Tcp(stream.try_clone()?),
        })
    }
}

impl Read for Wire {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Socket(stream) => stream.read(out),
            Wire::Tcp(stream) => stream.read(out),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Socket(stream) => stream.write(bytes),
            Wire::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Socket(stream) => stream.flush(),
            Wire::Tcp(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer read from the other end of a socket pair.
    fn answer(bytes: &[u8]) -> Result<(Answer, Vec<u8>)> {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(bytes).unwrap();
        drop(near);
        let mut answer = Answer::read(BufReader::new(Wire::Socket(far)))?;
        let mut body = Vec::new();
        answer.body.read_to_end(&mut body)?;
        Ok((answer, body))
    }

    #[test]
    fn bodies_of_every_framing_are_read_whole() {
        let (head, body) =
            answer(b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\nhello").unwrap();
        assert_eq!((head.status, body.as_slice()), (201, &b"hello"[..]));
        let chunked =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=1\r\nde\r\n0\r\n\r\n";
        assert_eq!(answer(chunked).unwrap().1, b"abcde");
        assert_eq!(answer(b"HTTP/1.1 200 OK\r\n\r\nto the end").unwrap().1, b"to the end");
    }

    #[test]
    fn an_event_that_does_not_come_is_named_with_the_last_one_that_did() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let told = b"HTTP/1.1 200 OK\r\n\r\n: hello\n\nid: 7\nevent: entry\ndata: {\"seq\":3}\n\n";
        near.write_all(told).unwrap();
        drop(near);
        let answer = Answer::read(BufReader::new(Wire::Socket(far))).unwrap();
        let missed = Events::new(answer.body).find("a verdict", |event| event.kind == "verdict").unwrap_err();
        let missed = format!("{missed:#}");
        assert!(missed.contains("a verdict") && missed.contains("\"seq\": Number(3)"), "{missed}");
    }

    #[test]
    fn a_cut_answer_is_an_error() {
        assert!(answer(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort").is_err());
        assert!(answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab").is_err());
        assert!(answer(b"HTTP/1.1 200 OK\r\nhalf").is_err());
        assert!(answer(b"SSH-2.0\r\n\r\n").is_err());
    }
}
