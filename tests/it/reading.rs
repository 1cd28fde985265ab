//! `read`, windows of lines, and bytes: what is text, what is binary, and what is too large.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use skillfs::{ErrorKind, Hint, S3Backend, SkillFs, Window};

use crate::support::wire::{Reply, Wire};
use crate::support::{Bucket, Seeded, latin1, on_every_server, session, settings, utf16};

on_every_server!(
    text_in_many_encodings,
    binary_content_is_refused_with_type_and_size,
    text_that_begins_like_a_binary_is_text,
    a_nul_at_byte_70_000_makes_it_binary,
    an_empty_file_is_empty_text,
    line_ends_are_kept,
    a_window_counts_lines_from_zero,
    a_window_behind_the_end_is_empty,
    files_around_the_size_of_the_first_request_are_complete,
    bytes_and_ranges_of_bytes,
);

fn window(offset: u64, limit: u64) -> Window {
    Window::default().offset(offset).limit(limit)
}

async fn text_in_many_encodings(b: Bucket) {
    let spanish = "Escritura de compraventa: el señor Muñoz pagará 300.000 libras en Cádiz, año 1998.\r\n¿Conforme? ¡Sí!\r\n";
    for (name, bytes, encoding, expected) in [
        ("utf8.md", "ñandú 🦀\n".as_bytes().to_vec(), "UTF-8", "ñandú 🦀\n"),
        ("bom.md", "\u{feff}# Título\n".as_bytes().to_vec(), "UTF-8", "# Título\n"),
        ("le.txt", utf16("línea uno\nñ 🦀\n", u16::to_le_bytes), "UTF-16LE", "línea uno\nñ 🦀\n"),
        ("be.txt", utf16("línea uno\nñ 🦀\n", u16::to_be_bytes), "UTF-16BE", "línea uno\nñ 🦀\n"),
        ("cp1252.txt", latin1(spanish), "windows-1252", spanish),
        (
            "euro.txt",
            b"Precio: 350.000 \x80 (\x93al contado\x94)\n".to_vec(),
            "windows-1252",
            "Precio: 350.000 € (“al contado”)\n",
        ),
    ] {
        b.put(&format!("threads/1/{name}"), bytes).await;
        let read = b.session().read(name).await.unwrap();
        assert_eq!((read.content.as_str(), read.encoding), (expected, encoding), "{name}");
    }
}

async fn binary_content_is_refused_with_type_and_size(b: Bucket) {
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    gzip.extend(std::iter::repeat_n(0x9c, 100));
    for (name, bytes, mime) in [
        ("plantilla.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n".to_vec(), "application/pdf"),
        ("ascii.pdf", b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n".to_vec(), "application/pdf"),
        ("image.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0".to_vec(), "image/png"),
        ("archive.zip", b"PK\x03\x04\x14\0\0\0\x08\0abcd".to_vec(), "application/zip"),
        ("data.gz", gzip, "application/gzip"),
        ("named-like-text.md", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0".to_vec(), "image/png"),
        ("unknown.bin", vec![0, 1, 2, 3, 250], "application/octet-stream"),
    ] {
        let size = bytes.len();
        b.put(&format!("u1/skills/c/s/{name}"), bytes.clone()).await;
        let path = format!("/skills/c/s/{name}");
        let error = b.session().read(&path).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BinaryFile);
        assert_eq!(
            error.message(),
            format!("File '{path}' is a binary file and cannot be read as text ({mime}, {size} bytes)")
        );
        let error = b.session().read_window(&path, window(0, 5)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BinaryFile);
        assert_eq!(b.session().read_bytes(&path, ..).await.unwrap().bytes, bytes);
    }
}

async fn text_that_begins_like_a_binary_is_text(b: Bucket) {
    for start in ["BM", "MZ", "ID3", "GIF89a", "PK", "RIFF"] {
        let content = format!("{start} es el comienzo de esta nota\n");
        b.put("threads/1/note.txt", &content).await;
        assert_eq!(b.session().read("note.txt").await.unwrap().content, content);
    }
}

async fn a_nul_at_byte_70_000_makes_it_binary(b: Bucket) {
    let mut bytes = vec![b'a'; 100_000];
    bytes[70_000] = 0;
    b.put("threads/1/late.txt", bytes).await;
    assert_eq!(b.session().read("late.txt").await.unwrap_err().kind(), ErrorKind::BinaryFile);
    let error = b.session().read_window("late.txt", window(0, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BinaryFile);
}

async fn an_empty_file_is_empty_text(b: Bucket) {
    b.put("threads/1/empty.md", "").await;
    let read = b.session().read("empty").await.unwrap();
    assert_eq!(
        (read.content.as_str(), read.lines, read.total_lines, read.next_offset),
        ("", 0, Some(0), None)
    );
    assert_eq!(read.path.as_str(), "/workspace/empty.md");
    assert_eq!(read.etag.as_deref(), Some("d41d8cd98f00b204e9800998ecf8427e"));
    let window = b.session().read_window("empty.md", window(5, 5)).await.unwrap();
    assert_eq!((window.content.as_str(), window.next_offset), ("", None));
    assert!(b.session().read_bytes("empty.md", ..).await.unwrap().bytes.is_empty());
    assert!(b.session().read_bytes("empty.md", 0..10).await.unwrap().bytes.is_empty());
}

async fn line_ends_are_kept(b: Bucket) {
    for content in ["a\r\nb\r\n", "a\nb", "a\n\n\n", "\n", "a\rb\n", "no end"] {
        b.put("threads/1/x.txt", content).await;
        assert_eq!(b.session().read("x.txt").await.unwrap().content, content);
    }
}

async fn a_window_counts_lines_from_zero(b: Bucket) {
    b.put("threads/1/x.txt", "0\r\n1\r\n2\r\n3\r\n4").await;
    let read = b.session().read_window("x.txt", window(1, 2)).await.unwrap();
    assert_eq!(read.content, "1\r\n2\r\n");
    assert_eq!((read.offset, read.lines, read.total_lines, read.next_offset), (1, 2, Some(5), Some(3)));
    let read = b.session().read_window("x.txt", window(3, 99)).await.unwrap();
    assert_eq!((read.content.as_str(), read.lines, read.next_offset), ("3\r\n4", 2, None));
    let read = b.session().read_window("x.txt", window(0, 0)).await.unwrap();
    assert_eq!((read.content.as_str(), read.lines, read.next_offset), ("", 0, Some(0)));
    let read = b.session().read_window("x.txt", Window::default().offset(2)).await.unwrap();
    assert_eq!(read.content, "2\r\n3\r\n4");
    let whole = b.session().read("x.txt").await.unwrap();
    assert_eq!((whole.lines, whole.total_lines, whole.next_offset), (5, Some(5), None));
}

async fn a_window_behind_the_end_is_empty(b: Bucket) {
    b.put("threads/1/x.txt", "0\n1\n").await;
    for offset in [2, 3, 1_000_000, u64::MAX] {
        let read = b.session().read_window("x.txt", window(offset, 10)).await.unwrap();
        assert_eq!(
            (read.content.as_str(), read.lines, read.total_lines, read.next_offset),
            ("", 0, Some(2), None)
        );
    }
}

async fn files_around_the_size_of_the_first_request_are_complete(b: Bucket) {
    for size in [65_535, 65_536, 65_537, 200_000] {
        // A two-byte character crosses every even boundary.
        let content = format!("x{}", "é".repeat(size / 2));
        b.put("threads/1/x.txt", &content).await;
        let read = b.session().read("x.txt").await.unwrap();
        assert!(read.content == content, "{size}");
        assert_eq!(read.size, content.len() as u64);
    }
}

async fn bytes_and_ranges_of_bytes(b: Bucket) {
    b.put("threads/1/x.bin", "0123456789").await;
    let backend = b.session();
    let read = async |range: (std::ops::Bound<u64>, std::ops::Bound<u64>)| {
        backend.read_bytes("x.bin", range).await.unwrap().bytes
    };
    use std::ops::Bound::{Excluded, Included, Unbounded};
    assert_eq!(read((Unbounded, Unbounded)).await, "0123456789");
    assert_eq!(read((Included(2), Excluded(5))).await, "234");
    assert_eq!(read((Included(2), Included(5))).await, "2345");
    assert_eq!(read((Excluded(2), Included(5))).await, "345");
    assert_eq!(read((Included(8), Unbounded)).await, "89");
    assert_eq!(read((Included(8), Excluded(99))).await, "89");
    assert_eq!(read((Included(10), Unbounded)).await, "");
    assert_eq!(read((Included(99), Excluded(100))).await, "");
    assert_eq!(read((Included(3), Excluded(3))).await, "");
    assert_eq!(read((Included(5), Excluded(3))).await, "");
    assert_eq!(read((Included(u64::MAX), Unbounded)).await, "");
    assert_eq!(read((Included(0), Included(u64::MAX))).await, "0123456789");
    assert_eq!(backend.read_bytes("none.bin", 3..3).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// A store with a size limit that is small enough to test.
async fn limited(max_read_bytes: u64) -> (skillfs::embedded::Embedded, SkillFs) {
    let embedded = skillfs::embedded::Embedded::in_memory().unwrap();
    embedded.create_bucket("big-bucket").await.unwrap();
    let fs =
        SkillFs::embedded(&embedded, &settings("big-bucket").max_read_bytes(max_read_bytes)).await.unwrap();
    (embedded, fs)
}

#[tokio::test]
async fn beyond_the_limit_a_window_is_the_way_out() {
    let (embedded, fs) = limited(100_000).await;
    let content: String = (0..40_000).map(|i| format!("línea {i}\n")).collect();
    embedded.put("big-bucket", "threads/1/log.txt", content.clone()).await.unwrap();
    let backend = fs.session(&session("u1", "1", "k1"));
    let error = backend.read("log.txt").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().contains("/workspace/log.txt") && error.message().contains("100000"), "{error}");
    assert!(error.hint() == Some(&Hint::ReadWindow), "{error}");

    let read = backend.read_window("log.txt", window(0, 2)).await.unwrap();
    assert_eq!(read.content, "línea 0\nlínea 1\n");
    assert_eq!((read.total_lines, read.next_offset), (None, Some(2)));
    let read = backend.read_window("log.txt", window(30_000, 2)).await.unwrap();
    assert_eq!(read.content, "línea 30000\nlínea 30001\n");
    let read = backend.read_window("log.txt", window(39_999, 5)).await.unwrap();
    assert_eq!(
        (read.content.as_str(), read.total_lines, read.next_offset),
        ("línea 39999\n", Some(40_000), None)
    );
    let read = backend.read_window("log.txt", window(50_000, 5)).await.unwrap();
    assert_eq!((read.content.as_str(), read.total_lines, read.next_offset), ("", Some(40_000), None));
    // The window itself is too large.
    let error = backend.read_window("log.txt", window(0, 30_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.hint() == Some(&Hint::FewerLines), "{error}");
    // Reading bytes has the same limit and the same workaround.
    assert_eq!(backend.read_bytes("log.txt", ..).await.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(backend.read_bytes("log.txt", 0..7).await.unwrap().bytes, "línea ");
    // Adjacent windows add up to the entire file.
    let (mut joined, mut offset) = (String::new(), Some(0));
    while let Some(at) = offset {
        let read = backend.read_window("log.txt", window(at, 3_000)).await.unwrap();
        joined += &read.content;
        offset = read.next_offset;
    }
    assert!(joined == content);
}

#[tokio::test]
async fn a_large_file_that_turns_legacy_behind_its_head_is_still_read() {
    let (embedded, fs) = limited(100_000).await;
    let mut bytes = "plain\n".repeat(20_000).into_bytes();
    bytes.extend(latin1("España y Muñoz\n"));
    embedded.put("big-bucket", "threads/1/x.txt", bytes).await.unwrap();
    let backend = fs.session(&session("u1", "1", "k1"));
    let read = backend.read_window("x.txt", window(20_000, 1)).await.unwrap();
    assert_eq!((read.content.as_str(), read.encoding), ("España y Muñoz\n", "windows-1252"));
    assert_eq!(read.total_lines, Some(20_001));
}

#[tokio::test]
async fn one_endless_line_is_too_large_and_bounded() {
    let (embedded, fs) = limited(100_000).await;
    embedded.put("big-bucket", "threads/1/x.txt", vec![b'x'; 3_000_000]).await.unwrap();
    let backend = fs.session(&session("u1", "1", "k1"));
    assert_eq!(backend.read_window("x.txt", window(0, 1)).await.unwrap_err().kind(), ErrorKind::TooLarge);
    let past = backend.read_window("x.txt", window(1, 1)).await.unwrap();
    assert_eq!((past.content.as_str(), past.total_lines), ("", Some(1)));
}

#[tokio::test]
async fn a_limit_below_the_first_request_holds_too() {
    let (embedded, fs) = limited(100).await;
    embedded.put("big-bucket", "threads/1/x.txt", "0123456789\n".repeat(20)).await.unwrap();
    embedded.put("big-bucket", "threads/1/fits.txt", "x".repeat(100)).await.unwrap();
    let backend = fs.session(&session("u1", "1", "k1"));
    assert_eq!(backend.read("x.txt").await.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(backend.read_window("x.txt", window(0, 15)).await.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(backend.read_window("x.txt", window(0, 2)).await.unwrap().lines, 2);
    assert_eq!(backend.read("fits.txt").await.unwrap().size, 100);
}

/// A server that claims to have an object of 5 GB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binary_object_of_5_gb_is_refused_after_its_first_kilobytes() {
    const SIZE: u64 = 5 * 1024 * 1024 * 1024;
    let wire = Wire::start(None, |request, _| {
        assert_eq!(request.operation(), "GET");
        let (first, last) = match request.header("range").and_then(|r| r.strip_prefix("bytes=")?.split_once('-')) {
            Some((first, last)) => (first.parse().unwrap(), last.parse().unwrap_or(SIZE - 1)),
            None => (0, SIZE - 1),
        };
        let length = last - first + 1;
        assert!(length < 1024 * 1024, "a client asked for {length} bytes of a binary object");
        let mut body = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        body.resize(length as usize, 0x9c);
        let mut reply = format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\ncontent-range: bytes {first}-{last}/{SIZE}\r\n\
             etag: \"huge\"\r\nlast-modified: Mon, 16 Nov 2026 00:00:00 GMT\r\nconnection: close\r\n\r\n"
        )
        .into_bytes();
        reply.extend(body);
        Reply::Raw(reply)
    })
    .await;
    let credentials = skillfs::StaticCredentials::new("a", "b");
    let fs = crate::support::connect(&wire.endpoint, &credentials, "bucket").await;
    let backend = fs.session(&session("u1", "1", "k1"));
    for result in
        [backend.read("/ticket/huge.bin").await, backend.read_window("/ticket/huge.bin", window(0, 10)).await]
    {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BinaryFile);
        assert_eq!(
            error.message(),
            "File '/ticket/huge.bin' is a binary file and cannot be read as text (image/png, 5368709120 bytes)"
        );
    }
    // One request of 64 KiB each.
    let requests = wire.take();
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|r| r.header("range") == Some("bytes=0-65535")));
    assert_eq!(backend.read_bytes("/ticket/huge.bin", ..1000).await.unwrap().bytes.len(), 1000);
}

/// A synthetic text of 1 GB whose content is computed from the offset.
struct Synthetic {
    backend: S3Backend,
    wire: Wire,
    /// The number of bytes requested.
    asked: Arc<AtomicU64>,
    version: Arc<AtomicU64>,
}

impl Synthetic {
    const LINE: u64 = 100;
    const LINES: u64 = 10_000_000;
    const SIZE: u64 = Self::LINE * Self::LINES;

    fn line(number: u64, version: u64) -> String {
        let text = format!("línea {number} de la versión {version}: ");
        let room = Self::LINE as usize - 1 - text.len();
        format!("{text}{}\n", "-".repeat(room))
    }

    fn bytes(first: u64, last: u64, version: u64) -> Vec<u8> {
        let (from, to) = (first / Self::LINE, last / Self::LINE);
        let lines: String = (from..=to).map(|number| Self::line(number, version)).collect();
        let start = (first - from * Self::LINE) as usize;
        lines.as_bytes()[start..start + (last - first + 1) as usize].to_vec()
    }

    async fn serve() -> Self {
        let (asked, version) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let (counter, current) = (asked.clone(), version.clone());
        let wire = Wire::start(None, move |request, _| {
            let version = current.load(Ordering::SeqCst);
            if request.header("if-match").is_some_and(|etag| etag != format!("\"v{version}\"")) {
                return Reply::error(412, "PreconditionFailed");
            }
            let range = request.header("range").and_then(|range| range.strip_prefix("bytes="));
            let (first, last) = range.and_then(|range| range.split_once('-')).unwrap();
            let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
            counter.fetch_add(last - first + 1, Ordering::SeqCst);
            let mut reply = format!(
                "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {first}-{last}/{}\r\n\
                 etag: \"v{version}\"\r\nlast-modified: Mon, 16 Nov 2026 00:00:00 GMT\r\nconnection: close\r\n\r\n",
                last - first + 1,
                Self::SIZE,
            )
            .into_bytes();
            reply.extend(Self::bytes(first, last, version));
            Reply::Raw(reply)
        })
        .await;
        let credentials = skillfs::StaticCredentials::new("a", "b");
        let fs = crate::support::connect(&wire.endpoint, &credentials, "bucket").await;
        Self { backend: fs.session(&session("u1", "1", "k1")), wire, asked, version }
    }

    /// Reads a window, checks it, and returns the number of requests and bytes.
    async fn read(&self, offset: u64, limit: u64) -> (usize, u64) {
        let read = self.backend.read_window("huge.log", window(offset, limit)).await.unwrap();
        let version = self.version.load(Ordering::SeqCst);
        let expected: String = (offset..offset + limit).map(|number| Self::line(number, version)).collect();
        assert!(read.content == expected, "{offset}, {limit}");
        assert_eq!((read.lines, read.total_lines, read.next_offset), (limit, None, Some(offset + limit)));
        assert_eq!(read.etag, Some(format!("v{version}")));
        (self.wire.take().len(), self.asked.swap(0, Ordering::SeqCst))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_of_a_long_file_starts_where_others_have_been() {
    const MIB: u64 = 1024 * 1024;
    let file = Synthetic::serve().await;
    let (requests, bytes) = file.read(0, 100).await;
    assert!(requests == 1 && bytes < 2 * MIB, "{requests} requests, {bytes} bytes");
    // The first deep window reads everything before it.
    let (requests, bytes) = file.read(600_000, 100).await;
    assert!(requests < 12 && bytes > 59 * MIB && bytes < 100 * MIB, "{requests} requests, {bytes} bytes");
    // Windows after it, before it, and the same one again do not.
    for (offset, limit) in [
        (600_000, 100),
        (600_100, 100),
        (602_000, 1_000),
        (599_000, 1_000),
        (300_000, 1),
        (123_456, 500),
        (10_500, 2),
        (600_000, 0),
        (0, 10),
        (605_000, 50),
    ] {
        let (requests, bytes) = file.read(offset, limit).await;
        assert!(requests <= 4 && bytes < 4 * MIB, "{offset}: {requests} requests, {bytes} bytes");
    }
    // A new version is a new file.
    file.version.store(2, Ordering::SeqCst);
    let (_, bytes) = file.read(200_000, 10).await;
    assert!(bytes > 19 * MIB, "{bytes} bytes of the new version");
    let (requests, bytes) = file.read(200_005, 10).await;
    assert!(requests <= 4 && bytes < 4 * MIB, "{requests} requests, {bytes} bytes");
}

/// Lines of different lengths, some of them empty, with both kinds of line endings.
fn many_lines(random: &mut Seeded, bytes: usize, words: &[&str]) -> String {
    let mut text = String::with_capacity(bytes + 4_000);
    while text.len() < bytes {
        let length = if random.below(500) == 0 { 400 } else { random.below(30) };
        for _ in 0..length {
            text.push_str(words[random.below(words.len())]);
        }
        text.push_str(if random.below(5) == 0 { "\r\n" } else { "\n" });
    }
    text.push_str("fin");
    text
}

/// Checks that windows in any order match the lines of the entire text.
async fn windows_are_right(content: &str, bytes: Vec<u8>, encoding: &str) {
    const MOST: u64 = 50_000;
    let (embedded, fs) = limited(MOST).await;
    let size = bytes.len() as u64;
    embedded.put("big-bucket", "threads/1/x.txt", bytes).await.unwrap();
    let backend = fs.session(&session("u1", "1", "k1"));
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    let total = lines.len();
    let mut random = Seeded::new(11);
    let mut ended = false;
    for round in 0..100 {
        let offset = match round % 20 {
            7 => total - 1 - random.below(20),
            13 => random.below(50),
            _ => random.below(total + 5),
        };
        let limit = match random.below(10) {
            0 => 400 + random.below(2_000),
            1 => 0,
            _ => random.below(150),
        };
        let (from, to) = (offset.min(total), (offset + limit).min(total));
        let expected = lines[from..to].concat();
        let read = backend.read_window("x.txt", window(offset as u64, limit as u64)).await;
        if expected.len() as u64 > MOST {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::TooLarge, "{offset}, {limit}");
            continue;
        }
        let read = read.unwrap();
        assert!(read.content == expected, "{encoding} {offset}, {limit}");
        assert_eq!((read.encoding, read.lines, read.size), (encoding, (to - from) as u64, size));
        // Once the end has been read, the number of lines is known.
        ended |= offset + limit >= total;
        if ended {
            assert_eq!(read.total_lines, Some(total as u64), "{offset}, {limit}");
        }
        let next = (offset + limit < total).then_some((offset + limit) as u64);
        assert_eq!(read.next_offset, next, "{offset}, {limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_a_long_file_are_right_in_any_order() {
    let words = ["casa ", "ñandú ", "año ", "🦀", "— ", "x", "\t", "日本語 "];
    let content = many_lines(&mut Seeded::new(3), 30 << 20, &words);
    windows_are_right(&content, content.clone().into_bytes(), "UTF-8").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_a_long_legacy_file_are_right_in_any_order() {
    let words = ["casa ", "señora ", "año ", "España ", "el camión ", "x", "\t", "Muñoz "];
    let content = many_lines(&mut Seeded::new(5), 30 << 20, &words);
    windows_are_right(&content, latin1(&content), "windows-1252").await;
}

#[tokio::test]
async fn cached_line_offsets_are_dropped_if_the_file_turns_out_to_be_legacy_text() {
    let (embedded, fs) = limited(50_000).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    let mut content: String = (0..400_000).map(|i| format!("line {i}\n")).collect();
    content.push_str(&"el señor Muñoz\n".repeat(200_000));
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    // Concurrent windows are correct too.
    let offsets = [399_000, 10, 250_000, 399_990, 450_000, 599_990, 100, 300_000, 420_000];
    for (name, at_once) in [("one.txt", 1), ("two.txt", 9)] {
        embedded.put("big-bucket", &format!("threads/1/{name}"), latin1(&content)).await.unwrap();
        for chunk in offsets.chunks(at_once) {
            let reads = chunk.iter().map(|offset| backend.read_window(name, window(*offset, 20)));
            for (offset, read) in chunk.iter().zip(futures_util::future::join_all(reads).await) {
                let from = *offset as usize;
                let read = read.unwrap();
                assert_eq!(read.content, lines[from..(from + 20).min(lines.len())].concat(), "{offset}");
            }
        }
    }
}

/// A window must not depend on how a file was split into requests.
#[tokio::test]
async fn legacy_text_is_decoded_across_the_first_request_boundary() {
    let (embedded, fs) = limited(70_000).await;
    let backend = fs.session(&session("u1", "1", "k1"));
    let line = "ñandú en España y la señora Muñoz, año 1998\n";
    for at in [65_533, 65_534, 65_535, 65_536, 65_537] {
        let mut bytes = vec![b'.'; at - 1];
        bytes.push(b'\n');
        bytes.extend(latin1(line));
        bytes.extend("plain\n".repeat(10_000).into_bytes());
        embedded.put("big-bucket", "threads/1/x.txt", bytes).await.unwrap();
        let read = backend.read_window("x.txt", window(1, 1)).await.unwrap();
        assert_eq!((read.content.as_str(), read.encoding), (line, "windows-1252"), "{at}");
    }
}
