//! A server between client and storage: it writes down every request, and breaks what the test
//! tells it to break.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// A request as it came over the wire.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    /// Path and query.
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

    /// `LIST`, `GET`, `HEAD`, `PUT`, …
    pub fn operation(&self) -> &str {
        if self.target.contains("list-type=2") { "LIST" } else { &self.method }
    }
}

/// What happens to a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Goes to the storage and back.
    Forward,
    /// Goes to the storage; the answer ends after so many bytes of its body.
    ForwardCut(usize),
    /// Goes to the storage; the answer falls silent after so many bytes of its body.
    ForwardStall(usize),
    /// Goes to the storage; the answer's body comes byte by byte, so far apart.
    ForwardTrickle(Duration),
    /// Goes to the storage after a while.
    ForwardAfter(Duration),
    /// Goes to the storage when the test says so.
    ForwardWhen(Arc<Notify>),
    /// Goes to the storage and takes effect; then it is told, and the answer never comes.
    ForwardThenStall(Arc<Notify>),
    /// Goes to the storage and takes effect; then something may happen, and the connection is reset.
    ForwardLost(Option<Hook>),
    /// Goes to the storage; something happens, and then comes the answer.
    ForwardHook(Hook),
    /// These bytes, then the end.
    Raw(Vec<u8>),
    /// The same after a while.
    RawAfter(Duration, Vec<u8>),
    /// The same when the test says so.
    RawWhen(Arc<Notify>, Vec<u8>),
    /// The connection is reset.
    Reset,
    /// Nothing, for as long as the client waits.
    Stall,
}

impl Reply {
    /// An error in S3's own words.
    pub fn error(status: u16, code: &str) -> Self {
        let body =
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>injected</Message></Error>");
        Self::Raw(response(status, "application/xml", body.as_bytes()))
    }
}

/// What happens between the storage's answer and its loss.
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

/// The server. It ends with the test's runtime.
pub struct Wire {
    pub endpoint: String,
    log: Arc<Mutex<Vec<Request>>>,
    flying: Arc<Flying>,
}

/// How many requests are under way, and how many were at once.
#[derive(Default)]
struct Flying {
    now: AtomicUsize,
    most: AtomicUsize,
    /// Those that came in whole, and are not answered yet.
    unanswered: AtomicUsize,
    /// The longest chain of requests that was answered.
    answered: AtomicUsize,
}

impl Wire {
    /// `decide` gets each request and how many came before it.
    pub async fn start(
        upstream: Option<&str>,
        decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (decide, written) = (Arc::new(decide), log.clone());
        let flying = Arc::new(Flying::default());
        let counted = flying.clone();
        let upstream = upstream.map(|url| url.trim_start_matches("http://").to_owned());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (decide, written, upstream) = (decide.clone(), written.clone(), upstream.clone());
                let flying = counted.clone();
                tokio::spawn(async move {
                    let now = flying.now.fetch_add(1, Ordering::SeqCst) + 1;
                    flying.most.fetch_max(now, Ordering::SeqCst);
                    let _ = answer(socket, &*decide, &written, upstream.as_deref(), &flying).await;
                    flying.now.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { endpoint, log, flying }
    }

    /// The most requests that were under way at once.
    pub fn most_at_once(&self) -> usize {
        self.flying.most.load(Ordering::SeqCst)
    }

    /// How many requests have waited for one another: the longest row of which each came behind the answer
    /// to one before. And a fresh start.
    pub fn longest_chain(&self) -> usize {
        self.flying.answered.swap(0, Ordering::SeqCst)
    }

    /// Waits until no more than so many requests are under way.
    pub async fn settled(&self, most: usize) {
        while self.flying.now.load(Ordering::SeqCst) > most {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until no request is on its way to the storage, also of those that nobody waits for.
    pub async fn quiet(&self) {
        while self.flying.unanswered.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// All requests so far, and a fresh page.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    /// The operations so far, sorted, and a fresh page.
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
    flying: &Flying,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let request = read_request(&mut socket).await?;
    let _unanswered = Unanswered::new(flying);
    let chain = flying.answered.load(Ordering::SeqCst) + 1;
    reply(socket, &request, decide, log, upstream, || {
        flying.answered.fetch_max(chain, Ordering::SeqCst);
    })
    .await
}

/// A request that came in whole, until it is answered.
struct Unanswered<'f>(&'f Flying);

impl<'f> Unanswered<'f> {
    fn new(flying: &'f Flying) -> Self {
        flying.unanswered.fetch_add(1, Ordering::SeqCst);
        Self(flying)
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

/// Sends the request on as it is, signature and all, and brings the whole answer.
async fn forward(request: &Request, upstream: &str) -> std::io::Result<Vec<u8>> {
    let mut socket = TcpStream::connect(upstream).await?;
    let head = request.head.trim_end();
    socket.write_all(format!("{head}\r\nconnection: close\r\n\r\n").as_bytes()).await?;
    socket.write_all(&request.body).await?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await?;
    Ok(bytes)
}
