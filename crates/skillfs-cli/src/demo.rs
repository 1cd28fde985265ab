//! `skillfs demo`: a session on sample data, on the real S3 protocol, with nothing to set up.

use std::fmt::Display;
use std::time::Duration;

use include_dir::{Dir, include_dir};
use serde::Serialize;
use skillfs::admin::{IntoKind, PushOptions};
use skillfs::embedded::Embedded;
use skillfs::{
    CatalogFormat, Edited, Entry, Error, Freshness, GlobResult, Grep, GrepLine, GrepResult, Library, Listing,
    Mount, Result, S3Backend, Session, SkillFs, TextFile, ThreadId, TicketId, UserId, Window, Written,
};

use super::args::Global;
use super::connect::embedded_settings;
use super::hints::{Here, render};
use super::output::{Described, Output};
use super::terminal::{ACCENT, BAD, BOLD, DIM, DIRECTORY, GOOD, plural, print, print_json, shell, visible};

static SKILLS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../examples/skills");
static WORKSPACE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../examples/workspace");
static TICKET: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../examples/ticket");

const USER: &str = "ana";
const THREAD: &str = "t-42";
const TICKET_ID: &str = "k-7";
/// Somebody else in the same bucket, whom the session must not see.
const OTHER_USER: &str = "bruno";
const OTHER_THREAD: &str = "t-4";

const TEMPLATE: &str = "/skills/escrituras/compraventa/resources/plantilla.pdf";

pub(super) async fn run(global: &Global, output: &Output) -> Result<()> {
    let embedded = match &global.embedded {
        Some(directory) => Embedded::open(directory).await?,
        None => Embedded::in_memory()?,
    };
    // What was asked for once is not asked for again, however slow the machine is.
    let freshness = Freshness::all(Duration::from_secs(3600));
    let settings = embedded_settings(global).freshness(freshness);
    embedded.create_bucket(&settings.bucket).await?;
    let fs = SkillFs::embedded(&embedded, &settings).await?;
    let objects = seed(&embedded, &settings.bucket).await?;
    let library = Library::User(UserId::parse(USER)?);
    let options = PushOptions::default().into(IntoKind::Published).by("demo").source("samples");
    fs.library(&library).index(&options).await?;
    let published = fs.requests();
    let session = Session::new()
        .user(UserId::parse(USER)?)
        .thread(ThreadId::parse(THREAD)?)
        .ticket(TicketId::parse(TICKET_ID)?);
    let show = Show { json: output.is_json(), backend: fs.session(&session), fs };
    show.heading("A bucket of many tenants, seen by one agent's session")?;
    show.line(format!(
        "{DIM}{objects} objects, on the real S3 protocol; user {USER}, thread {THREAD}, ticket {TICKET_ID}{DIM:#}"
    ))?;

    show.heading("Its three mounts")?;
    show.mounts().await?;
    show.heading("What the model is told of its skills, in 640 characters: two requests at once")?;
    show.catalog("all", 640).await?;
    show.heading("Which files are there? That is known by now")?;
    show.ls("/skills").await?;
    show.ls("/skills/escrituras/compraventa").await?;
    show.heading("Load one, then read on")?;
    show.read("/skills/escrituras/compraventa/SKILL.md", 12).await?;
    show.read("/ticket/requirements", 4).await?;
    show.read("drafts/old-contract.txt", 3).await?;
    show.heading("Work in the workspace")?;
    show.write("drafts/demo-deed.md", "# Deed of sale\n\nPrice: TODO\nBuyer: Ana\n").await?;
    show.edit("drafts/demo-deed.md", "TODO", "350,000").await?;
    show.append("drafts/demo-deed.md", "Seller: Bruno\n").await?;
    show.glob("**/*.md").await?;
    show.grep("Price").await?;
    show.heading("Probe before you promise")?;
    show.exists(TEMPLATE).await?;
    show.exists("/skills/escrituras/testamento").await?;
    show.heading("What is refused, and why")?;
    show.read(TEMPLATE, 1).await?;
    show.read("/skills/../../bruno/skills/private/SKILL.md", 1).await?;
    show.read("/skills/private/SKILL.md", 1).await?;
    show.ls("/skillsfoo").await?;
    show.write("/skills/escrituras/compraventa/SKILL.md", "# Mine now").await?;

    show.heading("What it cost")?;
    let requests = show.fs.requests() - published;
    show.line(format!(
        "{} in all: {} LIST, {} GET, {} HEAD, {} PUT",
        plural(requests.total(), "S3 request", "S3 requests"),
        requests.list,
        requests.get,
        requests.head,
        requests.put
    ))?;
    show.way_on(global)
}

/// Puts the sample data of two tenants into the bucket, where nothing is there yet; tells how many
/// objects they are.
async fn seed(embedded: &Embedded, bucket: &str) -> Result<usize> {
    let mut objects = Vec::new();
    gather(&SKILLS, &format!("{USER}/skills/"), &mut objects);
    gather(&WORKSPACE, &format!("threads/{THREAD}/"), &mut objects);
    gather(&TICKET, &format!("tickets/{TICKET_ID}/"), &mut objects);
    objects
        .push((format!("{OTHER_USER}/skills/private/SKILL.md"), b"---\nname: private\n---\nBruno's own.\n"));
    objects.push((format!("threads/{OTHER_THREAD}/secret.md"), b"Not for Ana.\n"));
    let count = objects.len();
    embedded.put_missing(bucket, objects.into_iter().map(|(key, content)| (key, content.into()))).await?;
    Ok(count)
}

fn gather(dir: &'static Dir<'_>, prefix: &str, objects: &mut Vec<(String, &'static [u8])>) {
    for file in dir.files() {
        let name: Vec<_> = file.path().iter().map(|part| part.to_string_lossy()).collect();
        objects.push((format!("{prefix}{}", name.join("/")), file.contents()));
    }
    for dir in dir.dirs() {
        gather(dir, prefix, objects);
    }
}

/// A description is one long line; its beginning says enough here.
fn cut(line: &str) -> String {
    const MOST: usize = 70;
    match line.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// One call of the session, for machines.
#[derive(Serialize)]
struct Step<'a, T> {
    call: &'static str,
    path: &'a str,
    requests: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Described<'a>>,
}

/// Shows what an agent would call and what it would get.
struct Show {
    json: bool,
    fs: SkillFs,
    backend: S3Backend,
}

impl Show {
    /// For people.
    fn line(&self, text: impl Display) -> Result<()> {
        if self.json { Ok(()) } else { print(&format!("{text}\n")) }
    }

    fn heading(&self, text: &str) -> Result<()> {
        self.line(format!("\n{BOLD}{text}{BOLD:#}"))
    }

    /// Makes a call, and shows it with what it cost and what came of it: `shown` has the lines for people.
    async fn call<T: Serialize>(
        &self,
        call: &'static str,
        path: &str,
        work: impl Future<Output = Result<T>>,
        shown: impl FnOnce(&T) -> Vec<String>,
    ) -> Result<()> {
        let before = self.fs.requests();
        let done = work.await;
        let requests = (self.fs.requests() - before).total();
        if self.json {
            let (result, error) = match &done {
                Ok(result) => (Some(result), None),
                Err(error) => (None, Some(Described::from(error))),
            };
            return print_json(&Step { call, path, requests, result, error });
        }
        let cost = match requests {
            0 => "no request".to_owned(),
            n => plural(n, "request", "requests"),
        };
        self.line(format!("\n  {ACCENT}{call}({path:?}){ACCENT:#} {DIM}· {cost}{DIM:#}"))?;
        let lines = match &done {
            Ok(result) => shown(result),
            Err(error) => refusal(error),
        };
        lines.iter().try_for_each(|line| self.line(format!("    {line}")))
    }

    async fn mounts(&self) -> Result<()> {
        let shown = |listing: &Listing| {
            let mounts = listing.entries.iter().zip(self.backend.mounts());
            let line = |(entry, mount): (&Entry, &Mount)| {
                let access = mount.access();
                format!("{DIRECTORY}{:<12}{DIRECTORY:#} {DIM}{access}{DIM:#}", entry.path)
            };
            mounts.map(line).collect()
        };
        self.call("ls", "/", self.backend.ls("/"), shown).await
    }

    async fn ls(&self, path: &str) -> Result<()> {
        let line = |Entry { path, size, .. }: &Entry| match size {
            Some(size) => format!("{path:<56} {DIM}{size:>5} bytes{DIM:#}"),
            None => format!("{DIRECTORY}{path}{DIRECTORY:#}"),
        };
        let shown = |listing: &Listing| listing.entries.iter().map(line).collect();
        self.call("ls", path, self.backend.ls(path), shown).await
    }

    async fn catalog(&self, category: &str, budget: usize) -> Result<()> {
        let work = async {
            let library = self.backend.skills(Some(category)).await?;
            Ok(library.catalog(CatalogFormat::Markdown, Some(budget)).text)
        };
        let shown = |text: &String| text.lines().map(quoted).collect();
        self.call("skills", category, work, shown).await
    }

    async fn read(&self, path: &str, lines: u64) -> Result<()> {
        let window = Window::default().limit(lines);
        let shown = |file: &TextFile| {
            let rest = match file.total_lines.unwrap_or(file.lines) - file.lines {
                0 => String::new(),
                more => format!(", {more} more"),
            };
            let lines = plural(file.lines, "line", "lines");
            let end = format!("{DIM}└ {lines} of {}{rest}; {}{DIM:#}", file.path, file.encoding);
            file.content.lines().map(|line| quoted(&cut(line))).chain([end]).collect()
        };
        self.call("read", path, self.backend.read_window(path, window), shown).await
    }

    async fn write(&self, path: &str, content: &'static str) -> Result<()> {
        self.call("write", path, self.backend.write(path, content), written).await
    }

    async fn edit(&self, path: &str, old: &str, new: &str) -> Result<()> {
        let shown = |edited: &Edited| {
            let count = plural(edited.replacements, "replacement", "replacements");
            vec![format!("{count}: {DIM}{old} → {new}{DIM:#}")]
        };
        self.call("edit", path, self.backend.edit(path, old, new), shown).await
    }

    async fn append(&self, path: &str, content: &'static str) -> Result<()> {
        self.call("append", path, self.backend.append(path, content), written).await
    }

    async fn glob(&self, pattern: &str) -> Result<()> {
        let shown = |found: &GlobResult| found.entries.iter().map(|entry| entry.path.to_string()).collect();
        self.call("glob", pattern, self.backend.glob(pattern), shown).await
    }

    async fn grep(&self, pattern: &str) -> Result<()> {
        let line = |GrepLine { path, line, text, .. }: &GrepLine| {
            format!("{path}:{GOOD}{line}{GOOD:#}:{}", visible(&cut(text), false))
        };
        let shown = |found: &GrepResult| found.lines.iter().map(line).collect();
        self.call("grep", pattern, self.backend.grep(&Grep::new(pattern)), shown).await
    }

    async fn exists(&self, path: &str) -> Result<()> {
        let shown = |exists: &bool| {
            let style = if *exists { GOOD } else { DIM };
            vec![format!("{style}{exists}{style:#}")]
        };
        self.call("exists", path, self.backend.exists(path), shown).await
    }

    fn way_on(&self, global: &Global) -> Result<()> {
        self.heading("Go on")?;
        let Some(directory) = &global.embedded else {
            self.line("  skillfs demo --embedded ./demo-data    keep this data, to try other commands")?;
            self.line("  skillfs --help                         what there is")?;
            return self
                .line(format!("  {DIM}from a checkout: cargo run -- demo --embedded ./demo-data{DIM:#}"));
        };
        let bucket =
            global.bucket.as_ref().map_or(String::new(), |name| format!(" --bucket {}", shell(name)));
        let directory = shell(&visible(&directory.display().to_string(), false));
        let session = format!("skillfs --embedded {directory}{bucket} --user {USER} --thread {THREAD}");
        self.line(format!("  {session} tree /skills"))?;
        self.line(format!("  {session} --json ls -R /workspace"))
    }
}

/// A line of content.
fn quoted(line: &str) -> String {
    format!("{DIM}│{DIM:#} {}", visible(line, false))
}

fn written(written: &Written) -> Vec<String> {
    vec![format!("{} {DIM}{} bytes{DIM:#}", written.path, written.size)]
}

fn refusal(error: &Error) -> Vec<String> {
    let what = format!("{BAD}{}{BAD:#}: {}", error.kind(), visible(error.message(), false));
    let hint = error.hint().map(|hint| render(hint, &Here::default()));
    let hint = hint.map(|hint| format!("{DIM}hint: {}{DIM:#}", visible(&hint, false)));
    [what].into_iter().chain(hint).collect()
}
