//! The reference model with all operations that modify something.
//!
//! A map of keys predicts the result of each step and the content of the entire bucket afterwards, including
//! other tenants. Behind a proxy that injects faults, it defines the allowed states after a failure: no
//! partially written file, no change applied twice, nothing lost, and nothing else modified.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use skillfs::{
    Access, Error, ErrorKind, Glob, Grants, Overwrite, S3Backend, Session, SkillFs, Transferred, WriteMode,
    Written,
};

use crate::model::{
    MINE, Model, OTHERS, RELATIVE, check, check_path, expected, explore, explore_with, nameable, runtime,
};
use crate::support::wire::{Hook, Reply, Request, Wire};
use crate::support::{Bucket, campaign, session, settings};

/// The names used in steps. There are few, so that they collide: files above, below and next to each other.
const NAMES: [&str; 16] = [
    "a",
    "a/b",
    "a/b/c.md",
    "a-b",
    "a.md",
    "b",
    "b/b",
    "notes",
    "notes.md",
    "notes/x",
    "dir",
    "dir/x.md",
    "dir/sub",
    "sp ace+.md",
    "100%.md",
    "é/ñ.md",
];

/// More keys for the other program: folder markers, and keys that cannot be named safely in a request.
const ODD: [&str; 9] =
    ["a/", "b/", "b/b/", "dir/", "dir/sub/", "notes/", "a//c\u{1}", "dir//x.md", "notes/./x"];

/// The words that texts consist of and edits search for.
const WORDS: [&str; 6] = ["uno ", "dos ", "aaa", "ñ", "\n", "x"];
const BINARY: &[u8] = b"\x89PNG\r\n\x1a\n\0\0";

#[derive(Debug, Clone)]
enum Step {
    Write {
        path: String,
        content: Vec<u8>,
        mode: Mode,
        streamed: bool,
    },
    Append {
        path: String,
        content: Vec<u8>,
    },
    Edit {
        path: String,
        old: String,
        new: String,
        all: bool,
    },
    Delete {
        path: String,
        recursive: bool,
    },
    Transfer {
        from: String,
        to: String,
        overwrite: Overwrite,
        moves: bool,
    },
    Upload {
        files: Vec<(String, Vec<u8>)>,
    },
    /// A write by another program, directly in the bucket.
    Put {
        key: String,
        content: Vec<u8>,
    },
    Remove {
        key: String,
    },
}

/// What a write may replace. ETags are resolved when the step runs.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Overwrite,
    CreateNew,
    IfMatch(Version),
}

#[derive(Debug, Clone, Copy)]
enum Version {
    Current,
    Quoted,
    Stale,
    MadeUp,
}

/// A case: the initial objects and the steps.
#[derive(Debug, Clone)]
struct Case {
    start: Vec<(String, Vec<u8>)>,
    steps: Vec<Step>,
}

fn content() -> BoxedStrategy<Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..6)
            .prop_map(|words| words.concat().into_bytes()),
        1 => Just(Vec::new()),
        1 => Just(BINARY.to_vec()),
    ]
    .boxed()
}

fn path() -> BoxedStrategy<String> {
    let below = |mount: &'static str| {
        prop::sample::select(NAMES.to_vec()).prop_map(move |name| format!("{mount}/{name}"))
    };
    prop_oneof![
        24 => below("/workspace"),
        8 => below("/ticket"),
        2 => below("/skills"),
        2 => prop::sample::select(vec!["/workspace", "/ticket", "/skills", "/", "/nowhere/a"])
            .prop_map(str::to_owned),
    ]
    .boxed()
}

/// A key of the first tenant or of the others, and its content. Markers are usually empty.
fn object() -> BoxedStrategy<(String, Vec<u8>)> {
    let prefix = prop_oneof![
        6 => prop::sample::select(MINE.map(|(_, prefix)| prefix).to_vec()),
        1 => prop::sample::select(OTHERS.to_vec()),
    ];
    let name = prop_oneof![
        4 => prop::sample::select(NAMES.to_vec()),
        3 => prop::sample::select(ODD.to_vec()),
        2 => prop::sample::select(RELATIVE.to_vec()),
    ];
    (prefix, name, content(), 0..5)
        .prop_map(|(prefix, name, content, odd)| {
            let marker = name.ends_with('/') && odd > 0;
            (format!("{prefix}{name}"), if marker { Vec::new() } else { content })
        })
        .boxed()
}

fn step() -> BoxedStrategy<Step> {
    let mode = prop_oneof![
        4 => Just(Mode::Overwrite),
        2 => Just(Mode::CreateNew),
        3 => prop::sample::select(vec![Version::Current, Version::Quoted, Version::Stale, Version::MadeUp])
            .prop_map(Mode::IfMatch),
    ];
    let olds = ["uno", "dos ", "a", "aa", "ñ", "\n", "absent", ""].map(str::to_owned).to_vec();
    let news = ["", "tres", "uno uno", "a", "ñ\r\n"].map(str::to_owned).to_vec();
    let source = prop_oneof![5 => path(), 1 => prop::sample::select(NAMES.to_vec())
        .prop_map(|name| format!("/skills/{name}"))];
    let transfer = (source, path(), any::<bool>(), any::<bool>());
    // A batch has each file once, because two writes of the same file may run in either order.
    let files = prop::collection::btree_map(path(), content(), 1..4);
    prop_oneof![
        4 => (path(), content(), mode, any::<bool>())
            .prop_map(|(path, content, mode, streamed)| Step::Write { path, content, mode, streamed }),
        3 => (path(), content()).prop_map(|(path, content)| Step::Append { path, content }),
        4 => (path(), prop::sample::select(olds), prop::sample::select(news), any::<bool>())
            .prop_map(|(path, old, new, all)| Step::Edit { path, old, new, all }),
        2 => path().prop_map(|path| Step::Delete { path, recursive: false }),
        1 => path().prop_map(|path| Step::Delete { path, recursive: true }),
        6 => transfer.prop_map(|(from, to, replace, moves)| {
            let overwrite = if replace { Overwrite::Yes } else { Overwrite::No };
            Step::Transfer { from, to, overwrite, moves }
        }),
        1 => files.prop_map(|files| Step::Upload { files: files.into_iter().collect() }),
        4 => object().prop_map(|(key, content)| Step::Put { key, content }),
        1 => object().prop_map(|(key, _)| Step::Remove { key }),
    ]
    .boxed()
}

fn cases(steps: usize) -> impl Strategy<Value = Case> {
    (prop::collection::vec(object(), 0..14), prop::collection::vec(step(), 1..steps))
        .prop_map(|(start, steps)| Case { start, steps })
}

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Done {
    Written { size: u64 },
    Edited { replacements: u64, size: u64 },
    Deleted { objects: u64, left: u64 },
    Transferred { files: u64, bytes: u64, hidden: u64 },
    Raw,
}

/// The content of the bucket.
#[derive(Debug, Clone, Default)]
struct Bytewise {
    objects: Model,
    etags: BTreeMap<String, String>,
}

/// Reads the bucket with a separate client.
struct Observer<'b> {
    bucket: &'b Bucket,
    /// Content by ETag, so that it is fetched only once.
    seen: Mutex<HashMap<String, Vec<u8>>>,
    /// The ETags that each key has had.
    past: BTreeMap<String, Vec<String>>,
}

impl<'b> Observer<'b> {
    fn new(bucket: &'b Bucket) -> Self {
        Self { bucket, seen: Mutex::default(), past: BTreeMap::new() }
    }

    async fn look(&mut self) -> Bytewise {
        let Bucket { raw, name, .. } = self.bucket;
        let url = aws_sdk_s3::types::EncodingType::Url;
        let page = raw.list_objects_v2().bucket(name).encoding_type(url).send().await.unwrap();
        assert_ne!(page.is_truncated(), Some(true), "one page holds all");
        let mut now = Bytewise::default();
        for object in page.contents() {
            let key = object.key().unwrap().replace('+', " ");
            let key = percent_encoding::percent_decode_str(&key).decode_utf8().unwrap().into_owned();
            let etag = object.e_tag().unwrap().trim_matches('"').to_owned();
            let known = self.seen.lock().unwrap().get(&etag).cloned();
            let content = match known {
                Some(content) => content,
                None => {
                    let got = raw.get_object().bucket(name).key(&key).send().await.unwrap();
                    let content = got.body.collect().await.unwrap().to_vec();
                    self.seen.lock().unwrap().insert(etag.clone(), content.clone());
                    content
                }
            };
            let past = self.past.entry(key.clone()).or_default();
            if !past.contains(&etag) {
                past.push(etag.clone());
            }
            now.objects.insert(key.clone(), content);
            now.etags.insert(key, etag);
        }
        now
    }

    /// The mode of a write, with its ETag.
    fn mode(&self, path: &str, mode: Mode, now: &Bytewise) -> WriteMode {
        let version = match mode {
            Mode::Overwrite => return WriteMode::Overwrite,
            Mode::CreateNew => return WriteMode::CreateNew,
            Mode::IfMatch(version) => version,
        };
        let key = target(path).ok().and_then(|place| place.key()).unwrap_or_default();
        let current = now.etags.get(&key);
        let etag = match version {
            Version::Current => current.cloned(),
            Version::Quoted => current.map(|etag| format!("\"{etag}\"")),
            Version::Stale => {
                self.past.get(&key).and_then(|past| past.iter().find(|etag| Some(*etag) != current)).cloned()
            }
            Version::MadeUp => None,
        };
        WriteMode::IfMatch(etag.unwrap_or_else(|| "0123456789abcdef".repeat(2)))
    }
}

/// Formats the difference between two states.
fn difference(real: &Model, predicted: &Model) -> Vec<String> {
    let show = |content: Option<&Vec<u8>>| {
        content.map_or("nothing".to_owned(), |c| format!("{:?}", String::from_utf8_lossy(c)))
    };
    let keys: std::collections::BTreeSet<_> = real.keys().chain(predicted.keys()).collect();
    keys.into_iter()
        .filter(|key| real.get(*key) != predicted.get(*key))
        .map(|key| format!("{key:?} holds {}, not {}", show(real.get(key)), show(predicted.get(key))))
        .collect()
}

/// A place in a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    prefix: &'static str,
    /// Empty for the mount itself.
    relative: String,
}

impl Place {
    fn key(&self) -> Option<String> {
        (!self.relative.is_empty()).then(|| format!("{}{}", self.prefix, self.relative))
    }

    fn directory(&self) -> String {
        self.key().map_or(self.prefix.to_owned(), |key| format!("{key}/"))
    }

    fn is_file(&self, model: &Model) -> bool {
        self.key().is_some_and(|key| model.contains_key(&key))
    }

    fn is_directory(&self, model: &Model) -> bool {
        self.relative.is_empty() || model.keys().any(|key| key.starts_with(&self.directory()))
    }
}

/// Resolves a path; `None` for the root.
fn resolve(path: &str) -> Result<Option<Place>, ErrorKind> {
    if path == "/" {
        return Ok(None);
    }
    for (mount, prefix) in MINE {
        if let Some(rest) = path.strip_prefix(mount) {
            return Ok(Some(Place { prefix, relative: rest.trim_start_matches('/').to_owned() }));
        }
    }
    Err(ErrorKind::NotFound)
}

fn target(path: &str) -> Result<Place, ErrorKind> {
    match resolve(path)? {
        Some(place) if place.prefix != MINE[0].1 => Ok(place),
        _ => Err(ErrorKind::ReadOnly),
    }
}

/// The key of a file to modify, by its literal name.
fn file(path: &str) -> Result<String, ErrorKind> {
    target(path)?.key().ok_or(ErrorKind::IsDirectory)
}

/// The predicted outcome of a step: its results, the state afterwards, and the copies of a transfer.
struct Prediction {
    results: Vec<Result<Done, ErrorKind>>,
    after: Model,
    /// The source and the target of each file and marker of a transfer.
    copies: Vec<(String, String)>,
    /// Whether it changes more than one file and may therefore stop halfway.
    many: bool,
}

/// The rules of all operations.
fn predict(now: &Bytewise, step: &Step, mode: &WriteMode) -> Prediction {
    let mut predicted =
        Prediction { results: Vec::new(), after: now.objects.clone(), copies: Vec::new(), many: false };
    let result = match step {
        Step::Write { path, content, .. } => write(now, path, content, mode, &mut predicted.after),
        Step::Append { path, content } => append(path, content, &mut predicted.after),
        Step::Edit { path, old, new, all } => edit(path, old, new, *all, &mut predicted.after),
        Step::Delete { path, recursive: false } => delete(path, &mut predicted.after),
        Step::Delete { path, recursive: true } => {
            predicted.many = true;
            delete_recursive(path, &mut predicted.after)
        }
        Step::Transfer { from, to, overwrite, moves } => {
            transfer(from, to, *overwrite, *moves, &mut predicted)
        }
        Step::Upload { files } => {
            predicted.many = true;
            for (path, content) in files {
                let result = write(now, path, content, &WriteMode::Overwrite, &mut predicted.after);
                predicted.results.push(result);
            }
            return predicted;
        }
        Step::Put { key, content } => {
            predicted.after.insert(key.clone(), content.clone());
            Ok(Done::Raw)
        }
        Step::Remove { key } => {
            predicted.after.remove(key);
            Ok(Done::Raw)
        }
    };
    predicted.results.push(result);
    predicted
}

fn write(
    now: &Bytewise,
    path: &str,
    content: &[u8],
    mode: &WriteMode,
    after: &mut Model,
) -> Result<Done, ErrorKind> {
    let key = file(path)?;
    match mode {
        WriteMode::CreateNew if after.contains_key(&key) => return Err(ErrorKind::AlreadyExists),
        WriteMode::IfMatch(etag)
            if now.etags.get(&key).map(String::as_str) != Some(etag.trim_matches('"')) =>
        {
            return Err(ErrorKind::Conflict);
        }
        _ => {}
    }
    after.insert(key, content.to_vec());
    Ok(Done::Written { size: content.len() as u64 })
}

fn append(path: &str, content: &[u8], after: &mut Model) -> Result<Done, ErrorKind> {
    let whole = after.entry(file(path)?).or_default();
    whole.extend_from_slice(content);
    Ok(Done::Written { size: whole.len() as u64 })
}

fn edit(path: &str, old: &str, new: &str, all: bool, after: &mut Model) -> Result<Done, ErrorKind> {
    let key = file(path)?;
    if old.is_empty() {
        return Err(ErrorKind::InvalidInput);
    }
    let Some(content) = after.get_mut(&key) else {
        let directory = target(path)?.is_directory(after);
        return Err(if directory { ErrorKind::IsDirectory } else { ErrorKind::NotFound });
    };
    let Ok(text) = std::str::from_utf8(content) else { return Err(ErrorKind::BinaryFile) };
    // `aa` occurs twice in `aaa`, and it is ambiguous which one is meant.
    let places = (0..text.len()).filter(|at| text.as_bytes()[*at..].starts_with(old.as_bytes())).count();
    if places == 0 || (places > 1 && !all) {
        return Err(ErrorKind::InvalidInput);
    }
    let replacements = text.matches(old).count() as u64;
    *content = text.replace(old, new).into_bytes();
    Ok(Done::Edited { replacements, size: content.len() as u64 })
}

fn delete(path: &str, after: &mut Model) -> Result<Done, ErrorKind> {
    let place = target(path)?;
    match place.key() {
        Some(key) if after.remove(&key).is_some() => Ok(Done::Deleted { objects: 1, left: 0 }),
        _ if place.is_directory(after) => Err(ErrorKind::IsDirectory),
        _ => Err(ErrorKind::NotFound),
    }
}

fn delete_recursive(path: &str, after: &mut Model) -> Result<Done, ErrorKind> {
    let place = target(path)?;
    if !place.is_file(after) && !place.is_directory(after) {
        return Err(ErrorKind::NotFound);
    }
    // XML batches cannot contain control characters, and proxies may normalize empty segments and dots in a
    // URL.
    let stays = |key: &str| {
        let folded = |name: &str| {
            let name = name.to_lowercase().replace("%2e", ".");
            name.is_empty() || name == "." || name == ".."
        };
        key.chars().any(char::is_control) && key.strip_suffix('/').unwrap_or(key).split('/').any(folded)
    };
    let (before, mut left) = (after.len(), 0);
    after.retain(|key, _| {
        let below = key.starts_with(&place.directory());
        let stays = below && stays(key);
        left += u64::from(stays);
        stays || !(below || Some(key) == place.key().as_ref())
    });
    Ok(Done::Deleted { objects: (before - after.len()) as u64, left })
}

fn transfer(
    from: &str,
    to: &str,
    overwrite: Overwrite,
    moves: bool,
    predicted: &mut Prediction,
) -> Result<Done, ErrorKind> {
    let source = if moves { Some(target(from)?) } else { None };
    let place = target(to)?;
    let source = match source {
        Some(source) => source,
        None => resolve(from)?.ok_or(ErrorKind::InvalidInput)?,
    };
    let inside = |inner: &str, outer: &str| inner == outer || inner.starts_with(&format!("{outer}/"));
    if inside(to, from) {
        return Err(ErrorKind::InvalidInput);
    }
    let model = &mut predicted.after;
    let (mut hidden, mut markers) = (0, Vec::new());
    if source.is_file(model) {
        // If both have the name, the file is meant.
        if place.key().is_none() || (place.is_directory(model) && !place.is_file(model)) {
            return Err(ErrorKind::IsDirectory);
        }
        predicted.copies.extend(source.key().zip(place.key()));
    } else if source.is_directory(model) {
        if place.is_file(model) && !place.is_directory(model) {
            return Err(ErrorKind::NotDirectory);
        }
        if inside(from, to) {
            return Err(ErrorKind::InvalidInput);
        }
        predicted.many = true;
        for (key, content) in model.iter() {
            let Some(relative) = key.strip_prefix(&source.directory()) else { continue };
            let goal = (key.clone(), format!("{}{relative}", place.directory()));
            let folder = relative.strip_suffix('/').unwrap_or(relative);
            if relative.split('/').all(nameable) {
                predicted.copies.push(goal);
            } else if content.is_empty() && (relative.is_empty() || folder.split('/').all(nameable)) {
                markers.push(goal);
            } else {
                hidden += 1;
            }
        }
    } else {
        return Err(ErrorKind::NotFound);
    }
    if overwrite == Overwrite::No && predicted.copies.iter().any(|(_, goal)| model.contains_key(goal)) {
        return Err(ErrorKind::AlreadyExists);
    }
    let files = predicted.copies.len() as u64;
    let bytes = predicted.copies.iter().map(|(key, _)| model[key].len() as u64).sum();
    for (key, goal) in &predicted.copies {
        let content = model[key].clone();
        model.insert(goal.clone(), content);
    }
    for (_, goal) in &markers {
        // The folder already exists; and a key with content is not a marker.
        model.entry(goal.clone()).or_default();
    }
    predicted.copies.extend(markers);
    if moves {
        for (key, _) in &predicted.copies {
            model.remove(key);
        }
    }
    Ok(Done::Transferred { files, bytes, hidden })
}

/// The result of an operation, and the ETag that it returned.
type Answer = Result<(Done, Option<String>), Error>;

fn written(result: Result<Written, Error>) -> Answer {
    result.map(|written| (Done::Written { size: written.size }, written.etag))
}

/// Performs the step.
async fn perform(backend: &S3Backend, bucket: &Bucket, step: &Step, mode: &WriteMode) -> Vec<Answer> {
    let answer = match step.clone() {
        Step::Write { path, content, streamed: false, .. } => match mode {
            WriteMode::Overwrite => written(backend.write(path, content).await),
            mode => written(backend.write_with(path, content, mode.clone()).await),
        },
        Step::Write { path, content, streamed: true, .. } => {
            let pieces: Vec<_> = content.chunks(3).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            written(backend.write_stream(path, stream::iter(pieces), mode.clone()).await)
        }
        Step::Append { path, content } => written(backend.append(path, content).await),
        Step::Edit { path, old, new, all } => {
            let edited = match all {
                true => backend.edit_all(path, &old, &new).await,
                false => backend.edit(path, &old, &new).await,
            };
            edited.map(|e| (Done::Edited { replacements: e.replacements, size: e.size }, e.etag))
        }
        Step::Delete { path, recursive } => {
            let deleted = match recursive {
                true => backend.delete_recursive(path).await,
                false => backend.delete(path).await,
            };
            deleted.map(|d| (Done::Deleted { objects: d.objects, left: d.left }, None))
        }
        Step::Transfer { from, to, overwrite, moves } => {
            let done = match moves {
                true => backend.move_with(from, to, overwrite).await,
                false => backend.copy_with(from, to, overwrite).await,
            };
            let counts =
                |Transferred { files, bytes, hidden, .. }| Done::Transferred { files, bytes, hidden };
            done.map(|done| (counts(done), None))
        }
        Step::Upload { files } => {
            let files = files.into_iter().map(|(path, content)| (path, Bytes::from(content)));
            return backend.upload_files(files).await.into_iter().map(written).collect();
        }
        Step::Put { key, content } => {
            bucket.put(&key, content).await;
            Ok((Done::Raw, None))
        }
        Step::Remove { key } => {
            bucket.delete(&key).await;
            Ok((Done::Raw, None))
        }
    };
    vec![answer]
}

/// The paths of the results that have an ETag.
fn paths(step: &Step) -> Vec<&str> {
    match step {
        Step::Write { path, .. }
        | Step::Append { path, .. }
        | Step::Edit { path, .. }
        | Step::Delete { path, .. } => vec![path],
        Step::Transfer { to, .. } => vec![to],
        Step::Upload { files } => files.iter().map(|(path, _)| path.as_str()).collect(),
        Step::Put { .. } | Step::Remove { .. } => Vec::new(),
    }
}

/// Checks that a write returned the correct ETag.
fn check_etags(step: &Step, answers: &[Answer], now: &Bytewise) {
    for (path, answer) in paths(step).into_iter().zip(answers) {
        if let Ok((_, Some(etag))) = answer {
            let key = file(path).unwrap();
            assert_eq!(now.etags.get(&key), Some(etag), "{path}");
        }
    }
}

/// A session with write access to thread 1 and ticket k1.
fn granted() -> Session {
    let grants = Grants::default().ticket(Access::ReadWrite);
    session("u1", "1", "k1").grants(grants)
}

/// Runs a case and returns the final state.
async fn run(bucket: &Bucket, case: &Case) -> Model {
    let backend = bucket.fs.session(&granted());
    run_read_by(bucket, case, &backend, 4).await
}

/// Like [`run`], but another session reads after every `every`-th step.
async fn run_read_by(bucket: &Bucket, case: &Case, reader: &S3Backend, every: usize) -> Model {
    let backend = bucket.fs.session(&granted());
    for (key, content) in &case.start {
        bucket.put(key, content).await;
    }
    let mut observer = Observer::new(bucket);
    let mut now = observer.look().await;
    for (number, step) in case.steps.iter().enumerate() {
        let mode = match step {
            Step::Write { path, mode, .. } => observer.mode(path, *mode, &now),
            _ => WriteMode::Overwrite,
        };
        let predicted = predict(&now, step, &mode);
        let answers = perform(&backend, bucket, step, &mode).await;
        now = observer.look().await;
        let kinds = |answer: &Answer| answer.as_ref().map(|(done, _)| done.clone()).map_err(Error::kind);
        let got: Vec<_> = answers.iter().map(kinds).collect();
        assert_eq!(got, predicted.results, "{step:?}: {answers:?}");
        let wrong = difference(&now.objects, &predicted.after);
        assert!(wrong.is_empty(), "{step:?}: {wrong:#?}");
        check_etags(step, &answers, &now);
        let uncertain = |answer: &Answer| answer.as_ref().is_err_and(Error::may_have_taken_effect);
        assert!(!answers.iter().any(uncertain), "{step:?}: {answers:?}");
        if (number + 1).is_multiple_of(every) {
            check_reads(reader, &now.objects, step).await;
        }
    }
    check(reader, &now.objects, |_| false).await;
    now.objects
}

/// Checks that reading agrees with the step, and that a search finds every file whose name has no leading
/// dot.
async fn check_reads(backend: &S3Backend, model: &Model, step: &Step) {
    for path in paths(step) {
        if let Ok(Some(Place { prefix, relative })) = resolve(path)
            && !relative.is_empty()
        {
            let (mount, _) = MINE.iter().find(|(_, of)| *of == prefix).unwrap();
            check_path(backend, model, &expected(model, prefix).0, mount, prefix, &relative).await;
        }
    }
    let (entries, _) = expected(model, "threads/1/");
    let plain = |relative: &str| !relative.split('/').any(|name| name.starts_with('.'));
    let files = entries.iter().filter(|(relative, directory)| !directory && plain(relative));
    let found = backend.glob(Glob::new("**").root("/workspace")).await.unwrap().entries;
    assert_eq!(
        found.iter().map(|entry| entry.path.to_string()).collect::<Vec<_>>(),
        files.map(|(relative, _)| format!("/workspace/{relative}")).collect::<Vec<_>>()
    );
}

#[test]
fn embedded_writes_agree_with_the_model() {
    let half = |numbers| {
        let runtime = runtime();
        explore_with(numbers, 65, &cases(40), |case| {
            runtime.block_on(async { run(&Bucket::embedded().await, &case).await });
        });
    };
    // Run two halves concurrently: a case spends most of its time waiting.
    std::thread::scope(|scope| {
        scope.spawn(|| half(RngAlgorithm::XorShift));
        half(RngAlgorithm::ChaCha);
    });
}

/// A handle with a freshness bound of one hour, and no other writers: each session immediately sees what
/// another does.
#[test]
fn remembered_writes_agree_with_the_model() {
    let half = |numbers| {
        let runtime = runtime();
        explore_with(numbers, 30, &cases(40), |mut case| {
            case.steps.retain(|step| !matches!(step, Step::Put { .. } | Step::Remove { .. }));
            runtime.block_on(async {
                let bucket = Bucket::caching().await;
                let reader = bucket.fs.session(&session("u1", "1", "k1"));
                run_read_by(&bucket, &case, &reader, 1).await;
            });
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| half(RngAlgorithm::XorShift));
        half(RngAlgorithm::ChaCha);
    });
}

#[test]
#[ignore = "needs LocalStack: run `make test-long`"]
fn localstack_writes_agree_with_the_model() {
    let runtime = runtime();
    let bucket = runtime.block_on(Bucket::localstack());
    explore(8, &cases(24), |case| {
        runtime.block_on(async {
            for key in run(&bucket, &case).await.keys() {
                bucket.delete(key).await;
            }
        });
    });
}

/// Decides which requests fail. The same request of the same step always has the same fate, whatever happened
/// before.
#[derive(Debug)]
struct Faults {
    seed: u64,
    /// The percentage of requests that fail.
    rate: u64,
    step: AtomicUsize,
    counts: Mutex<HashMap<(String, String), u64>>,
}

impl Faults {
    fn new(seed: u64, rate: u64) -> Self {
        Self { seed, rate, step: AtomicUsize::new(0), counts: Mutex::default() }
    }

    fn next_step(&self) {
        self.step.fetch_add(1, Ordering::SeqCst);
        self.counts.lock().unwrap().clear();
    }

    /// A deterministic pseudorandom number for this request.
    fn number(&self, request: &Request) -> u64 {
        // The name of the probe is random.
        let probe = request.target.find(".skillfs-probe");
        let target = probe.map_or(request.target.as_str(), |at| &request.target[..at]);
        let key = (request.method.clone(), target.to_owned());
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(key.clone()).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, self.step.load(Ordering::SeqCst), key, *count).hash(&mut hasher);
        hasher.finish()
    }

    fn decide(&self, request: &Request) -> Reply {
        let number = self.number(request);
        if number % 100 >= self.rate {
            return Reply::Forward;
        }
        let changes = matches!(request.method.as_str(), "PUT" | "DELETE" | "POST");
        match (number / 100) % 6 {
            0 => Reply::error(503, "SlowDown"),
            1 => Reply::error(500, "InternalError"),
            2 => Reply::Reset,
            3 if changes && request.method != "POST" => Reply::error(409, "ConditionalRequestConflict"),
            3 | 4 if !changes => Reply::ForwardCut(usize::try_from(number / 600 % 40).unwrap()),
            _ => Reply::ForwardLost(None),
        }
    }
}

/// Few attempts and short timeouts, so that failures reach the caller.
async fn connect(bucket: &Bucket, endpoint: &str, max_attempts: u32) -> SkillFs {
    let settings = settings(&bucket.name)
        .endpoint_url(endpoint.to_owned())
        .region("us-east-1")
        .credentials(bucket.credentials.clone())
        .max_attempts(max_attempts)
        .conflict_patience(Duration::from_secs(2))
        .part_bytes(5 * 1024 * 1024)
        .single_copy_bytes(10 * 1024 * 1024);
    SkillFs::connect(&settings).await.unwrap()
}

/// Whether an error may be caused by the proxy rather than by the content of the bucket.
fn is_injected_fault(error: &Error) -> bool {
    use ErrorKind::{Conflict, Throttled, Unavailable};
    matches!(error.kind(), Conflict | Throttled | Unavailable)
}

/// Checks the state after a step with faults.
fn check_outcome(step: &Step, before: &Model, predicted: &Prediction, answers: &[Answer], real: &Model) {
    let context = || format!("{step:?}\n{answers:?}");
    assert_eq!(answers.len(), predicted.results.len());
    for (answer, predicted) in answers.iter().zip(&predicted.results) {
        match (answer, predicted) {
            (Ok((done, _)), predicted) => assert_eq!(Ok(done), predicted.as_ref(), "{}", context()),
            (Err(error), Ok(_)) => assert!(is_injected_fault(error), "{}", context()),
            (Err(error), Err(kind)) => {
                assert!(is_injected_fault(error) || error.kind() == *kind, "{}", context());
            }
        }
    }
    let same = |predicted: &Model| {
        let wrong = difference(real, predicted);
        assert!(wrong.is_empty(), "{}\n{wrong:#?}", context());
    };
    if answers.iter().all(Result::is_ok) {
        return same(&predicted.after);
    }
    if let Step::Upload { files } = step {
        // Each file is independent.
        let mut allowed = before.clone();
        for ((path, _), answer) in files.iter().zip(answers) {
            let Ok(key) = file(path) else { continue };
            let (old, new) = (before.get(&key), predicted.after.get(&key));
            let uncertain = answer.as_ref().is_err_and(Error::may_have_taken_effect);
            let new = answer.is_ok() || (uncertain && real.get(&key) == new && old != new);
            if let Some(content) = predicted.after.get(&key).filter(|_| new) {
                allowed.insert(key, content.clone());
            }
        }
        return same(&allowed);
    }
    let uncertain = answers[0].as_ref().is_err_and(Error::may_have_taken_effect);
    let moves = matches!(step, Step::Transfer { moves: true, .. });
    if !predicted.many && !moves {
        let took_effect = uncertain && real == &predicted.after;
        return same(if took_effect { &predicted.after } else { before });
    }
    // Each key has its old or its new state, and nothing else was modified.
    let between: Model = real
        .iter()
        .map(|(key, content)| {
            let fine = [before.get(key), predicted.after.get(key)].contains(&Some(content));
            assert!(fine, "{}\n{:#?}", context(), difference(real, before));
            (key.clone(), content.clone())
        })
        .collect();
    for (key, content) in before {
        let fine = between.get(key) == Some(content) || between.get(key) == predicted.after.get(key);
        assert!(fine, "{}\n{:#?}", context(), difference(real, before));
    }
    let Step::Transfer { .. } = step else { return };
    let copied = |goal: &String| real.get(goal) == predicted.after.get(goal);
    let all_copied = predicted.copies.iter().all(|(_, goal)| copied(goal));
    for (key, goal) in &predicted.copies {
        let lost = real.get(key) != before.get(key) && !copied(goal);
        assert!(!lost, "{key:?} is lost: {}", context());
        assert!(moves || real.get(key) == before.get(key), "a copy changed {key:?}: {}", context());
        // Everything is copied before anything is deleted.
        assert!(real.contains_key(key) || all_copied, "{key:?} went too early: {}", context());
    }
    if !uncertain && !predicted.many && predicted.results[0].is_ok() {
        let (source, _) = &predicted.copies[0];
        assert!(real.contains_key(source), "it was moved, and the error does not say so: {}", context());
    }
}

async fn run_with_faults(number: usize, case: &Case) {
    let bucket = Bucket::embedded().await;
    for (key, content) in &case.start {
        bucket.put(key, content).await;
    }
    let faults = Arc::new(Faults::new(number as u64, [8, 20, 40, 70][number % 4]));
    let decide = faults.clone();
    let wire = Wire::start(Some(&bucket.endpoint), move |request, _| decide.decide(request)).await;
    let fs = connect(&bucket, &wire.endpoint, 3 + u32::try_from(number % 3).unwrap()).await;
    let backend = fs.session(&granted());
    if number % 8 == 5 {
        // Wait, because objects older than a change are treated differently.
        bucket.advance(Duration::from_secs(4), [&fs, &bucket.fs]);
    }
    let mut observer = Observer::new(&bucket);
    let mut now = observer.look().await;
    for step in &case.steps {
        let mode = match step {
            Step::Write { path, mode, .. } => observer.mode(path, *mode, &now),
            _ => WriteMode::Overwrite,
        };
        faults.next_step();
        wire.take();
        let predicted = predict(&now, step, &mode);
        let answers = bounded(perform(&backend, &bucket, step, &mode)).await;
        // Requests that were given up on may still be in flight.
        wire.quiet().await;
        let real = observer.look().await;
        check_outcome(step, &now.objects, &predicted, &answers, &real.objects);
        check_etags(step, &answers, &real);
        now = real;
    }
}

/// Fails if a fault hangs a caller.
fn bounded<'w, T>(work: impl Future<Output = T> + 'w) -> LocalBoxFuture<'w, T> {
    let bounded = tokio::time::timeout(Duration::from_secs(120), work);
    Box::pin(bounded.map(|ended| ended.expect("it took too long")))
}

/// Runs cases concurrently, because they mostly wait, and reports the number of a case that fails.
async fn at_once<F: Future<Output = ()>>(cases: impl IntoIterator<Item = F>) {
    let watched = cases.into_iter().enumerate().map(|(number, case)| async move {
        let ended = std::panic::AssertUnwindSafe(case).catch_unwind().await;
        ended.err().map(|panic| (number, panic))
    });
    let failed: Vec<_> =
        stream::iter(watched).buffer_unordered(16).filter_map(std::future::ready).collect().await;
    if let Some((number, panic)) = failed.into_iter().min_by_key(|(number, _)| *number) {
        let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        panic!("case {number}: {said}");
    }
}

/// Generates cases without shrinking, because shrinking runs one case after another.
fn sample(count: usize, steps: usize) -> Vec<Case> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = cases(steps);
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn a_bad_wire_leaves_what_the_model_allows() {
    let cases = sample(campaign(96, 32), 20);
    runtime().block_on(at_once(cases.iter().enumerate().map(|(number, case)| run_with_faults(number, case))));
}

/// An operation that another writer interferes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Append,
    AppendNew,
    Edit,
    Write,
    WriteNew,
    WriteMatching,
    Delete,
    Copy,
    CopyNew,
    /// The interference happens when the target is written, or when the source is deleted.
    MoveOntoTarget,
    MoveFromSource,
}

/// What another writer does between our change and our next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interference {
    Put,
    /// Restores the previous content.
    PutBack,
    Delete,
    /// With skillfs, which keeps the IDs of other writes.
    Append,
    /// With skillfs, which starts a new list of IDs.
    Write,
}

struct InterferenceCase {
    number: usize,
    operation: Operation,
    interference: Interference,
    /// Whether skillfs or another program wrote the previous content.
    ours: bool,
    /// Whether the previous content is old: objects older than a change are treated differently.
    aged: bool,
    /// Whether the proxy also injects faults.
    rough: bool,
    happened: AtomicBool,
}

impl InterferenceCase {
    fn place(&self, name: &str) -> (String, String) {
        let relative = format!("case-{}/{name}", self.number);
        (format!("/workspace/{relative}"), format!("threads/1/{relative}"))
    }

    /// The file whose change is not acknowledged.
    fn victim(&self) -> (String, String) {
        self.place(if self.operation == Operation::MoveFromSource { "source" } else { "file" })
    }

    /// Whether the file exists before.
    fn stands(&self) -> bool {
        !matches!(self.operation, Operation::AppendNew | Operation::WriteNew | Operation::CopyNew)
    }

    fn is_the_request(&self, request: &Request) -> bool {
        let method = match self.operation {
            Operation::Delete | Operation::MoveFromSource => "DELETE",
            _ => "PUT",
        };
        let (_, key) = self.victim();
        let path = request.target.split('?').next().unwrap_or_default();
        request.method == method && path.ends_with(&key)
    }

    async fn interfere(self: Arc<Self>, bucket: Arc<Bucket>) {
        self.happened.store(true, Ordering::SeqCst);
        let (path, key) = self.victim();
        let other = bucket.session();
        match self.interference {
            Interference::Put => bucket.put(&key, "theirs;").await,
            Interference::PutBack if self.stands() => bucket.put(&key, BEFORE).await,
            Interference::PutBack | Interference::Delete => bucket.delete(&key).await,
            Interference::Append => drop(other.append(path, "theirs;").await.unwrap()),
            Interference::Write => drop(other.write(path, "theirs;").await.unwrap()),
        }
    }

    fn transfers(&self) -> bool {
        matches!(
            self.operation,
            Operation::Copy | Operation::CopyNew | Operation::MoveOntoTarget | Operation::MoveFromSource
        )
    }

    async fn prepare(&self, bucket: &Bucket) {
        let ((file, key), (source, source_key)) = (self.place("file"), self.place("source"));
        let start = async |path: &str, key: &str, content: &'static str| match self.ours {
            true => drop(bucket.session().write(path, content).await.unwrap()),
            false => bucket.put(key, content).await,
        };
        if self.stands() {
            start(&file, &key, BEFORE).await;
        }
        if self.transfers() {
            start(&source, &source_key, "ours;").await;
        }
    }

    async fn run(self: Arc<Self>, bucket: Arc<Bucket>, backend: S3Backend) {
        if !self.aged {
            self.prepare(&bucket).await;
        }
        let context =
            format!("{:?} {:?}, ours: {}, aged: {}", self.operation, self.interference, self.ours, self.aged);
        let ((file, _), (source, _)) = (self.place("file"), self.place("source"));
        let etag = match self.operation {
            Operation::WriteMatching => bucket.session().stat(&file).await.unwrap().etag.unwrap(),
            _ => String::new(),
        };
        let result = bounded(async {
            match self.operation {
                Operation::Append | Operation::AppendNew => backend.append(&file, "ours;").await.map(drop),
                Operation::Edit => backend.edit(&file, "middle;", "ours;").await.map(drop),
                Operation::Write => backend.write(&file, "ours;").await.map(drop),
                Operation::WriteNew => {
                    backend.write_with(&file, "ours;", WriteMode::CreateNew).await.map(drop)
                }
                Operation::WriteMatching => {
                    backend.write_with(&file, "ours;", WriteMode::IfMatch(etag)).await.map(drop)
                }
                Operation::Delete => backend.delete(&file).await.map(drop),
                Operation::Copy => backend.copy(&source, &file).await.map(drop),
                Operation::CopyNew => backend.copy_with(&source, &file, Overwrite::No).await.map(drop),
                Operation::MoveOntoTarget | Operation::MoveFromSource => {
                    backend.move_to(&source, &file).await.map(drop)
                }
            }
        })
        .await;
        let read = async |path: &str| match bucket.session().read(path).await {
            Ok(read) => Some(read.content),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("{context}: {error:?}"),
        };
        let (now, at_source) = (read(&file).await, read(&source).await);
        let context = format!("{context}: {result:?}, {now:?}, source {at_source:?}");
        let count = |content: &Option<String>, word: &str| {
            content.as_ref().map_or(0, |content| content.matches(word).count())
        };
        if !self.happened.load(Ordering::SeqCst) {
            // It failed before it could change anything.
            let error = result.unwrap_err();
            assert!(is_injected_fault(&error), "{context}");
            return;
        }
        match &result {
            Ok(()) if self.operation == Operation::Delete => assert_eq!(now, None, "{context}"),
            Ok(()) => assert_eq!(count(&now, "ours;"), 1, "{context}"),
            Err(error) => {
                let uncertain = error.kind() == ErrorKind::Conflict && error.may_have_taken_effect();
                // If the other writer undid the change, it may be reported as not applied.
                let undone = matches!(self.interference, Interference::PutBack | Interference::Delete);
                assert!(uncertain || (undone && is_injected_fault(error)), "{context}");
                assert!(count(&now, "ours;") <= 1, "{context}");
            }
        }
        // The other writer's change came later and stays.
        let theirs = if self.operation == Operation::MoveFromSource { &at_source } else { &now };
        if matches!(self.interference, Interference::Put | Interference::Append | Interference::Write) {
            assert_eq!(count(theirs, "theirs;"), 1, "{context}");
        }
        if self.transfers() {
            // The other writer changed only one of the two places.
            assert!(count(&at_source, "ours;") + count(&now, "ours;") > 0, "{context}");
        }
    }
}

const BEFORE: &str = "before;middle;after;";

#[test]
fn a_change_is_made_once_whatever_others_do_behind_a_lost_answer() {
    use Operation::*;
    let operations = [
        Append,
        AppendNew,
        Edit,
        Write,
        WriteNew,
        WriteMatching,
        Delete,
        Copy,
        CopyNew,
        MoveOntoTarget,
        MoveFromSource,
    ];
    let interferences = [
        Interference::Put,
        Interference::PutBack,
        Interference::Delete,
        Interference::Append,
        Interference::Write,
    ];
    let mut all = Vec::new();
    for operation in operations {
        for interference in interferences {
            for bits in 0..8 {
                let [ours, aged, rough] = [bits & 1, bits & 2, bits & 4].map(|bit| bit > 0);
                let (number, happened) = (all.len(), AtomicBool::new(false));
                all.push(Arc::new(InterferenceCase {
                    number,
                    operation,
                    interference,
                    ours,
                    aged,
                    rough,
                    happened,
                }));
            }
        }
    }
    runtime().block_on(async {
        let bucket = Arc::new(Bucket::embedded().await);
        let faults = Faults::new(7, 15);
        let (cases, hands) = (all.clone(), bucket.clone());
        let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
            let number = request
                .target
                .split("case-")
                .nth(1)
                .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok());
            let Some(number) = number else { return Reply::Forward };
            let case = &cases[number];
            if case.is_the_request(request) && !case.happened.load(Ordering::SeqCst) {
                let (case, hands) = (case.clone(), hands.clone());
                return Reply::ForwardLost(Some(Hook(Arc::new(move || {
                    case.clone().interfere(hands.clone()).boxed()
                }))));
            }
            match case.rough {
                true => faults.decide(request),
                false => Reply::Forward,
            }
        })
        .await;
        let fs = connect(&bucket, &wire.endpoint, 4).await;
        let backend = fs.session(&granted());
        at_once(all.iter().filter(|case| case.aged).map(|case| case.prepare(&bucket))).await;
        // Times have whole seconds, and two seconds of clock skew are allowed.
        bucket.advance(Duration::from_secs(4), [&fs, &bucket.fs]);
        at_once(all.into_iter().map(|case| case.run(bucket.clone(), backend.clone()))).await;
    });
}

/// A store with these objects, behind_a_proxy a proxy.
async fn behind_a_proxy(
    objects: &[(&str, &str)],
    decide: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
) -> (Bucket, Wire, S3Backend) {
    let bucket = Bucket::embedded().await;
    for (key, content) in objects {
        bucket.put(&format!("threads/1/{key}"), content).await;
    }
    let wire = Wire::start(Some(&bucket.endpoint), decide).await;
    let backend = connect(&bucket, &wire.endpoint, 3).await.session(&granted());
    (bucket, wire, backend)
}

#[tokio::test]
async fn a_directory_is_found_next_to_a_file_with_its_name_and_md() {
    let (_, _wire, backend) =
        behind_a_proxy(&[("notes.md", "x"), ("notes/x", "x")], |_, _| Reply::Forward).await;
    let kind = |result: Result<(), Error>| result.unwrap_err().kind();
    assert_eq!(kind(backend.edit("notes", "x", "y").await.map(drop)), ErrorKind::IsDirectory);
    assert_eq!(kind(backend.delete("notes").await.map(drop)), ErrorKind::IsDirectory);
}

#[tokio::test]
async fn a_folder_that_is_there_is_no_reason_to_refuse_a_tree() {
    let start = [("a/", ""), ("a/x", "x"), ("b/", ""), ("b/sub/", "content"), ("a/sub/", "")];
    let (bucket, _wire, backend) = behind_a_proxy(&start, |_, _| Reply::Forward).await;
    assert_eq!(backend.copy_with("a", "b", Overwrite::No).await.unwrap().files, 1);
    assert_eq!(backend.move_to("a", "b").await.unwrap().files, 1);
    let now = Observer::new(&bucket).look().await.objects;
    // A key with content is not a marker, and no marker overwrites it.
    let left = [("threads/1/b/", ""), ("threads/1/b/sub/", "content"), ("threads/1/b/x", "x")];
    assert_eq!(now, left.map(|(key, content)| (key.to_owned(), content.into())).into());
}

/// A request that was given up on must not overwrite later changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_lands_behind_a_copy_that_failed() {
    let (bucket, wire, backend) =
        behind_a_proxy(&[("a/slow", "old"), ("a/wrong", "x")], |request, _| {
            match (request.method.as_str(), request.target.contains("/b/slow")) {
                ("PUT", true) => Reply::ForwardAfter(Duration::from_millis(400)),
                ("PUT", false) if request.target.contains("/b/wrong") => Reply::error(403, "AccessDenied"),
                _ => Reply::Forward,
            }
        })
        .await;
    assert_eq!(backend.copy("a", "b").await.unwrap_err().kind(), ErrorKind::Denied);
    bucket.session().write("b/slow", "newer").await.unwrap();
    wire.quiet().await;
    assert_eq!(bucket.session().read("b/slow").await.unwrap().content, "newer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_deletion_has_no_late_effect() {
    // Keys with control characters are deleted one by one.
    let start = [("a/slow\u{1}", "old"), ("a/wrong\u{1}", "x")];
    let (bucket, wire, backend) = behind_a_proxy(&start, |request, _| {
        match (request.method.as_str(), request.target.contains("slow")) {
            ("DELETE", true) => Reply::ForwardAfter(Duration::from_millis(400)),
            ("DELETE", false) => Reply::error(403, "AccessDenied"),
            _ => Reply::Forward,
        }
    })
    .await;
    assert_eq!(backend.delete_recursive("a").await.unwrap_err().kind(), ErrorKind::Denied);
    bucket.put("threads/1/a/slow\u{1}", "newer").await;
    wire.quiet().await;
    assert!(Observer::new(&bucket).look().await.objects.contains_key("threads/1/a/slow\u{1}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_ends_if_conflicts_follow_a_lost_response() {
    let deletions = AtomicUsize::new(0);
    let (_, _wire, backend) =
        behind_a_proxy(&[("a", "x")], move |request, _| match request.method.as_str() {
            "DELETE" if deletions.fetch_add(1, Ordering::SeqCst) == 0 => Reply::Reset,
            "DELETE" => Reply::error(409, "ConditionalRequestConflict"),
            _ => Reply::Forward,
        })
        .await;
    let error = bounded(backend.delete("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

/// A 409 means that another request is in progress, and says nothing about the version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_waits_for_a_source_that_is_busy() {
    let deletions = AtomicUsize::new(0);
    let (bucket, _wire, backend) =
        behind_a_proxy(&[("a", "x")], move |request, _| match request.method.as_str() {
            "DELETE" if deletions.fetch_add(1, Ordering::SeqCst) == 0 => {
                Reply::error(409, "ConditionalRequestConflict")
            }
            _ => Reply::Forward,
        })
        .await;
    backend.move_to("a", "b").await.unwrap();
    assert!(!bucket.session().exists("a").await.unwrap());
}

const MIB: usize = 1024 * 1024;

/// Multipart operations with faults: the file has its old or its new content, and no part is left.
#[test]
fn a_bad_wire_does_no_harm_to_what_goes_in_parts() {
    let run = |number: u64| async move {
        let bucket = Bucket::embedded().await;
        let mut observer = Observer::new(&bucket);
        let (long, more) = (vec![b'a'; 11 * MIB], vec![b'b'; 100]);
        bucket.put("threads/1/long", &long).await;
        let faults = Arc::new(Faults::new(number, [15, 35][usize::try_from(number).unwrap() % 2]));
        let decide = faults.clone();
        let wire = Wire::start(Some(&bucket.endpoint), move |request, _| {
            // An upload that cannot be aborted is left, and so is one whose ID was lost.
            match request.method.as_str() {
                "DELETE" => Reply::Forward,
                "POST" if request.target.contains("uploads") => Reply::Forward,
                _ => decide.decide(request),
            }
        })
        .await;
        let backend = connect(&bucket, &wire.endpoint, 4).await.session(&granted());
        let pieces: Vec<_> = long.chunks(MIB).map(Bytes::copy_from_slice).collect();
        let mut before = observer.look().await.objects;
        for step in 0..3 {
            faults.next_step();
            let (result, key, content) = match step {
                0 => {
                    let result = bounded(backend.append("/workspace/long", more.clone())).await.map(drop);
                    (result, "threads/1/long", [long.clone(), more.clone()].concat())
                }
                1 => {
                    let pieces = stream::iter(pieces.clone()).map(Ok);
                    let new = WriteMode::CreateNew;
                    let result = bounded(backend.write_stream("/workspace/streamed", pieces, new)).await;
                    (result.map(drop), "threads/1/streamed", long.clone())
                }
                _ => {
                    let result = bounded(backend.copy("/workspace/long", "/workspace/copy")).await.map(drop);
                    (result, "threads/1/copy", before["threads/1/long"].clone())
                }
            };
            wire.quiet().await;
            let real = observer.look().await.objects;
            let mut after = before.clone();
            after.insert(key.to_owned(), content);
            let allowed: &[&Model] = match &result {
                Ok(()) => &[&after],
                Err(error) if error.may_have_taken_effect() => &[&before, &after],
                Err(error) => {
                    assert!(is_injected_fault(error), "{error:?}");
                    &[&before]
                }
            };
            assert!(allowed.contains(&&real), "step {step}: {result:?}");
            let uploads = bucket.raw.list_multipart_uploads().bucket(&bucket.name).send().await.unwrap();
            assert!(uploads.uploads().is_empty(), "step {step}: {result:?}");
            before = real;
        }
    };
    runtime().block_on(at_once((0..2).map(run)));
}
