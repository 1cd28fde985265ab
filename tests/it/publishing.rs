//! Publishing: readers see all of the old release or all of the new one, wherever a push stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use skillfs::admin::{Action, NewFile, NewLibrary, NewSkill, Plan, Published, PushOptions, PushProgress};
use skillfs::{ErrorKind, Library, Result, S3Backend, Session, Settings, SkillFs, UserId};
use tokio::sync::Notify;

use crate::attempts::attempts;
use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, Seeded, on_every_server, settings};

fn library() -> Library {
    Library::User(UserId::parse("u1").unwrap())
}

fn reader(fs: &SkillFs) -> S3Backend {
    fs.session(&Session { user: Some(UserId::parse("u1").unwrap()), ..Session::default() })
}

fn options() -> PushOptions {
    let mut options = PushOptions::default();
    options.by = "ana".into();
    options.source = "test".into();
    options
}

fn silent(_: PushProgress) {}

/// A skill all of whose files say the same version. Even versions have one file more.
fn skill(path: &str, version: usize) -> NewSkill {
    let leaf = path.rsplit('/').next().unwrap();
    let mut resources = vec!["references/one.md", "references/two.md"];
    if version.is_multiple_of(2) {
        resources.push("references/three.md");
    }
    let list: Vec<_> = resources.iter().map(|name| format!("- {name}")).collect();
    let text = format!(
        "---\nname: {leaf}\ndescription: Version {version} of it\n---\nVersion {version}\n{}\n",
        list.join("\n")
    );
    let mut files = vec![NewFile::new("SKILL.md", text)];
    for name in resources {
        files.push(NewFile::new(name, format!("Version {version} in {path}/{name}\n")));
    }
    NewSkill::new(path, files)
}

fn skills(paths: &[&str], version: usize) -> NewLibrary {
    let mut new = NewLibrary::default();
    new.skills = paths.iter().map(|path| skill(path, version)).collect();
    new
}

async fn push(fs: &SkillFs, new: &NewLibrary, options: &PushOptions) -> Result<Published> {
    fs.resume(&library(), &options.by, options.lease, true, Some(new), &silent).await?;
    let plan = fs.plan(&library(), new, options).await?;
    fs.publish(&plan, &silent).await
}

/// What a reader sees of a skill in one turn: the version of each of its files.
async fn seen(turn: &S3Backend, path: &str) -> Result<BTreeMap<String, usize>> {
    let version = |text: &str| -> usize {
        let rest = text.split("ersion ").nth(1).unwrap_or_else(|| panic!("no version in {text:?}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let loaded = turn.load_skill(path).await?;
    let mut found = BTreeMap::new();
    found.insert("description".to_owned(), version(&loaded.skill.manifest.description));
    found.insert("SKILL.md".to_owned(), version(&loaded.content));
    for line in loaded.content.lines().filter_map(|line| line.strip_prefix("- ")) {
        let file = turn.read_skill_resource(path, line).await?;
        found.insert(line.to_owned(), version(&file.content));
    }
    Ok(found)
}

/// All files of one version, and those that belong to it; `None` when the skill is not there.
async fn version_seen(turn: &S3Backend, path: &str) -> Result<Option<usize>> {
    let found = match seen(turn, path).await {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound && error.message().contains("no skill") => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let versions: BTreeSet<usize> = found.values().copied().collect();
    assert_eq!(versions.len(), 1, "files of several versions: {found:?}");
    let version = *versions.first().unwrap();
    let listed: BTreeSet<String> =
        turn.skill_resources(path).await?.into_iter().map(|resource| resource.path).collect();
    let named: BTreeSet<String> =
        found.keys().filter(|name| name.starts_with("references/")).cloned().collect();
    assert_eq!(listed, named, "version {version}");
    let base = format!("/skills/{path}");
    for name in &named {
        assert!(turn.exists(format!("{base}/{name}").as_str()).await?);
        let stat = turn.stat(format!("{base}/{name}").as_str()).await?;
        let bytes = turn.read_bytes(format!("{base}/{name}").as_str(), ..).await?;
        assert_eq!(stat.size, Some(bytes.bytes.len() as u64));
    }
    Ok(Some(version))
}

async fn live_keys(b: &Bucket) -> BTreeSet<String> {
    let page = b.raw.list_objects_v2().bucket(&b.name).prefix("u1/skills/").send().await.unwrap();
    page.contents().iter().map(|object| object.key().unwrap().to_owned()).collect()
}

fn actions(plan: &Plan) -> Vec<(String, Action)> {
    plan.skills.iter().map(|skill| (skill.path.clone(), skill.action)).collect()
}

on_every_server!(
    a_library_is_published_changed_and_emptied,
    releases_are_gone_back_to,
    a_pinned_skill_is_left_alone,
    what_was_changed_by_hand_is_shown_and_not_overwritten,
    a_pinned_session_reads_its_release_to_the_end,
    readers_never_see_half_a_skill,
    two_who_publish_at_once_do_not_mix,
);

async fn a_library_is_published_changed_and_emptied(b: Bucket) {
    let fs = &b.fs;
    let paths = ["deeds/sale", "deeds/loan", "single"];
    let plan = fs.plan(&library(), &skills(&paths, 1), &options()).await.unwrap();
    assert!(actions(&plan).iter().all(|(_, action)| *action == Action::Create));
    let done = fs.publish(&plan, &silent).await.unwrap();
    assert_eq!((done.release, done.created, done.uploaded), (Some(1), 3, 9));
    for path in paths {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), Some(1));
    }
    // Other tools find it where it belongs.
    let keys = live_keys(&b).await;
    assert!(keys.contains("u1/skills/deeds/sale/references/one.md"), "{keys:?}");
    assert_eq!(keys.len(), 9);
    let version = reader(fs).catalogue_version().await.unwrap();

    let again = push(fs, &skills(&paths, 1), &options()).await.unwrap();
    assert_eq!((again.release, again.unchanged, again.uploaded), (None, 3, 0));
    assert_eq!(reader(fs).catalogue_version().await.unwrap(), version);

    let done = push(fs, &skills(&["deeds/sale"], 2), &options()).await.unwrap();
    assert_eq!((done.release, done.updated), (Some(2), 1));
    assert_eq!(version_seen(&reader(fs), "deeds/sale").await.unwrap(), Some(2));
    assert_eq!(version_seen(&reader(fs), "deeds/loan").await.unwrap(), Some(1));
    assert_ne!(reader(fs).catalogue_version().await.unwrap(), version);

    let mut delete = options();
    delete.delete = true;
    let plan = fs.plan(&library(), &skills(&["deeds/sale"], 2), &delete).await.unwrap();
    assert_eq!(plan.count(Action::Delete), 2);
    let done = fs.publish(&plan, &silent).await.unwrap();
    assert_eq!((done.release, done.deleted), (Some(3), 2));
    assert_eq!(version_seen(&reader(fs), "single").await.unwrap(), None);
    assert_eq!(live_keys(&b).await.len(), 4);
    let verified = fs.verify(&library(), true, &silent).await.unwrap();
    assert!(verified.is_clean(), "{verified:#?}");
    let releases: Vec<_> = fs.releases(&library()).await.unwrap().iter().map(|r| r.release).collect();
    assert_eq!(releases, [3, 2, 1]);
}

async fn releases_are_gone_back_to(b: Bucket) {
    let fs = &b.fs;
    // Nobody published this one: it stays, whatever happens.
    b.put("u1/skills/own/SKILL.md", "---\nname: own\ndescription: Mine, version 0\n---\nVersion 0\n").await;
    push(fs, &skills(&["deeds/sale", "deeds/loan"], 1), &options()).await.unwrap();
    push(fs, &skills(&["deeds/sale", "new"], 2), &options()).await.unwrap();
    let plan = fs.plan_rollback(&library(), 1, &options()).await.unwrap();
    let expected =
        [("deeds/loan", Action::Unchanged), ("deeds/sale", Action::Update), ("new", Action::Delete)];
    assert_eq!(actions(&plan), expected.map(|(path, action)| (path.to_owned(), action)));
    let done = fs.publish(&plan, &silent).await.unwrap();
    assert_eq!((done.release, done.uploaded), (Some(3), 0));
    assert_eq!(version_seen(&reader(fs), "deeds/sale").await.unwrap(), Some(1));
    assert_eq!(version_seen(&reader(fs), "new").await.unwrap(), None);
    assert!(reader(fs).exists("/skills/own/SKILL.md").await.unwrap());
    assert_eq!(fs.plan_rollback(&library(), 9, &options()).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(fs.verify(&library(), true, &silent).await.unwrap().is_clean());
}

async fn a_pinned_skill_is_left_alone(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
    push(fs, &skills(&["a", "b"], 2), &options()).await.unwrap();
    let plan = fs.plan_skill_at(&library(), "a", 1, &options()).await.unwrap();
    fs.publish(&plan, &silent).await.unwrap();
    fs.pin(&library(), "a", Some(1)).await.unwrap();
    let plan = fs.plan(&library(), &skills(&["a", "b"], 3), &options()).await.unwrap();
    assert_eq!(actions(&plan), [("a".to_owned(), Action::Pinned), ("b".to_owned(), Action::Update)]);
    assert!(plan.skills[0].why.as_ref().unwrap().contains("pinned to release 1"));
    fs.publish(&plan, &silent).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(1));
    assert_eq!(version_seen(&reader(fs), "b").await.unwrap(), Some(3));
    fs.pin(&library(), "a", None).await.unwrap();
    push(fs, &skills(&["a"], 3), &options()).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(3));
    assert_eq!(fs.pin(&library(), "a", None).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fs.pin(&library(), "none", Some(1)).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn what_was_changed_by_hand_is_shown_and_not_overwritten(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
    b.put("u1/skills/a/references/one.md", "By hand, version 7\n").await;
    let text = reader(fs).read("/skills/a/references/one.md").await.unwrap().content;
    assert_eq!(text, "By hand, version 7\n");
    let verified = fs.verify(&library(), true, &silent).await.unwrap();
    let codes: Vec<_> =
        verified.problems.iter().map(|problem| (problem.code, problem.path.as_str())).collect();
    assert_eq!(codes, [("changed-by-hand", "a")]);
    let plan = fs.plan(&library(), &skills(&["a", "b"], 2), &options()).await.unwrap();
    assert_eq!(actions(&plan), [("a".to_owned(), Action::Refused), ("b".to_owned(), Action::Update)]);
    fs.publish(&plan, &silent).await.unwrap();
    assert_eq!(reader(fs).read("/skills/a/references/one.md").await.unwrap().content, "By hand, version 7\n");
    assert_eq!(version_seen(&reader(fs), "b").await.unwrap(), Some(2));
    let mut overwrite = options();
    overwrite.overwrite = true;
    push(fs, &skills(&["a"], 2), &overwrite).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(2));
    // Accepted as it is: then it is nobody's release any more.
    b.put("u1/skills/a/references/one.md", "By hand again, version 8\n").await;
    let repaired = fs.repair(&library(), "ana", 30, true, &silent).await.unwrap();
    assert!(repaired.is_clean(), "{repaired:#?}");
    assert!(repaired.problems.iter().any(|problem| problem.code == "changed-by-hand" && problem.repaired));
    assert!(fs.verify(&library(), true, &silent).await.unwrap().problems.is_empty());
}

async fn a_pinned_session_reads_its_release_to_the_end(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a"], 2), &options()).await.unwrap();
    b.put("u1/skills/loose/SKILL.md", "---\nname: loose\ndescription: Version 1\n---\nVersion 1\n").await;
    let turn = reader(fs).pinned().await.unwrap();
    let version = turn.catalogue_version().await.unwrap();
    push(fs, &skills(&["a"], 3), &options()).await.unwrap();
    b.put("u1/skills/loose/SKILL.md", "---\nname: loose\ndescription: Version 2\n---\nVersion 2\n").await;
    assert_eq!(version_seen(&turn, "a").await.unwrap(), Some(2));
    assert_eq!(turn.catalogue_version().await.unwrap(), version);
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(3));
    let grep = turn
        .grep(&skillfs::Grep { root: Some("/skills/a".into()), ..skillfs::Grep::new("ersion 2 in") })
        .await
        .unwrap();
    assert_eq!(grep.lines.len(), 3);
    assert_eq!(turn.load_skill("loose").await.unwrap_err().kind(), ErrorKind::Conflict);
    // Deleted meanwhile: the turn goes on with what it saw.
    let mut delete = options();
    delete.delete = true;
    push(fs, &NewLibrary::default(), &delete).await.unwrap();
    assert_eq!(version_seen(&turn, "a").await.unwrap(), Some(2));
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), None);
}

async fn two_who_publish_at_once_do_not_mix(b: Bucket) {
    let (one, two) = (b.through(&b.endpoint).await, b.through(&b.endpoint).await);
    push(&one, &skills(&["a", "b"], 1), &options()).await.unwrap();
    let (place, how) = (library(), options());
    for round in 1..=5 {
        let (two_new, three_new) = (skills(&["a", "b"], round * 2), skills(&["a", "b"], round * 2 + 1));
        let (first, second) =
            tokio::join!(one.plan(&place, &two_new, &how), two.plan(&place, &three_new, &how));
        let (first, second) = (first.unwrap(), second.unwrap());
        let (first, second) = tokio::join!(one.publish(&first, &silent), two.publish(&second, &silent));
        let won = usize::from(first.is_ok()) + usize::from(second.is_ok());
        assert_eq!(won, 1, "{first:?} {second:?}");
        let expected = if first.is_ok() { round * 2 } else { round * 2 + 1 };
        for path in ["a", "b"] {
            assert_eq!(version_seen(&reader(&b.fs), path).await.unwrap(), Some(expected));
        }
        let loser = first.err().or(second.err()).unwrap();
        assert_eq!(loser.kind(), ErrorKind::Conflict);
        assert!(loser.hint().unwrap().contains("run it again"), "{loser:?}");
    }
    let verified = b.fs.verify(&library(), true, &silent).await.unwrap();
    assert!(verified.is_clean(), "{verified:#?}");
}

/// Errors that a retry cures.
fn passes(error: &skillfs::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::Timeout
    )
}

async fn readers_never_see_half_a_skill(b: Bucket) {
    const READERS: usize = 20;
    let pushes = 200;
    let paths = ["deeds/sale", "deeds/loan"];
    push(&b.fs, &skills(&paths, 0), &options()).await.unwrap();
    // One request of twelve is broken on the way there, or its answer on the way back.
    let wire = Wire::start(Some(&b.endpoint), |_, number| match number % 24 {
        7 => Reply::error(503, "SlowDown"),
        19 => Reply::Reset,
        _ => Reply::Forward,
    })
    .await;
    // Whoever goes on with a push that failed waits for as long as one request may take.
    let timeouts = skillfs::Timeouts {
        connect: Duration::from_secs(10),
        attempt: Duration::from_secs(1),
        operation: Duration::from_secs(2),
    };
    let writer = b.with(&wire.endpoint, |settings| settings.timeouts = timeouts).await;
    let done = Arc::new(AtomicBool::new(false));
    let reads = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..READERS {
        // Some remember, some do not, each for itself.
        let bound = Duration::from_millis(50 * (number as u64 % 3));
        let fs = b.with(&wire.endpoint, |settings| settings.freshness = skillfs::Freshness::all(bound)).await;
        let (done, reads) = (done.clone(), reads.clone());
        tasks.push(tokio::spawn(async move {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let path = ["deeds/sale", "deeds/loan"][number % 2];
                let mut tries = 0;
                let version = loop {
                    let turn = async { version_seen(&reader(&fs).pinned().await?, path).await };
                    match turn.await {
                        Ok(version) => break version,
                        Err(error) if passes(&error) && tries < 20 => tries += 1,
                        Err(error) => panic!("reader {number}: {error:?}"),
                    }
                };
                let version = version.expect("the skill is always there");
                assert!(version >= last || bound > Duration::ZERO, "{last}, then {version}");
                last = version;
                reads.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        }));
    }
    for version in 1..=pushes {
        let mut tries = 0;
        loop {
            match push(&writer, &skills(&paths, version), &options()).await {
                Ok(_) => break,
                Err(error) if passes(&error) && tries < 30 => tries += 1,
                Err(error) => panic!("push {version}: {error:?}"),
            }
        }
    }
    done.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    assert!(reads.load(Ordering::Relaxed) > READERS);
    for path in paths {
        assert_eq!(version_seen(&reader(&b.fs), path).await.unwrap(), Some(pushes));
    }
    let verified = b.fs.verify(&library(), true, &silent).await.unwrap();
    assert!(verified.is_clean(), "{verified:#?}");
}

/// A push that goes away at one of its requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_may_end_at_any_request() {
    for takes_effect in [true, false] {
        let mut stop = 0;
        loop {
            let b = Bucket::embedded().await;
            push(&b.fs, &skills(&["a", "gone"], 1), &options()).await.unwrap();
            let reached = Arc::new(Notify::new());
            let (notify, count) = (reached.clone(), Arc::new(AtomicUsize::new(0)));
            let wire = Wire::start(Some(&b.endpoint), move |_, _| {
                if count.fetch_add(1, Ordering::SeqCst) != stop {
                    return Reply::Forward;
                }
                match takes_effect {
                    true => Reply::ForwardThenStall(notify.clone()),
                    false => {
                        notify.notify_one();
                        Reply::Stall
                    }
                }
            })
            .await;
            let short = Settings {
                endpoint_url: Some(wire.endpoint.clone()),
                region: Some("us-east-1".to_owned()),
                credentials: Some(b.credentials.clone()),
                conditional_writes: Some(true),
                max_attempts: 1,
                timeouts: skillfs::Timeouts {
                    connect: Duration::from_secs(5),
                    attempt: Duration::from_millis(500),
                    operation: Duration::from_secs(1),
                },
                ..settings(&b.name)
            };
            let fs = SkillFs::connect(&short).await.unwrap();
            let mut delete = options();
            (delete.delete, delete.lease) = (true, 1);
            let new = skills(&["a", "new"], 2);
            let finished = tokio::select! {
                done = push(&fs, &new, &delete) => done.is_ok(),
                () = reached.notified() => false,
            };
            drop(fs);
            let turn = reader(&b.fs).pinned().await.unwrap();
            let a = version_seen(&turn, "a").await.unwrap();
            let new_one = version_seen(&turn, "new").await.unwrap();
            let gone = version_seen(&turn, "gone").await.unwrap();
            let state = (a, new_one, gone);
            assert!(
                state == (Some(1), None, Some(1)) || state == (Some(2), Some(2), None),
                "request {stop}, {takes_effect}: {state:?}"
            );
            let done = push(&b.fs, &new, &delete).await.unwrap();
            assert!(done.changed_by_hand.is_empty(), "request {stop}, {takes_effect}: {done:?}");
            let turn = reader(&b.fs).pinned().await.unwrap();
            assert_eq!(version_seen(&turn, "a").await.unwrap(), Some(2));
            assert_eq!(version_seen(&turn, "new").await.unwrap(), Some(2));
            assert_eq!(version_seen(&turn, "gone").await.unwrap(), None);
            assert_eq!(live_keys(&b).await.len(), 8, "request {stop}");
            let verified = b.fs.verify(&library(), true, &silent).await.unwrap();
            assert!(verified.problems.is_empty(), "request {stop}, {takes_effect}: {verified:#?}");
            if finished {
                break;
            }
            stop += 1;
        }
        assert!(stop > 15, "{stop}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_is_the_same_costs_its_listings_and_its_index() {
    let b = Bucket::embedded().await;
    let paths: Vec<String> = (0..1_000).map(|i| format!("c{:02}/s{i:04}", i / 50)).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let new = skills(&paths, 1);
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let fs = b.with(&wire.endpoint, |settings| settings.conditional_writes = Some(true)).await;
    let done = push(&fs, &new, &options()).await.unwrap();
    assert_eq!((done.created, done.uploaded), (1_000, 3_000));
    assert!(wire.most_at_once() >= 32, "{} at once", wire.most_at_once());
    wire.take();
    // From a process that knows nothing.
    let fs = b.with(&wire.endpoint, |settings| settings.conditional_writes = Some(true)).await;
    let plan = fs.plan(&library(), &new, &options()).await.unwrap();
    assert_eq!(plan.count(Action::Unchanged), 1_000);
    let done = fs.publish(&plan, &silent).await.unwrap();
    assert_eq!(done.release, None);
    let mut operations = BTreeMap::new();
    for operation in wire.operations() {
        *operations.entry(operation).or_insert(0) += 1;
    }
    assert_eq!(operations.get("GET").copied(), Some(1), "{operations:?}");
    assert_eq!(operations.keys().map(String::as_str).collect::<Vec<_>>(), ["GET", "LIST"], "{operations:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_is_checked_against_its_name() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let turn = reader(&b.fs).pinned().await.unwrap();
    let page = b.raw.list_objects_v2().bucket(&b.name).prefix("u1/.skillfs/blobs/").send().await.unwrap();
    for object in page.contents() {
        b.put(object.key().unwrap(), "something else").await;
    }
    let verified = b.fs.verify(&library(), true, &silent).await.unwrap();
    assert_eq!(verified.problems.iter().filter(|problem| problem.code == "damaged-blob").count(), 3);
    let mut delete = options();
    delete.delete = true;
    push(&b.fs, &NewLibrary::default(), &delete).await.unwrap();
    assert_eq!(turn.read("/skills/a/SKILL.md").await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_blob_is_written_anew_from_the_library() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let page = b.raw.list_objects_v2().bucket(&b.name).prefix("u1/.skillfs/blobs/").send().await.unwrap();
    b.delete(page.contents()[0].key().unwrap()).await;
    let repaired = b.fs.repair(&library(), "ana", 30, true, &silent).await.unwrap();
    assert!(repaired.is_clean() && repaired.problems[0].repaired, "{repaired:#?}");
    assert!(b.fs.verify(&library(), true, &silent).await.unwrap().problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_edit_that_is_met_is_reported_and_stays() {
    let b = Bucket::embedded().await;
    push(&b.fs, &with_description("one"), &options()).await.unwrap();
    let mut new = with_description("two");
    new.skills = skills(&["deeds/sale"], 2).skills;
    let plan = b.fs.plan(&library(), &new, &options()).await.unwrap();
    // Behind the plan, before the files are written.
    b.put("u1/skills/deeds/sale/references/two.md", "By hand, version 9\n").await;
    b.put("u1/skills/deeds/DESCRIPTION.md", "---\ndescription: by hand\n---\n").await;
    let done = b.fs.publish(&plan, &silent).await.unwrap();
    let paths: Vec<_> = done.changed_by_hand.iter().map(|edit| edit.path.as_str()).collect();
    assert_eq!(paths, ["deeds/sale/references/two.md", "deeds/DESCRIPTION.md"]);
    let read = async |path: &str| reader(&b.fs).read(path).await.unwrap().content;
    assert_eq!(read("/skills/deeds/sale/references/two.md").await, "By hand, version 9\n");
    assert!(read("/skills/deeds/DESCRIPTION.md").await.contains("by hand"));
    let verified = b.fs.verify(&library(), true, &silent).await.unwrap();
    assert!(verified.problems.iter().any(|problem| problem.code == "changed-by-hand"), "{verified:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_never_shows_what_a_plain_name_cannot() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let key = "u1/.skillfs/index.json";
    let get = b.raw.get_object().bucket(&b.name).key(key).send().await.unwrap();
    let text = String::from_utf8(get.body.collect().await.unwrap().into_bytes().to_vec()).unwrap();
    let evil = text
        .replace("\"a\":{", "\"../../u2/skills/a\":{")
        .replace("\"state\":\"published\"", "\"state\":\"pending\",\"was\":{}");
    assert_ne!(text, evil);
    b.put(key, evil).await;
    b.put("u2/skills/a/SKILL.md", "---\nname: a\ndescription: Another's\n---\n").await;
    let all = reader(&b.fs).ls_recursive("/skills").await.unwrap();
    assert!(all.entries.iter().all(|entry| entry.path.as_str().starts_with("/skills/a")), "{all:?}");
    attempts!("keys").refused("an index that names another's skill as one on its way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn categories_are_published_with_their_skills() {
    let b = Bucket::embedded().await;
    let mut new = skills(&["deeds/sale"], 1);
    let description = |text: &str| skillfs::source::SourceFile::from_bytes("DESCRIPTION.md", text.to_owned());
    new.describe("deeds", &description("---\ndescription: Deeds of all kinds\n---\n"));
    push(&b.fs, &new, &options()).await.unwrap();
    let library = reader(&b.fs).skills(None).await.unwrap();
    assert_eq!(library.categories()[0].description.as_deref(), Some("Deeds of all kinds"));
    assert!(b.fs.verify(&self::library(), true, &silent).await.unwrap().problems.is_empty());
    new.describe("deeds", &description("---\ndescription: Deeds\n---\n"));
    let done = push(&b.fs, &new, &options()).await.unwrap();
    assert_eq!((done.release, done.unchanged), (Some(2), 1));
    let plan = b.fs.plan_rollback(&self::library(), 1, &options()).await.unwrap();
    b.fs.publish(&plan, &silent).await.unwrap();
    let library = reader(&b.fs).skills(None).await.unwrap();
    assert_eq!(library.categories()[0].description.as_deref(), Some("Deeds of all kinds"));
}

/// `admin index` in the middle of a push: right before a file is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_is_written_meanwhile_keeps_the_release() {
    let b = Arc::new(Bucket::embedded().await);
    b.put("u1/skills/other/SKILL.md", "---\nname: other\ndescription: Version 1\n---\nVersion 1\n").await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let (bucket, count) = (b.clone(), written.clone());
    let index = move || -> futures_util::future::BoxFuture<'static, ()> {
        let (bucket, count) = (bucket.clone(), count.clone());
        Box::pin(async move {
            if bucket.fs.write_index(&library()).await.is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let hook = crate::support::wire::Hook(Arc::new(index));
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        match request.operation() == "PUT" && request.target.contains("/u1/skills/") {
            true => Reply::ForwardHook(hook.clone()),
            false => Reply::Forward,
        }
    })
    .await;
    let fs = b.with(&wire.endpoint, |settings| settings.conditional_writes = Some(true)).await;
    let done = push(&fs, &skills(&["a"], 2), &options()).await.unwrap();
    assert!(written.load(Ordering::SeqCst) > 0 && done.changed_by_hand.is_empty(), "{done:?}");
    assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(2));
    let verified = b.fs.verify(&library(), true, &silent).await.unwrap();
    assert!(verified.problems.is_empty(), "{verified:#?}");
    assert_eq!(b.fs.releases(&library()).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_users_are_published_to_and_one_that_fails_stops_nobody() {
    use skillfs::admin::ManyOptions;
    let b = Bucket::embedded().await;
    let users: Vec<UserId> = (0..40).map(|i| UserId::parse(&format!("u-{i:02}")).unwrap()).collect();
    let new = skills(&["a", "b"], 1);
    let wire = Wire::start(Some(&b.endpoint), |request, _| {
        match request.method == "PUT" && request.target.contains("/u-07/skills/") {
            true => Reply::error(403, "AccessDenied"),
            false => Reply::Forward,
        }
    })
    .await;
    let fs = b.with(&wire.endpoint, |settings| settings.conditional_writes = Some(true)).await;
    let results = fs.push_to_users(&users, &new, &options(), ManyOptions::default(), &|_, _| ()).await;
    assert!(results.iter().map(|(user, _)| user).eq(&users));
    for (user, result) in &results {
        let library = Library::User(user.clone());
        match user.as_str() {
            "u-07" => assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::Denied),
            _ => {
                result.as_ref().unwrap();
                assert_eq!(b.fs.library_skills(&library).await.unwrap().len(), 2);
            }
        }
    }
    // Run again: the one that failed is finished, and from then on each costs a listing and a look.
    let fs = b.with(&b.endpoint, |settings| settings.conditional_writes = Some(true)).await;
    let results = fs.push_to_users(&users, &new, &options(), ManyOptions::default(), &|_, _| ()).await;
    assert!(results.iter().all(|(_, result)| result.is_ok()));
    let library = Library::User(users[7].clone());
    assert!(b.fs.verify(&library, true, &silent).await.unwrap().problems.is_empty());
    let before = fs.requests();
    fs.push_to_users(&users, &new, &options(), ManyOptions::default(), &|_, _| ()).await;
    let sent = fs.requests() - before;
    assert_eq!((sent.list, sent.get, sent.total()), (40, 40, 80));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_large_is_copied_on_the_server() {
    use skillfs::admin::ManyOptions;
    // In this process: a server that is known to mind the conditions of copies.
    let b = Bucket::embedded().await;
    let mut new = skills(&["a"], 1);
    let small = new.skills[0].contents();
    let mut files: Vec<_> = small.map(|(name, content)| NewFile::new(name, content.clone())).collect();
    files.push(NewFile::new("assets/large.bin", vec![7; 1024 * 1024]));
    new.skills = vec![NewSkill::new("a", files)];
    let users: Vec<UserId> = (0..3).map(|i| UserId::parse(&format!("u-{i}")).unwrap()).collect();
    let before = b.fs.requests();
    for (_, result) in b.fs.push_to_users(&users, &new, &options(), ManyOptions::default(), &|_, _| ()).await
    {
        result.unwrap();
    }
    // The first one uploads it once; everything else is a copy.
    assert_eq!((b.fs.requests() - before).copy, 5);
    for user in users {
        let library = Library::User(user);
        assert!(b.fs.verify(&library, true, &silent).await.unwrap().problems.is_empty());
    }
}

/// A push that stops right behind its n-th write of something.
async fn stopped_push(b: &Bucket, new: &NewLibrary, options: &PushOptions, nth: usize, what: &'static str) {
    let reached = Arc::new(Notify::new());
    let (notify, count) = (reached.clone(), Arc::new(AtomicUsize::new(0)));
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        if request.operation() == "PUT" && request.target.contains(what) {
            let at = count.fetch_add(1, Ordering::SeqCst);
            if at == nth {
                return Reply::ForwardThenStall(notify.clone());
            }
            if at > nth {
                return Reply::Stall;
            }
        }
        Reply::Forward
    })
    .await;
    let fs = b
        .with(&wire.endpoint, |settings| {
            settings.conditional_writes = Some(true);
            settings.max_attempts = 1;
            settings.timeouts = skillfs::Timeouts {
                connect: Duration::from_secs(5),
                attempt: Duration::from_millis(900),
                operation: Duration::from_secs(1),
            };
        })
        .await;
    tokio::select! {
        done = push(&fs, new, options) => panic!("{done:?}"),
        () = reached.notified() => {}
    }
}

fn short() -> PushOptions {
    let mut options = options();
    options.lease = 1;
    options
}

fn with_description(text: &str) -> NewLibrary {
    let mut new = skills(&["deeds/sale"], 1);
    let text = format!("---\ndescription: {text}\n---\n");
    new.describe("deeds", &skillfs::source::SourceFile::from_bytes("DESCRIPTION.md", text));
    new
}

async fn put_by_hand(b: &Bucket, path: &str, version: usize) {
    for (name, content) in skill(path, version).contents() {
        b.put(&format!("u1/skills/{path}/{name}"), content.to_vec()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_out_of_reach_is_an_error_and_not_half_a_skill() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    stopped_push(&b, &skills(&["a"], 2), &short(), 0, "/u1/skills/").await;
    for reply in [Reply::error(500, "InternalError"), Reply::Reset, Reply::error(503, "SlowDown")] {
        let wire = Wire::start(Some(&b.endpoint), move |request, _| {
            if request.target.contains("index.json") { reply.clone() } else { Reply::Forward }
        })
        .await;
        let fs = b.through(&wire.endpoint).await;
        let error = reader(&fs).pinned().await.unwrap_err();
        assert!(passes(&error), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_edit_stays_one_when_others_are_indexed() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    b.put("u1/skills/a/references/one.md", "By hand, version 7\n").await;
    put_by_hand(&b, "loose", 1).await;
    push(&b.fs, &skills(&["b"], 1), &options()).await.unwrap();
    b.fs.write_index(&library()).await.unwrap();
    let plan = b.fs.plan(&library(), &skills(&["a"], 2), &options()).await.unwrap();
    assert_eq!(plan.count(Action::Refused), 1);
    b.fs.publish(&plan, &silent).await.unwrap();
    assert_eq!(
        reader(&b.fs).read("/skills/a/references/one.md").await.unwrap().content,
        "By hand, version 7\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_published_can_be_gone_back_to() {
    let b = Bucket::embedded().await;
    put_by_hand(&b, "mine", 1).await;
    put_by_hand(&b, "ours", 1).await;
    let mut delete = options();
    delete.delete = true;
    let done = push(&b.fs, &skills(&["ours"], 2), &delete).await.unwrap();
    assert_eq!((done.release, done.updated, done.deleted), (Some(2), 1, 1));
    let releases = b.fs.releases(&library()).await.unwrap();
    assert_eq!(releases[1].source, "as it lay there before release 2");
    let plan = b.fs.plan_rollback(&library(), 1, &options()).await.unwrap();
    b.fs.publish(&plan, &silent).await.unwrap();
    for path in ["mine", "ours"] {
        assert_eq!(version_seen(&reader(&b.fs), path).await.unwrap(), Some(1));
    }
    // What was changed by hand and is overwritten on purpose, too.
    b.put("u1/skills/mine/references/one.md", "By hand, version 7\n").await;
    let mut overwrite = options();
    overwrite.overwrite = true;
    let done = push(&b.fs, &skills(&["mine"], 3), &overwrite).await.unwrap();
    let before = done.release.unwrap() - 1;
    let plan = b.fs.plan_rollback(&library(), before, &options()).await.unwrap();
    b.fs.publish(&plan, &silent).await.unwrap();
    let text = reader(&b.fs).read("/skills/mine/references/one.md").await.unwrap().content;
    assert_eq!(text, "By hand, version 7\n");
    assert!(b.fs.verify(&library(), true, &silent).await.unwrap().problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_description_that_was_changed_by_hand_stays() {
    let b = Bucket::embedded().await;
    push(&b.fs, &with_description("one"), &options()).await.unwrap();
    b.put("u1/skills/deeds/DESCRIPTION.md", "---\ndescription: by hand\n---\n").await;
    b.fs.write_index(&library()).await.unwrap();
    let plan = b.fs.plan(&library(), &with_description("two"), &options()).await.unwrap();
    assert_eq!((plan.count(Action::Refused), plan.changes()), (1, false));
    let mut overwrite = options();
    overwrite.overwrite = true;
    push(&b.fs, &with_description("two"), &overwrite).await.unwrap();
    let text = reader(&b.fs).read("/skills/deeds/DESCRIPTION.md").await.unwrap().content;
    assert!(text.contains("two"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_description_that_was_left_behind_is_written() {
    let b = Bucket::embedded().await;
    push(&b.fs, &with_description("one"), &options()).await.unwrap();
    // The commit is the first write of the index.
    stopped_push(&b, &with_description("two"), &short(), 0, "index.json").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let repaired = b.fs.repair(&library(), "ana", 1, true, &silent).await.unwrap();
    assert!(repaired.is_clean(), "{repaired:#?}");
    let text = reader(&b.fs).read("/skills/deeds/DESCRIPTION.md").await.unwrap().content;
    assert!(text.contains("two"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_lost_of_a_release_comes_from_its_source() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    stopped_push(&b, &skills(&["a"], 2), &short(), 0, "/u1/skills/").await;
    let blobs = async || {
        let list = b.raw.list_objects_v2().bucket(&b.name).prefix("u1/.skillfs/blobs/").send();
        list.await.unwrap().contents().to_vec()
    };
    for blob in blobs().await {
        b.delete(blob.key().unwrap()).await;
    }
    push(&b.fs, &skills(&["a"], 2), &short()).await.unwrap();
    assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(2));
    assert!(b.fs.verify(&library(), true, &silent).await.unwrap().problems.is_empty());
    // What is damaged is replaced by whoever overwrites.
    for blob in blobs().await {
        b.put(blob.key().unwrap(), "x".repeat(usize::try_from(blob.size().unwrap()).unwrap())).await;
    }
    push(&b.fs, &skills(&["a"], 3), &options()).await.unwrap();
    let mut overwrite = options();
    overwrite.overwrite = true;
    push(&b.fs, &skills(&["a"], 2), &overwrite).await.unwrap();
    assert!(b.fs.verify(&library(), true, &silent).await.unwrap().problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skill_does_not_move_over_its_own_files() {
    let b = Bucket::embedded().await;
    let head = |name: &str| format!("---\nname: {name}\ndescription: Version 1\n---\nVersion 1\n");
    let with = |path: &str, notes: &str| {
        let files = vec![NewFile::new("SKILL.md", head(path)), NewFile::new(notes, "same")];
        let mut new = NewLibrary::default();
        new.skills = vec![NewSkill::new(path, files)];
        new
    };
    push(&b.fs, &with("a/b", "notes.md"), &options()).await.unwrap();
    let mut all = options();
    (all.delete, all.overwrite) = (true, true);
    let plan = b.fs.plan(&library(), &with("a", "b/notes.md"), &all).await.unwrap();
    assert_eq!(actions(&plan), [("a".to_owned(), Action::Refused), ("a/b".to_owned(), Action::Delete)]);
    assert!(plan.skills[0].why.as_ref().unwrap().contains("delete that one first"));
    push(&b.fs, &with("a", "b/notes.md"), &all).await.unwrap();
    push(&b.fs, &with("a", "b/notes.md"), &all).await.unwrap();
    assert_eq!(reader(&b.fs).read("/skills/a/b/notes.md").await.unwrap().content, "same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_without_an_index_is_waited_for() {
    let b = Bucket::embedded().await;
    put_by_hand(&b, "a", 1).await;
    let go = Arc::new(Notify::new());
    let (held, first) = (go.clone(), AtomicBool::new(true));
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        match request.operation() == "LIST" && first.swap(false, Ordering::SeqCst) {
            true => Reply::ForwardWhen(held.clone()),
            false => Reply::Forward,
        }
    })
    .await;
    let fs = b.through(&wire.endpoint).await;
    let turn = tokio::spawn(async move { version_seen(&reader(&fs).pinned().await?, "a").await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    // An index at once, and a push right behind it.
    b.fs.write_index(&library()).await.unwrap();
    stopped_push(&b, &skills(&["a"], 2), &short(), 0, "/u1/skills/").await;
    go.notify_one();
    // Files of one version, or an error that passes: never half of it.
    match turn.await.unwrap() {
        Ok(version) => assert!(version == Some(1) || version == Some(2), "{version:?}"),
        Err(error) => assert!(passes(&error), "{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_of_a_later_program_is_left_alone() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let key = "u1/.skillfs/index.json";
    let get = b.raw.get_object().bucket(&b.name).key(key).send().await.unwrap();
    let text = String::from_utf8(get.body.collect().await.unwrap().into_bytes().to_vec()).unwrap();
    b.put(key, text.replacen("\"format\":1", "\"format\":9", 1)).await;
    let plan = b.fs.plan(&library(), &skills(&["a"], 2), &options()).await;
    assert_eq!(plan.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(b.fs.write_index(&library()).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(
        b.fs.repair(&library(), "ana", 1, true, &silent).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // One that is only damaged is written anew.
    b.put(key, "{").await;
    assert!(b.fs.repair(&library(), "ana", 1, true, &silent).await.unwrap().is_clean());
}

/// A library that changes all the time: what is seen is of one moment, or it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_no_moment_is_told() {
    let b = Arc::new(Bucket::embedded().await);
    put_by_hand(&b, "a", 1).await;
    b.fs.write_index(&library()).await.unwrap();
    put_by_hand(&b, "loose", 1).await;
    let lists = AtomicUsize::new(0);
    let bucket = b.clone();
    let hook = |number: usize| {
        let bucket = bucket.clone();
        let done = move || -> futures_util::future::BoxFuture<'static, ()> {
            let bucket = bucket.clone();
            Box::pin(async move {
                match number {
                    5 => stopped_push(&bucket, &skills(&["a"], 2), &short(), 0, "/u1/skills/a/").await,
                    _ => {
                        push(&bucket.fs, &skills(&["z"], number), &options()).await.unwrap();
                        put_by_hand(&bucket, &format!("loose{number}"), 1).await;
                    }
                }
            })
        };
        crate::support::wire::Hook(Arc::new(done))
    };
    let hooks: Vec<_> = (0..6).map(hook).collect();
    let wire = Wire::start(Some(&b.endpoint), move |request, _| match request.operation() {
        "LIST" => match hooks.get(lists.fetch_add(1, Ordering::SeqCst)) {
            Some(hook) => Reply::ForwardHook(hook.clone()),
            None => Reply::Forward,
        },
        _ => Reply::Forward,
    })
    .await;
    let fs = b.through(&wire.endpoint).await;
    match async { version_seen(&reader(&fs).pinned().await?, "a").await }.await {
        Ok(version) => assert!(version == Some(1) || version == Some(2)),
        Err(error) => assert!(passes(&error), "{error:?}"),
    }
}

/// With a lease of so many seconds: whoever is killed is waited for, and whoever is slow must not lose it.
fn program(
    b: &Bucket,
    endpoint: &str,
    user: &str,
    source: &std::path::Path,
    lease: &str,
) -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_skillfs"));
    command
        .env("AWS_ACCESS_KEY_ID", &b.credentials.access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", &b.credentials.secret_access_key)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .args([
            "--endpoint-url",
            endpoint,
            "--region",
            "us-east-1",
            "--bucket",
            &b.name,
            "--user",
            user,
            "--yes",
        ])
        .args(["admin", "push", source.to_str().unwrap(), "--delete", "--lease", lease])
        .stdin(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    command
}

fn write_source(folder: &std::path::Path, paths: &[&str], version: usize) {
    for new in skills(paths, version).skills {
        for (name, content) in new.contents() {
            let file = folder.join(new.path()).join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
    }
}

/// What one killed push leaves: whether it was killed, and whether readers see the new release.
async fn killed_push(b: &Bucket, number: usize, stop: usize, source: &std::path::Path) -> (bool, bool) {
    let user = format!("user-{number}");
    let library = Library::User(UserId::parse(&user).unwrap());
    let plan = b.fs.plan(&library, &skills(&["a", "gone"], 1), &options()).await.unwrap();
    b.fs.publish(&plan, &silent).await.unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let reached = Arc::new(Notify::new());
    let notify = reached.clone();
    let wire = Wire::start(Some(&b.endpoint), move |_, _| {
        if count.fetch_add(1, Ordering::SeqCst) != stop {
            return Reply::Forward;
        }
        match number % 2 {
            0 => Reply::ForwardThenStall(notify.clone()),
            _ => {
                notify.notify_one();
                Reply::Stall
            }
        }
    })
    .await;
    let mut child = program(b, &wire.endpoint, &user, source, "2").spawn().unwrap();
    let killed = loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break false;
        }
        if tokio::time::timeout(Duration::from_millis(20), reached.notified()).await.is_ok() {
            child.kill().unwrap();
            child.wait().unwrap();
            break true;
        }
    };
    let session = Session { user: Some(UserId::parse(&user).unwrap()), ..Session::default() };
    let state = async || {
        let turn = b.fs.session(&session).pinned().await.unwrap();
        let mut state = Vec::new();
        for path in ["a", "new", "gone"] {
            state.push(version_seen(&turn, path).await.unwrap());
        }
        state
    };
    let (old, new) = (vec![Some(1), None, Some(1)], vec![Some(2), Some(2), None]);
    let seen = state().await;
    assert!(seen == old || seen == new, "request {stop}: {seen:?}");
    let command = program(b, &b.endpoint, &user, source, "60");
    let done = tokio::process::Command::from(command).output().await.unwrap();
    assert!(done.status.success(), "request {stop}: {}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(state().await, new, "request {stop}");
    let verified = b.fs.verify(&library, true, &silent).await.unwrap();
    assert!(verified.problems.is_empty(), "request {stop}: {verified:#?}");
    (killed, seen == new)
}

/// `kill -9` at a hundred points: no destructor runs, and nobody cleans up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_is_killed_leaves_old_or_new() {
    const POINTS: usize = 100;
    let b = Bucket::embedded().await;
    let folder = tempfile::tempdir().unwrap();
    write_source(folder.path(), &["a", "new"], 2);
    let mut random = Seeded::new(7);
    let points: Vec<_> = (0..POINTS).map(|number| (number, random.below(36))).collect();
    let (b, source) = (&b, folder.path());
    let runs = points.into_iter().map(|(number, stop)| killed_push(b, number, stop, source));
    let results: Vec<_> = stream::iter(runs.collect::<Vec<_>>()).buffer_unordered(12).collect().await;
    let killed = results.iter().filter(|(killed, _)| *killed).count();
    let new = results.iter().filter(|(killed, new)| *killed && *new).count();
    assert!(killed > POINTS / 2 && new > 10 && new < killed - 10, "{killed} killed, {new} of them were new");
}
