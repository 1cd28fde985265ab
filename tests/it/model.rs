//! A reference model: a map of keys defines the correct behavior.
//!
//! Another program puts and deletes keys of two tenants directly in the bucket. After every step, listing,
//! reading and probing must agree with the map, and nothing of the second tenant may be visible.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::TryStreamExt;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use skillfs::{Depth, EntryKind, ErrorKind, S3Backend};

use crate::support::{Bucket, campaign, publish, session};

/// Relative keys below a mount's prefix: plain names, names that share prefixes, and keys that no path can
/// name.
pub(super) const RELATIVE: [&str; 30] = [
    "a",
    "a/b",
    "a/b/c.md",
    "a-b",
    "a.md",
    "a/",
    "a//b",
    "a/./b",
    "a/../b",
    "notes.md",
    "notes",
    "notes/x",
    "dir/",
    "dir/x.md",
    "dir/sub/",
    "sp ace.md",
    "pl+us",
    "100%.md",
    "%41",
    "é/ñ.md",
    "🦀",
    "v1..v2.md",
    "ctl\u{1}x",
    "back\\slash",
    "%2e%2e/x",
    "a!b",
    "",
    "deep/1/2/3/4",
    "new\nline",
    "..",
];

/// The prefixes of the first tenant, and those of the second, which start with the same characters.
pub(super) const MINE: [(&str, &str); 3] =
    [("/skills", "u1/skills/"), ("/ticket", "tickets/k1/"), ("/workspace", "threads/1/")];
pub(super) const OTHERS: [&str; 4] = ["u10/skills/", "tickets/k10/", "threads/10/", "u1/.skillfs/"];

#[derive(Debug, Clone)]
enum Step {
    Put { key: String, content: Vec<u8> },
    Delete { key: String },
}

fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let prefix = prop_oneof![
        3 => prop::sample::select(MINE.map(|(_, prefix)| prefix).to_vec()),
        1 => prop::sample::select(OTHERS.to_vec()),
    ];
    let key = (prefix, prop::sample::select(RELATIVE.to_vec())).prop_map(|(p, r)| format!("{p}{r}"));
    let content = prop_oneof![
        4 => "[a-z\n]{0,40}".prop_map(String::into_bytes),
        1 => Just(Vec::new()),
        1 => Just("ñandú\r\n".as_bytes().to_vec()),
        1 => Just(b"\x89PNG\r\n\x1a\n\0\0".to_vec()),
    ];
    let step = prop_oneof![
        3 => (key.clone(), content).prop_map(|(key, content)| Step::Put { key, content }),
        1 => key.prop_map(|key| Step::Delete { key }),
    ];
    prop::collection::vec(step, 1..length)
}

/// All keys of the bucket.
pub(super) type Model = BTreeMap<String, Vec<u8>>;

/// Whether a path can have this segment. Deliberately an independent implementation.
pub(super) fn nameable(segment: &str) -> bool {
    let once = segment.to_lowercase().replace("%2e", ".");
    !segment.is_empty()
        && once != "."
        && once != ".."
        && segment.len() <= 255
        && !segment.chars().any(|c| c.is_control() || c == '\\')
}

/// The entries below a prefix as (relative path, is directory), and the number of hidden keys.
pub(super) fn expected(model: &Model, prefix: &str) -> (BTreeSet<(String, bool)>, u64) {
    let (mut entries, mut hidden) = (BTreeSet::new(), 0);
    for (key, content) in model {
        let Some(relative) = key.strip_prefix(prefix) else { continue };
        let segments: Vec<_> = relative.split('/').collect();
        let good = segments.iter().take_while(|s| nameable(s)).count();
        for depth in 1..=good.min(segments.len() - 1) {
            entries.insert((segments[..depth].join("/"), true));
        }
        if good == segments.len() {
            entries.insert((relative.to_owned(), false));
        } else if !(content.is_empty() && good == segments.len() - 1 && segments[good].is_empty()) {
            hidden += 1;
        }
    }
    (entries, hidden)
}

/// Checks the listing of every mount, and reading in the mounts that `touched` selects.
pub(super) async fn check(backend: &S3Backend, model: &Model, touched: impl Fn(&str) -> bool) {
    for (mount, prefix) in MINE {
        let (entries, hidden) = expected(model, prefix);
        let full = |(relative, directory): &(String, bool)| (format!("{mount}/{relative}"), *directory);

        let all = backend.ls_recursive(mount).await.unwrap();
        let got: Vec<_> = all.entries.iter().map(|e| (e.path.to_string(), e.is_directory())).collect();
        assert_eq!(got, entries.iter().map(full).collect::<Vec<_>>(), "all below {mount}");
        assert_eq!(all.hidden, hidden, "hidden below {mount}");
        let tree = backend.tree(mount).await.unwrap();
        let directories = entries.iter().filter(|(_, directory)| *directory).count() as u64;
        assert_eq!(tree.count(), (directories, entries.len() as u64 - directories));

        if !touched(prefix) {
            continue;
        }
        // List every directory, one level deep. The empty path is the mount itself.
        let mut places: Vec<String> = vec![String::new()];
        places.extend(entries.iter().filter(|(_, directory)| *directory).map(|(path, _)| path.clone()));
        for place in &places {
            let below = if place.is_empty() { String::new() } else { format!("{place}/") };
            let level: Vec<_> = entries
                .iter()
                .filter(|(path, _)| path.strip_prefix(&below).is_some_and(|rest| !rest.contains('/')))
                .map(full)
                .collect();
            let path = format!("{mount}/{place}");
            let listed = backend.ls(&path).await.unwrap();
            let got: Vec<_> = listed.entries.iter().map(|e| (e.path.to_string(), e.is_directory())).collect();
            assert_eq!(got, level, "{path}");
            let mut streamed: Vec<_> = backend.ls_stream(&path, Depth::One).try_collect().await.unwrap();
            streamed.sort_by(|a, b| (&a.path, a.kind).cmp(&(&b.path, b.kind)));
            assert_eq!(streamed, listed.entries);
        }

        // Read and probe every path that the alphabet can name.
        let paths = RELATIVE.iter().filter(|r| r.split('/').all(nameable));
        let checks = paths.map(|relative| check_path(backend, model, &entries, mount, prefix, relative));
        futures_util::future::join_all(checks).await;
    }
}

pub(super) async fn check_path(
    backend: &S3Backend,
    model: &Model,
    entries: &BTreeSet<(String, bool)>,
    mount: &str,
    prefix: &str,
    relative: &str,
) {
    let path = format!("{mount}/{relative}");
    let has_dot = relative.rsplit('/').next().unwrap().contains('.');
    let names =
        if has_dot { vec![relative.to_owned()] } else { vec![relative.to_owned(), format!("{relative}.md")] };
    let file = names.into_iter().find(|name| model.contains_key(&format!("{prefix}{name}")));
    let directory = entries.contains(&(relative.to_owned(), true));
    let read = backend.read(&path).await;
    let stat = backend.stat(&path).await;
    assert_eq!(backend.exists(&path).await.unwrap(), file.is_some() || directory, "{path}");
    match file {
        Some(name) => {
            let content = &model[&format!("{prefix}{name}")];
            let stat = stat.unwrap();
            assert_eq!(
                (stat.path.as_str(), stat.kind),
                (format!("{mount}/{name}").as_str(), EntryKind::File)
            );
            assert_eq!(stat.size, Some(content.len() as u64));
            assert_eq!(backend.read_bytes(&path, ..).await.unwrap().bytes, content[..]);
            match std::str::from_utf8(content) {
                Ok(text) => assert_eq!(read.unwrap().content, text, "{path}"),
                Err(_) => assert_eq!(read.unwrap_err().kind(), ErrorKind::BinaryFile, "{path}"),
            }
        }
        None if directory => {
            assert_eq!(stat.unwrap().kind, EntryKind::Directory, "{path}");
            assert_eq!(read.unwrap_err().kind(), ErrorKind::IsDirectory, "{path}");
        }
        None => {
            assert_eq!(stat.unwrap_err().kind(), ErrorKind::NotFound, "{path}");
            assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound, "{path}");
        }
    }
    if !directory {
        let wanted = if model.contains_key(&format!("{prefix}{relative}")) {
            ErrorKind::NotDirectory
        } else {
            ErrorKind::NotFound
        };
        assert_eq!(backend.ls(&path).await.unwrap_err().kind(), wanted, "{path}");
    }
}

async fn run(bucket: &Bucket, steps: &[Step]) {
    run_on(bucket, &bucket.session(), steps).await;
}

async fn run_on(bucket: &Bucket, backend: &S3Backend, steps: &[Step]) {
    let mut model = Model::new();
    for step in steps {
        let (Step::Put { key: touched, .. } | Step::Delete { key: touched }) = step;
        match step {
            Step::Put { key, content } => {
                bucket.put(key, content).await;
                model.insert(key.clone(), content.clone());
            }
            Step::Delete { key } => {
                bucket.delete(key).await;
                model.remove(key);
            }
        }
        check(backend, &model, |prefix| touched.starts_with(prefix)).await;
    }
    check(backend, &model, |_| true).await;
    for key in model.keys() {
        bucket.delete(key).await;
    }
}

/// Runs cases from a fixed seed, so that failures are reproducible; proptest shrinks them.
pub(super) fn explore<S: Strategy>(cases: u32, strategy: &S, run: impl Fn(S::Value)) {
    explore_with(RngAlgorithm::ChaCha, cases, strategy, run);
}

/// Like [`explore`], with another random number generator.
pub(super) fn explore_with<S: Strategy>(
    numbers: RngAlgorithm,
    cases: u32,
    strategy: &S,
    run: impl Fn(S::Value),
) {
    let cases = campaign(cases, cases.div_ceil(6));
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(numbers);
    let mut runner = TestRunner::new_with_rng(config, rng);
    runner
        .run(strategy, |steps| {
            run(steps);
            Ok(())
        })
        .unwrap();
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn embedded_agrees_with_the_model() {
    let runtime = runtime();
    explore(24, &steps(16), |steps| {
        runtime.block_on(async {
            run(&Bucket::embedded().await, &steps).await;
        });
    });
}

#[test]
#[ignore = "needs LocalStack: run `make test-long`"]
fn localstack_agrees_with_the_model() {
    let runtime = runtime();
    let bucket = runtime.block_on(Bucket::localstack());
    explore(5, &steps(10), |steps| runtime.block_on(run(&bucket, &steps)));
}

/// A handle with a freshness bound of one hour, and another program that writes: fresh reads see the current
/// state.
#[test]
fn fresh_answers_agree_with_the_model() {
    let runtime = runtime();
    explore(16, &steps(16), |steps| {
        runtime.block_on(async {
            let bucket = Bucket::caching().await;
            run_on(&bucket, &bucket.session().fresh(), &steps).await;
        });
    });
}

/// All keys of the alphabet exist, for both tenants.
#[test]
fn embedded_agrees_with_the_model_when_everything_is_there() {
    let steps: Vec<_> = MINE
        .iter()
        .map(|(_, prefix)| *prefix)
        .chain(OTHERS)
        .flat_map(|prefix| RELATIVE.iter().map(move |relative| format!("{prefix}{relative}")))
        .map(|key| Step::Put { content: key.clone().into_bytes(), key })
        .collect();
    runtime().block_on(async {
        let bucket = Bucket::embedded().await;
        let backend = bucket.session();
        let mut model = Model::new();
        for step in &steps {
            let Step::Put { key, content } = step else { continue };
            bucket.put(key, content).await;
            model.insert(key.clone(), content.clone());
        }
        check(&backend, &model, |_| true).await;
    });
}

/// The prefixes of three libraries below `/skills`, in order of precedence.
const LAYERS: [&str; 3] = ["u1/skills/", "shared/acme/skills/", "shared/more/skills/"];

/// Skills above, below and next to each other, loose files, markers, and files that are not part of a skill.
const LAYERED: [&str; 20] = [
    "a/SKILL.md",
    "a/x.md",
    "a/b/SKILL.md",
    "a/b/y.md",
    "a/b/c/SKILL.md",
    "ab/SKILL.md",
    "ab/x.md",
    "b/skill.md",
    "b/z",
    "loose.md",
    "a/loose.md",
    "c/d/SKILL.md",
    "c/d/e/f.md",
    "c/DESCRIPTION.md",
    "SKILL.md",
    "a//odd",
    "d/",
    "c/d/e/SKILL.md",
    "c/d",
    "a",
];

fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// The rules of the union: the layer of each visible file, and of each visible skill.
fn expected_union(model: &Model) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let files = |layer: usize| {
        model
            .keys()
            .filter_map(move |key| key.strip_prefix(LAYERS[layer]))
            .filter(|path| path.split('/').all(nameable))
    };
    let skills_of = |layer: usize| -> BTreeSet<String> {
        let holds = |path: &&str| path.rsplit('/').next().unwrap().eq_ignore_ascii_case("skill.md");
        let all: BTreeSet<&str> =
            files(layer).filter(holds).filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
        all.iter()
            .filter(|skill| above(skill).all(|up| !all.contains(up)))
            .map(|skill| (*skill).to_owned())
            .collect()
    };
    let mut skills: BTreeMap<String, usize> = BTreeMap::new();
    for layer in 0..LAYERS.len() {
        let near = |skill: &String| {
            skills.keys().any(|known| {
                known == skill
                    || known.starts_with(&format!("{skill}/"))
                    || skill.starts_with(&format!("{known}/"))
            })
        };
        let seen: Vec<_> = skills_of(layer).into_iter().filter(|skill| !near(skill)).collect();
        skills.extend(seen.into_iter().map(|skill| (skill, layer)));
    }
    let mut union: BTreeMap<String, usize> = BTreeMap::new();
    for layer in 0..LAYERS.len() {
        let own = skills_of(layer);
        for path in files(layer) {
            let seen = match above(path).find(|up| own.contains(*up)) {
                Some(skill) => skills.get(skill) == Some(&layer),
                None => above(path)
                    .chain([path])
                    .all(|place| skills.get(place).is_none_or(|other| *other == layer)),
            };
            if seen {
                union.entry(path.to_owned()).or_insert(layer);
            }
        }
    }
    (union, skills)
}

async fn check_union(backend: &S3Backend, model: &Model) {
    let (union, skills) = expected_union(model);
    let all = backend.ls_recursive("/skills").await.unwrap();
    let files: Vec<_> =
        all.entries.iter().filter(|e| !e.is_directory()).map(|e| e.path.to_string()).collect();
    assert_eq!(files, union.keys().map(|path| format!("/skills/{path}")).collect::<Vec<_>>());
    let paths: Vec<_> = skills.keys().cloned().collect();
    assert_eq!(backend.load_skills(None).await.unwrap(), paths);
    let directories = |entries: &[skillfs::Entry]| {
        entries.iter().filter(|e| e.is_directory()).map(|e| e.path.to_string()).collect::<BTreeSet<_>>()
    };
    for path in union.keys() {
        // Every visible file can be reached through its parent directories.
        let parents = above(path).map(|up| format!("/skills/{up}"));
        assert!(parents.into_iter().all(|up| directories(&all.entries).contains(&up)), "{path}");
    }
    for category in ["a", "a/b", "c"] {
        let inside = |path: &&String| *path == category || path.starts_with(&format!("{category}/"));
        let wanted: Vec<_> = paths.iter().filter(inside).cloned().collect();
        match backend.load_skills(Some(category)).await {
            Ok(found) => assert_eq!(found, wanted, "{category}"),
            Err(error) => assert_eq!((error.kind(), wanted.len()), (ErrorKind::NotFound, 0), "{category}"),
        }
    }
    for entry in all.entries.iter().filter(|e| e.is_directory()) {
        assert!(backend.exists(&entry.path).await.unwrap(), "{}", entry.path);
        let level = backend.ls(&entry.path).await.unwrap();
        let below: Vec<_> =
            all.entries.iter().filter(|e| e.path.parent().as_ref() == Some(&entry.path)).collect();
        assert_eq!(level.entries.iter().collect::<Vec<_>>(), below, "{}", entry.path);
    }
    for path in LAYERED.iter().filter(|path| path.split('/').all(nameable)) {
        let full = format!("/skills/{path}");
        match union.get(*path) {
            Some(layer) => {
                let content = &model[&format!("{}{path}", LAYERS[*layer])];
                assert_eq!(backend.read_bytes(&full, ..).await.unwrap().bytes, content[..], "{full}");
                assert_eq!(backend.stat(&full).await.unwrap().size, Some(content.len() as u64), "{full}");
            }
            None => {
                let directory = all.entries.iter().any(|e| e.is_directory() && e.path.as_str() == full);
                let kind = if directory { ErrorKind::IsDirectory } else { ErrorKind::NotFound };
                assert_eq!(backend.read(&full).await.unwrap_err().kind(), kind, "{full}");
                assert_eq!(backend.exists(&full).await.unwrap(), directory, "{full}");
            }
        }
    }
}

fn layered_steps() -> impl Strategy<Value = Vec<Step>> {
    let key = (prop::sample::select(LAYERS.to_vec()), prop::sample::select(LAYERED.to_vec()));
    let key = key.prop_map(|(layer, path)| format!("{layer}{path}"));
    let step = prop_oneof![
        4 => key.clone().prop_map(|key| {
            // Every file contains its own key, so that a mixture would be detected.
            let content = if key.ends_with('/') { Vec::new() } else { key.clone().into_bytes() };
            Step::Put { key, content }
        }),
        1 => key.prop_map(|key| Step::Delete { key }),
    ];
    prop::collection::vec(step, 1..14)
}

/// What readers see of these libraries: a published one as of its last release, whatever happened to its keys
/// since; a plain one in its current state.
fn seen(stored: &Model, published: &BTreeMap<&'static str, Model>) -> Model {
    let plain = stored.iter().filter(|(key, _)| published.keys().all(|layer| !key.starts_with(layer)));
    let plain = plain.map(|(key, content)| (key.clone(), content.clone()));
    plain.chain(published.values().flat_map(Model::clone)).collect()
}

/// With libraries that are published from time to time and changed by others in between: after a fresh
/// request, all operations agree on the cached state.
#[test]
fn remembered_layers_agree_with_the_model() {
    use skillfs::{Library, LibraryId, UserId};
    let runtime = runtime();
    let run = |steps: Vec<Step>, one: bool| async move {
        let bucket = Bucket::caching().await;
        let shared = ["acme", "more"].map(|id| LibraryId::parse(id).unwrap());
        let libraries = if one { Vec::new() } else { shared.to_vec() };
        let backend = bucket.fs.session(&session("u1", "1", "k1").libraries(libraries));
        let (mut stored, mut published) = (Model::new(), BTreeMap::new());
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                // A session with a single library uses other requests.
                Step::Put { key, .. } | Step::Delete { key } if one && !key.starts_with(LAYERS[0]) => {
                    assert!(!key.is_empty());
                }
                Step::Put { key, content } => {
                    bucket.put(&key, &content).await;
                    stored.insert(key, content);
                }
                Step::Delete { key } => {
                    bucket.delete(&key).await;
                    stored.remove(&key);
                }
            }
            if number % 3 == 1 {
                let own = (LAYERS[0], Library::User(UserId::parse("u1").unwrap()));
                let other = (LAYERS[1 + number % 2], Library::Shared(shared[number % 2].clone()));
                for (layer, library) in [own, other] {
                    let now: Model = stored
                        .iter()
                        .filter(|(key, _)| key.starts_with(layer))
                        .map(|(key, content)| (key.clone(), content.clone()))
                        .collect();
                    // An empty library cannot be published for the first time.
                    if !now.is_empty() || published.contains_key(layer) {
                        publish(&bucket.fs, &library).await;
                        published.insert(layer, now);
                    }
                }
            }
            // After one fresh request, everything is cached.
            backend.fresh().skills(None).await.unwrap();
            check_union(&backend, &seen(&stored, &published)).await;
        }
    };
    explore(16, &layered_steps(), |steps| {
        runtime.block_on(run(steps.clone(), false));
        runtime.block_on(run(steps, true));
    });
}

#[test]
fn layers_agree_with_the_model() {
    let runtime = runtime();
    let run = |steps: Vec<Step>| async move {
        let bucket = Bucket::embedded().await;
        let libraries = ["acme", "more"].map(|id| skillfs::LibraryId::parse(id).unwrap()).to_vec();
        let backend = bucket.fs.session(&session("u1", "1", "k1").libraries(libraries));
        let mut model = Model::new();
        for step in steps {
            match step {
                Step::Put { key, content } => {
                    bucket.put(&key, &content).await;
                    model.insert(key, content);
                }
                Step::Delete { key } => {
                    bucket.delete(&key).await;
                    model.remove(&key);
                }
            }
            check_union(&backend, &model).await;
        }
    };
    explore(24, &layered_steps(), |steps| runtime.block_on(run(steps)));
}
