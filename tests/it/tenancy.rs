//! Isolation of tenants, and handling of unusual names.

use skillfs::{ErrorKind, Library, S3Backend, Session, ThreadId, UserId};

use crate::support::{Bucket, names, on_every_server, publish, session};

on_every_server!(
    thread_1_does_not_see_thread_10,
    a_thread_called_skills_is_not_a_users_library,
    escapes_are_refused_before_any_request,
    mounts_match_whole_names_in_their_own_case,
    another_tenants_file_and_a_missing_one_answer_alike,
    names_are_never_decoded,
    keys_that_no_path_names_are_hidden_and_counted,
    a_file_and_a_directory_of_one_name_live_side_by_side,
    folder_markers_make_directories_and_are_no_entries,
    the_index_beside_a_library_is_in_no_mount,
);

/// The results of every way to read a path.
async fn kinds(backend: &S3Backend, path: &str) -> [Option<ErrorKind>; 6] {
    [
        backend.ls(path).await.err().map(|e| e.kind()),
        backend.ls_recursive(path).await.err().map(|e| e.kind()),
        backend.read(path).await.err().map(|e| e.kind()),
        backend.read_bytes(path, ..).await.err().map(|e| e.kind()),
        backend.stat(path).await.err().map(|e| e.kind()),
        backend.tree(path).await.err().map(|e| e.kind()),
    ]
}

async fn thread_1_does_not_see_thread_10(b: Bucket) {
    b.put("threads/10/secret.md", "ten").await;
    b.put("threads/1/own.md", "one").await;
    b.put("threads/1", "not in a mount").await;
    let one = b.session();
    assert_eq!(names(&one.ls("/workspace").await.unwrap().entries), ["/workspace/own.md"]);
    assert_eq!(names(&one.ls_recursive("/workspace").await.unwrap().entries), ["/workspace/own.md"]);
    assert!(!one.exists("/workspace/secret.md").await.unwrap());
    for path in
        ["/workspace0/secret.md", "/workspace/0/secret.md", "/workspace/10/secret.md", "/workspace/secret.md"]
    {
        assert_eq!(kinds(&one, path).await, [Some(ErrorKind::NotFound); 6], "{path}");
    }
    // The reverse: an empty thread next to one with files.
    let ten = b.fs.session(&session("u1", "100", "k1"));
    assert!(ten.ls("/workspace").await.unwrap().entries.is_empty());
}

async fn a_thread_called_skills_is_not_a_users_library(b: Bucket) {
    assert_eq!(UserId::parse("threads").unwrap_err().kind(), ErrorKind::InvalidId);
    b.put("threads/skills/x.md", "a thread's file").await;
    let thread = Session::default().thread(ThreadId::parse("skills").unwrap());
    let thread = b.fs.session(&thread);
    assert_eq!(thread.read("/workspace/x.md").await.unwrap().content, "a thread's file");
    assert_eq!(thread.read("/skills/x.md").await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn escapes_are_refused_before_any_request(b: Bucket) {
    b.put("u2/skills/x", "secret").await;
    b.put("u1/skills/x", "own").await;
    let backend = b.session();
    let before = b.fs.requests();
    for path in [
        "/skills/../workspace",
        "/workspace/../../u2/skills/x",
        "/workspace/%2e%2e/%2e%2e/u2/skills/x",
        "/workspace/%252E./%252E./u2/skills/x",
        "/workspace/.%2E/x",
        "..",
        "../../u2/skills/x",
        "/workspace/..\\..\\u2",
        "/workspace/a\0b",
        "/workspace/a\u{1b}[2J",
        "/..",
        "/workspace/..",
        "/ticket/../threads/10/secret.md",
        "/workspace/./../skills/x",
        "/skills/a/../../../u2/skills/x",
        "/workspace/%2e%2e",
        "/workspace/%25252e%25252e/x",
        "/workspace/..\0",
        "/workspace/..\n",
        "/workspace/x\r\nHost: evil",
        "\\\\?\\C:\\x",
        "/workspace/x\u{9b}31m",
        &format!("/workspace/{}", "x".repeat(256)),
        &format!("/workspace{}", "/x".repeat(600)),
    ] {
        assert_eq!(kinds(&backend, path).await, [Some(ErrorKind::InvalidPath); 6], "{path:?}");
        assert_eq!(backend.exists(path).await.unwrap_err().kind(), ErrorKind::InvalidPath, "{path:?}");
    }
    assert_eq!(b.fs.requests(), before);
}

async fn mounts_match_whole_names_in_their_own_case(b: Bucket) {
    b.put("u1/skills/x.md", "own").await;
    b.put("u1/skillsfoo", "not in a mount").await;
    b.put("threads/2/x.md", "another's").await;
    b.put("shared/acme/skills/x.md", "another's").await;
    let backend = b.session();
    for path in [
        "/skillsfoo",
        "/Skills",
        "/Skills/x.md",
        "/u1/skills/x.md",
        "/threads/1",
        "/skill",
        "/etc/passwd",
        "/threads/2/x.md",
        "/THREADS/2/x.md",
        "/shared/acme/skills/x.md",
        "/tickets/k1",
        "/WORKSPACE",
        "/workspace%2f..%2fthreads%2f2%2fx.md",
    ] {
        assert_eq!(kinds(&backend, path).await, [Some(ErrorKind::NotFound); 6], "{path}");
        assert!(!backend.exists(path).await.unwrap(), "{path}");
    }
    assert!(backend.exists("//skills//x.md/").await.unwrap());
}

async fn another_tenants_file_and_a_missing_one_answer_alike(b: Bucket) {
    b.put("u2/skills/plan/SKILL.md", "secret").await;
    let backend = b.session();
    let shown = |error: skillfs::Error, name: &str| error.to_string().replace(name, "NAME");
    let other = shown(backend.read("/u2/skills/plan/SKILL.md").await.unwrap_err(), "u2");
    let missing = shown(backend.read("/u3/skills/plan/SKILL.md").await.unwrap_err(), "u3");
    assert_eq!(other, missing);
    let other = shown(backend.ls("/skills/plan").await.unwrap_err(), "plan");
    let missing = shown(backend.ls("/skills/none").await.unwrap_err(), "none");
    assert_eq!(other, missing);
}

async fn names_are_never_decoded(b: Bucket) {
    let plain = [
        "v1..v2.md",
        "100%.md",
        "%41",
        "with space.md",
        "a+b.md",
        "é.md",
        "🦀.md",
        "%2f",
        "...",
        "~",
        "a&b",
        "%2e%2e%2e",
        "e\u{301}.md",
    ];
    for name in plain {
        b.put(&format!("threads/1/{name}"), name).await;
    }
    b.put("threads/1/A", "decoded").await;
    let backend = b.session();
    for name in plain {
        let path = format!("/workspace/{name}");
        assert_eq!(backend.read(&path).await.unwrap().content, name, "{name}");
        assert_eq!(backend.stat(&path).await.unwrap().path.as_str(), path);
        assert!(backend.exists(&path).await.unwrap());
    }
    let listed = backend.ls("/workspace").await.unwrap();
    assert_eq!(listed.entries.len(), plain.len() + 1);
    assert_eq!(listed.hidden, 0);
}

async fn keys_that_no_path_names_are_hidden_and_counted(b: Bucket) {
    let odd = [
        "a//b",
        "a/./b",
        "a/../b",
        "a/ok.md",
        "a/ctl\u{1}",
        "a/new\nline",
        "a/back\\slash",
        "a/%2e%2e/x",
        "a/deep//x",
    ];
    for key in odd {
        b.put(&format!("threads/1/{key}"), "x").await;
    }
    let long = "n".repeat(300);
    b.put(&format!("threads/1/a/{long}"), "x").await;
    let backend = b.session();
    let one = backend.ls("/workspace/a").await.unwrap();
    assert_eq!(names(&one.entries), ["/workspace/a/deep/", "/workspace/a/ok.md"]);
    assert_eq!(one.hidden, 8);
    let all = backend.ls_recursive("/workspace").await.unwrap();
    assert_eq!(names(&all.entries), ["/workspace/a/", "/workspace/a/deep/", "/workspace/a/ok.md"]);
    assert_eq!(all.hidden, 9);
    let tree = backend.tree("/workspace").await.unwrap();
    assert_eq!((tree.count(), tree.hidden), ((2, 1), 9));
    // A directory that contains only hidden keys is still a directory.
    let deep = backend.ls("/workspace/a/deep").await.unwrap();
    assert_eq!((deep.entries.len(), deep.hidden), (0, 1));
    assert!(backend.exists("/workspace/a/deep").await.unwrap());
}

async fn a_file_and_a_directory_of_one_name_live_side_by_side(b: Bucket) {
    b.put("threads/1/a", "the file").await;
    b.put("threads/1/a/b", "inside").await;
    b.put("threads/1/a-b", "between them in key order").await;
    let backend = b.session();
    assert_eq!(
        names(&backend.ls("/workspace").await.unwrap().entries),
        ["/workspace/a", "/workspace/a/", "/workspace/a-b"]
    );
    assert_eq!(names(&backend.ls("/workspace/a").await.unwrap().entries), ["/workspace/a/b"]);
    assert_eq!(backend.read("/workspace/a").await.unwrap().content, "the file");
    assert_eq!(backend.stat("/workspace/a").await.unwrap().size, Some(8));
    let tree = backend.tree("/workspace").await.unwrap();
    let kinds: Vec<_> = tree.children.iter().map(|t| (t.entry.name(), t.children.len())).collect();
    assert_eq!(kinds, [("a", 0), ("a", 1), ("a-b", 0)]);
}

async fn folder_markers_make_directories_and_are_no_entries(b: Bucket) {
    b.put("threads/1/", "").await;
    b.put("threads/1/empty/", "").await;
    b.put("threads/1/full/", "").await;
    b.put("threads/1/full/x", "x").await;
    b.put("threads/1/odd/", "content where none belongs").await;
    let backend = b.session();
    let top = backend.ls("/workspace").await.unwrap();
    assert_eq!(names(&top.entries), ["/workspace/empty/", "/workspace/full/", "/workspace/odd/"]);
    assert_eq!(top.hidden, 0);
    let empty = backend.ls("/workspace/empty").await.unwrap();
    assert_eq!((empty.entries.len(), empty.hidden), (0, 0));
    assert!(backend.stat("/workspace/empty").await.unwrap().is_directory());
    assert_eq!(names(&backend.ls("/workspace/full").await.unwrap().entries), ["/workspace/full/x"]);
    assert_eq!(backend.ls("/workspace/odd").await.unwrap().hidden, 1);
    let all = backend.ls_recursive("/workspace").await.unwrap();
    assert_eq!(
        names(&all.entries),
        ["/workspace/empty/", "/workspace/full/", "/workspace/full/x", "/workspace/odd/"]
    );
    assert_eq!(all.hidden, 1);
    assert_eq!(backend.read("/workspace/empty").await.unwrap_err().kind(), ErrorKind::IsDirectory);
}

async fn the_index_beside_a_library_is_in_no_mount(b: Bucket) {
    b.put("u1/skills/a/SKILL.md", "x").await;
    publish(&b.fs, &Library::User(UserId::parse("u1").unwrap())).await;
    let backend = b.session();
    let all = backend.ls_recursive("/").await.unwrap();
    assert!(names(&all.entries).iter().all(|name| !name.contains(".skillfs")));
    let beside = b.raw.list_objects_v2().bucket(&b.name).prefix("u1/.skillfs/").send().await.unwrap();
    let beside: Vec<_> = beside.contents.unwrap().into_iter().filter_map(|object| object.key).collect();
    // The index, the mirror record, a release and a blob.
    assert_eq!(beside.len(), 4, "{beside:?}");
    let beside = beside.iter().flat_map(|key| {
        [
            format!("/{key}"),
            format!("/skills/{key}"),
            format!("/{}", key.replace("u1/", "")),
            key.replace("u1/", "/skills/"),
        ]
    });
    for path in beside.chain(["/skills/.skillfs".to_owned(), "/skills/.skillfs/blobs".to_owned()]) {
        let path = path.as_str();
        assert!(!backend.exists(path).await.unwrap(), "{path}");
    }
}
