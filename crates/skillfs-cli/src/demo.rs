//! `skillfs demo`: a session on sample data, over the real S3 protocol, without any setup.

use std::fmt::Display;
use std::time::Duration;

use include_dir::{Dir, include_dir};
use serde::Serialize;
use skillfs::admin::{IntoKind, PushOptions};
use skillfs::embedded::Embedded;
use skillfs::{
    CatalogFormat, Edited, Entry, Error, Freshness, GlobResult, Grep, GrepLine, GrepResult, Library, Listing,
    LoadedSkill, Mount, RequestCounts, Result, S3Backend, Session, SkillFs, TextFile, ThreadId, TicketId,
    UserId, Window, Written,
};

use super::args::Global;
use super::connect::embedded_settings;
use super::hints::{Invocation, render};
use super::output::{ErrorDocument, Output};
use super::terminal::{
    ACCENT, BAD, BOLD, DIM, DIRECTORY, GOOD, plural, print, print_json, shell, size, visible,
};

static SKILLS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../examples/skills");
static WORKSPACE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../examples/workspace");
static TICKET: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../examples/ticket");

const USER: &str = "ana";
const THREAD: &str = "t-42";
const TICKET_ID: &str = "k-7";
/// Another tenant of the same bucket, which the session must not see.
const OTHER_USER: &str = "bruno";
const OTHER_THREAD: &str = "t-4";

const TEMPLATE: &str = "/skills/escrituras/compraventa/resources/plantilla.pdf";
const OFFER: &str = "drafts/offer.md";
const OFFER_TEXT: &str = "# Offer\n\nPrice: TBD\nClosing: November 20, 2026\n";

/// The width of the text. A terminal of 80 columns never breaks a line.
const COLUMNS: usize = 78;
/// How far the results of a call are indented.
const INDENT: usize = 4;

/// Runs the demo. Without `all` it shows the essentials, on one screen.
pub(super) async fn run(global: &Global, all: bool, output: &Output) -> Result<()> {
    let embedded = match &global.embedded {
        Some(directory) => Embedded::open(directory).await?,
        None => Embedded::in_memory()?,
    };
    // The request counts must not depend on how fast the machine is.
    let freshness = Freshness::all(Duration::from_secs(3600));
    let settings = embedded_settings(global).freshness(freshness);
    embedded.create_bucket(&settings.bucket).await?;
    let fs = SkillFs::embedded(&embedded, &settings).await?;
    let objects = seed(&embedded, &settings.bucket).await?;
    let library = Library::User(UserId::parse(USER)?);
    let options = PushOptions::default().into(IntoKind::Published).by("demo").source("samples");
    fs.library(&library).index(&options).await?;
    let session = Session::new()
        .user(UserId::parse(USER)?)
        .thread(ThreadId::parse(THREAD)?)
        .ticket(TicketId::parse(TICKET_ID)?);
    let show = Show { json: output.is_json(), brief: !all, backend: fs.session(&session), fs };
    // While it is unknown whether a library is published, the index and a listing are requested concurrently, and how
    // many requests are sent depends on timing; a listing may even be counted after the call. Once it is known, a call
    // sends one request: counting starts when three calls in a row did.
    let (mut before, mut settled) = (show.fs.requests(), 0);
    for _ in 0..50 {
        show.backend.fresh().load_skills(None).await?;
        let now = show.fs.requests();
        settled = if (now - before).total() == 1 { settled + 1 } else { 0 };
        before = now;
        if settled == 3 {
            break;
        }
    }
    show.line(format!("{BOLD}One bucket, many tenants, and the session of one agent{BOLD:#}"))?;
    show.line(format!(
        "{DIM}{objects} objects over the S3 protocol; user {USER}, thread {THREAD}, ticket {TICKET_ID}{DIM:#}"
    ))?;
    if all {
        show.everything().await?;
    } else {
        show.essentials().await?;
    }
    show.cost(show.fs.requests() - before)?;
    show.next_steps(global)
}

/// Uploads the sample data of two tenants, except objects that already exist. Returns the number of objects.
async fn seed(embedded: &Embedded, bucket: &str) -> Result<usize> {
    let mut objects = Vec::new();
    gather(&SKILLS, &format!("{USER}/skills/"), &mut objects);
    gather(&WORKSPACE, &format!("threads/{THREAD}/"), &mut objects);
    gather(&TICKET, &format!("tickets/{TICKET_ID}/"), &mut objects);
    objects.push((
        format!("{OTHER_USER}/skills/private/SKILL.md"),
        b"---\nname: private\ndescription: Only for Bruno.\n---\n",
    ));
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

/// Shortens a line to `most` characters, between words.
fn cut(line: &str, most: usize) -> String {
    let Some((end, _)) = line.char_indices().nth(most) else { return line.to_owned() };
    let start = &line[..end];
    let words = start.rsplit_once(' ').map_or(start, |(words, _)| words);
    format!("{}…", words.trim_end_matches([' ', ',', ';', ':', '.']))
}

/// Splits text into lines of at most `most` characters, between words. A longer word gets a line of its own.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// One call of the session, as JSON.
#[derive(Serialize)]
struct Step<'a, T> {
    call: &'static str,
    path: &'a str,
    requests: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorDocument<'a>>,
}

/// Prints the calls of an agent and their results.
struct Show {
    json: bool,
    /// Leaves out blank lines and puts short results on the line of the call.
    brief: bool,
    fs: SkillFs,
    backend: S3Backend,
}

impl Show {
    async fn essentials(&self) -> Result<()> {
        self.mounts().await?;
        self.heading("The system prompt gets the catalog; the model chooses a skill and loads it")?;
        self.catalog("contracts", None).await?;
        self.ls("/skills/contracts/sale").await?;
        self.load("contracts/sale", 2).await?;
        self.heading("The agent reads its ticket and works in its workspace")?;
        self.read("/ticket/requirements", 1).await?;
        self.write(OFFER, OFFER_TEXT).await?;
        self.edit(OFFER, "TBD", "$318,000").await?;
        self.heading("No path leads to another tenant")?;
        self.read("/skills/../../bruno/skills/private/SKILL.md", 1).await
    }

    async fn everything(&self) -> Result<()> {
        self.heading("The session sees three mounts")?;
        self.mounts().await?;
        self.heading("The catalog for the system prompt, in at most 800 characters")?;
        self.catalog("all", Some(800)).await?;
        self.heading("List the files: the tree is in the cache")?;
        self.ls("/skills").await?;
        self.ls("/skills/contracts/sale").await?;
        self.heading("Check that a file exists before you mention it")?;
        self.exists(TEMPLATE).await?;
        self.exists("/skills/contracts/will").await?;
        self.heading("Load a skill, then read what it refers to")?;
        self.load("contracts/sale", 6).await?;
        self.read("/skills/contracts/sale/references/clauses.md", 4).await?;
        self.read("/ticket/requirements", 4).await?;
        self.heading("Text in a legacy encoding is decoded")?;
        self.read("drafts/old-contract.txt", 6).await?;
        self.heading("What a session refuses, and why")?;
        self.read(TEMPLATE, 1).await?;
        self.read("/skills/../../bruno/skills/private/SKILL.md", 1).await?;
        self.read("/skills/private/SKILL.md", 1).await?;
        self.ls("/skillsfoo").await?;
        self.write("/skills/contracts/sale/SKILL.md", "# Mine now").await?;
        self.heading("Work in the workspace")?;
        self.write(OFFER, OFFER_TEXT).await?;
        self.edit(OFFER, "TBD", "$318,000").await?;
        self.append(OFFER, "Inspection: until October 16, 2026\n").await?;
        self.glob("**/*.md").await?;
        self.grep("Price").await
    }

    /// Prints a line, unless the output is JSON.
    fn line(&self, text: impl Display) -> Result<()> {
        if self.json { Ok(()) } else { print(&format!("{text}\n")) }
    }

    fn heading(&self, text: &str) -> Result<()> {
        self.line(format!("\n{BOLD}{text}{BOLD:#}"))
    }

    /// Makes a call and prints it with its cost and its result, which `shown` formats as lines.
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
                Err(error) => (None, Some(ErrorDocument::from(error))),
            };
            return print_json(&Step { call, path, requests, result, error });
        }
        let cost = match requests {
            0 => "no request".to_owned(),
            n => plural(n, "request", "requests"),
        };
        let header = format!("  {ACCENT}{call}({path:?}){ACCENT:#} {DIM}· {cost}{DIM:#}");
        let lines = match &done {
            Ok(result) => shown(result),
            Err(error) => self.refusal(error),
        };
        match &lines[..] {
            [line] if self.brief => return self.line(format!("{header} {DIM}·{DIM:#} {line}")),
            _ if self.brief => self.line(header)?,
            _ => self.line(format!("\n{header}"))?,
        }
        lines.iter().try_for_each(|line| self.line(format!("{:INDENT$}{line}", "")))
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
        let line = |Entry { path, size: bytes, .. }: &Entry| match bytes {
            Some(bytes) => format!("{path:<48} {DIM}{:>8}{DIM:#}", size(*bytes)),
            None => format!("{DIRECTORY}{path}{DIRECTORY:#}"),
        };
        let shown = |listing: &Listing| listing.entries.iter().map(line).collect();
        self.call("ls", path, self.backend.ls(path), shown).await
    }

    /// Asks the storage for the current catalog, whatever is cached.
    async fn catalog(&self, category: &str, budget: Option<usize>) -> Result<()> {
        let work = async {
            let library = self.backend.fresh().skills(Some(category)).await?;
            Ok(library.catalog(CatalogFormat::Markdown, budget).text)
        };
        let shown = |text: &String| {
            let lines = text.lines().filter(|line| !self.brief || line.starts_with("- "));
            lines.map(quoted).collect()
        };
        self.call("skills", category, work, shown).await
    }

    async fn load(&self, skill: &str, lines: usize) -> Result<()> {
        let shown = |loaded: &LoadedSkill| {
            let start = loaded.body.lines().filter(|line| !line.is_empty()).take(lines);
            let files = plural(loaded.skill.resources.len() as u64, "other file", "other files");
            let all = plural(loaded.content.lines().count() as u64, "line", "lines");
            let end = format!("{DIM}└ {all}, and the paths of {files} to read when needed{DIM:#}");
            start.map(quoted).chain([end]).collect()
        };
        self.call("load_skill", skill, self.backend.load_skill(skill), shown).await
    }

    async fn read(&self, path: &str, lines: u64) -> Result<()> {
        let window = Window::default().limit(lines);
        let shown = |file: &TextFile| {
            let total = plural(file.total_lines.unwrap_or(file.lines), "line", "lines");
            let end = format!("{DIM}└ {} of {total} in {}, {}{DIM:#}", file.lines, file.path, file.encoding);
            file.content.lines().map(quoted).chain([end]).collect()
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
            let place = format!("{path}:{line}:").chars().count();
            let text = cut(text, (COLUMNS - INDENT).saturating_sub(place + 1));
            format!("{path}:{GOOD}{line}{GOOD:#}:{}", visible(&text, false))
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

    /// The lines of an error: its kind, its message and, unless brief, its hint.
    fn refusal(&self, error: &Error) -> Vec<String> {
        let kind = error.kind().to_string();
        let message = format!("{kind}: {}", visible(error.message(), false));
        let mut lines = wrap(&message, COLUMNS - INDENT);
        if let Some(line) = lines.first_mut() {
            *line = line.replacen(&kind, &format!("{BAD}{kind}{BAD:#}"), 1);
        }
        if let Some(hint) = error.hint().filter(|_| !self.brief) {
            let hint = wrap(
                &format!("hint: {}", visible(&render(hint, &Invocation::default()), false)),
                COLUMNS - INDENT,
            );
            lines.extend(hint.iter().map(|line| format!("{DIM}{line}{DIM:#}")));
        }
        lines
    }

    fn cost(&self, requests: RequestCounts) -> Result<()> {
        let kinds =
            [("LIST", requests.list), ("GET", requests.get), ("HEAD", requests.head), ("PUT", requests.put)];
        let kinds: Vec<_> =
            kinds.iter().filter(|(_, n)| *n > 0).map(|(kind, n)| format!("{n} {kind}")).collect();
        let total = plural(requests.total(), "S3 request", "S3 requests");
        self.line(format!("\n{GOOD}All of this took {total}{GOOD:#}: {}. Try it yourself:", kinds.join(", ")))
    }

    fn next_steps(&self, global: &Global) -> Result<()> {
        let Some(directory) = &global.embedded else {
            if self.brief {
                self.line("  skillfs demo --all                     all operations, including refusals")?;
            }
            self.line("  skillfs demo --embedded ./demo-data    keep the data and try other commands")?;
            return self.line("  skillfs --help                         list all commands");
        };
        let bucket =
            global.bucket.as_ref().map_or(String::new(), |name| format!(" --bucket {}", shell(name)));
        let directory = shell(&visible(&directory.display().to_string(), false));
        let session = format!("skillfs --embedded {directory}{bucket} --user {USER} --thread {THREAD}");
        self.line(format!("  {session} tree /skills"))?;
        self.line(format!("  {session} read notes"))?;
        self.line(format!("  {session} grep PENDING"))
    }
}

/// A line of content, shortened to the width of the text.
fn quoted(line: &str) -> String {
    format!("{DIM}│{DIM:#} {}", visible(&cut(line, COLUMNS - INDENT - 3), false))
}

fn written(written: &Written) -> Vec<String> {
    vec![format!("{}, {DIM}{}{DIM:#}", written.path, size(written.size))]
}
