//! Writing: `write`, `append`, `edit`, `delete`, `copy`, `move`, batches, grants and quotas.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use skillfs::{
    Access, Error, ErrorKind, Grants, Grep, LibraryId, Overwrite, Quota, S3Backend, Session, Settings,
    SkillFs, WriteMode,
};

use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, names, on_every_server, session, settings};

on_every_server!(
    a_file_is_written_and_overwritten,
    create_only_refuses_what_is_there,
    if_match_refuses_another_version,
    content_types_follow_from_names,
    an_edit_replaces_one_exact_text,
    an_edit_that_is_not_exact_changes_nothing,
    an_edit_keeps_encoding_and_properties,
    an_append_makes_the_file_and_grows_it,
    a_file_is_deleted_and_a_directory_on_request,
    rm_r_takes_markers_and_odd_keys_with_it,
    a_file_is_copied_and_moved,
    a_tree_is_copied_and_moved,
    copies_and_moves_refuse_what_makes_no_sense,
    skills_are_copied_from_all_layers,
    batches_answer_in_order,
    names_are_taken_literally_with_a_hint,
    long_content_goes_in_parts,
    a_long_file_is_appended_to_by_the_server,
    a_long_file_is_copied_in_parts,
    a_failed_stream_leaves_nothing,
    quotas_name_the_limit,
    grants_decide_what_may_be_written,
);

async fn text(backend: &S3Backend, path: &str) -> String {
    backend.read(path).await.unwrap().content
}

fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

async fn a_file_is_written_and_overwritten(b: Bucket) {
    let s = b.session();
    let first = s.write("/workspace/a/notes.md", "uno").await.unwrap();
    assert_eq!((first.path.as_str(), first.size), ("/workspace/a/notes.md", 3));
    assert_eq!(s.stat("/workspace/a/notes.md").await.unwrap().etag, first.etag);
    let second = s.write("a/notes.md", "dos y más").await.unwrap();
    assert_ne!(first.etag, second.etag);
    assert_eq!(text(&s, "/workspace/a/notes.md").await, "dos y más");
    s.write("/workspace/empty.txt", "").await.unwrap();
    assert_eq!(text(&s, "/workspace/empty.txt").await, "");
    assert_eq!(kind(s.write("/workspace", "x").await), ErrorKind::IsDirectory);
    assert_eq!(kind(s.write("/", "x").await), ErrorKind::ReadOnly);
    assert_eq!(kind(s.write("/elsewhere/x", "x").await), ErrorKind::NotFound);
    assert_eq!(kind(s.write("/workspace/../x", "x").await), ErrorKind::InvalidPath);
}

async fn create_only_refuses_what_is_there(b: Bucket) {
    let s = b.session();
    s.write_with("/workspace/a", "1", WriteMode::CreateNew).await.unwrap();
    assert_eq!(kind(s.write_with("/workspace/a", "2", WriteMode::CreateNew).await), ErrorKind::AlreadyExists);
    assert_eq!(text(&s, "/workspace/a").await, "1");
    s.delete("/workspace/a").await.unwrap();
    s.write_with("/workspace/a", "3", WriteMode::CreateNew).await.unwrap();
}

async fn if_match_refuses_another_version(b: Bucket) {
    let s = b.session();
    let first = s.write("/workspace/a", "1").await.unwrap().etag.unwrap();
    let second =
        s.write_with("/workspace/a", "2", WriteMode::IfMatch(first.clone())).await.unwrap().etag.unwrap();
    let error = s.write_with("/workspace/a", "3", WriteMode::IfMatch(first)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains(&second), "{error}");
    assert!(!error.may_have_taken_effect());
    // An ETag with quotes, as in HTTP, is accepted too.
    s.write_with("/workspace/a", "4", WriteMode::IfMatch(format!("\"{second}\""))).await.unwrap();
    s.delete("/workspace/a").await.unwrap();
    assert_eq!(
        kind(s.write_with("/workspace/a", "5", WriteMode::IfMatch(second)).await),
        ErrorKind::Conflict
    );
    for bad in ["", "\"\"", "a b", "é", "a\nb"] {
        let mode = WriteMode::IfMatch(bad.to_owned());
        assert_eq!(kind(s.write_with("/workspace/a", "6", mode).await), ErrorKind::InvalidInput, "{bad}");
    }
}

async fn content_types_follow_from_names(b: Bucket) {
    let s = b.session();
    for (name, content_type) in [
        ("a.md", "text/markdown"),
        ("a.txt", "text/plain"),
        ("a.json", "application/json"),
        ("a.pdf", "application/pdf"),
        ("a.HTML", "text/html"),
        ("Makefile", "application/octet-stream"),
    ] {
        s.write(format!("/workspace/{name}"), "x").await.unwrap();
        let head = b.raw.head_object().bucket(&b.name).key(format!("threads/1/{name}")).send().await.unwrap();
        assert_eq!(head.content_type(), Some(content_type), "{name}");
        // The ID of the write is stored as well.
        assert_eq!(head.metadata().unwrap()["skillfs-writes"].len(), 12);
    }
}

async fn an_edit_replaces_one_exact_text(b: Bucket) {
    let s = b.session();
    s.write("/workspace/a.md", "uno dos tres dos").await.unwrap();
    let edited = s.edit("/workspace/a.md", "tres", "3").await.unwrap();
    assert_eq!((edited.replacements, edited.size), (1, 13));
    assert_eq!(s.stat("/workspace/a.md").await.unwrap().etag, edited.etag);
    let edited = s.edit_all("/workspace/a.md", "dos", "").await.unwrap();
    assert_eq!(edited.replacements, 2);
    assert_eq!(text(&s, "/workspace/a.md").await, "uno  3 ");
    // The result may be empty.
    s.edit("/workspace/a.md", "uno  3 ", "").await.unwrap();
    assert_eq!(text(&s, "/workspace/a.md").await, "");
}

async fn an_edit_that_is_not_exact_changes_nothing(b: Bucket) {
    let s = b.session();
    s.write("/workspace/a.md", "a\r\nb a").await.unwrap();
    b.put("threads/1/image.png", b"\x89PNG\r\n\x1a\n\0\0").await;
    for (path, old, expected) in [
        ("/workspace/a.md", "", ErrorKind::InvalidInput),
        ("/workspace/a.md", "x", ErrorKind::InvalidInput),
        ("/workspace/a.md", "a", ErrorKind::InvalidInput),
        ("/workspace/a.md", "a\nb", ErrorKind::InvalidInput),
        ("/workspace/image.png", "PNG", ErrorKind::BinaryFile),
        ("/workspace/none.md", "x", ErrorKind::NotFound),
        ("/workspace", "x", ErrorKind::IsDirectory),
    ] {
        assert_eq!(kind(s.edit(path, old, "y").await), expected, "{path} {old:?}");
    }
    let error = s.edit("/workspace/a.md", "a\nb", "y").await.unwrap_err();
    assert!(error.report().contains("\\r\\n"), "{error}");
    assert!(s.edit("/workspace/a.md", "a", "y").await.unwrap_err().message().contains("2 times"));
    assert_eq!(text(&s, "/workspace/a.md").await, "a\r\nb a");
}

async fn an_edit_keeps_encoding_and_properties(b: Bucket) {
    let s = b.session();
    let put = b.raw.put_object().bucket(&b.name).key("threads/1/a.txt");
    put.content_type("text/x-own")
        .cache_control("no-store")
        .metadata("owner", "ana")
        .body(b"Espa\xf1a\r\n".to_vec().into())
        .send()
        .await
        .unwrap();
    s.edit("/workspace/a.txt", "España", "Coruña").await.unwrap();
    s.append("/workspace/a.txt", &b"fin"[..]).await.unwrap();
    let get = b.raw.get_object().bucket(&b.name).key("threads/1/a.txt").send().await.unwrap();
    assert_eq!(get.content_type(), Some("text/x-own"));
    assert_eq!(get.cache_control(), Some("no-store"));
    assert_eq!(get.metadata().unwrap()["owner"], "ana");
    assert_eq!(get.body.collect().await.unwrap().to_vec(), b"Coru\xf1a\r\nfin");
}

async fn an_append_makes_the_file_and_grows_it(b: Bucket) {
    let s = b.session();
    s.append("/workspace/log", "a\n").await.unwrap();
    let done = s.append("/workspace/log", "b\n").await.unwrap();
    assert_eq!(done.size, 4);
    assert_eq!(s.stat("/workspace/log").await.unwrap().etag, done.etag);
    assert_eq!(text(&s, "/workspace/log").await, "a\nb\n");
    b.put("threads/1/data.bin", b"\0\xff").await;
    s.append("/workspace/data.bin", &b"\0"[..]).await.unwrap();
    assert_eq!(s.read_bytes("/workspace/data.bin", ..).await.unwrap().bytes, &b"\0\xff\0"[..]);
    s.append("/workspace/empty", "").await.unwrap();
    assert!(s.exists("/workspace/empty").await.unwrap());
}

async fn a_file_is_deleted_and_a_directory_on_request(b: Bucket) {
    let s = b.session();
    for key in ["a", "a/b", "a/c/d", "ab", "z"] {
        b.put(&format!("threads/1/{key}"), key).await;
    }
    b.put("threads/10/a/b", "other").await;
    assert_eq!(s.delete("/workspace/a").await.unwrap().objects, 1);
    assert_eq!(kind(s.delete("/workspace/a").await), ErrorKind::IsDirectory);
    assert_eq!(kind(s.delete("/workspace/none").await), ErrorKind::NotFound);
    assert_eq!(kind(s.delete_recursive("/workspace/none").await), ErrorKind::NotFound);
    assert_eq!(kind(s.delete("/workspace").await), ErrorKind::IsDirectory);
    assert_eq!(kind(s.delete_recursive("/").await), ErrorKind::ReadOnly);
    b.put("threads/1/a", "again").await;
    assert_eq!(s.delete_recursive("/workspace/a").await.unwrap().objects, 3);
    assert_eq!(names(&s.ls("/workspace").await.unwrap().entries), ["/workspace/ab", "/workspace/z"]);
    assert_eq!(s.delete_recursive("/workspace").await.unwrap().objects, 2);
    assert_eq!(s.delete_recursive("/workspace").await.unwrap().objects, 0);
    let other = b.fs.session(&session("u1", "10", "k1"));
    assert!(other.exists("/workspace/a/b").await.unwrap());
}

async fn rm_r_takes_markers_and_odd_keys_with_it(b: Bucket) {
    let s = b.session();
    for key in ["d/", "d/a//b", "d/./c", "d/e\u{1}f", "d/&<>'\"+ ñ🦀", "d/sub/", "d/x\ty"] {
        b.put(&format!("threads/1/{key}"), if key.ends_with('/') { "" } else { "x" }).await;
    }
    let deleted = s.delete_recursive("/workspace/d").await.unwrap();
    assert_eq!((deleted.objects, deleted.left), (7, 0));
    assert!(!s.exists("/workspace/d").await.unwrap());
}

async fn a_file_is_copied_and_moved(b: Bucket) {
    let s = b.session();
    let put = b.raw.put_object().bucket(&b.name).key("threads/1/a b+ñ.md").content_type("text/x-own");
    put.metadata("owner", "ana").body(b"uno".to_vec().into()).send().await.unwrap();
    let done = s.copy("/workspace/a b+ñ.md", "/workspace/sub/100%.md").await.unwrap();
    assert_eq!((done.files, done.bytes), (1, 3));
    let head = b.raw.head_object().bucket(&b.name).key("threads/1/sub/100%.md").send().await.unwrap();
    assert_eq!(
        (head.content_type(), head.metadata().unwrap()["owner"].as_str()),
        (Some("text/x-own"), "ana")
    );
    assert!(head.metadata().unwrap().contains_key("skillfs-writes"));
    s.move_to("/workspace/a b+ñ.md", "/workspace/c.md").await.unwrap();
    assert_eq!(
        names(&s.ls_recursive("/workspace").await.unwrap().entries),
        ["/workspace/c.md", "/workspace/sub/", "/workspace/sub/100%.md"]
    );
    assert_eq!(text(&s, "/workspace/c.md").await, "uno");
    // Existing files are replaced by default.
    s.write("/workspace/d.md", "dos").await.unwrap();
    let no = Overwrite::No;
    assert_eq!(kind(s.copy_with("/workspace/d.md", "/workspace/c.md", no).await), ErrorKind::AlreadyExists);
    assert_eq!(kind(s.move_with("/workspace/d.md", "/workspace/c.md", no).await), ErrorKind::AlreadyExists);
    assert_eq!(text(&s, "/workspace/c.md").await, "uno");
    s.move_with("/workspace/d.md", "/workspace/new.md", no).await.unwrap();
    s.move_to("/workspace/new.md", "/workspace/c.md").await.unwrap();
    assert_eq!(text(&s, "/workspace/c.md").await, "dos");
    // Other mounts can be copied from.
    b.put("tickets/k1/order.md", "pedido").await;
    s.copy("/ticket/order.md", "/workspace/order.md").await.unwrap();
    assert_eq!(text(&s, "/workspace/order.md").await, "pedido");
}

async fn a_tree_is_copied_and_moved(b: Bucket) {
    let s = b.session();
    for key in ["a/x", "a/b/y", "a/b/empty", "a/folder/", "a/odd//z", "target/b/y", "target/kept"] {
        let content = if key.ends_with('/') || key.ends_with("empty") { "" } else { key };
        b.put(&format!("threads/1/{key}"), content).await;
    }
    let done = s.copy("/workspace/a", "/workspace/target").await.unwrap();
    assert_eq!((done.files, done.bytes, done.hidden), (3, 8, 1));
    assert_eq!(
        names(&s.ls_recursive("/workspace/target").await.unwrap().entries),
        [
            "/workspace/target/b/",
            "/workspace/target/b/empty",
            "/workspace/target/b/y",
            "/workspace/target/folder/",
            "/workspace/target/kept",
            "/workspace/target/x"
        ]
    );
    assert_eq!(text(&s, "/workspace/target/b/y").await, "a/b/y");
    let error = s.move_with("/workspace/a", "/workspace/target", Overwrite::No).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let moved = s.move_to("/workspace/a", "/workspace/moved").await.unwrap();
    assert_eq!((moved.files, moved.hidden), (3, 1));
    assert_eq!(text(&s, "/workspace/moved/b/y").await, "a/b/y");
    // Keys that no path can name are left.
    assert_eq!(s.ls_recursive("/workspace/a").await.unwrap().hidden, 1);
    assert!(!s.exists("/workspace/a/x").await.unwrap());
}

async fn copies_and_moves_refuse_what_makes_no_sense(b: Bucket) {
    let s = b.session();
    for key in ["file", "dir/a", "dir/dir/a"] {
        b.put(&format!("threads/1/{key}"), key).await;
    }
    for (from, to, expected) in [
        ("/workspace/none", "/workspace/x", ErrorKind::NotFound),
        ("/workspace/file", "/workspace/file", ErrorKind::InvalidInput),
        ("/workspace/dir", "/workspace/dir/sub", ErrorKind::InvalidInput),
        ("/workspace/dir/dir", "/workspace/dir", ErrorKind::InvalidInput),
        ("/workspace/file", "/workspace/dir", ErrorKind::IsDirectory),
        ("/workspace/file", "/workspace", ErrorKind::IsDirectory),
        ("/workspace/dir/a", "/workspace", ErrorKind::IsDirectory),
        ("/workspace/dir/a", "/workspace/dir", ErrorKind::IsDirectory),
        ("/workspace/dir", "/workspace", ErrorKind::InvalidInput),
        ("/workspace/dir", "/workspace/file", ErrorKind::NotDirectory),
        ("/", "/workspace/x", ErrorKind::InvalidInput),
        ("/workspace/file", "/ticket/x", ErrorKind::ReadOnly),
        ("/workspace/file", "/skills/x", ErrorKind::ReadOnly),
        ("/workspace/file", "/elsewhere", ErrorKind::NotFound),
    ] {
        assert_eq!(kind(s.copy(from, to).await), expected, "copy {from} {to}");
        let expected = if from == "/" { ErrorKind::ReadOnly } else { expected };
        assert_eq!(kind(s.move_to(from, to).await), expected, "move {from} {to}");
    }
    b.put("tickets/k1/a", "x").await;
    assert_eq!(kind(s.move_to("/ticket/a", "/workspace/a").await), ErrorKind::ReadOnly);
    assert_eq!(s.ls_recursive("/workspace").await.unwrap().entries.len(), 5);
}

async fn skills_are_copied_from_all_layers(b: Bucket) {
    b.put("u1/skills/a/SKILL.md", "mine").await;
    b.put("u1/skills/a/x.md", "x").await;
    b.put("shared/acme/skills/a/SKILL.md", "hidden").await;
    b.put("shared/acme/skills/b/SKILL.md", "theirs").await;
    let libraries = vec![LibraryId::parse("acme").unwrap()];
    let s = b.fs.session(&session("u1", "1", "k1").libraries(libraries));
    assert_eq!(s.copy("/skills", "/workspace/skills").await.unwrap().files, 3);
    assert_eq!(text(&s, "/workspace/skills/a/SKILL.md").await, "mine");
    assert_eq!(text(&s, "/workspace/skills/b/SKILL.md").await, "theirs");
    s.copy("/skills/b/SKILL.md", "/workspace/one.md").await.unwrap();
    assert_eq!(text(&s, "/workspace/one.md").await, "theirs");
    assert_eq!(kind(s.copy("/skills/none", "/workspace/x").await), ErrorKind::NotFound);
    assert_eq!(kind(s.move_to("/skills/b", "/workspace/x").await), ErrorKind::ReadOnly);
}

async fn batches_answer_in_order(b: Bucket) {
    let s = b.session();
    let mut files: Vec<(String, Bytes)> =
        (0..50).map(|i| (format!("/workspace/{i}.txt"), Bytes::from(format!("{i}")))).collect();
    files[7].0 = "/skills/x".into();
    files[9].0 = "/workspace/../x".into();
    let paths: Vec<String> = files.iter().map(|(path, _)| path.clone()).collect();
    let written = s.upload_files(files).await;
    assert_eq!(written.len(), 50);
    for (i, result) in written.into_iter().enumerate() {
        match i {
            7 => assert_eq!(kind(result), ErrorKind::ReadOnly),
            9 => assert_eq!(kind(result), ErrorKind::InvalidPath),
            _ => assert_eq!(result.unwrap().path.as_str(), paths[i]),
        }
    }
    let read = s.download_files(&paths).await;
    for (i, result) in read.into_iter().enumerate() {
        match i {
            7 => assert_eq!(kind(result), ErrorKind::NotFound),
            9 => assert_eq!(kind(result), ErrorKind::InvalidPath),
            _ => assert_eq!(result.unwrap().bytes, format!("{i}")),
        }
    }
}

async fn names_are_taken_literally_with_a_hint(b: Bucket) {
    let s = b.session();
    s.write("/workspace/notes.md", "x").await.unwrap();
    for error in [
        s.edit("/workspace/notes", "x", "y").await.unwrap_err(),
        s.delete("/workspace/notes").await.unwrap_err(),
        s.delete_recursive("/workspace/notes").await.unwrap_err(),
        s.move_to("/workspace/notes", "/workspace/b").await.unwrap_err(),
        s.copy("/workspace/notes", "/workspace/b").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.report().contains("`/workspace/notes.md`"), "{error}");
    }
    s.write("/workspace/notes", "literal").await.unwrap();
    assert_eq!(s.ls("/workspace").await.unwrap().entries.len(), 2);
}

const MIB: usize = 1024 * 1024;

/// A session with the smallest parts that S3 accepts.
async fn in_small_parts(b: &Bucket) -> S3Backend {
    let settings = settings(&b.name)
        .endpoint_url(b.endpoint.clone())
        .region("us-east-1")
        .credentials(b.credentials.clone())
        .part_bytes(5 * MIB as u64)
        .single_copy_bytes(10 * MIB as u64)
        .max_read_bytes(64 * MIB as u64);
    SkillFs::connect(&settings).await.unwrap().session(&session("u1", "1", "k1"))
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    (0..bytes).map(|_| next()).collect()
}

async fn uploads(b: &Bucket) -> usize {
    let open = b.raw.list_multipart_uploads().bucket(&b.name).send().await.unwrap();
    open.uploads().len()
}

async fn long_content_goes_in_parts(b: Bucket) {
    let s = in_small_parts(&b).await;
    let content = noise(12 * MIB + 7);
    let written = s.write("/workspace/long.bin", content.clone()).await.unwrap();
    assert_eq!(written.size, content.len() as u64);
    assert!(written.etag.clone().unwrap().ends_with("-3"));
    assert_eq!(s.stat("/workspace/long.bin").await.unwrap().etag, written.etag);
    assert_eq!(s.read_bytes("/workspace/long.bin", ..).await.unwrap().bytes, content);
    let head = b.raw.head_object().bucket(&b.name).key("threads/1/long.bin").send().await.unwrap();
    assert!(head.metadata().unwrap().contains_key("skillfs-writes"));
    // As a stream of pieces of an odd size, with conditions.
    let pieces: Vec<Bytes> = content.chunks(777_777).map(Bytes::copy_from_slice).collect();
    let again = || stream::iter(pieces.clone()).map(Ok);
    let new = WriteMode::CreateNew;
    let refused = s.write_stream("/workspace/long.bin", again(), new.clone()).await;
    assert_eq!(kind(refused), ErrorKind::AlreadyExists);
    let streamed = s.write_stream("/workspace/streamed.bin", again(), new).await.unwrap();
    assert_eq!(s.read_bytes("/workspace/streamed.bin", ..).await.unwrap().bytes, content);
    let mode = WriteMode::IfMatch("0".repeat(32));
    assert_eq!(kind(s.write_stream("/workspace/streamed.bin", again(), mode).await), ErrorKind::Conflict);
    assert_eq!(s.stat("/workspace/streamed.bin").await.unwrap().etag, streamed.etag);
    // An edit of a long text uses a multipart upload too.
    let mut long = "línea\n".repeat(2 * MIB);
    long.push_str("fin");
    s.write("/workspace/long.txt", long.clone()).await.unwrap();
    s.edit("/workspace/long.txt", "fin", "principio").await.unwrap();
    assert!(s.read_bytes("/workspace/long.txt", ..).await.unwrap().bytes.ends_with(b"\nprincipio"));
    assert_eq!(uploads(&b).await, 0, "nothing is left behind");
}

async fn a_long_file_is_appended_to_by_the_server(b: Bucket) {
    let s = in_small_parts(&b).await;
    let mut content = noise(11 * MIB);
    s.write("/workspace/log", content.clone()).await.unwrap();
    let before = b.fs.requests();
    let written = s.append("/workspace/log", "más\n").await.unwrap();
    assert_eq!(b.fs.requests(), before, "another handle's requests");
    content.extend_from_slice("más\n".as_bytes());
    assert_eq!(written.size, content.len() as u64);
    s.append("/workspace/log", "y más\n").await.unwrap();
    content.extend_from_slice("y más\n".as_bytes());
    assert_eq!(s.read_bytes("/workspace/log", ..).await.unwrap().bytes, content);
    assert_eq!(uploads(&b).await, 0);
}

async fn a_long_file_is_copied_in_parts(b: Bucket) {
    let s = in_small_parts(&b).await;
    let content = noise(11 * MIB);
    s.write("/workspace/long.pdf", content.clone()).await.unwrap();
    let moved = s.move_to("/workspace/long.pdf", "/workspace/b/other.bin").await.unwrap();
    assert_eq!(moved.bytes, content.len() as u64);
    assert_eq!(s.read_bytes("/workspace/b/other.bin", ..).await.unwrap().bytes, content);
    let head = b.raw.head_object().bucket(&b.name).key("threads/1/b/other.bin").send().await.unwrap();
    assert_eq!(head.content_type(), Some("application/pdf"), "it keeps what was said of it");
    assert!(!s.exists("/workspace/long.pdf").await.unwrap());
    assert_eq!(uploads(&b).await, 0);
}

async fn a_failed_stream_leaves_nothing(b: Bucket) {
    let s = in_small_parts(&b).await;
    let broken = || {
        let good = std::iter::repeat_with(|| Ok(Bytes::from(vec![b'x'; MIB]))).take(14);
        stream::iter(good.chain([Err(std::io::Error::other("the disk went away"))]))
    };
    let error = s.write_stream("/workspace/x", broken(), WriteMode::Overwrite).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.message().contains("the disk went away"), "{error}");
    assert!(!s.exists("/workspace/x").await.unwrap());
    assert_eq!(uploads(&b).await, 0);
    // Also if the caller is canceled.
    let endless = stream::repeat_with(|| Ok(Bytes::from(vec![b'x'; MIB])));
    let writing = s.write_stream("/workspace/x", endless, WriteMode::Overwrite);
    let _ = tokio::time::timeout(std::time::Duration::from_millis(1500), writing).await;
    for _ in 0..400 {
        if uploads(&b).await == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    assert_eq!(uploads(&b).await, 0);
    assert!(!s.exists("/workspace/x").await.unwrap());
}

async fn quotas_name_the_limit(b: Bucket) {
    let limited = |quota| b.fs.session(&session("u1", "1", "k1").quota(quota));
    let s = limited(Quota::default().file_bytes(5));
    s.write("/workspace/a", "12345").await.unwrap();
    for error in [
        s.write("/workspace/a", "123456").await.unwrap_err(),
        s.append("/workspace/a", "6").await.unwrap_err(),
        s.edit("/workspace/a", "5", "56").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
        assert!(error.message().contains("is 5"), "{error}");
    }
    b.put("threads/1/big", "1234567890").await;
    assert_eq!(kind(s.copy("/workspace/big", "/workspace/copy").await), ErrorKind::QuotaExceeded);
    s.delete("/workspace/big").await.unwrap();

    let s = limited(Quota::default().mount_bytes(12).mount_objects(3));
    s.write("/workspace/b", "12345").await.unwrap();
    let error = s.write("/workspace/c", "123").await.unwrap_err();
    assert!(error.message().contains("the limit is 12") && error.path() == Some("/workspace/c"), "{error}");
    s.write("/workspace/c", "12").await.unwrap();
    let error = s.write("/workspace/d", "").await.unwrap_err();
    assert!(error.message().contains("objects; the limit is 3"), "{error}");
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    // Shrinking is always allowed, and deleted files no longer count.
    s.write("/workspace/b", "1").await.unwrap();
    s.append("/workspace/c", "345").await.unwrap();
    assert_eq!(kind(s.append("/workspace/c", "67").await), ErrorKind::QuotaExceeded);
    s.delete("/workspace/a").await.unwrap();
    s.write("/workspace/d", "12345").await.unwrap();
    assert_eq!(kind(s.copy("/workspace/d", "/workspace/e").await), ErrorKind::QuotaExceeded);
    // Renaming needs no additional quota.
    s.move_to("/workspace/d", "/workspace/e").await.unwrap();
    s.delete_recursive("/workspace/c").await.unwrap();
    // If others have deleted files, the quota is recounted before a write is refused.
    b.delete("threads/1/e").await;
    b.delete("threads/1/b").await;
    s.write("/workspace/f", "123456789012").await.unwrap();
}

async fn grants_decide_what_may_be_written(b: Bucket) {
    let granted = |grants| b.fs.session(&session("u1", "1", "k1").grants(grants));
    let s = granted(Grants::default().ticket(Access::ReadWrite));
    s.write("/ticket/answer.md", "sí").await.unwrap();
    s.move_to("/ticket/answer.md", "/workspace/answer.md").await.unwrap();
    assert_eq!(text(&s, "/workspace/answer.md").await, "sí");
    assert_eq!(kind(s.write("/skills/x", "x").await), ErrorKind::ReadOnly);
    let before = b.fs.requests();
    for (name, grants) in [
        ("read-only", Grants::READ_ONLY),
        ("ticket only", Grants::default().workspace(Access::ReadOnly).ticket(Access::ReadWrite)),
    ] {
        let s = granted(grants);
        for path in ["/workspace/a", "/workspace", "/workspace/answer.md", "/", "a"] {
            for (operation, got) in every_write(&s, path).await {
                assert_eq!(got, Some(ErrorKind::ReadOnly), "{name}: {operation} {path}");
            }
        }
    }
    let s = granted(Grants::default());
    for path in ["/ticket/a", "/ticket", "/ticket/mail.txt", "/"] {
        for (operation, got) in every_write(&s, path).await {
            assert_eq!(got, Some(ErrorKind::ReadOnly), "no ticket: {operation} {path}");
        }
    }
    let s = granted(Grants::READ_ONLY);
    assert_eq!(kind(s.capabilities().await), ErrorKind::ReadOnly);
    assert_eq!(b.fs.requests(), before);
    assert_eq!(text(&s, "/workspace/answer.md").await, "sí");
}

/// Every operation that modifies something, on one path.
async fn every_write(s: &S3Backend, path: &str) -> Vec<(&'static str, Option<ErrorKind>)> {
    fn of<T>(result: Result<T, Error>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }
    let one = || stream::iter([Ok(Bytes::from_static(b"x"))]);
    let uploaded = s.upload_files([(path, Bytes::new())]).await.remove(0);
    let if_match = WriteMode::IfMatch("0".repeat(32));
    vec![
        ("write", of(s.write(path, "x").await)),
        ("create", of(s.write_with(path, "x", WriteMode::CreateNew).await)),
        ("if-match", of(s.write_with(path, "x", if_match).await)),
        ("stream", of(s.write_stream(path, one(), WriteMode::Overwrite).await)),
        ("append", of(s.append(path, "x").await)),
        ("edit", of(s.edit(path, "x", "y").await)),
        ("edit all", of(s.edit_all(path, "x", "y").await)),
        ("edit anyway", of(s.accepting_lost_updates().edit(path, "x", "y").await)),
        ("delete", of(s.delete(path).await)),
        ("delete -r", of(s.delete_recursive(path).await)),
        ("copy to", of(s.copy("/workspace/a", path).await)),
        ("copy to, new", of(s.copy_with("/workspace/a", path, Overwrite::No).await)),
        ("move to", of(s.move_to("/workspace/a", path).await)),
        ("move from", of(s.move_to(path, "/workspace/b").await)),
        ("upload", of(uploaded)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skills_refuse_every_write_before_any_request() {
    let b = Bucket::embedded().await;
    let wire = Wire::start(Some(&b.endpoint), |_, _| Reply::Forward).await;
    let fs = b.through(&wire.endpoint).await;
    let all = Grants::default().workspace(Access::ReadWrite).ticket(Access::ReadWrite);
    let libraries = vec![LibraryId::parse("acme").unwrap()];
    let mut userless = session("u1", "1", "k1");
    userless.user = None;
    for (name, who) in [
        ("all grants", session("u1", "1", "k1").grants(all)),
        ("a library", session("u1", "1", "k1").libraries(libraries)),
        // Without a user there is no such mount, and it refuses all the same.
        ("no user", userless),
    ] {
        let s = fs.session(&who);
        for (path, expected) in [
            ("/skills", ErrorKind::ReadOnly),
            ("/skills/", ErrorKind::ReadOnly),
            ("//skills/x", ErrorKind::ReadOnly),
            ("/skills//x", ErrorKind::ReadOnly),
            ("/./skills/x/", ErrorKind::ReadOnly),
            ("/skills/a/SKILL.md", ErrorKind::ReadOnly),
            ("/skills/a/../b", ErrorKind::InvalidPath),
            ("/workspace/../skills/x", ErrorKind::InvalidPath),
            ("/skills/%2e%2e/b", ErrorKind::InvalidPath),
            ("/skills\\x", ErrorKind::InvalidPath),
            ("/skills/a\0b", ErrorKind::InvalidPath),
            ("/Skills", ErrorKind::NotFound),
            ("/SKILLS/x", ErrorKind::NotFound),
            ("/skillsfoo/x", ErrorKind::NotFound),
        ] {
            for (operation, got) in every_write(&s, path).await {
                assert_eq!(got, Some(expected), "{name}: {operation} {path:?}");
            }
        }
    }
    assert_eq!(fs.requests().total(), 0);
    assert!(wire.take().is_empty(), "nothing went out");
}

/// Every future is `Send`, so that servers can spawn it.
#[tokio::test]
async fn every_operation_can_be_spawned() {
    fn spawnable<F: Future + Send>(_: F) {}
    let s = Bucket::embedded().await.session();
    let one = || stream::iter([Ok(Bytes::new())]);
    spawnable(s.ls("/"));
    spawnable(s.tree("/"));
    spawnable(s.stat("/"));
    spawnable(s.read("/"));
    spawnable(s.read_bytes("/", ..));
    spawnable(s.write("/", ""));
    spawnable(s.write_with("/", "", WriteMode::CreateNew));
    spawnable(s.write_stream("/", one(), WriteMode::CreateNew));
    spawnable(s.upload_files([("/", Bytes::new())]));
    spawnable(s.upload_files(vec![(String::new(), Bytes::new())]));
    spawnable(s.download_files(["/"]));
    spawnable(s.append("/", ""));
    spawnable(s.edit("/", "a", "b"));
    spawnable(s.edit_all("/", "a", "b"));
    spawnable(s.delete("/"));
    spawnable(s.delete_recursive("/"));
    spawnable(s.copy("/", "/"));
    spawnable(s.copy_with("/", "/", Overwrite::No));
    spawnable(s.move_to("/", "/"));
    spawnable(s.move_with("/", "/", Overwrite::No));
    spawnable(s.glob("*"));
    spawnable(s.glob_stream("*").count());
    spawnable(s.grep(&Grep::new("x")));
    spawnable(s.grep_stream(&Grep::new("x")).count());
    spawnable(s.capabilities());
    spawnable(s.skills(None));
    spawnable(s.load_skill("x"));
    spawnable(s.load_skills_frontmatter(None));
}

/// Only the versions that were copied are deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_changes_while_it_is_moved_stays() {
    let b = Bucket::embedded().await;
    b.put("threads/1/from/a.md", "one").await;
    b.put("threads/1/from/b.md", "two").await;
    let (raw, name) = (b.raw.clone(), b.name.clone());
    let changed = std::sync::Arc::new(tokio::sync::Notify::new());
    let done = changed.clone();
    let wire = Wire::start(Some(&b.endpoint), move |request, _| {
        // After everything is copied and before anything is deleted.
        match request.method.as_str() {
            "DELETE" => Reply::ForwardWhen(done.clone()),
            _ => Reply::Forward,
        }
    })
    .await;
    let s = b.through(&wire.endpoint).await.session(&session("u1", "1", "k1"));
    let meanwhile = async {
        while b.raw.head_object().bucket(&name).key("threads/1/to/b.md").send().await.is_err() {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let put = raw.put_object().bucket(&name).key("threads/1/from/b.md");
        put.body(b"newer".to_vec().into()).send().await.unwrap();
        for _ in 0..400 {
            changed.notify_waiters();
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let moved = async {
        tokio::select! { moved = s.move_to("/workspace/from", "/workspace/to") => moved, () = meanwhile => panic!() }
    };
    let error = Box::pin(moved).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.message().contains("`/workspace/from/b.md`"), "{error}");
    assert!(!error.may_have_taken_effect());
    let s = b.session();
    assert_eq!(text(&s, "/workspace/from/b.md").await, "newer");
    assert_eq!(text(&s, "/workspace/to/b.md").await, "two");
    assert_eq!(text(&s, "/workspace/to/a.md").await, "one");
    assert!(!s.exists("/workspace/from/a.md").await.unwrap());
}

fn limited(bytes: u64) -> Session {
    session("u1", "1", "k1").quota(Quota::default().mount_bytes(bytes))
}

/// The number of bytes in the workspace.
async fn held(b: &Bucket) -> u64 {
    let all = b.session().ls_recursive("/workspace").await.unwrap();
    all.entries.iter().filter_map(|entry| entry.size).sum()
}

/// Writes in flight count, even if a refused write recounts concurrently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_counts_what_is_on_its_way() {
    let b = Bucket::embedded().await;
    let wire = Wire::start(Some(&b.endpoint), |request, _| match request.method.as_str() {
        "PUT" => Reply::ForwardAfter(std::time::Duration::from_millis(1500)),
        _ => Reply::Forward,
    })
    .await;
    let s = b.through(&wire.endpoint).await.session(&limited(100));
    let mut writes = Vec::new();
    for i in 0..8 {
        let s = s.clone();
        writes.push(tokio::spawn(async move { s.write(format!("f{i}"), vec![b'x'; 60]).await }));
        tokio::time::sleep(std::time::Duration::from_millis(80)).await;
    }
    let done = futures_util::future::join_all(writes).await;
    assert_eq!(done.iter().filter(|write| write.as_ref().unwrap().is_ok()).count(), 1);
    assert_eq!(held(&b).await, 60);
}

/// Bytes freed by concurrent shrinking or deletion are returned to the quota once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_gives_back_once() {
    let b = Bucket::embedded().await;
    let s = b.fs.session(&limited(1000));
    s.write("keep", vec![b'x'; 800]).await.unwrap();
    s.write("small", vec![b'x'; 200]).await.unwrap();
    s.upload_files((0..16).map(|_| ("small", Bytes::new()))).await;
    assert_eq!(kind(s.write("more", vec![b'y'; 300]).await), ErrorKind::QuotaExceeded);
    s.write("small", vec![b'x'; 200]).await.unwrap();
    futures_util::future::join_all((0..16).map(|_| s.delete("small"))).await;
    assert_eq!(kind(s.write("more", vec![b'y'; 300]).await), ErrorKind::QuotaExceeded);
    s.write("more", vec![b'y'; 200]).await.unwrap();
    assert_eq!(held(&b).await, 1000);
}

/// An endless stream is refused as soon as the quota is exhausted, and not at its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_takes_room_as_it_grows() {
    let b = Bucket::embedded().await;
    let s = b.fs.session(&limited(30_000_000));
    let endless = stream::repeat_with(|| Ok(Bytes::from(vec![b'x'; MIB])));
    let refused = s.write_stream("/workspace/endless", endless, WriteMode::Overwrite).await;
    assert_eq!(kind(refused), ErrorKind::QuotaExceeded);
    assert_eq!((held(&b).await, uploads(&b).await), (0, 0));
    s.write("/workspace/a", vec![b'x'; 20 * MIB]).await.unwrap();
}

/// Neither `*`, nor lists, nor weak ETags are accepted.
#[tokio::test]
async fn what_is_no_etag_is_told_before_any_request() {
    let b = Bucket::embedded().await;
    let s = b.session();
    for bad in ["*", "\"*\"", "W/\"x\"", "\"", "*\"", "\"x\",\"y\"", "a\"b", "\"*"] {
        let mode = WriteMode::IfMatch(bad.to_owned());
        assert_eq!(kind(s.write_with("/workspace/a", "x", mode).await), ErrorKind::InvalidInput, "{bad}");
    }
    assert_eq!(b.fs.requests().total(), 0);
}

#[tokio::test]
async fn patience_has_an_end() {
    let settings = Settings::new("bucket").conflict_patience(std::time::Duration::MAX);
    assert_eq!(kind(SkillFs::connect(&settings).await), ErrorKind::InvalidInput);
}
