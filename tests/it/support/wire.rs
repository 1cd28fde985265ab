//! A proxy between client and storage that records every request and injects faults.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A request as received by the proxy.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// The path and query.
    pub target: String,
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The operation: `LIST`, `GET`, `HEAD`, `PUT`, …
    pub fn operation(&self) -> &str {
        if self.target.contains("list-type=2") { "LIST" } else { &self.method }
    }
}

/// What the proxy does with a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Forwards the request and the response.
    Forward,
    /// Forwards the request; truncates the response after this many bytes of its body.
    ForwardCut(usize),
    /// Forwards the request; stalls the response after this many bytes of its body.
    ForwardStall(usize),
    /// Forwards the request; sends the body of the response byte by byte, at this interval.
    ForwardTrickle(Duration),
    /// Forwards the request after a delay.
    ForwardAfter(Duration),
    /// Forwards the request when the test notifies it.
    ForwardWhen(Arc<Notify>),
    /// Forwards the request, so that it takes effect; then notifies the test and never responds.
    ForwardThenStall(Arc<Notify>),
    /// Forwards the request, so that it takes effect; then runs a hook, if any, and resets the connection.
    ForwardLost(Option<Hook>),
    /// Forwards the request; runs a hook before it sends the response.
    ForwardHook(Hook),
    /// Sends these bytes and closes the connection.
    Raw(Vec<u8>),
    /// Sends these bytes after a delay and closes the connection.
    RawAfter(Duration, Vec<u8>),
    /// Sends these bytes when the test notifies it, and closes the connection.
    RawWhen(Arc<Notify>, Vec<u8>),
    /// Resets the connection.
    Reset,
    /// Never responds.
    Stall,
}

impl Reply {
    /// An S3 error response.
    pub fn error(status: u16, code: &str) -> Self {
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>injected</Message></Error>");
        Self::Raw(response(status, "application/xml", body.as_bytes()))
    }
}

/// Code that runs after the storage has responded and before the client sees it.
#[derive(Clone)]
pub struct Hook(pub Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

/// A plain HTTP response.
pub fn response(status: u16, content_type: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The proxy. It stops when the test's runtime ends.
pub struct Wire {
    pub endpoint: String,
    log: Arc<Mutex<Vec<Request>>>,
    in_flight: Arc<InFlight>,
}

/// Counters of concurrent requests.
#[derive(Default)]
struct InFlight {
    now: AtomicUsize,
    most: AtomicUsize,
    /// Completely received requests that have no response yet.
    unanswered: AtomicUsize,
    /// The length of the longest chain of sequential requests so far.
    answered: AtomicUsize,
}

impl Wire {
    /// Starts the proxy. `decide` gets each request and the number of requests before it.
    pub async fn start(
        upstream: Option<&str>,
        decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (decide, written) = (Arc::new(decide), log.clone());
        let in_flight = Arc::new(InFlight::default());
        let counted = in_flight.clone();
        let upstream = upstream.map(|url| url.trim_start_matches("http://").to_owned());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (decide, written, upstream) = (decide.clone(), written.clone(), upstream.clone());
                let in_flight = counted.clone();
                tokio::spawn(async move {
                    let now = in_flight.now.fetch_add(1, Ordering::SeqCst) + 1;
                    in_flight.most.fetch_max(now, Ordering::SeqCst);
                    let _ = answer(socket, &*decide, &written, upstream.as_deref(), &in_flight).await;
                    in_flight.now.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { endpoint, log, in_flight }
    }

    /// The maximum number of concurrent requests.
    pub fn max_concurrent(&self) -> usize {
        self.in_flight.most.load(Ordering::SeqCst)
    }

    /// Returns and resets the length of the longest chain of sequential requests: requests that each arrived
    /// after the response to an earlier one.
    pub fn longest_chain(&self) -> usize {
        self.in_flight.answered.swap(0, Ordering::SeqCst)
    }

    /// Waits until at most this many requests are in flight.
    pub async fn settled(&self, most: usize) {
        while self.in_flight.now.load(Ordering::SeqCst) > most {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until no request is on its way to the storage, including requests whose client has disconnected.
    pub async fn quiet(&self) {
        while self.in_flight.unanswered.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Returns all requests so far and clears the log.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    /// Returns the operations so far, sorted, and clears the log.
    pub fn operations(&self) -> Vec<String> {
        let mut names: Vec<_> = self.take().iter().map(|r| r.operation().to_owned()).collect();
        names.sort();
        names
    }
}

async fn answer(
    mut socket: TcpStream,
    decide: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
    log: &Mutex<Vec<Request>>,
    upstream: Option<&str>,
    in_flight: &InFlight,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let request = read_request(&mut socket).await?;
    let _unanswered = Unanswered::new(in_flight);
    let chain = in_flight.answered.load(Ordering::SeqCst) + 1;
    reply(socket, &request, decide, log, upstream, || {
        in_flight.answered.fetch_max(chain, Ordering::SeqCst);
    })
    .await
}

/// A completely received request, until its response is sent.
struct Unanswered<'f>(&'f InFlight);

impl<'f> Unanswered<'f> {
    fn new(in_flight: &'f InFlight) -> Self {
        in_flight.unanswered.fetch_add(1, Ordering::SeqCst);
        Self(in_flight)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn reply(
    mut socket: TcpStream,
    request: &Request,
    decide: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
    log: &Mutex<Vec<Request>>,
    upstream: Option<&str>,
    answered: impl FnOnce(),
) -> std::io::Result<()> {
    let reply = {
        let mut log = log.lock().unwrap();
        let reply = decide(request, log.len());
        log.push(request.clone());
        reply
    };
    match reply {
        Reply::Raw(bytes) => socket.write_all(&bytes).await?,
        Reply::RawAfter(pause, bytes) => {
            tokio::time::sleep(pause).await;
            socket.write_all(&bytes).await?;
        }
        Reply::RawWhen(go, bytes) => {
            go.notified().await;
            socket.write_all(&bytes).await?;
        }
        Reply::Reset => socket.set_zero_linger()?,
        Reply::Stall => std::future::pending().await,
        Reply::Forward => {
            let bytes = forward(request, upstream.unwrap()).await?;
            answered();
            socket.write_all(&bytes).await?;
        }
        Reply::ForwardAfter(pause) => {
            tokio::time::sleep(pause).await;
            let bytes = forward(request, upstream.unwrap()).await?;
            answered();
            socket.write_all(&bytes).await?;
        }
        Reply::ForwardWhen(go) => {
            go.notified().await;
            let bytes = forward(request, upstream.unwrap()).await?;
            socket.write_all(&bytes).await?;
        }
        Reply::ForwardHook(Hook(hook)) => {
            let bytes = forward(request, upstream.unwrap()).await?;
            hook().await;
            socket.write_all(&bytes).await?;
        }
        Reply::ForwardThenStall(done) => {
            forward(request, upstream.unwrap()).await?;
            done.notify_one();
            std::future::pending::<()>().await;
        }
        Reply::ForwardLost(hook) => {
            forward(request, upstream.unwrap()).await?;
            if let Some(Hook(hook)) = hook {
                hook().await;
            }
            socket.set_zero_linger()?;
        }
        Reply::ForwardCut(at) => {
            let bytes = forward(request, upstream.unwrap()).await?;
            socket.write_all(&bytes[..bytes.len().min(body_start(&bytes) + at)]).await?;
        }
        Reply::ForwardTrickle(pause) => {
            let bytes = forward(request, upstream.unwrap()).await?;
            let (head, body) = bytes.split_at(body_start(&bytes));
            socket.write_all(head).await?;
            for byte in body {
                socket.write_all(&[*byte]).await?;
                tokio::time::sleep(pause).await;
            }
        }
        Reply::ForwardStall(at) => {
            let bytes = forward(request, upstream.unwrap()).await?;
            socket.write_all(&bytes[..body_start(&bytes) + at]).await?;
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}

fn body_start(bytes: &[u8]) -> usize {
    bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4
}

async fn read_request(socket: &mut TcpStream) -> std::io::Result<Request> {
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        if socket.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let body = bytes.split_off(body_start(&bytes));
    let head = String::from_utf8(bytes).unwrap();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let mut request = Request { method, target, head: head.clone(), body };
    let length: usize = request.header("content-length").map_or(0, |l| l.parse().unwrap());
    while request.body.len() < length {
        socket.read_buf(&mut request.body).await?;
    }
    Ok(request)
}

/// Forwards a request unchanged, including its signature, and returns the complete response.
async fn forward(request: &Request, upstream: &str) -> std::io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(upstream).await?;
    let head = request.head.trim_end();
    socket.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    socket.write_all(&request.body).await?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await?;
    Ok(bytes)
}
