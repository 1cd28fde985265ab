//! Publishing: readers see either the complete old release or the complete new one, wherever a push stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use skillfs::admin::{
    Action, FileAction, IntoKind, LibraryChange, LibraryKind, NewFile, NewLibrary, NewSkill, Plan, Published,
    PushOptions, RepairOptions, VerifyOptions,
};
use skillfs::embedded::Embedded;
use skillfs::{
    ErrorKind, Freshness, Hint, Library, Result, Retention, S3Backend, ServerCapabilities, Session, Settings,
    SkillFs, Timeouts, UserId,
};
use tokio::sync::Notify;

use crate::support::wire::{Hook, Reply, Wire};
use crate::support::{Bucket, Seeded, campaign, on_every_server, settings};

const INDEX: &str = "u1/.skillfs/index.json";
const HOUR: Duration = Duration::from_secs(3600);

fn library() -> Library {
    Library::User(UserId::parse("u1").unwrap())
}

fn reader(fs: &SkillFs) -> S3Backend {
    fs.session(&Session::default().user(UserId::parse("u1").unwrap()))
}

fn options() -> PushOptions {
    let mut options = PushOptions::default();
    (options.by, options.source) = ("ana".into(), "test".into());
    options
}

fn deleting() -> PushOptions {
    let mut options = options();
    options.delete = true;
    options
}

fn into(kind: IntoKind) -> PushOptions {
    let mut options = options();
    options.into = kind;
    options
}

fn repair(overwrite: bool) -> RepairOptions {
    let mut options = RepairOptions::default();
    (options.read_blobs, options.overwrite) = (true, overwrite);
    options
}

/// A skill whose files all contain the same version. Even versions have one more file.
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

fn with_description(text: &str) -> NewLibrary {
    let mut new = skills(&["deeds/sale"], 1);
    let text = format!("---\ndescription: {text}\n---\n");
    new.describe("deeds", &skillfs::source::SourceFile::from_bytes("DESCRIPTION.md", text));
    new
}

async fn push(fs: &SkillFs, new: &NewLibrary, options: &PushOptions) -> Result<Published> {
    let plan = fs.library(&library()).plan(new, options).await?;
    fs.library(&plan.library).publish(&plan).await
}

async fn index(fs: &SkillFs, options: &PushOptions) -> Result<Published> {
    let plan = fs.library(&library()).plan(LibraryChange::Index, options).await?;
    fs.library(&plan.library).publish(&plan).await
}

/// Writes a skill with another program.
async fn put_skill(b: &Bucket, path: &str, version: usize) {
    for (name, content) in skill(path, version).contents() {
        b.put(&format!("u1/skills/{path}/{name}"), content.to_vec()).await;
    }
}

/// The version of each file of a skill, as seen by a reader in one turn.
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

/// Checks that all files have the same version and are complete for it; `None` if the skill does not exist.
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

async fn keys(b: &Bucket, prefix: &str) -> BTreeSet<String> {
    let page = b.raw.list_objects_v2().bucket(&b.name).prefix(prefix).send().await.unwrap();
    page.contents().iter().map(|object| object.key().unwrap().to_owned()).collect()
}

async fn live_keys(b: &Bucket) -> BTreeSet<String> {
    keys(b, "u1/skills/").await
}

async fn get(b: &Bucket, key: &str) -> Vec<u8> {
    let get = b.raw.get_object().bucket(&b.name).key(key).send().await.unwrap();
    get.body.collect().await.unwrap().into_bytes().to_vec()
}

fn actions(plan: &Plan) -> Vec<(String, Action)> {
    plan.skills.iter().map(|skill| (skill.path.clone(), skill.action)).collect()
}

async fn assert_clean(fs: &SkillFs, library: &Library) {
    let verified = fs.library(library).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
    assert!(verified.problems.is_empty(), "{verified:#?}");
}

fn codes(verified: &skillfs::admin::Verified) -> Vec<(&str, &str)> {
    verified.problems.iter().map(|problem| (problem.code, problem.path.as_str())).collect()
}

async fn kind(fs: &SkillFs) -> LibraryKind {
    fs.library(&library()).stats().await.unwrap().kind
}

on_every_server!(
    a_library_is_published_changed_and_emptied,
    releases_are_rolled_back_to,
    a_pinned_skill_is_left_alone,
    drift_is_never_served_and_always_reported,
    drift_is_published_by_index,
    a_plain_library_stays_plain_through_pushes,
    a_plain_library_is_published_on_request,
    publishing_a_plain_library_can_change_it,
    a_library_is_made_plain_again,
    a_pinned_session_reads_one_release_to_the_end,
    readers_see_one_release_alongside_pushes_and_prunes,
    conflicting_pushes_do_not_mix,
    twenty_concurrent_pushes_all_land,
);

async fn a_library_is_published_changed_and_emptied(b: Bucket) {
    let fs = &b.fs;
    let paths = ["deeds/sale", "deeds/loan", "single"];
    let plan = fs.library(&library()).plan(&skills(&paths, 1), &options()).await.unwrap();
    assert!(actions(&plan).iter().all(|(_, action)| *action == Action::Create));
    assert!(plan.makes_release && plan.kind == LibraryKind::Empty);
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.created, done.uploaded), (Some(1), 3, 9));
    for path in paths {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), Some(1));
    }
    // The ETag of an entry is its digest, and its modification time is the time of publishing.
    let entry = reader(fs).stat("/skills/single/SKILL.md").await.unwrap();
    assert_eq!(entry.etag.as_ref().map(String::len), Some(64));
    assert!(entry.modified.is_some());
    // Other programs find it in the mirror.
    let keys = live_keys(&b).await;
    assert!(keys.contains("u1/skills/deeds/sale/references/one.md"), "{keys:?}");
    assert_eq!(keys.len(), 9);
    let version = reader(fs).catalog_version().await.unwrap();

    let again = push(fs, &skills(&paths, 1), &options()).await.unwrap();
    assert_eq!((again.release, again.unchanged, again.uploaded), (None, 3, 0));
    assert_eq!(reader(fs).catalog_version().await.unwrap(), version);

    let done = push(fs, &skills(&["deeds/sale"], 2), &options()).await.unwrap();
    assert_eq!((done.release, done.updated), (Some(2), 1));
    assert_eq!(version_seen(&reader(fs), "deeds/sale").await.unwrap(), Some(2));
    assert_eq!(version_seen(&reader(fs), "deeds/loan").await.unwrap(), Some(1));
    assert_ne!(reader(fs).catalog_version().await.unwrap(), version);

    let plan = fs.library(&library()).plan(&skills(&["deeds/sale"], 2), &deleting()).await.unwrap();
    assert_eq!(plan.count(Action::Delete), 2);
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.deleted), (Some(3), 2));
    assert_eq!(version_seen(&reader(fs), "single").await.unwrap(), None);
    assert_eq!(live_keys(&b).await.len(), 4);
    assert_clean(fs, &library()).await;
    let releases: Vec<_> =
        fs.library(&library()).releases().await.unwrap().iter().map(|r| (r.release, r.current)).collect();
    assert_eq!(releases, [(3, true), (2, false), (1, false)]);
    let listed = fs.library(&library()).list().await.unwrap();
    assert_eq!((listed.len(), listed[0].release), (1, Some(2)));
}

async fn releases_are_rolled_back_to(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["deeds/sale", "deeds/loan"], 1), &options()).await.unwrap();
    push(fs, &skills(&["deeds/sale", "new"], 2), &options()).await.unwrap();
    let plan = fs.library(&library()).plan(LibraryChange::Rollback { release: 1 }, &options()).await.unwrap();
    let expected =
        [("deeds/loan", Action::Unchanged), ("deeds/sale", Action::Update), ("new", Action::Delete)];
    assert_eq!(actions(&plan), expected.map(|(path, action)| (path.to_owned(), action)));
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.uploaded), (Some(3), 0));
    assert_eq!(version_seen(&reader(fs), "deeds/sale").await.unwrap(), Some(1));
    assert_eq!(version_seen(&reader(fs), "new").await.unwrap(), None);
    assert_eq!(
        fs.library(&library())
            .plan(LibraryChange::Rollback { release: 9 }, &options())
            .await
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
    // A rollback can be undone.
    let plan = fs.library(&library()).plan(LibraryChange::Rollback { release: 2 }, &options()).await.unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "new").await.unwrap(), Some(2));
    assert_clean(fs, &library()).await;
}

async fn a_pinned_skill_is_left_alone(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
    push(fs, &skills(&["a", "b"], 2), &options()).await.unwrap();
    let plan = fs
        .library(&library())
        .plan(LibraryChange::Pin { skill: "a".into(), release: 1 }, &options())
        .await
        .unwrap();
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.updated), (Some(3), 1));
    assert_eq!(fs.library(&library()).releases().await.unwrap()[2].pinned, ["a"]);
    let plan = fs.library(&library()).plan(&skills(&["a", "b"], 3), &options()).await.unwrap();
    assert_eq!(actions(&plan), [("a".to_owned(), Action::Pinned), ("b".to_owned(), Action::Update)]);
    assert!(plan.skills[0].why.as_ref().unwrap().contains("pinned to release 1"));
    fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(1));
    assert_eq!(version_seen(&reader(fs), "b").await.unwrap(), Some(3));
    // Pinned again, to another release.
    let plan = fs
        .library(&library())
        .plan(LibraryChange::Pin { skill: "a".into(), release: 2 }, &options())
        .await
        .unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(2));
    let plan =
        fs.library(&library()).plan(LibraryChange::Unpin { skill: "a".into() }, &options()).await.unwrap();
    assert!(fs.library(&plan.library).publish(&plan).await.unwrap().release.is_some());
    push(fs, &skills(&["a"], 3), &options()).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(3));
    for change in [
        LibraryChange::Unpin { skill: "a".into() },
        LibraryChange::Pin { skill: "none".into(), release: 1 },
        LibraryChange::Pin { skill: "a".into(), release: 99 },
    ] {
        let plan = fs.library(&library()).plan(change, &options()).await;
        assert_eq!(plan.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_clean(fs, &library()).await;
}

async fn drift_is_never_served_and_always_reported(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
    b.put("u1/skills/a/references/one.md", "Version 7, by another tool\n").await;
    b.put("u1/skills/new/SKILL.md", "---\nname: new\ndescription: Version 7\n---\n").await;
    b.delete("u1/skills/b/references/two.md").await;
    for path in ["a", "b"] {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), Some(1));
    }
    assert!(!reader(fs).exists("/skills/new/SKILL.md").await.unwrap());
    let expected =
        [("drift", "a/references/one.md"), ("drift", "b/references/two.md"), ("drift", "new/SKILL.md")];
    assert_eq!(
        codes(&fs.library(&library()).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap()),
        expected
    );
    let drift = fs.library(&library()).drift().await.unwrap();
    let changes: Vec<_> = drift.iter().map(|drift| drift.change).collect();
    assert_eq!(changes, [FileAction::Change, FileAction::Remove, FileAction::Add]);
    // A push leaves drift unchanged and reports it; the release is visible anyway.
    let done = push(fs, &skills(&["a", "b"], 2), &options()).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(2));
    let met: Vec<_> = done.drift.iter().map(|drift| drift.path.as_str()).collect();
    assert_eq!(met, ["a/references/one.md", "b/references/two.md"]);
    assert_eq!(get(&b, "u1/skills/a/references/one.md").await, b"Version 7, by another tool\n");
    assert!(!live_keys(&b).await.contains("u1/skills/b/references/two.md"));
    assert_eq!(fs.library(&library()).drift().await.unwrap().len(), 3);
    // Repair leaves it alone, too; only with `overwrite` it is reverted.
    let repaired = fs.library(&library()).repair(&repair(false)).await.unwrap();
    assert_eq!(codes(&repaired).len(), 3);
    assert_eq!(get(&b, "u1/skills/a/references/one.md").await, b"Version 7, by another tool\n");
    let repaired = fs.library(&library()).repair(&repair(true)).await.unwrap();
    assert!(repaired.is_clean() && repaired.problems.iter().all(|problem| problem.repaired), "{repaired:#?}");
    assert_eq!(live_keys(&b).await.len(), 8);
    assert_eq!(get(&b, "u1/skills/a/references/one.md").await, b"Version 2 in a/references/one.md\n");
    assert_clean(fs, &library()).await;
}

async fn drift_is_published_by_index(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a", "b", "c"], 1), &options()).await.unwrap();
    // Without drift, it does nothing.
    assert_eq!(index(fs, &options()).await.unwrap().release, None);
    // `aws s3 sync` followed by `admin index` is a complete pipeline.
    put_skill(&b, "a", 2).await;
    put_skill(&b, "new/one", 3).await;
    b.put("u1/skills/new/DESCRIPTION.md", "---\ndescription: New ones\n---\n").await;
    b.put("u1/skills/loose.md", "Loose\n").await;
    for name in ["SKILL.md", "references/one.md", "references/two.md"] {
        b.delete(&format!("u1/skills/c/{name}")).await;
    }
    let plan = fs.library(&library()).plan(LibraryChange::Index, &options()).await.unwrap();
    let rows: Vec<_> =
        actions(&plan).into_iter().filter(|(_, action)| *action != Action::Unchanged).collect();
    let expected = [("a", Action::Update), ("c", Action::Delete), ("new/one", Action::Create)];
    assert_eq!(rows, expected.map(|(path, action)| (path.to_owned(), action)));
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(1));
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.created, done.updated, done.deleted), (Some(2), 1, 1, 1));
    for (path, version) in [("a", Some(2)), ("b", Some(1)), ("c", None), ("new/one", Some(3))] {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), version, "{path}");
    }
    assert_eq!(reader(fs).read("/skills/loose.md").await.unwrap().content, "Loose\n");
    let catalog = reader(fs).skills(None).await.unwrap();
    assert_eq!(catalog.categories()[0].description.as_deref(), Some("New ones"));
    assert_eq!(index(fs, &options()).await.unwrap().release, None);
    assert_clean(fs, &library()).await;
}

async fn a_plain_library_stays_plain_through_pushes(b: Bucket) {
    let fs = &b.fs;
    put_skill(&b, "mine", 1).await;
    let plan = fs.library(&library()).plan(&skills(&["starter"], 1), &options()).await.unwrap();
    assert!(!plan.makes_release && plan.kind == LibraryKind::Plain);
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.created, done.uploaded), (None, 1, 3));
    assert_eq!(kind(fs).await, LibraryKind::Plain);
    assert!(keys(&b, "u1/.skillfs/").await.is_empty());
    // Edits by other programs stay visible.
    put_skill(&b, "mine", 2).await;
    put_skill(&b, "starter", 2).await;
    for path in ["mine", "starter"] {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), Some(2));
    }
    let done = push(fs, &skills(&["starter"], 3), &options()).await.unwrap();
    assert_eq!((done.release, done.updated), (None, 1));
    assert_eq!(version_seen(&reader(fs), "starter").await.unwrap(), Some(3));
    assert_eq!(push(fs, &skills(&["starter"], 3), &options()).await.unwrap().unchanged, 1);
    let done = push(fs, &skills(&["starter"], 3), &deleting()).await.unwrap();
    assert_eq!((done.release, done.deleted), (None, 1));
    assert_eq!(version_seen(&reader(fs), "mine").await.unwrap(), None);
    // What has releases only is refused, and says what to do.
    for plan in [
        fs.library(&library()).plan(LibraryChange::Rollback { release: 1 }, &options()).await,
        fs.library(&library()).plan(LibraryChange::Index, &options()).await,
    ] {
        let error = plan.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.hint() == Some(&Hint::PublishLibrary), "{error:?}");
    }
}

async fn a_plain_library_is_published_on_request(b: Bucket) {
    let fs = &b.fs;
    put_skill(&b, "deeds/mine", 1).await;
    b.put("u1/skills/deeds/DESCRIPTION.md", "---\ndescription: Deeds\n---\n").await;
    b.put("u1/skills/loose.md", "Loose\n").await;
    b.put("u1/skills/empty/", "").await;
    let before = reader(fs).ls_recursive("/skills").await.unwrap();
    let plan =
        fs.library(&library()).plan(&skills(&["starter"], 1), &into(IntoKind::Published)).await.unwrap();
    let adopted = plan.adopted.unwrap();
    assert_eq!((adopted.skills, adopted.files, adopted.left_out), (1, 5, 1));
    assert!(adopted.bytes > 0);
    let done = fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!((done.release, done.uploaded_meanwhile, done.mirror_error), (Some(1), None, None));
    assert_eq!(kind(fs).await, LibraryKind::Published);
    for (path, version) in [("deeds/mine", 1), ("starter", 1)] {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), Some(version));
    }
    let files = |listing: &skillfs::Listing| -> BTreeSet<String> {
        listing.entries.iter().filter(|e| !e.is_directory()).map(|e| e.path.to_string()).collect()
    };
    let after = reader(fs).ls_recursive("/skills").await.unwrap();
    assert!(files(&before).is_subset(&files(&after)), "{before:?} {after:?}");
    assert_eq!(reader(fs).read("/skills/loose.md").await.unwrap().content, "Loose\n");
    assert_clean(fs, &library()).await;
    // From now on, uploads are drift.
    put_skill(&b, "deeds/mine", 2).await;
    assert_eq!(version_seen(&reader(fs), "deeds/mine").await.unwrap(), Some(1));
}

/// Changes and deletions by a push are not mistaken for uploads of another program.
async fn publishing_a_plain_library_can_change_it(b: Bucket) {
    let fs = &b.fs;
    for (path, version) in [("changed", 1), ("deleted", 1), ("kept", 1)] {
        put_skill(&b, path, version).await;
    }
    let mut how = into(IntoKind::Published);
    how.delete = true;
    let mut new = skills(&["changed", "kept", "new"], 2);
    new.skills[1] = skill("kept", 1);
    let done = push(fs, &new, &how).await.unwrap();
    assert_eq!((done.release, done.uploaded_meanwhile, done.drift.len()), (Some(1), None, 0));
    assert_eq!((done.created, done.updated, done.deleted), (1, 1, 1));
    for (path, version) in [("changed", Some(2)), ("deleted", None), ("kept", Some(1)), ("new", Some(2))] {
        assert_eq!(version_seen(&reader(fs), path).await.unwrap(), version, "{path}");
    }
    assert_eq!(live_keys(&b).await.len(), 4 + 3 + 4);
    assert_clean(fs, &library()).await;
}

async fn a_library_is_made_plain_again(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
    b.put("u1/skills/a/references/one.md", "Drift\n").await;
    let error = fs.library(&library()).unpublish().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("a/references/one.md"), "{error:?}");
    fs.library(&library()).repair(&repair(true)).await.unwrap();
    fs.library(&library()).unpublish().await.unwrap();
    assert_eq!(kind(fs).await, LibraryKind::Plain);
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(1));
    // Readers see its keys.
    put_skill(&b, "a", 2).await;
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(2));
    assert_eq!(fs.library(&library()).unpublish().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    // Its releases are still listed, and publishing it again goes on counting.
    assert_eq!(fs.library(&library()).releases().await.unwrap().len(), 1);
    assert_eq!(index(fs, &into(IntoKind::Published)).await.unwrap().release, Some(2));
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(2));
    let plan = fs.library(&library()).plan(LibraryChange::Rollback { release: 1 }, &options()).await.unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(1));
    assert_clean(fs, &library()).await;
}

async fn a_pinned_session_reads_one_release_to_the_end(b: Bucket) {
    let fs = &b.fs;
    push(fs, &skills(&["a"], 2), &options()).await.unwrap();
    let turn = reader(fs).pinned().await.unwrap();
    let version = turn.catalog_version().await.unwrap();
    push(fs, &skills(&["a"], 3), &options()).await.unwrap();
    assert_eq!(version_seen(&turn, "a").await.unwrap(), Some(2));
    assert_eq!(turn.catalog_version().await.unwrap(), version);
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), Some(3));
    let grep = skillfs::Grep::new("ersion 2 in").root("/skills/a");
    assert_eq!(turn.grep(&grep).await.unwrap().lines.len(), 3);
    // The skill is deleted in the meantime; the turn continues with the old release.
    push(fs, &NewLibrary::default(), &deleting()).await.unwrap();
    assert_eq!(version_seen(&turn, "a").await.unwrap(), Some(2));
    assert_eq!(version_seen(&reader(fs), "a").await.unwrap(), None);
}

async fn conflicting_pushes_do_not_mix(b: Bucket) {
    let (one, two) = (b.through(&b.endpoint).await, b.through(&b.endpoint).await);
    push(&one, &skills(&["a", "b"], 1), &options()).await.unwrap();
    let how = options();
    let (one, two) = (one.library(&library()), two.library(&library()));
    for round in 1..=5 {
        let (two_new, three_new) = (skills(&["a", "b"], round * 2), skills(&["a", "b"], round * 2 + 1));
        let (first, second) = tokio::join!(one.plan(&two_new, &how), two.plan(&three_new, &how));
        let (first, second) = (first.unwrap(), second.unwrap());
        let (first, second) = tokio::join!(one.publish(&first), two.publish(&second));
        let won = usize::from(first.is_ok()) + usize::from(second.is_ok());
        assert_eq!(won, 1, "{first:?} {second:?}");
        let expected = if first.is_ok() { round * 2 } else { round * 2 + 1 };
        for path in ["a", "b"] {
            assert_eq!(version_seen(&reader(&b.fs), path).await.unwrap(), Some(expected));
        }
        let loser = first.err().or(second.err()).unwrap();
        assert_eq!(loser.kind(), ErrorKind::Conflict);
        assert!(loser.report().contains("run it again"), "{loser:?}");
    }
    assert_clean(&b.fs, &library()).await;
}

async fn twenty_concurrent_pushes_all_land(b: Bucket) {
    push(&b.fs, &skills(&["first"], 1), &options()).await.unwrap();
    let patient = |settings: &mut Settings| settings.conflict_patience = Duration::from_secs(120);
    let pushes = (0..20).map(|number| {
        let b = &b;
        async move {
            let fs = b.with(&b.endpoint, patient).await;
            push(&fs, &skills(&[format!("c{}/s{number}", number % 3).as_str()], number), &options()).await
        }
    });
    let results: Vec<_> = join_all(pushes).await.into_iter().map(Result::unwrap).collect();
    let releases: BTreeSet<_> = results.iter().map(|done| done.release.unwrap()).collect();
    assert_eq!(releases, (2..=21).collect());
    for number in 0..20 {
        let path = format!("c{}/s{number}", number % 3);
        assert_eq!(version_seen(&reader(&b.fs), &path).await.unwrap(), Some(number));
    }
    // Whoever was last has completed the mirror; what is left, a repair does.
    b.fs.library(&library()).repair(&repair(false)).await.unwrap();
    assert_clean(&b.fs, &library()).await;
}

/// Whether a retry may succeed.
fn passes(error: &skillfs::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Conflict | ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::Timeout
    )
}

async fn readers_see_one_release_alongside_pushes_and_prunes(b: Bucket) {
    const READERS: usize = 20;
    // LocalStack is many times slower.
    let pushes = if b.has_clock() { campaign(200, 24) } else { 50 };
    let paths = ["deeds/sale", "deeds/loan"];
    push(&b.fs, &skills(&paths, 0), &options()).await.unwrap();
    // One of twelve requests fails, or its response does.
    let wire = Wire::start(Some(&b.endpoint), |_, number| match number % 24 {
        7 => Reply::error(503, "SlowDown"),
        19 => Reply::Reset,
        _ => Reply::Forward,
    })
    .await;
    let timeouts = Timeouts::default()
        .connect(Duration::from_secs(10))
        .attempt(Duration::from_secs(5))
        .operation(Duration::from_secs(10));
    // Two releases are retained. If the server's clock can be advanced, a few pushes are enough for pruning.
    let grace = if b.has_clock() { 700 } else { 7_000 };
    let short = Retention::default().releases(2).grace(Duration::from_secs(grace));
    let writer =
        b.with(&wire.endpoint, |settings| (settings.timeouts, settings.retention) = (timeouts, short)).await;
    let (done, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (mut tasks, mut readers) = (Vec::new(), Vec::new());
    for number in 0..READERS {
        // Some readers cache, some do not, each with a separate handle.
        let bound = Duration::from_millis(50 * (number as u64 % 3));
        let fs = b.with(&wire.endpoint, |settings| settings.freshness = Freshness::all(bound)).await;
        let (done, reads) = (done.clone(), reads.clone());
        readers.push(fs.clone());
        tasks.push(tokio::spawn(async move {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let path = paths[number % 2];
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
    let mut random = Seeded::new(11);
    for version in 1..=pushes {
        b.advance(Duration::from_secs(60 + random.below(180) as u64), readers.iter().chain([&writer]));
        let mut tries = 0;
        loop {
            let new = skills(&paths, version);
            let how = options();
            let pushing = push(&writer, &new, &how);
            // One of ten is canceled at a random point.
            if random.below(10) == 0 {
                let patience = Duration::from_millis(random.below(200) as u64);
                let _ = tokio::time::timeout(patience, pushing).await;
                continue;
            }
            match pushing.await {
                Ok(_) => break,
                Err(error) if passes(&error) && tries < 30 => tries += 1,
                Err(error) => panic!("push {version}: {error:?}"),
            }
        }
        if version % 5 == 0 {
            let admin = writer.library(&library());
            let pruning = admin.prune();
            let patience = Duration::from_millis(50 + 200 * (random.below(3) as u64));
            if let Ok(Err(error)) = tokio::time::timeout(patience, pruning).await {
                assert!(passes(&error), "prune {version}: {error:?}");
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
    assert!(!b.has_clock() || b.fs.library(&library()).releases().await.unwrap().len() < 20);
    b.fs.library(&library()).repair(&repair(false)).await.unwrap();
    assert_clean(&b.fs, &library()).await;
}

/// A push that is canceled at each of its requests.
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
            let short = settings(&b.name)
                .endpoint_url(wire.endpoint.clone())
                .region("us-east-1")
                .credentials(b.credentials.clone())
                .server(ServerCapabilities::default().conditional_puts(true))
                .max_attempts(1);
            let fs = SkillFs::connect(&short).await.unwrap();
            let (new, how) = (skills(&["a", "new"], 2), deleting());
            let finished = tokio::select! {
                done = push(&fs, &new, &how) => { done.unwrap(); true },
                () = reached.notified() => false,
            };
            drop(fs);
            let turn = reader(&b.fs).pinned().await.unwrap();
            let mut state = Vec::new();
            for path in ["a", "new", "gone"] {
                state.push(version_seen(&turn, path).await.unwrap());
            }
            let (old, new_state) = (vec![Some(1), None, Some(1)], vec![Some(2), Some(2), None]);
            assert!(state == old || state == new_state, "request {stop}, {takes_effect}: {state:?}");
            let done = push(&b.fs, &new, &deleting()).await.unwrap();
            assert!(
                done.drift.is_empty() && done.mirror_error.is_none(),
                "request {stop}, {takes_effect}: {done:?}"
            );
            let turn = reader(&b.fs).pinned().await.unwrap();
            assert_eq!(version_seen(&turn, "a").await.unwrap(), Some(2));
            assert_eq!(version_seen(&turn, "new").await.unwrap(), Some(2));
            assert_eq!(version_seen(&turn, "gone").await.unwrap(), None);
            assert_eq!(live_keys(&b).await.len(), 8, "request {stop}");
            assert_clean(&b.fs, &library()).await;
            if finished {
                break;
            }
            stop += 1;
        }
        assert!(stop > 15, "{stop}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_push_costs_two_requests() {
    let b = Bucket::embedded().await;
    let count = campaign(1_000, 300);
    let paths: Vec<String> = (0..count).map(|i| format!("c{:02}/s{i:04}", i / 50)).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let new = skills(&paths, 1);
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let fs = b.with(&wire.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
    let done = push(&fs, &new, &options()).await.unwrap();
    assert_eq!((done.created, done.uploaded), (count, 3 * count));
    assert!(wire.max_concurrent() >= 32, "{} at once", wire.max_concurrent());
    wire.take();
    // From a process with an empty cache: the index, and whether the mirror is complete.
    let fs = b.with(&wire.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
    let done = push(&fs, &new, &options()).await.unwrap();
    assert_eq!((done.release, done.unchanged), (None, count));
    assert_eq!(wire.operations(), ["GET", "GET"]);
}

/// A library with this many skills, published directly to an embedded store.
async fn published(skills_of: usize) -> (Bucket, NewLibrary) {
    let b = Bucket::in_embedded(&Embedded::in_memory().unwrap()).await;
    let paths: Vec<String> = (0..skills_of).map(|i| format!("c{:02}/s{i:04}", i % 50)).collect();
    let new = skills(&paths.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    push(&b.fs, &new, &options()).await.unwrap();
    (b, new)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushing_one_file_into_5000_skills_costs_few_requests() {
    let count = campaign(5_000, 1_000);
    let (b, mut new) = published(count).await;
    let changed = new.skills[count / 2].contents();
    let mut files: Vec<_> = changed.map(|(name, content)| NewFile::new(name, content.clone())).collect();
    files[1] = NewFile::new("references/one.md", "Changed, version 1\n");
    let path = new.skills[count / 2].path().to_owned();
    new.skills = vec![NewSkill::new(path, files)];
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let fs = b.through(&wire.endpoint).await;
    let done = push(&fs, &new, &options()).await.unwrap();
    assert_eq!((done.release, done.updated, done.uploaded), (Some(2), 1, 1));
    let requests = wire.take();
    let shown: Vec<_> = requests.iter().map(|r| format!("{} {}", r.operation(), r.target)).collect();
    assert!(requests.len() <= 12, "{shown:#?}");
    assert!(requests.iter().all(|request| request.operation() != "LIST"), "{shown:#?}");
    assert_clean(&b.fs, &library()).await;
}

/// If the response to the commit is lost, the release is not mistaken for another publisher's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_response_is_not_a_conflict() {
    for overtaken in [false, true] {
        let b = Arc::new(Bucket::embedded().await);
        push(&b.fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
        let (first, other) = (AtomicBool::new(true), b.clone());
        // Another release may be published before the response would have arrived.
        let between = Hook(Arc::new(move || {
            let b = other.clone();
            Box::pin(async move {
                if overtaken {
                    push(&b.fs, &skills(&["b"], 5), &options()).await.unwrap();
                }
            })
        }));
        let wire = Wire::start(Some(&b.endpoint), move |request, _| {
            let commit = request.method == "PUT" && request.target.contains("index.json");
            match commit && first.swap(false, Ordering::SeqCst) {
                true => Reply::ForwardLost(Some(between.clone())),
                false => Reply::Forward,
            }
        })
        .await;
        let fs = b.with(&wire.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
        let done = push(&fs, &skills(&["a"], 2), &options()).await.unwrap();
        assert_eq!(done.release, Some(2));
        assert_eq!(b.fs.library(&library()).releases().await.unwrap().len(), 2 + usize::from(overtaken));
        assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_library_is_published_unless_plain() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &into(IntoKind::Plain)).await.unwrap();
    assert_eq!(kind(&b.fs).await, LibraryKind::Plain);
    let error = {
        let b = Bucket::embedded().await;
        push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
        assert_eq!(kind(&b.fs).await, LibraryKind::Published);
        push(&b.fs, &skills(&["a"], 1), &into(IntoKind::Plain)).await.unwrap_err()
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.hint() == Some(&Hint::UnpublishLibrary), "{error:?}");
    // The same for many users.
    let users: Vec<UserId> = (0..3).map(|i| UserId::parse(&format!("p-{i}")).unwrap()).collect();
    for (user, result) in
        b.fs.push_to_users(&users, &skills(&["a"], 1), &into(IntoKind::Plain)).collect::<Vec<_>>().await
    {
        result.unwrap();
        assert_eq!(
            b.fs.library(&Library::User(user.clone())).stats().await.unwrap().kind,
            LibraryKind::Plain
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_uploaded_while_publishing_becomes_a_second_release() {
    let b = Arc::new(Bucket::embedded().await);
    put_skill(&b, "mine", 1).await;
    let (other, first) = (b.clone(), AtomicBool::new(true));
    let upload = Hook(Arc::new(move || {
        let b = other.clone();
        Box::pin(async move {
            put_skill(&b, "mine", 2).await;
            put_skill(&b, "late", 4).await;
        })
    }));
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        let commit = request.method == "PUT" && request.target.contains("index.json");
        match commit && first.swap(false, Ordering::SeqCst) {
            true => Reply::ForwardHook(upload.clone()),
            false => Reply::Forward,
        }
    })
    .await;
    let fs = b.with(&wire.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
    let done = index(&fs, &into(IntoKind::Published)).await.unwrap();
    assert_eq!((done.release, done.uploaded_meanwhile), (Some(1), Some(2)));
    for (path, version) in [("mine", 2), ("late", 4)] {
        assert_eq!(version_seen(&reader(&b.fs), path).await.unwrap(), Some(version));
    }
    assert_clean(&b.fs, &library()).await;
}

/// A push that is stopped when its `nth` write of something has taken effect.
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
    let fs = b.with(&wire.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
    tokio::select! {
        done = push(&fs, new, options) => panic!("{done:?}"),
        () = reached.notified() => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_push_leaves_a_mirror_that_the_next_push_completes() {
    for next in ["push", "another push", "repair"] {
        let b = Bucket::embedded().await;
        push(&b.fs, &skills(&["a", "b"], 1), &options()).await.unwrap();
        stopped_push(&b, &skills(&["a", "b"], 2), &options(), 1, "/u1/skills/").await;
        assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(2));
        let verified =
            b.fs.library(&library()).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
        assert_eq!(codes(&verified), [("mirror-behind", "mirror.json")]);
        match next {
            "push" => drop(push(&b.fs, &skills(&["a", "b"], 2), &options()).await.unwrap()),
            "another push" => drop(push(&b.fs, &skills(&["b"], 3), &options()).await.unwrap()),
            _ => {
                let repaired = b.fs.library(&library()).repair(&repair(false)).await.unwrap();
                assert!(repaired.is_clean() && repaired.problems[0].repaired, "{repaired:#?}");
            }
        }
        let text = String::from_utf8(get(&b, "u1/skills/a/references/three.md").await).unwrap();
        assert!(text.contains("Version 2"), "{text}");
        assert_clean(&b.fs, &library()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_refuses_a_stale_mirror() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    stopped_push(&b, &skills(&["a"], 2), &options(), 0, "/u1/skills/").await;
    let error = index(&b.fs, &options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.hint() == Some(&Hint::CompleteMirror), "{error:?}");
    b.fs.library(&library()).repair(&repair(false)).await.unwrap();
    assert_eq!(index(&b.fs, &options()).await.unwrap().release, None);
    assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_blob_is_corrupt_and_repaired() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let damage = async || {
        for key in keys(&b, "u1/.skillfs/blobs/").await {
            let size = get(&b, &key).await.len();
            b.put(&key, "x".repeat(size)).await;
        }
    };
    damage().await;
    let fresh = b.through(&b.endpoint).await;
    let read = reader(&fresh).read("/skills/a/references/one.md").await;
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
    let bytes = reader(&fresh).read_bytes("/skills/a/references/one.md", ..).await;
    assert_eq!(bytes.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(reader(&fresh).load_skill("a").await.unwrap_err().kind(), ErrorKind::Corrupt);
    let verified = b.fs.library(&library()).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
    assert_eq!(verified.problems.iter().filter(|problem| problem.code == "damaged-blob").count(), 3);
    // From the mirror.
    let repaired = b.fs.library(&library()).repair(&repair(false)).await.unwrap();
    assert!(repaired.is_clean(), "{repaired:#?}");
    assert_eq!(version_seen(&reader(&fresh), "a").await.unwrap(), Some(1));
    // From the source, if the mirror has different content by now.
    damage().await;
    put_skill(&b, "a", 7).await;
    b.fs.library(&library()).repair(&repair(false)).await.unwrap();
    let fresh = b.through(&b.endpoint).await;
    assert_eq!(reader(&fresh).load_skill("a").await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap().release, None);
    let mut overwrite = options();
    overwrite.overwrite = true;
    push(&b.fs, &skills(&["a"], 1), &overwrite).await.unwrap();
    assert_eq!(version_seen(&reader(&fresh), "a").await.unwrap(), Some(1));
    let verified = b.fs.library(&library()).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
    assert!(verified.problems.iter().all(|problem| problem.code == "drift"), "{verified:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_blob_is_unavailable_then_corrupt() {
    let b = Bucket::embedded().await;
    push(&b.fs, &skills(&["a"], 1), &options()).await.unwrap();
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let fs = b.through(&wire.endpoint).await;
    let turn = reader(&fs).pinned().await.unwrap();
    for key in keys(&b, "u1/.skillfs/blobs/").await {
        b.delete(&key).await;
    }
    wire.take();
    let error = reader(&fs).read("/skills/a/SKILL.md").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // The index was read again once: index and listing, the blob, and the index with a condition.
    let looks = wire.take().iter().filter(|request| request.target.contains("index.json")).count();
    assert_eq!(looks, 2);
    assert_eq!(turn.read("/skills/a/SKILL.md").await.unwrap_err().kind(), ErrorKind::Conflict);
    b.advance(HOUR * 2, [&fs]);
    let error = reader(&fs).read("/skills/a/SKILL.md").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    let verified = b.fs.library(&library()).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
    assert!(verified.problems.iter().any(|problem| problem.code == "missing-blob"), "{verified:#?}");
    let repaired = b.fs.library(&library()).repair(&repair(false)).await.unwrap();
    assert!(repaired.is_clean(), "{repaired:#?}");
    assert_eq!(version_seen(&reader(&fs), "a").await.unwrap(), Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_index_is_restored_from_a_named_release() {
    let b = Bucket::embedded().await;
    for version in 1..=3 {
        push(&b.fs, &skills(&["a"], version), &options()).await.unwrap();
    }
    for lost in [false, true] {
        match lost {
            true => b.delete(INDEX).await,
            false => b.put(INDEX, "{").await,
        }
        let verified =
            b.fs.library(&library()).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
        let code = if lost { "lost-index" } else { "bad-index" };
        let problem = verified.problems.iter().find(|problem| problem.code == code).unwrap();
        let Some(Hint::RestoreRelease { intact }) = &problem.hint else { panic!("{problem:?}") };
        assert!(intact[0].starts_with("3-"), "{problem:?}");
        // Nothing is guessed.
        let plan = b.fs.library(&library()).plan(&skills(&["a"], 9), &into(IntoKind::Published)).await;
        assert_eq!(plan.unwrap_err().kind(), ErrorKind::Corrupt);
        let left = b.fs.library(&library()).repair(&repair(false)).await.unwrap();
        assert!(left.problems.iter().any(|problem| problem.code == code && !problem.repaired), "{left:#?}");
        let mut options = repair(false);
        options.release = Some("9".into());
        let error = b.fs.library(&library()).repair(&options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        options.release = Some(if lost { "2".into() } else { "3".into() });
        let repaired = b.fs.library(&library()).repair(&options).await.unwrap();
        assert!(repaired.is_clean(), "{repaired:#?}");
        let version = if lost { 2 } else { 3 };
        assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(version));
        assert_clean(&b.fs, &library()).await;
    }
    // Publishing continues from there.
    assert_eq!(push(&b.fs, &skills(&["a"], 4), &options()).await.unwrap().release, Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prune_deletes_only_old_unreferenced_objects() {
    let b = Bucket::embedded().await;
    let week = Retention::default().grace;
    let fs = b.through(&b.endpoint).await;
    for version in 1..=25 {
        push(&fs, &skills(&["a"], version), &options()).await.unwrap();
    }
    let blobs = async || keys(&b, "u1/.skillfs/blobs/").await.len();
    let records = async || keys(&b, "u1/.skillfs/releases/").await.len();
    // Superseded less than a week ago: all of them stay listed, and nothing is pruned.
    assert_eq!((fs.library(&library()).releases().await.unwrap().len(), records().await), (25, 25));
    assert_eq!(fs.library(&library()).prune().await.unwrap(), skillfs::admin::Pruned::default());
    let before = blobs().await;
    b.advance(week + HOUR, [&fs]);
    let plan = fs
        .library(&library())
        .plan(LibraryChange::Pin { skill: "a".into(), release: 2 }, &options())
        .await
        .unwrap();
    fs.library(&plan.library).publish(&plan).await.unwrap();
    // The newest 20, and the one that the skill is pinned to.
    let listed: Vec<_> = fs.library(&library()).releases().await.unwrap().iter().map(|r| r.release).collect();
    assert_eq!(listed, (8..=26).rev().chain([7, 2]).collect::<Vec<_>>()[..21].to_vec());
    let pruned = fs.library(&library()).prune().await.unwrap();
    assert_eq!(pruned.releases, 5);
    assert!(
        pruned.blobs > 0 && blobs().await + usize::try_from(pruned.blobs).unwrap() == before,
        "{pruned:?}"
    );
    for release in [2, 7, 20] {
        let plan =
            fs.library(&library()).plan(LibraryChange::Rollback { release }, &options()).await.unwrap();
        fs.library(&plan.library).publish(&plan).await.unwrap();
    }
    assert!(fs.library(&library()).plan(LibraryChange::Rollback { release: 5 }, &options()).await.is_err());
    assert_clean(&b.fs, &library()).await;
    // A record that cannot be read stops pruning.
    let record = keys(&b, "u1/.skillfs/releases/").await.into_iter().next().unwrap();
    b.put(&record, "{").await;
    assert_eq!(fs.library(&library()).prune().await.unwrap_err().kind(), ErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_session_on_a_plain_library_conflicts_after_a_change() {
    let b = Bucket::embedded().await;
    put_skill(&b, "a", 1).await;
    let turn = reader(&b.fs).pinned().await.unwrap();
    put_skill(&b, "a", 2).await;
    assert_eq!(turn.load_skill("a").await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(version_seen(&reader(&b.fs), "a").await.unwrap(), Some(2));
}

/// Plain, published, and plain again: nothing disappears, and no reader gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_to_published_and_back_under_load() {
    let b = Arc::new(Bucket::embedded().await);
    for path in ["a", "b", "c/d"] {
        put_skill(&b, path, 1).await;
    }
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let bound = Duration::from_millis(20 * (number % 3));
        let fs = b.with(&b.endpoint, |settings| settings.freshness = Freshness::all(bound)).await;
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                let s = reader(&fs);
                for path in ["a", "b", "c/d"] {
                    assert_eq!(version_seen(&s, path).await.unwrap(), Some(1), "{path}");
                }
                assert_eq!(s.skills(None).await.unwrap().list().len(), 3);
                reads += 1;
            }
            reads
        }));
    }
    for _ in 0..10 {
        index(&b.fs, &into(IntoKind::Published)).await.unwrap();
        assert_eq!(kind(&b.fs).await, LibraryKind::Published);
        b.fs.library(&library()).unpublish().await.unwrap();
        assert_eq!(kind(&b.fs).await, LibraryKind::Plain);
    }
    done.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(task.await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_without_conditional_writes_cannot_publish() {
    let b = Bucket::embedded().await;
    let fs = b.with(&b.endpoint, |settings| settings.server.conditional_puts = Some(false)).await;
    let error = push(&fs, &skills(&["a"], 1), &options()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("conditional writes"), "{error:?}");
    assert!(keys(&b, "u1/").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn categories_are_published_with_their_skills() {
    let b = Bucket::embedded().await;
    let described = async || {
        let library = reader(&b.fs).skills(None).await.unwrap();
        library.categories()[0].description.clone()
    };
    push(&b.fs, &with_description("Deeds of all kinds"), &options()).await.unwrap();
    assert_eq!(described().await.as_deref(), Some("Deeds of all kinds"));
    assert_clean(&b.fs, &library()).await;
    let done = push(&b.fs, &with_description("Deeds"), &options()).await.unwrap();
    assert_eq!((done.release, done.unchanged), (Some(2), 1));
    assert_eq!(described().await.as_deref(), Some("Deeds"));
    let plan =
        b.fs.library(&library()).plan(LibraryChange::Rollback { release: 1 }, &options()).await.unwrap();
    b.fs.library(&plan.library).publish(&plan).await.unwrap();
    assert_eq!(described().await.as_deref(), Some("Deeds of all kinds"));
    assert_clean(&b.fs, &library()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_users_are_published_to_and_one_that_fails_stops_nobody() {
    let b = Bucket::embedded().await;
    let users: Vec<UserId> = (0..40).map(|i| UserId::parse(&format!("u-{i:02}")).unwrap()).collect();
    let new = skills(&["a", "b"], 1);
    let wire = Wire::start(Some(&b.endpoint), |request, _| {
        let refused = request.target.contains("/u-07/.skillfs/") || request.target.contains("/u-09/skills/");
        match request.method == "PUT" && refused {
            true => Reply::error(403, "AccessDenied"),
            false => Reply::Forward,
        }
    })
    .await;
    let fs = b.with(&wire.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
    let results = fs.push_to_users(&users, &new, &options()).collect::<Vec<_>>().await;
    assert!(results.iter().map(|(user, _)| *user).eq(&users));
    for (user, result) in &results {
        let library = Library::User((*user).clone());
        match user.as_str() {
            "u-07" => assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::Denied),
            // It is published; only its mirror is incomplete.
            "u-09" => {
                assert!(result.as_ref().unwrap().published.mirror_error.is_some());
                assert_eq!(b.fs.library(&library).list().await.unwrap().len(), 2);
            }
            _ => {
                assert_eq!(result.as_ref().unwrap().published.mirror_error, None);
                assert_eq!(b.fs.library(&library).list().await.unwrap().len(), 2);
            }
        }
    }
    // A second run completes both. From then on, each costs two requests; for an hour also a listing, because
    // another process may still be writing the mirror.
    let fs = b.with(&b.endpoint, |settings| settings.server.conditional_puts = Some(true)).await;
    let results = fs.push_to_users(&users, &new, &options()).collect::<Vec<_>>().await;
    assert!(results.iter().all(|(_, result)| result.is_ok()));
    for number in [7, 9] {
        assert_clean(&b.fs, &Library::User(users[number].clone())).await;
    }
    let before = fs.requests();
    fs.push_to_users(&users, &new, &options()).collect::<Vec<_>>().await;
    let sent = fs.requests() - before;
    assert_eq!((sent.get, sent.list, sent.total()), (80, 1, 81));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_are_copied_on_the_server() {
    // The server in this process is known to honor the conditions of copies.
    let b = Bucket::embedded().await;
    let mut new = skills(&["a"], 1);
    let small = new.skills[0].contents();
    let mut files: Vec<_> = small.map(|(name, content)| NewFile::new(name, content.clone())).collect();
    files.push(NewFile::new("assets/large.bin", vec![7; 1024 * 1024]));
    new.skills = vec![NewSkill::new("a", files)];
    let users: Vec<UserId> = (0..3).map(|i| UserId::parse(&format!("u-{i}")).unwrap()).collect();
    let before = b.fs.requests();
    for (_, result) in b.fs.push_to_users(&users, &new, &options()).collect::<Vec<_>>().await {
        result.unwrap();
    }
    // The first one uploads it once; everything else is a copy.
    assert_eq!((b.fs.requests() - before).copy, 5);
    for user in users {
        assert_clean(&b.fs, &Library::User(user)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skill_cannot_be_moved_onto_its_own_files() {
    let b = Bucket::embedded().await;
    let head = |name: &str| format!("---\nname: {name}\ndescription: Version 1\n---\nVersion 1\n");
    let with = |path: &str, notes: &str| {
        let files = vec![NewFile::new("SKILL.md", head(path)), NewFile::new(notes, "same")];
        let mut new = NewLibrary::default();
        new.skills = vec![NewSkill::new(path, files)];
        new
    };
    push(&b.fs, &with("a/b", "notes.md"), &options()).await.unwrap();
    let mut all = deleting();
    all.overwrite = true;
    let plan = b.fs.library(&library()).plan(&with("a", "b/notes.md"), &all).await.unwrap();
    assert_eq!(actions(&plan), [("a".to_owned(), Action::Refused), ("a/b".to_owned(), Action::Delete)]);
    assert!(plan.skills[0].why.as_ref().unwrap().contains("delete that one first"));
    push(&b.fs, &with("a", "b/notes.md"), &all).await.unwrap();
    push(&b.fs, &with("a", "b/notes.md"), &all).await.unwrap();
    assert_eq!(reader(&b.fs).read("/skills/a/b/notes.md").await.unwrap().content, "same");
}

fn program(b: &Bucket, endpoint: &str, user: &str, source: &std::path::Path) -> std::process::Command {
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
        .args(["admin", "push", source.to_str().unwrap(), "--delete"])
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

/// Kills one push: returns whether it was killed, and whether readers see the new release.
async fn killed_push(b: &Bucket, number: usize, stop: usize, source: &std::path::Path) -> (bool, bool) {
    let user = format!("user-{number}");
    let library = Library::User(UserId::parse(&user).unwrap());
    let plan = b.fs.library(&library).plan(&skills(&["a", "gone"], 1), &options()).await.unwrap();
    b.fs.library(&plan.library).publish(&plan).await.unwrap();
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
    let mut child = program(b, &wire.endpoint, &user, source).spawn().unwrap();
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
    let session = Session::default().user(UserId::parse(&user).unwrap());
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
    let command = program(b, &b.endpoint, &user, source);
    let done = tokio::process::Command::from(command).output().await.unwrap();
    assert!(done.status.success(), "request {stop}: {}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(state().await, new, "request {stop}");
    let verified = b.fs.library(&library).verify(&VerifyOptions::default().read_blobs(true)).await.unwrap();
    assert!(verified.problems.is_empty(), "request {stop}: {verified:#?}");
    (killed, seen == new)
}

/// `kill -9` at a hundred points: no destructor runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_is_killed_leaves_old_or_new() {
    let points: usize = campaign(100, 40);
    let b = Bucket::embedded().await;
    let folder = tempfile::tempdir().unwrap();
    write_source(folder.path(), &["a", "new"], 2);
    let mut random = Seeded::new(7);
    let stops: Vec<_> = (0..points).map(|number| (number, random.below(28))).collect();
    let (b, source) = (&b, folder.path());
    let runs = stops.into_iter().map(|(number, stop)| killed_push(b, number, stop, source));
    let results: Vec<_> = stream::iter(runs.collect::<Vec<_>>()).buffer_unordered(12).collect().await;
    let killed = results.iter().filter(|(killed, _)| *killed).count();
    let new = results.iter().filter(|(killed, new)| *killed && *new).count();
    let some = points / 10;
    assert!(
        killed > points / 2 && new > some && new < killed - some,
        "{killed} killed, {new} of them were new"
    );
}
