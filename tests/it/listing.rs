//! `ls`, `tree`, `stat`, `exists`.

use futures_util::{StreamExt, TryStreamExt};
use skillfs::{Depth, EntryKind, ErrorKind, Hint, Session};

use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, names, on_every_server, session};

on_every_server!(
    the_root_lists_the_mounts,
    an_empty_mount_lists_as_empty_and_a_missing_directory_does_not,
    entries_carry_all_that_is_known,
    whole_results_are_sorted_by_path_and_streams_by_key,
    everything_below_the_root,
    exists_and_stat_follow_the_rules_of_read,
    md_is_tried_before_a_directory,
    a_missing_bucket_is_unavailable_for_every_operation,
);

async fn the_root_lists_the_mounts(b: Bucket) {
    let backend = b.session();
    assert_eq!(names(&backend.ls("/").await.unwrap().entries), ["/skills/", "/ticket/", "/workspace/"]);
    let none = b.fs.session(&Session::default());
    assert!(none.ls("/").await.unwrap().entries.is_empty());
    assert_eq!(none.ls("/workspace").await.unwrap_err().kind(), ErrorKind::NotFound);
    for path in ["/", "/skills", "/ticket", "/workspace"] {
        assert_eq!(backend.stat(path).await.unwrap().kind, EntryKind::Directory);
        assert!(backend.exists(path).await.unwrap());
        assert_eq!(backend.read(path).await.unwrap_err().kind(), ErrorKind::IsDirectory);
    }
}

async fn an_empty_mount_lists_as_empty_and_a_missing_directory_does_not(b: Bucket) {
    b.put("threads/1/file.txt", "x").await;
    let backend = b.session();
    assert!(backend.ls("/ticket").await.unwrap().entries.is_empty());
    assert!(backend.tree("/ticket").await.unwrap().children.is_empty());
    assert_eq!(backend.ls("/ticket/none").await.unwrap_err().kind(), ErrorKind::NotFound);
    let error = backend.ls("/workspace/file.txt").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotDirectory);
    assert_eq!(error.path(), Some("/workspace/file.txt"));
    assert!(error.hint().is_some());
    let kind =
        |r: Option<Result<_, skillfs::Error>>| r.unwrap().map(|_: skillfs::Entry| ()).unwrap_err().kind();
    assert_eq!(kind(backend.ls_stream("/workspace/none", Depth::One).next().await), ErrorKind::NotFound);
    assert_eq!(kind(backend.ls_stream("/workspace/..", Depth::All).next().await), ErrorKind::InvalidPath);
    assert_eq!(
        kind(backend.ls_stream("/workspace/file.txt", Depth::All).next().await),
        ErrorKind::NotDirectory
    );
}

async fn entries_carry_all_that_is_known(b: Bucket) {
    b.put("threads/1/notes.md", "hola").await;
    let backend = b.session();
    let listed = backend.ls("/workspace").await.unwrap().entries.remove(0);
    assert_eq!(listed.path.as_str(), "/workspace/notes.md");
    assert_eq!((listed.kind, listed.size), (EntryKind::File, Some(4)));
    assert_eq!(listed.etag.as_deref(), Some("4d186321c1a7f0f354b297e8914ab240"));
    let age = listed.modified.unwrap().elapsed().unwrap_or_default();
    assert!(age.as_secs() < 3600);
    assert_eq!(backend.stat("/workspace/notes.md").await.unwrap(), listed);
    let read = backend.read("/workspace/notes.md").await.unwrap();
    assert_eq!((read.etag, read.size, read.modified), (listed.etag, 4, listed.modified));
}

async fn whole_results_are_sorted_by_path_and_streams_by_key(b: Bucket) {
    for key in ["a/x", "a-b", "a", "b/c/d", "b/c-d", "é", "z"] {
        b.put(&format!("threads/1/{key}"), "x").await;
    }
    let backend = b.session();
    let whole = names(&backend.ls("/workspace").await.unwrap().entries);
    let w = |names: &[&str]| -> Vec<String> { names.iter().map(|n| format!("/workspace/{n}")).collect() };
    assert_eq!(whole, w(&["a", "a/", "a-b", "b/", "z", "é"]));
    let stream: Vec<_> = backend.ls_stream("/workspace", Depth::One).try_collect().await.unwrap();
    assert_eq!(names(&stream), w(&["a", "a-b", "a/", "b/", "z", "é"]));
    let deep: Vec<_> = backend.ls_stream("/workspace", Depth::All).try_collect().await.unwrap();
    assert_eq!(names(&deep), w(&["a", "a-b", "a/", "a/x", "b/", "b/c-d", "b/c/", "b/c/d", "z", "é"]));
    let all = names(&backend.ls_recursive("/workspace").await.unwrap().entries);
    assert_eq!(all, w(&["a", "a/", "a-b", "a/x", "b/", "b/c/", "b/c-d", "b/c/d", "z", "é"]));
    let pages: Vec<_> = backend.ls_pages("/workspace", Depth::One).try_collect().await.unwrap();
    assert_eq!(pages.len(), 1);
}

async fn everything_below_the_root(b: Bucket) {
    b.put("threads/1/w", "x").await;
    b.put("u1/skills/c/s/SKILL.md", "x").await;
    let all = b.session().ls_recursive("/").await.unwrap();
    assert_eq!(
        names(&all.entries),
        [
            "/skills/",
            "/skills/c/",
            "/skills/c/s/",
            "/skills/c/s/SKILL.md",
            "/ticket/",
            "/workspace/",
            "/workspace/w"
        ]
    );
    let tree = b.session().tree("/").await.unwrap();
    assert_eq!(tree.count(), (5, 2));
    assert_eq!(tree.children.len(), 3);
}

async fn exists_and_stat_follow_the_rules_of_read(b: Bucket) {
    b.put("threads/1/dir.d/x", "x").await;
    b.put("threads/1/LICENSE", "x").await;
    let backend = b.session();
    for (path, kind) in [
        ("/workspace/dir.d", Some(EntryKind::Directory)),
        ("/workspace/dir.d/x", Some(EntryKind::File)),
        ("LICENSE", Some(EntryKind::File)),
        ("/workspace/LICENSE/x", None),
        ("/workspace/lic", None),
        ("/workspace/dir.d/none.txt", None),
    ] {
        assert_eq!(backend.exists(path).await.unwrap(), kind.is_some(), "{path}");
        match backend.stat(path).await {
            Ok(entry) => assert_eq!(Some(entry.kind), kind, "{path}"),
            Err(error) => assert_eq!((error.kind(), kind), (ErrorKind::NotFound, None), "{path}"),
        }
    }
}

async fn md_is_tried_before_a_directory(b: Bucket) {
    b.put("threads/1/notes.md", "the note").await;
    b.put("threads/1/notes/x.md", "in the directory").await;
    b.put("threads/1/dir/x", "x").await;
    b.put("threads/1/v1.2.md", "dotted").await;
    let backend = b.session();
    assert_eq!(backend.read("notes").await.unwrap().path.as_str(), "/workspace/notes.md");
    assert_eq!(backend.read_bytes("notes", ..).await.unwrap().path.as_str(), "/workspace/notes.md");
    let stat = backend.stat("notes").await.unwrap();
    assert_eq!((stat.path.as_str(), stat.kind), ("/workspace/notes.md", EntryKind::File));
    assert_eq!(names(&backend.ls("notes").await.unwrap().entries), ["/workspace/notes/x.md"]);
    assert_eq!(backend.read("dir").await.unwrap_err().kind(), ErrorKind::IsDirectory);
    // `.md` is not appended to a name with a dot.
    assert_eq!(backend.read("v1.2").await.unwrap_err().kind(), ErrorKind::NotFound);
    // A file with the exact name takes precedence.
    b.put("threads/1/notes", "no extension").await;
    assert_eq!(backend.read("notes").await.unwrap().content, "no extension");
}

async fn a_missing_bucket_is_unavailable_for_every_operation(b: Bucket) {
    let fs = crate::support::connect(&b.endpoint, &b.credentials, "no-such-bucket-here").await;
    let backend = fs.session(&session("u1", "1", "k1"));
    for path in ["/workspace/a", "/workspace/a.md"] {
        for error in [
            backend.ls(path).await.unwrap_err(),
            backend.ls_recursive(path).await.unwrap_err(),
            backend.read(path).await.unwrap_err(),
            backend.read_bytes(path, ..).await.unwrap_err(),
            backend.stat(path).await.unwrap_err(),
            backend.exists(path).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.message().contains("no-such-bucket-here"), "{error}");
            assert!(matches!(error.hint(), Some(Hint::CreateBucket(_))), "{error}");
        }
    }
}

/// 25,000 entries, written directly to the embedded store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_25_000_entries_lists_completely() {
    let embedded = skillfs::embedded::Embedded::in_memory().unwrap();
    let b = Bucket::in_embedded(&embedded).await;
    let objects = (0..25_000).map(|i| (format!("threads/1/many/f{i:05}"), "x".into()));
    embedded.put_all(&b.name, objects).await.unwrap();
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let backend = b.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));

    // The first entries arrive after the first page: one request was sent, not 25.
    let mut stream = backend.ls_stream("/workspace/many", Depth::One);
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.path.as_str(), "/workspace/many/f00000");
    assert_eq!(wire.operations(), ["LIST"]);
    let rest: Vec<_> = stream.try_collect().await.unwrap();
    assert_eq!(rest.len(), 24_999);
    assert_eq!(wire.operations().len(), 24);

    let whole = backend.ls("/workspace/many").await.unwrap();
    assert_eq!(whole.entries.len(), 25_000);
    assert!(whole.entries.is_sorted_by(|a, b| a.path < b.path));
    assert_eq!(wire.operations().len(), 25);

    let pages: Vec<_> = backend.ls_pages("/workspace", Depth::All).try_collect().await.unwrap();
    assert_eq!(pages.len(), 25);
    assert_eq!(pages.iter().map(|p| p.entries.len()).sum::<usize>(), 25_001);
}

/// The same on LocalStack with fewer pages, because each object costs a request there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs LocalStack: run `make test-long`"]
async fn a_directory_of_several_pages_lists_completely_on_localstack() {
    let b = Bucket::localstack().await;
    let numbers: Vec<_> = (0..2_100).collect();
    for chunk in numbers.chunks(50) {
        let puts = chunk.iter().map(|i| {
            let key = format!("threads/1/many/f{i:05}");
            let b = &b;
            async move { b.put(&key, "x").await }
        });
        futures_util::future::join_all(puts).await;
    }
    let whole = b.session().ls("/workspace/many").await.unwrap();
    assert_eq!(whole.entries.len(), 2_100);
    let pages: Vec<_> = b.session().ls_pages("/workspace/many", Depth::One).try_collect().await.unwrap();
    assert_eq!(pages.len(), 3);
}
