//! Test buckets: always on the embedded store, and on LocalStack if `make test` started it.

pub mod cloud;
pub mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_s3::primitives::ByteStream;
use skillfs::admin::{IntoKind, LibraryChange, Published, PushOptions};
use skillfs::embedded::{ACCESS_KEY_ID, Embedded, SECRET_ACCESS_KEY};
use skillfs::{
    Entry, EntryKind, Freshness, Library, S3Backend, Session, Settings, SkillFs, StaticCredentials, ThreadId,
    TicketId, Timeouts, UserId,
};
use tokio::net::TcpListener;

/// The environment variable with LocalStack's endpoint; `make test` sets it.
pub const LOCALSTACK: &str = "SKILLFS_TEST_LOCALSTACK";

/// Long campaigns run completely if this is set; `make test-long` sets it.
pub const LONG: &str = "SKILLFS_TEST_LONG";

/// How many cases of a campaign to run: all of them in `make test-long`, the first `short` otherwise.
pub fn campaign<N>(all: N, short: N) -> N {
    if std::env::var_os(LONG).is_some_and(|value| !value.is_empty()) { all } else { short }
}

/// Runs each case on every server: a plain `cargo test` on the embedded store, `make test` on all.
macro_rules! on_every_server {
    ($($case:ident),+ $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::support::Bucket::embedded().await).await;
            })+
        }

        mod localstack {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[ignore = "needs LocalStack: run `make test-long`"]
            async fn $case() {
                super::$case($crate::support::Bucket::localstack().await).await;
            })+
        }
    };
}
pub(crate) use on_every_server;

/// A new empty bucket for one test.
pub struct Bucket {
    pub name: String,
    pub fs: SkillFs,
    /// A client that does not know about mounts, which acts as another program.
    pub raw: Client,
    /// The endpoint of the server, for additional clients.
    pub endpoint: String,
    pub credentials: StaticCredentials,
    /// The server, if it runs in this process.
    embedded: Option<Embedded>,
}

impl Bucket {
    pub async fn embedded() -> Self {
        Self::in_embedded(&Embedded::in_memory().unwrap()).await
    }

    /// A bucket whose handle has a freshness bound of one hour.
    pub async fn caching() -> Self {
        let mut bucket = Self::embedded().await;
        let hour = Freshness::all(Duration::from_secs(3600));
        bucket.fs = bucket.with(&bucket.endpoint, |settings| settings.freshness = hour).await;
        bucket
    }

    pub async fn in_embedded(embedded: &Embedded) -> Self {
        let name = "test-bucket".to_owned();
        embedded.create_bucket(&name).await.unwrap();
        let fs = SkillFs::embedded(embedded, &settings(&name)).await.unwrap();
        let endpoint = serve(embedded).await;
        let credentials = StaticCredentials::new(ACCESS_KEY_ID, SECRET_ACCESS_KEY);
        let raw = raw_client(&endpoint, &credentials);
        Self { name, fs, raw, endpoint, credentials, embedded: Some(embedded.clone()) }
    }

    pub async fn localstack() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let endpoint = std::env::var(LOCALSTACK).unwrap_or_else(|_| {
            panic!("{LOCALSTACK} is not set; run `make test-long`, which starts LocalStack")
        });
        let credentials = StaticCredentials::new("test", "test");
        let raw = raw_client(&endpoint, &credentials);
        let name = format!("it-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        raw.create_bucket().bucket(&name).send().await.unwrap();
        let fs = connect(&endpoint, &credentials, &name).await;
        Self { name, fs, raw, endpoint, credentials, embedded: None }
    }

    /// Whether the server's clock can be advanced.
    pub fn has_clock(&self) -> bool {
        self.embedded.is_some()
    }

    /// Advances the clock of the server and of these handles. Does nothing on other servers.
    pub fn advance<'f>(&self, by: Duration, handles: impl IntoIterator<Item = &'f SkillFs>) {
        if let Some(embedded) = &self.embedded {
            embedded.advance_clock(by);
            handles.into_iter().for_each(|fs| fs.advance_clock(by));
        }
    }

    pub async fn put(&self, key: &str, content: impl AsRef<[u8]>) {
        let body = ByteStream::from(content.as_ref().to_vec());
        self.raw.put_object().bucket(&self.name).key(key).body(body).send().await.unwrap();
    }

    pub async fn delete(&self, key: &str) {
        self.raw.delete_object().bucket(&self.name).key(key).send().await.unwrap();
    }

    /// A session of user `u1`, thread `1` and ticket `k1`.
    pub fn session(&self) -> S3Backend {
        self.fs.session(&session("u1", "1", "k1"))
    }

    /// Another handle to the same bucket, with different settings.
    pub async fn with(&self, endpoint: &str, change: impl FnOnce(&mut Settings)) -> SkillFs {
        let mut settings = settings_for(endpoint, &self.credentials, &self.name);
        change(&mut settings);
        SkillFs::connect(&settings).await.unwrap()
    }

    /// A handle to the same bucket at another endpoint, such as a proxy that injects faults.
    pub async fn through(&self, endpoint: &str) -> SkillFs {
        connect(endpoint, &self.credentials, &self.name).await
    }
}

/// Serves an embedded store on loopback until the test's runtime ends.
pub async fn serve(embedded: &Embedded) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let embedded = embedded.clone();
    tokio::spawn(async move { embedded.serve(listener, std::future::pending()).await });
    endpoint
}

pub async fn connect(endpoint: &str, credentials: &StaticCredentials, bucket: &str) -> SkillFs {
    SkillFs::connect(&settings_for(endpoint, credentials, bucket)).await.unwrap()
}

fn settings_for(endpoint: &str, credentials: &StaticCredentials, bucket: &str) -> Settings {
    settings(bucket).endpoint_url(endpoint.to_owned()).region("us-east-1").credentials(credentials.clone())
}

/// Settings with generous limits: the machine may be busy, and no test measures time.
pub fn settings(bucket: &str) -> Settings {
    let minute = Duration::from_secs(60);
    Settings::new(bucket)
        .timeouts(Timeouts::default().connect(minute).attempt(minute).operation(2 * minute))
        .freshness(Freshness::all(Duration::ZERO))
        .reissue_slow(false)
}

pub fn session(user: &str, thread: &str, ticket: &str) -> Session {
    Session::default()
        .user(UserId::parse(user).unwrap())
        .thread(ThreadId::parse(thread).unwrap())
        .ticket(TicketId::parse(ticket).unwrap())
}

fn raw_client(endpoint: &str, credentials: &StaticCredentials) -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    let config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(http)
        .endpoint_url(endpoint)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(
            &credentials.access_key_id,
            &credentials.secret_access_key,
            None,
            None,
            "test",
        ))
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .force_path_style(true)
        .build();
    Client::from_conf(config)
}

/// Publishes a library with its current content. If it is already published, publishes the drift in its
/// mirror.
pub async fn publish(fs: &SkillFs, library: &Library) -> Published {
    let mut options = PushOptions::default();
    options.into = IntoKind::Published;
    let plan = fs.library(library).plan(LibraryChange::Index, &options).await.unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap()
}

/// All Rust files below a folder of the project, with their relative paths.
pub fn rust_files(folder: &str) -> Vec<(String, String)> {
    let root = root().join(folder);
    let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
                files.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}

/// Formats entries as `path` for a file and `path/` for a directory.
pub fn names(entries: &[Entry]) -> Vec<String> {
    let name = |e: &Entry| match e.kind {
        EntryKind::File => e.path.to_string(),
        _ => format!("{}/", e.path),
    };
    entries.iter().map(name).collect()
}

/// Encodes text as Latin-1; every character must fit.
pub fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
}

/// Encodes text as UTF-16 with a byte order mark.
pub fn utf16(text: &str, to: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xfeff).chain(text.encode_utf16()).flat_map(to).collect()
}

/// A deterministic pseudorandom number generator.
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// The root of the repository.
pub fn root() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
