//! What a new thread costs where every session has credentials of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
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

pub(crate) async fn run(args: &Args, lab: &mut Lab) -> Result<Section> {
    let mut section = Section::default();
    let library = ours::shared_library(LIBRARY)?;
    Seeder::new(&lab.direct).skills(&ours::root(&library), 200).await?;
    ours::publish(&ours::connect(&lab.direct).await?, &library).await?;
    lab.latency(args.latency()).await?;
    // Each set of libraries takes some 0.3 MiB of the cache: more users than this would evict each other.
    let users = args.size(100, 20);
    let sts = sts(lab.direct.clone(), args.latency()).await?;

    let plain = ours::connect(&lab.proxied).await?;
    let confined = ours::connect_role(&lab.proxied, &sts).await?;
    for (name, fs) in [("without a role", &plain), ("with a role", &confined)] {
        let ((), first) = lab.measure(turn(fs, "u0", "t0-0")).await?;
        section.row(args, "first thread of a process: catalogue, workspace", name, &first);
        let mut several = Vec::new();
        let before = fs.requests();
        for user in 0..users {
            several.push(lab.measure(turn(fs, &format!("u{user}"), &format!("t{user}-1"))).await?.1);
        }
        if let Some(typical) = Measured::typical(several) {
            section.row(args, "first thread of a user, library known", name, &typical);
        }
        let second = fs.requests();
        let mut several = Vec::new();
        for user in 0..users {
            several.push(lab.measure(turn(fs, &format!("u{user}"), &format!("t{user}-2"))).await?.1);
        }
        if let Some(typical) = Measured::typical(several) {
            section.row(args, "next thread of a user, library known", name, &typical);
        }
        let threads = fs.requests() - second;
        section.figure(
            format!("AssumeRole for the first thread of each of {users} users, {name}"),
            (second - before).assume_role as f64,
            "",
        );
        section.figure(format!("AssumeRole for the next, {name}"), threads.assume_role as f64, "");
        let most = if name == "with a role" { users as u64 } else { 0 };
        section.goal(
            format!("STS for {users} new threads, {name}"),
            format!("{most} at most"),
            threads.assume_role.to_string(),
            threads.assume_role <= most,
        );
        section.goal(
            format!("library requests of {users} new threads, {name}"),
            "0",
            threads.get.to_string(),
            threads.get == 0,
        );
    }
    section.notes.push("STS answers after one round trip, too; it is a stand-in on loopback.".to_owned());
    Ok(section)
}

/// The catalogue for the prompt, and a look at the workspace.
async fn turn(fs: &SkillFs, user: &str, thread: &str) -> Result<()> {
    let session = ours::session_in(fs, user, thread, LIBRARY)?;
    let (catalogue, listing) = tokio::join!(ours::catalogue(&session), session.ls("/workspace"));
    listing?;
    ensure!(ours::skills_in(&catalogue?) == 200, "skills are missing");
    Ok(())
}

/// A stand-in for STS: it gives out what the storage takes anyway.
async fn sts(place: Place, latency: Duration) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let place = place.clone();
            tokio::spawn(async move {
                // A caller may go away; that is not an error of the measurement.
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
