//! A proxy between client and storage that counts requests and delays responses.
//!
//! Requests and responses are buffered completely before they are forwarded. A response is forwarded no
//! sooner than the latency after its request arrived. The latency simulates the total response time of S3, so
//! it includes the time that the storage takes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The number of requests of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) list: u64,
    pub(crate) get: u64,
    pub(crate) head: u64,
    pub(crate) put: u64,
    pub(crate) delete: u64,
    pub(crate) other: u64,
    /// GETs with a range.
    pub(crate) ranged: u64,
    /// GETs with `If-None-Match`.
    pub(crate) conditional: u64,
    /// GETs of a library's index.
    pub(crate) of_index: u64,
    /// GETs of blobs of a published library.
    pub(crate) of_blobs: u64,
    /// GETs of a `SKILL.md` by its own key.
    pub(crate) of_skills: u64,
    /// The maximum number of concurrent requests.
    pub(crate) most: u64,
    /// The number of requests in flight.
    pub(crate) now: u64,
}

impl Counts {
    pub(crate) fn total(&self) -> u64 {
        self.list + self.get + self.head + self.put + self.delete + self.other
    }

    /// Formats the counts: `1 list, 200 get`.
    pub(crate) fn kinds(&self) -> String {
        let kinds = [
            (self.list, "list"),
            (self.get, "get"),
            (self.head, "head"),
            (self.put, "put"),
            (self.delete, "delete"),
            (self.other, "other"),
        ];
        let said: Vec<_> =
            kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
        said.join(", ")
    }

    fn add(&mut self, head: &Head) {
        let target = head.target();
        let path = target.split('?').next().unwrap_or_default();
        let is_list =
            target.contains("list-type=2") || (path.matches('/').count() < 2 && head.method() == "GET");
        match head.method() {
            "GET" if is_list => self.list += 1,
            "GET" => {
                self.get += 1;
                self.ranged += u64::from(head.header("range").is_some());
                self.conditional += u64::from(head.header("if-none-match").is_some());
                self.of_index += u64::from(path.ends_with("/.skillfs/index.json"));
                self.of_blobs += u64::from(path.contains("/.skillfs/blobs/"));
                self.of_skills += u64::from(path.ends_with("/SKILL.md"));
            }
            "HEAD" => self.head += 1,
            "PUT" => self.put += 1,
            "DELETE" => self.delete += 1,
            _ => self.other += 1,
        }
        self.now += 1;
        self.most = self.most.max(self.now);
    }
}

#[derive(Debug)]
pub(crate) struct Proxy {
    /// Host and port.
    upstream: String,
    latency_us: AtomicU64,
    counts: Mutex<Counts>,
}

impl Proxy {
    pub(crate) fn new(upstream: &str) -> Arc<Self> {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Arc::new(Self { upstream, latency_us: AtomicU64::new(0), counts: Mutex::default() })
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.latency_us.store(latency.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.lock()
    }

    /// Resets all counts, except for requests in flight.
    pub(crate) fn reset(&self) {
        let mut counts = self.lock();
        let now = counts.now;
        *counts = Counts { now, most: now, ..Counts::default() };
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            let Ok((socket, _)) = listener.accept().await else {
                // Most likely out of file descriptors: give other connections time to finish.
                tokio::time::sleep(Duration::from_millis(25)).await;
                continue;
            };
            let proxy = self.clone();
            tokio::spawn(async move {
                // A client that disconnects is not an error.
                let _ = proxy.connection(socket).await;
            });
        }
    }

    async fn connection(&self, socket: TcpStream) -> io::Result<()> {
        let mut client = Peer::new(socket)?;
        let mut storage: Option<Peer> = None;
        while let Some(head) = client.head().await? {
            let due = Instant::now() + Duration::from_micros(self.latency_us.load(Ordering::Relaxed));
            let _in_flight = InFlight::new(self, &head);
            if head.header("expect").is_some() {
                client.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            }
            let framing = head.framing(Framing::Length(0));
            let mut request = head.bytes.clone();
            client.body(framing, &mut request).await?;
            let (answer, goes_on) = self.forward(&mut storage, &head, &request).await?;
            tokio::time::sleep_until(due).await;
            client.socket.write_all(&answer).await?;
            if !goes_on || head.closes() {
                break;
            }
        }
        Ok(())
    }

    /// Forwards a request unchanged, including its signature. Also returns whether the response closes the
    /// connection.
    async fn forward(
        &self,
        storage: &mut Option<Peer>,
        head: &Head,
        request: &[u8],
    ) -> io::Result<(Vec<u8>, bool)> {
        if let Some(peer) = storage {
            // An idle connection may have been closed. If so, reconnect once.
            if let Ok(answer) = exchange(peer, head, request).await {
                return Ok(answer);
            }
        }
        let mut peer = Peer::new(TcpStream::connect(&self.upstream).await?)?;
        let answer = exchange(&mut peer, head, request).await?;
        *storage = answer.1.then_some(peer);
        Ok(answer)
    }
}

/// A request in flight.
struct InFlight<'p>(&'p Proxy);

impl<'p> InFlight<'p> {
    fn new(proxy: &'p Proxy, head: &Head) -> Self {
        proxy.lock().add(head);
        Self(proxy)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().now -= 1;
    }
}

async fn exchange(storage: &mut Peer, request: &Head, bytes: &[u8]) -> io::Result<(Vec<u8>, bool)> {
    storage.socket.write_all(bytes).await?;
    let head = loop {
        let head = storage.head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !head.status().starts_with('1') {
            break head;
        }
    };
    let bodyless = request.method() == "HEAD" || ["204", "304"].contains(&head.status());
    let framing = if bodyless { Framing::Length(0) } else { head.framing(Framing::ToTheEnd) };
    let goes_on = framing != Framing::ToTheEnd && !head.closes();
    let mut answer = head.bytes;
    storage.body(framing, &mut answer).await?;
    Ok((answer, goes_on))
}

/// How the length of a body is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    ToTheEnd,
}

/// The first line and the headers, including the empty line after them.
struct Head {
    bytes: Vec<u8>,
    text: String,
}

impl Head {
    fn word(&self, at: usize) -> &str {
        self.text.lines().next().and_then(|line| line.split(' ').nth(at)).unwrap_or_default()
    }

    /// The method of a request.
    fn method(&self) -> &str {
        self.word(0)
    }

    /// The path and query of a request.
    fn target(&self) -> &str {
        self.word(1)
    }

    /// The status of a response.
    fn status(&self) -> &str {
        self.word(1)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.text.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    fn framing(&self, otherwise: Framing) -> Framing {
        if self.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return Framing::Chunked;
        }
        self.header("content-length")
            .and_then(|length| length.parse().ok())
            .map_or(otherwise, Framing::Length)
    }
}

/// One end of a connection, with a read buffer.
struct Peer {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Peer {
    fn new(socket: TcpStream) -> io::Result<Self> {
        // Otherwise, small messages wait for an acknowledgment.
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::new() })
    }

    /// Reads more data; returns `false` at the end of the stream.
    async fn fill(&mut self) -> io::Result<bool> {
        self.buffer.reserve(16 * 1024);
        Ok(self.socket.read_buf(&mut self.buffer).await? > 0)
    }

    /// Reads the next head; `None` if the other side has closed the connection.
    async fn head(&mut self) -> io::Result<Option<Head>> {
        let mut searched = 0;
        loop {
            let found = self.buffer[searched..].windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(at) = found {
                let rest = self.buffer.split_off(searched + at + 4);
                let bytes = std::mem::replace(&mut self.buffer, rest);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                return Ok(Some(Head { bytes, text }));
            }
            searched = self.buffer.len().saturating_sub(3);
            if !self.fill().await? {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    /// Reads a body verbatim, including its chunked encoding.
    async fn body(&mut self, framing: Framing, to: &mut Vec<u8>) -> io::Result<()> {
        match framing {
            Framing::Length(length) => self.take(length, to).await,
            Framing::ToTheEnd => {
                to.append(&mut self.buffer);
                self.socket.read_to_end(to).await?;
                Ok(())
            }
            Framing::Chunked => loop {
                let line = self.line(to).await?;
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData)?;
                if size == 0 {
                    // Trailers, then an empty line.
                    while !self.line(to).await?.is_empty() {}
                    return Ok(());
                }
                self.take(size + 2, to).await?;
            },
        }
    }

    async fn take(&mut self, length: usize, to: &mut Vec<u8>) -> io::Result<()> {
        while self.buffer.len() < length {
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        to.extend(self.buffer.drain(..length));
        Ok(())
    }

    /// Reads a line and returns it without its line ending. The raw bytes are appended to `to`.
    async fn line(&mut self, to: &mut Vec<u8>) -> io::Result<String> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.buffer[..at]).trim_end().to_owned();
                to.extend(self.buffer.drain(..=at));
                return Ok(line);
            }
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
