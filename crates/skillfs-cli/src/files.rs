//! The commands of a session that read, change and find files.

use std::io::IsTerminal;
use std::pin::Pin;
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, TryStreamExt, stream};
use skillfs::{Error, ErrorKind, Glob, Grep, Overwrite, Result, Transferred, VirtualPath, Window, WriteMode};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::args::{ContentFlags, Global, SessionCommand as Command};
use super::connect::open;
use super::output::{self, Output};
use super::skills;
use super::terminal::{plural, size, visible};

/// The buffer size for reading local content.
const CHUNK_BYTES: usize = 256 * 1024;

pub(super) async fn run(global: &Global, command: Command, output: &Output) -> Result<ExitCode> {
    let mut content: ContentStream = Box::pin(stream::empty());
    let mut writes = false;
    if let Command::Write { path, source, .. } | Command::Append { path, source, .. } = &command {
        // Check this first: a refused write must neither create a store nor wait for standard input.
        global.session.session(global.read_only)?.check_writable(path.as_str())?;
        (content, writes) = (open_content(source, output).await?, true);
    }
    let backend = open(global, writes, output).await?;
    if matches!(command, Command::Glob { .. } | Command::Grep { .. }) {
        output.note_without_mounts(&backend);
    }
    match command {
        Command::Ls { path, long, recursive } => {
            let listing =
                if recursive { backend.ls_recursive(&path).await? } else { backend.ls(&path).await? };
            output.entries(&listing.entries, long)?;
            output.hidden(listing.hidden);
            output.note_without_mounts(&backend);
        }
        Command::Read { path, offset, limit, number } => {
            let mut window = Window::default().offset(offset.unwrap_or(0));
            window.limit = limit;
            let is_complete = offset.is_none() && limit.is_none();
            let file = match is_complete {
                true => backend.read(&path).await?,
                false => backend.read_window(&path, window).await?,
            };
            output.text(&file, number)?;
        }
        Command::Exists { path } => {
            let path = VirtualPath::parse(&path)?;
            let exists = backend.exists(&path).await?;
            output.exists(&path, exists)?;
            return Ok(if exists { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
        Command::Stat { path } => output.entry(&backend.stat(&path).await?)?,
        Command::Tree { path } => {
            let tree = backend.tree(&path).await?;
            output.tree(&tree)?;
            output.hidden(tree.hidden);
        }
        Command::Skills(command) => skills::run(&backend, command, output).await?,
        Command::Credentials => output::credentials(&backend.credentials().await?)?,
        Command::Write { path, create, if_match, accept, .. } => {
            let mode = match (create, if_match) {
                (true, _) => WriteMode::CreateNew,
                (false, Some(etag)) => WriteMode::IfMatch(etag),
                (false, None) => WriteMode::Overwrite,
            };
            let written = accept.of(&backend).write_stream(&path, content, mode).await?;
            output.done(&written, &format!("wrote {} ({})", written.path, size(written.size)))?;
        }
        Command::Append { path, source, accept } => {
            let content: BytesMut = content
                .try_fold(BytesMut::new(), |mut all, chunk| async move {
                    all.extend_from_slice(&chunk);
                    Ok(all)
                })
                .await
                .map_err(|e| unreadable(&source, e))?;
            let added = content.len() as u64;
            let written = accept.of(&backend).append(&path, content).await?;
            let note = format!("appended {} to {} (now {})", size(added), written.path, size(written.size));
            output.done(&written, &note)?;
        }
        Command::Edit { path, old, new, all, accept } => {
            let backend = accept.of(&backend);
            let edited = match all {
                true => backend.edit_all(&path, &old, &new).await?,
                false => backend.edit(&path, &old, &new).await?,
            };
            let count = plural(edited.replacements, "occurrence", "occurrences");
            output.done(&edited, &format!("replaced {count} in {}", edited.path))?;
        }
        Command::Rm { path, recursive } => {
            let (deleted, note) = if recursive {
                let deleted = backend.delete_recursive(&path).await?;
                let objects = plural(deleted.objects, "object", "objects");
                let note = format!("deleted {} ({objects})", deleted.path);
                (deleted, note)
            } else {
                let deleted = backend.delete(&path).await?;
                let note = format!("deleted {}", deleted.path);
                (deleted, note)
            };
            output.done(&deleted, &note)?;
            if deleted.left > 0 {
                output.note(&plural(
                    deleted.left,
                    "key was not deleted: no request can name it safely",
                    "keys were not deleted: no request can name them safely",
                ));
            }
        }
        Command::Cp { from, to, no_clobber, .. } => {
            let copied = backend.copy_with(&from, &to, overwrite(no_clobber)).await?;
            transferred("copied", &copied, output)?;
        }
        Command::Mv { from, to, no_clobber } => {
            let moved = backend.move_with(&from, &to, overwrite(no_clobber)).await?;
            transferred("moved", &moved, output)?;
        }
        Command::Glob { pattern, path, long, max } => {
            let mut query = Glob::new(pattern).max_files(max);
            query.root = path;
            let found = backend.glob(query).await?;
            output.entries(&found.entries, long)?;
            output.hidden(found.hidden);
            if found.truncated {
                let shown = plural(max as u64, "file", "files");
                output.truncated(&format!("showing the first {shown}; raise --max to see more"));
            }
        }
        Command::Grep { pattern, path, regex, ignore_case, glob, context, max, max_per_file } => {
            let query = Grep::new(pattern).regex(regex).ignore_case(ignore_case).context(context);
            let mut query = query.max_matches(max);
            (query.root, query.glob, query.max_per_file) = (path, glob, max_per_file);
            let found = backend.grep(&query).await?;
            output.grep(&found, context > 0, max)?;
            output.hidden(found.hidden);
            return Ok(if found.matches > 0 { ExitCode::SUCCESS } else { ExitCode::from(1) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn overwrite(no_clobber: bool) -> Overwrite {
    if no_clobber { Overwrite::No } else { Overwrite::Yes }
}

fn transferred(word: &str, done: &Transferred, output: &Output) -> Result<()> {
    let files = plural(done.files, "file", "files");
    output.done(done, &format!("{word} {files} ({}) to {}", size(done.bytes), done.to))?;
    // The JSON document includes the count.
    output.note_hidden(done.hidden);
    Ok(())
}

type ContentStream = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// Opens a local file or standard input.
async fn open_content(source: &ContentFlags, output: &Output) -> Result<ContentStream> {
    let Some(file) = source.file() else {
        if std::io::stdin().is_terminal() {
            output.note("reading from the terminal; press Ctrl-D to finish");
        }
        return Ok(chunks(tokio::io::stdin()));
    };
    let opened = async {
        let opened = tokio::fs::File::open(file).await?;
        match opened.metadata().await?.is_dir() {
            true => Err(std::io::ErrorKind::IsADirectory.into()),
            false => Ok(opened),
        }
    };
    Ok(chunks(opened.await.map_err(|e| unreadable(source, e))?))
}

fn chunks(reader: impl AsyncRead + Send + Unpin + 'static) -> ContentStream {
    Box::pin(stream::try_unfold(reader, |mut reader| async move {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        let count = reader.read_buf(&mut chunk).await?;
        Ok((count > 0).then(|| (chunk.freeze(), reader)))
    }))
}

fn unreadable(source: &ContentFlags, error: std::io::Error) -> Error {
    let name = source.file().map_or("standard input".to_owned(), |file| {
        format!("`{}`", visible(&file.display().to_string(), false))
    });
    Error::new(ErrorKind::InvalidInput, format!("cannot read {name}: {error}"))
        .with_hint("nothing was written; specify a readable file, or `-` for standard input")
        .with_source(error)
}
