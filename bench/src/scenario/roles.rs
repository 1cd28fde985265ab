//! The cost of a new thread if every session has its own credentials.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use skillfs::SkillFs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::args::Args;
use crate::lab::{Lab, Measured};
use crate::ours;
use crate::place::Place;
use crate::report::Section;
use crate::seed::Seeder;

const LIBRARY: &str = "bench-roles";
/// The number of threads per user.
const THREADS: usize = 5;
/// The number of threads that are measured individually.
const SAMPLE: usize = 20;
/// The concurrency of the others.
const AT_ONCE: usize = 32;

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let library = ours::shared_library(LIBRARY)?;
    Seeder::new(&lab.direct).skills(&ours::root(&library), 200).await?;
    ours::publish(&ours::connect(&lab.direct).await?, &library).await?;
    lab.latency(args.latency()).await?;
    let users = args.size(200, 20);
    let sts = sts(lab.direct.clone(), args.latency()).await?;

    let plain = ours::connect(&lab.proxied).await?;
    let confined = ours::connect_with_role(&lab.proxied, &sts).await?;
    for (name, fs) in [("without a role", &plain), ("with a role", &confined)] {
        let ((), first) = lab.measure(turn(fs, "u0", "t0-0")).await?;
        section.row(args, "first thread of a process: catalogue, workspace", name, &first);
        let before = fs.requests();
        let typical = threads(lab, fs, users, 1..2).await?;
        section.row(args, "first thread of a user, library known", name, &typical);
        let first = fs.requests() - before;
        let before = fs.requests();
        let typical = threads(lab, fs, users, 2..=THREADS).await?;
        section.row(args, "next thread of a user, library known", name, &typical);
        let next = fs.requests() - before;
        let more = users * (THREADS - 1);
        section.figure(
            format!("AssumeRole for the first thread of each of {users} users, {name}"),
            first.assume_role as f64,
            "",
        );
        section.figure(
            format!("AssumeRole for {more} more threads of them, {name}"),
            next.assume_role as f64,
            "",
        );
        let most = if name == "with a role" { more as u64 } else { 0 };
        section.goal(
            format!("STS for {more} new threads on a warm library, {name}"),
            format!("{most} at most"),
            next.assume_role.to_string(),
            next.assume_role <= most,
        );
        section.goal(
            format!("library requests of {more} new threads, {name}"),
            "0",
            next.get.to_string(),
            next.get == 0,
        );
    }
    section.notes.push("STS answers after one round trip, too; it is a stand-in on loopback.".to_owned());
    Ok(section)
}

/// Opens threads for each user. Some are measured individually. The others run concurrently, so that all of
/// them fall within the freshness bound of the library.
async fn threads(
    lab: &mut Lab,
    fs: &SkillFs,
    users: usize,
    threads: impl Iterator<Item = usize>,
) -> Result<Measured> {
    let mut all = threads.flat_map(|thread| (0..users).map(move |user| (user, thread)));
    let mut measured = Vec::new();
    for (user, thread) in all.by_ref().take(SAMPLE) {
        measured.push(lab.measure(turn(fs, &format!("u{user}"), &format!("t{user}-{thread}"))).await?.1);
    }
    let rest =
        all.map(
            |(user, thread)| async move { turn(fs, &format!("u{user}"), &format!("t{user}-{thread}")).await },
        );
    let () = stream::iter(rest).buffer_unordered(AT_ONCE).try_collect().await?;
    Measured::typical(measured).context("nobody to measure")
}

/// Builds the catalog for a prompt and lists the workspace.
async fn turn(fs: &SkillFs, user: &str, thread: &str) -> Result<()> {
    let session = ours::session_with_thread(fs, user, thread, LIBRARY)?;
    let (catalogue, listing) = tokio::join!(ours::catalogue(&session), session.ls("/workspace"));
    listing?;
    ensure!(ours::skills_in(&catalogue?) == 200, "skills are missing");
    Ok(())
}

/// A fake STS that returns the credentials that the storage accepts.
async fn sts(place: Place, latency: Duration) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let place = place.clone();
            tokio::spawn(async move {
                // A canceled request is not an error of the measurement.
                let _ = assume_role(stream, &place, latency).await;
            });
        }
    });
    Ok(endpoint)
}

async fn assume_role(mut stream: TcpStream, place: &Place, latency: Duration) -> Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let read = stream.read(&mut buffer).await?;
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if read == 0 || body.len() >= length.unwrap_or(0) {
            break;
        }
    }
    tokio::time::sleep(latency).await;
    let Place { access_key, secret_key, .. } = place;
    let body = format!(
        "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
         <AccessKeyId>{access_key}</AccessKeyId><SecretAccessKey>{secret_key}</SecretAccessKey>\
         <SessionToken>token</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>\
         </AssumeRoleResult></AssumeRoleResponse>"
    );
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    Ok(())
}
