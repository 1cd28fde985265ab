//! A small cloud for tests: an STS that issues credentials, and a proxy that enforces the session policy of
//! each.
//!
//! The storage is the embedded store. The IAM implementation supports only what session policies need;
//! MiniStack and the simulator in `terraform/tests` test the complete policies.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use skillfs::embedded::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};
use skillfs::{Role, Settings, SkillFs};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Bucket;
use super::wire::{Reply, Request, Wire};

pub const ROLE: &str = "arn:aws:iam::123456789012:role/acme-agents";

/// A proxy between client and storage that also acts as STS.
pub struct Cloud {
    pub wire: Wire,
    pub bucket: Bucket,
    pub rules: Arc<Rules>,
}

/// Decides the response to a request.
pub type Decide = Box<dyn Fn(&Request) -> Option<Reply> + Send + Sync>;

/// The state and behavior of the cloud. Tests can change it at any time.
pub struct Rules {
    issued: Mutex<Vec<Issued>>,
    /// The lifetime of new credentials.
    pub life: Mutex<Duration>,
    /// STS refuses sessions whose policy contains this text.
    pub refused: Mutex<Option<String>>,
    pub sts_is_down: AtomicBool,
    /// How long a call to STS takes.
    pub sts_delay: Mutex<Duration>,
    /// If set, STS responds only when notified.
    pub sts_gate: Mutex<Option<Arc<Notify>>>,
    /// Keys for which the storage returns 403.
    pub forbidden: Mutex<HashSet<String>>,
    /// How many seconds the cloud's clock is ahead.
    pub ahead: AtomicI64,
    /// Whether the process's own credentials may only assume the role.
    pub process_may_only_assume_role: AtomicBool,
    /// Whether new credentials are rejected from the start.
    pub rejects_new_credentials: AtomicBool,
    /// Whether policies are not enforced.
    pub ignores_policies: AtomicBool,
    /// Requests to the storage with the process's own credentials.
    pub own: Mutex<Vec<Request>>,
    /// Delays the rejection of expired tokens for requests whose target contains this text.
    pub slow_refusal: Mutex<Option<(String, Duration)>>,
    /// Expires the credentials of the next request with this method.
    pub expires_on: Mutex<Option<&'static str>>,
    /// Whether STS omits the expiration of credentials.
    pub no_expiration: AtomicBool,
    /// Delays responses to requests whose target contains this text.
    pub slow_response: Mutex<Option<(String, Duration)>>,
    /// What the role's own policy denies: for sessions whose policy contains the first text, keys below the
    /// second.
    pub role_denies: Mutex<Option<(String, String)>>,
    /// Responses to requests that violate the session policy; without one, they are refused.
    pub breach: Mutex<Option<Decide>>,
}

/// A response of STS.
#[derive(Clone)]
pub struct Issued {
    pub form: Vec<(String, String)>,
    pub policy: Value,
    until: Instant,
}

impl Issued {
    pub fn value(&self, name: &str) -> Option<&str> {
        self.form.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

impl Cloud {
    pub async fn start() -> Self {
        let bucket = Bucket::embedded().await;
        let rules = Arc::new(Rules {
            issued: Mutex::default(),
            life: Mutex::new(Duration::from_secs(3600)),
            refused: Mutex::default(),
            sts_is_down: AtomicBool::new(false),
            sts_delay: Mutex::default(),
            sts_gate: Mutex::default(),
            forbidden: Mutex::default(),
            ahead: AtomicI64::new(0),
            process_may_only_assume_role: AtomicBool::new(false),
            rejects_new_credentials: AtomicBool::new(false),
            ignores_policies: AtomicBool::new(false),
            own: Mutex::default(),
            slow_refusal: Mutex::default(),
            expires_on: Mutex::default(),
            role_denies: Mutex::default(),
            no_expiration: AtomicBool::new(false),
            slow_response: Mutex::default(),
            breach: Mutex::default(),
        });
        let (decide, name) = (rules.clone(), bucket.name.clone());
        let wire = Wire::start(Some(&bucket.endpoint), move |request, _| decide.decide(request, &name)).await;
        Self { wire, bucket, rules }
    }

    /// A handle whose sessions assume the role.
    pub async fn fs(&self, change: impl FnOnce(&mut Settings)) -> SkillFs {
        let with_role = |settings: &mut Settings| {
            settings.role = Some(Role::new(ROLE));
            change(settings);
        };
        self.bucket.with(&self.wire.endpoint, with_role).await
    }

    /// All credentials issued so far.
    pub fn issued(&self) -> Vec<Issued> {
        self.rules.issued.lock().unwrap().clone()
    }

    /// Expires all credentials issued so far.
    pub fn revoke(&self) {
        for issued in self.rules.issued.lock().unwrap().iter_mut() {
            issued.until = Instant::now();
        }
    }
}

impl Rules {
    fn decide(&self, request: &Request, bucket: &str) -> Reply {
        if request.method == "POST" && request.target == "/" {
            let takes = *self.sts_delay.lock().unwrap();
            return match (self.assume(request), self.sts_gate.lock().unwrap().clone()) {
                (Reply::Raw(bytes), Some(go)) => Reply::RawWhen(go, bytes),
                (Reply::Raw(bytes), None) => Reply::RawAfter(takes, bytes),
                (reply, _) => reply,
            };
        }
        let Some(token) = request.header("x-amz-security-token") else {
            self.own.lock().unwrap().push(request.clone());
            return match self.process_may_only_assume_role.load(Ordering::SeqCst) {
                true => Reply::error(403, "AccessDenied"),
                false => Reply::Forward,
            };
        };
        let number: usize = token.strip_prefix("token-").unwrap().parse().unwrap();
        let issued = self.issued.lock().unwrap()[number].clone();
        if self.expires_on.lock().unwrap().take_if(|method| request.method == *method).is_some() {
            return Reply::error(400, "ExpiredToken");
        }
        if Instant::now() >= issued.until {
            let refusal = Reply::error(400, "ExpiredToken");
            let slow = self.slow_refusal.lock().unwrap();
            return match (&*slow, refusal) {
                (Some((part, pause)), Reply::Raw(bytes)) if request.target.contains(part) => {
                    Reply::RawAfter(*pause, bytes)
                }
                (_, refusal) => refusal,
            };
        }
        let required_permissions = required_permissions(request, bucket);
        assert!(!required_permissions.is_empty(), "what is asked for is not known: {}", request.head);
        let forbidden = self.forbidden.lock().unwrap();
        if self.ignores_policies.load(Ordering::SeqCst) {
            return Reply::Forward;
        }
        let refused = required_permissions.iter().any(|(action, what)| {
            (*action == "s3:GetObject" && forbidden.contains(what))
                || self.role_denies.lock().unwrap().as_ref().is_some_and(|(who, below)| {
                    // With the prefix `get:`, only reading is denied.
                    let below = match below.strip_prefix("get:") {
                        Some(_) if *action != "s3:GetObject" => return false,
                        Some(below) => below,
                        None => below,
                    };
                    issued.policy.to_string().contains(who) && what.starts_with(below)
                })
                || !allows(&issued.policy, action, what, bucket)
        });
        if refused {
            let breach = self.breach.lock().unwrap();
            let answer = breach.as_ref().and_then(|decide| decide(request));
            return answer.unwrap_or_else(|| Reply::error(403, "AccessDenied"));
        }
        match &*self.slow_response.lock().unwrap() {
            Some((part, pause)) if request.target.contains(part) => Reply::ForwardAfter(*pause),
            _ => Reply::Forward,
        }
    }

    fn assume(&self, request: &Request) -> Reply {
        if self.sts_is_down.load(Ordering::SeqCst) {
            return answer(
                503,
                "<ErrorResponse><Error><Code>ServiceUnavailable</Code></Error></ErrorResponse>",
                0,
            );
        }
        let body = String::from_utf8(request.body.clone()).unwrap();
        let decode =
            |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8().unwrap().into_owned();
        let form: Vec<_> = body
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (decode(key), decode(value)))
            .collect();
        let value = |name: &str| form.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        assert_eq!(value("Action").as_deref(), Some("AssumeRole"));
        let policy = value("Policy").expect("a session without a policy");
        if self.refused.lock().unwrap().as_ref().is_some_and(|refused| policy.contains(refused)) {
            let error = "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>not authorized to perform: sts:AssumeRole</Message></Error></ErrorResponse>";
            return answer(403, error, 0);
        }
        let ahead = self.ahead.load(Ordering::SeqCst);
        let life = *self.life.lock().unwrap();
        let ends = SystemTime::now() + life + Duration::from_secs(u64::try_from(ahead).unwrap());
        let ends = DateTime::from(ends).fmt(DateTimeFormat::DateTime).unwrap();
        let ends = if self.no_expiration.load(Ordering::SeqCst) { "soon".to_owned() } else { ends };
        let mut issued = self.issued.lock().unwrap();
        let token = format!("token-{}", issued.len());
        let policy = serde_json::from_str(&policy).unwrap();
        let taken = if self.rejects_new_credentials.load(Ordering::SeqCst) { Duration::ZERO } else { life };
        issued.push(Issued { form, policy, until: Instant::now() + taken });
        let body = format!(
            "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
             <AccessKeyId>{ACCESS_KEY_ID}</AccessKeyId><SecretAccessKey>{SECRET_ACCESS_KEY}</SecretAccessKey>\
             <SessionToken>{token}</SessionToken><Expiration>{ends}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        );
        answer(200, &body, ahead)
    }
}

fn answer(status: u16, body: &str, ahead: i64) -> Reply {
    let now = SystemTime::now() + Duration::from_secs(u64::try_from(ahead).unwrap());
    let date = DateTime::from(now).fmt(DateTimeFormat::HttpDate).unwrap();
    Reply::Raw(
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: text/xml\r\ndate: {date}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
    )
}

/// The permissions that a request needs: actions, each with a key or a prefix.
pub fn required_permissions(request: &Request, bucket: &str) -> Vec<(&'static str, String)> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let path = path.strip_prefix(&format!("/{bucket}")).unwrap();
    let key = decode(path.strip_prefix('/').unwrap_or_default());
    let parameter = |name: &str| {
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then(|| decode(value))
        })
    };
    let source = request.header("x-amz-copy-source").map(decode);
    let source = source.map(|source| {
        let source = source.trim_start_matches('/').strip_prefix(&format!("{bucket}/")).unwrap().to_owned();
        ("s3:GetObject", source)
    });
    match request.method.as_str() {
        "GET" if key.is_empty() && parameter("list-type").is_some() => {
            vec![("s3:ListBucket", parameter("prefix").unwrap_or_default())]
        }
        "GET" | "HEAD" if !key.is_empty() => vec![("s3:GetObject", key)],
        "PUT" if !key.is_empty() => [("s3:PutObject", key)].into_iter().chain(source).collect(),
        "DELETE" if parameter("uploadId").is_some() => vec![("s3:AbortMultipartUpload", key)],
        "DELETE" if !key.is_empty() => vec![("s3:DeleteObject", key)],
        "POST" if parameter("delete").is_some() => {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let keys =
                body.split("<Key>").skip(1).map(|rest| rest.split("</Key>").next().unwrap().to_owned());
            keys.map(|key| ("s3:DeleteObject", key)).collect()
        }
        "POST" if !key.is_empty() => vec![("s3:PutObject", key)],
        _ => Vec::new(),
    }
}

/// Whether a policy allows an action. Patterns support only a trailing `*`.
pub fn allows(policy: &Value, action: &str, what: &str, bucket: &str) -> bool {
    let matches = |pattern: &Value, text: &str| {
        let pattern = pattern.as_str().unwrap();
        pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
    };
    let arn = match action {
        "s3:ListBucket" => format!("arn:aws:s3:::{bucket}"),
        _ => format!("arn:aws:s3:::{bucket}/{what}"),
    };
    policy["Statement"].as_array().unwrap().iter().any(|statement| {
        let named = statement["Action"].as_array().unwrap().iter().any(|name| name == action);
        let about = statement["Resource"].as_array().unwrap().iter().any(|pattern| matches(pattern, &arn));
        let condition = match &statement["Condition"]["StringLike"]["s3:prefix"] {
            Value::Array(patterns) => patterns.iter().any(|pattern| matches(pattern, what)),
            _ => true,
        };
        named && about && condition
    })
}

/// Advances tokio's clock, which credentials and caches use, without waiting. Requires a single-threaded
/// runtime.
pub async fn advance_tokio_clock(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}
