//! The arguments as they are typed: the global flags, and the commands of sessions. Those of `skillfs admin` are in
//! `admin_args`.

use std::path::PathBuf;
use std::str::FromStr;

use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use clap::{ArgAction, Parser, Subcommand};
use skillfs::S3Backend;

use super::admin_args::AdminCommand;
use super::session_args::SessionArgs;

const STYLES: Styles = Styles::styled()
    .header(Style::new().bold())
    .usage(Style::new().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(Style::new().dimmed());

const EXAMPLES: &str = "\
Examples:
  skillfs demo                                         a session on sample data, no set-up
  skillfs --embedded ./data --user ana ls /skills      a local store in ./data
  skillfs --bucket acme --user ana --thread t1 ls /    the mounts of a session on S3
  skillfs --bucket acme --user ana read /skills/escrituras/compraventa/SKILL.md
  skillfs --bucket acme --thread t1 --json ls -R /workspace
  echo '# Plan' | skillfs --bucket acme --thread t1 write plan.md
  skillfs --bucket acme --thread t1 edit plan.md --old '# Plan' --new '# The plan'

Exit codes: 0 yes or done, 1 a plain no, 2 wrong usage, 3 not found, 4 refused,
5 conflict, 6 unreadable content, 7 storage unavailable, 70 a defect.";

/// A virtual filesystem for AI agents and their skills, on S3
#[derive(Debug, Parser)]
#[command(name = "skillfs", version, styles = STYLES, after_help = EXAMPLES, max_term_width = 100)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What holds for every command.
#[derive(Debug, clap::Args)]
pub(super) struct Global {
    /// The bucket [env: SKILLFS_BUCKET]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Storage")]
    pub(super) bucket: Option<String>,
    /// An S3-compatible server [env: SKILLFS_ENDPOINT_URL, else AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Storage")]
    pub(super) endpoint_url: Option<String>,
    /// The region of the bucket [default: by the AWS chain]
    #[arg(long, global = true, value_name = "REGION", help_heading = "Storage")]
    pub(super) region: Option<String>,
    /// A local store in this directory instead of S3
    #[arg(long, global = true, value_name = "DIR", help_heading = "Storage", conflicts_with_all = ["endpoint_url", "region"])]
    pub(super) embedded: Option<PathBuf>,
    /// A role that the session assumes, confined to its own prefixes [env: SKILLFS_ROLE_ARN]
    #[arg(long, global = true, value_name = "ARN", help_heading = "Session")]
    pub(super) role_arn: Option<String>,
    /// What the role needs: `compact` policies, session `tags`, `kms`; repeatable
    #[arg(
        long,
        global = true,
        value_name = "OPTION",
        value_enum,
        hide_possible_values = true,
        help_heading = "Session"
    )]
    pub(super) role_with: Vec<RoleWith>,
    /// What the role wants to hear from another account
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) role_external_id: Option<String>,
    #[command(flatten)]
    pub(super) session: SessionArgs,
    /// Allow no changes at all
    #[arg(long, global = true, help_heading = "Session", conflicts_with = "grant")]
    pub(super) read_only: bool,
    /// Agree to what would be asked
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(super) yes: bool,
    /// Print JSON: one document, or one a line for lists
    #[arg(long, global = true, help_heading = "Output")]
    pub(super) json: bool,
    /// Show operations and requests on stderr; twice for everything
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Output")]
    pub(super) verbose: u8,
    /// Print no notes on stderr
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[command(flatten)]
    Session(SessionCommand),
    /// Look after skill libraries: publish, compare, verify, go back
    #[command(
        subcommand,
        after_help = "The library is named by --user ID or --library ID, never by the environment.\n\nExamples:\n  skillfs admin init lease-agreement\n  skillfs --bucket acme admin push ./skills --library notaries --dry-run\n  skillfs --bucket acme admin verify --library notaries"
    )]
    Admin(AdminCommand),
    /// Say what is wrong with bucket, credentials, rights and indexes, and how to mend it
    ///
    /// Looks at the bucket, its region, the credentials and the clock; then at what the named session may list, read
    /// and write, at versioning, conditional writes and the indexes of its libraries. Into each mount that may be
    /// written to, it writes one small object, and deletes it again.
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme doctor                                bucket, region, credentials, clock\n  skillfs --bucket acme --user ana --thread t1 doctor         and what that session may do\n  skillfs --bucket acme --library notaries doctor --json\n\nExit code 1 when something is wrong; notes and warnings are no failure."
    )]
    Doctor,
    /// Print a completion script for a shell
    #[command(
        after_help = "Examples:\n  skillfs completions bash > /etc/bash_completion.d/skillfs\n  skillfs completions zsh > ~/.zfunc/_skillfs\n  skillfs completions fish > ~/.config/fish/completions/skillfs.fish"
    )]
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Show a session on sample data, without any setup
    ///
    /// Everything runs in memory, over the real S3 protocol. With `--embedded DIR` the sample data
    /// stays in DIR, so that you can try the other commands on it. Existing files are not replaced.
    #[command(
        after_help = "Examples:\n  skillfs demo\n  skillfs demo --all\n  skillfs demo --embedded ./demo-data && skillfs --embedded ./demo-data --user ana tree /skills"
    )]
    Demo {
        /// Show every operation instead of one screen
        #[arg(long)]
        all: bool,
    },
}

/// The commands of a session.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List a directory, one path a line
    #[command(
        after_help = "Examples:\n  skillfs ls                      the mounts\n  skillfs ls -l /skills/escrituras\n  skillfs --json ls -R /workspace"
    )]
    Ls {
        /// What to list; a relative path starts at /workspace
        #[arg(default_value = "/")]
        path: String,
        /// Add kind, size and time
        #[arg(short, long)]
        long: bool,
        /// List everything below it
        #[arg(short = 'R', long)]
        recursive: bool,
    },
    /// Print a text file, whole or a window of its lines
    #[command(
        after_help = "Examples:\n  skillfs read notes              /workspace/notes.md\n  skillfs read -n /ticket/log.txt --offset 100 --limit 50\n\nBinary content is refused with its type and size."
    )]
    Read {
        /// What to read; `.md` is added where it is missing
        path: String,
        /// The first line, counted from 0
        #[arg(long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        offset: Option<u64>,
        /// How many lines at most
        #[arg(long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        limit: Option<u64>,
        /// Number the lines, from 1
        #[arg(short = 'n', long)]
        number: bool,
    },
    /// Print true or false; exit with 0 or 1
    #[command(
        after_help = "Example:\n  skillfs exists /skills/escrituras/compraventa/resources/plantilla.pdf && echo there"
    )]
    Exists {
        /// A file or a directory
        path: String,
    },
    /// Show what is known of a file or directory
    #[command(after_help = "Example:\n  skillfs --json stat /workspace/notes.md")]
    Stat {
        /// A file or a directory
        path: String,
    },
    /// Show a directory as a tree
    #[command(after_help = "Example:\n  skillfs tree /skills")]
    Tree {
        /// The directory
        #[arg(default_value = "/")]
        path: String,
    },
    /// Write a file, from another file or from standard input
    #[command(
        after_help = "Examples:\n  echo '# Notes' | skillfs write notes.md\n  skillfs write /workspace/deed.pdf --from ./deed.pdf\n  skillfs write notes.md --from new.md --if-match 9b0d4e…\n\nA file that is there is overwritten, unless told otherwise."
    )]
    Write {
        /// What to write, by its whole name
        path: String,
        #[command(flatten)]
        source: ContentFlags,
        /// Refuse to overwrite a file that is there
        #[arg(long, conflicts_with = "if_match")]
        create: bool,
        /// Overwrite this version only; `stat` shows its ETag
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        #[command(flatten)]
        accept: AcceptFlags,
    },
    /// Put text or bytes behind a file; make it when it is not there
    #[command(after_help = "Example:\n  date | skillfs append log.txt\n\nOther writers' changes stay.")]
    Append {
        /// What to append to, by its whole name
        path: String,
        #[command(flatten)]
        source: ContentFlags,
        #[command(flatten)]
        accept: AcceptFlags,
    },
    /// Replace an exact text in a file
    #[command(
        after_help = "Examples:\n  skillfs edit notes.md --old 'draft' --new 'final'\n  skillfs edit notes.md --old $'one\\ntwo' --new '' --all\n\nThe text must stand there exactly once, or at least once with --all. Other writers' changes stay: the replacement is made in what they wrote."
    )]
    Edit {
        /// The file, by its whole name
        path: String,
        /// The text to replace
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        old: String,
        /// What to put in its place
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        new: String,
        /// Replace it wherever it stands
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        accept: AcceptFlags,
    },
    /// Delete a file, or a directory with all that is in it
    #[command(after_help = "Examples:\n  skillfs rm drafts/old.md\n  skillfs rm -r drafts")]
    Rm {
        /// What to delete, by its whole name
        path: String,
        /// Delete a directory with all that is in it
        #[arg(short, long)]
        recursive: bool,
    },
    /// Copy a file or a directory
    #[command(
        after_help = "Examples:\n  skillfs cp notes.md notes-old.md\n  skillfs cp /skills/escrituras/compraventa /workspace/compraventa\n\nThe target is the new name itself, not a directory to put it in. Files that are there are replaced; what else is in a target directory stays."
    )]
    Cp {
        /// What to copy, from any mount
        from: String,
        /// Its new name
        to: String,
        /// Refuse to replace files that are there
        #[arg(short, long)]
        no_clobber: bool,
        /// Directories are copied anyway
        #[arg(short, long, hide = true)]
        recursive: bool,
    },
    /// Move a file or a directory
    #[command(
        after_help = "Example:\n  skillfs mv drafts/deed.md deeds/2026-11.md\n\nAll is copied before anything is deleted: a move that is interrupted loses nothing."
    )]
    Mv {
        /// What to move
        from: String,
        /// Its new name
        to: String,
        /// Refuse to replace files that are there
        #[arg(short, long)]
        no_clobber: bool,
    },
    /// Find files by their names, one path a line
    #[command(
        after_help = "Examples:\n  skillfs glob '*.md'                      at any depth below /workspace\n  skillfs glob 'drafts/**/*.{md,txt}'\n  skillfs glob '/skills/**/SKILL.md'       from the root\n\nNames that begin with a dot are found only where the dot is written."
    )]
    Glob {
        /// `*`, `?`, `**`, `{a,b}`, `[a-z]`; without a `/` it matches names at any depth
        pattern: String,
        /// Where to search [default: /workspace; / when the pattern begins with /]
        path: Option<String>,
        /// Add kind, size and time
        #[arg(short, long)]
        long: bool,
        /// How many files at most
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = whole_number::<usize>, allow_negative_numbers = true)]
        max: usize,
    },
    /// Find lines in files: PATH:LINE:TEXT
    #[command(
        after_help = "Examples:\n  skillfs grep 'TODO'\n  skillfs grep -i 'comprador|vendedor' /ticket --regex -C 2\n  skillfs grep 'price' / --glob '*.md' --max 20\n\nText is searched for as it stands, unless --regex is given. Binary files are left out and counted. Exit code 1 when nothing matches."
    )]
    Grep {
        /// What to find; one that begins with `-` goes behind `--`
        pattern: String,
        /// Where to search, a directory or a file [default: /workspace]
        path: Option<String>,
        /// The pattern is a regular expression
        #[arg(long)]
        regex: bool,
        /// Letter case does not matter
        #[arg(short, long)]
        ignore_case: bool,
        /// Only in files that match this, as in `glob`
        #[arg(long, value_name = "G")]
        glob: Option<String>,
        /// Lines to show before and behind each match
        #[arg(short = 'C', long, value_name = "N", default_value_t = 0, value_parser = whole_number::<usize>, allow_negative_numbers = true)]
        context: usize,
        /// How many matches at most
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        max: u64,
        /// How many matches of one file at most
        #[arg(short = 'm', long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        max_per_file: Option<u64>,
    },
    /// Find, describe and load skills
    #[command(
        subcommand,
        after_help = "Examples:\n  skillfs skills list --category escrituras\n  skillfs skills catalog --format xml --budget 8000\n  skillfs skills load escrituras/compraventa"
    )]
    Skills(SkillsCommand),
    /// Print credentials that reach what the session reaches, and nothing else
    ///
    /// For other tools, as the `credential_process` of an AWS profile. They hold for an hour at most.
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme --role-arn $ROLE --user ana --thread t1 credentials\n\n  # ~/.aws/config\n  [profile ana]\n  credential_process = skillfs --bucket acme --role-arn arn:… --user ana --thread t1 credentials"
    )]
    Credentials,
}

/// A category's path below /skills; `all` is every one.
#[derive(Debug, Subcommand)]
pub(super) enum SkillsCommand {
    /// List skills, one path a line
    List {
        /// Only skills of this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
    },
    /// Print the frontmatter of all skills, as YAML
    Frontmatter {
        /// Only skills of this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
    },
    /// Print the catalogue for a prompt: names and descriptions
    #[command(
        after_help = "Examples:\n  skillfs skills catalog --category engineering\n  skillfs skills catalog --format xml --budget 8000\n\nUnder a budget, in characters, all names stay and descriptions are shortened; then they are dropped; then skills, from the end. The text says what was left out."
    )]
    Catalog {
        /// Only skills of this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
        /// How to write it
        #[arg(long, value_enum, default_value_t = CatalogFlag::Markdown)]
        format: CatalogFlag,
        /// The most characters it may have
        #[arg(long, value_name = "CHARS", value_parser = whole_number::<usize>, allow_negative_numbers = true)]
        budget: Option<usize>,
    },
    /// Print what changes whenever a skill, a category's description or the order of libraries does
    Version,

    /// Print a skill's SKILL.md
    Load {
        /// Its path, such as escrituras/compraventa, or its name
        skill: String,
        /// Only the instructions, without the frontmatter
        #[arg(long)]
        body: bool,
    },
    /// List a skill's other files: kind, size, path
    Resources {
        /// Its path, such as escrituras/compraventa, or its name
        skill: String,
    },
}

/// What a role needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RoleWith {
    /// One pattern for a library in policies, so that more libraries fit.
    Compact,
    /// Session tags besides the policy.
    Tags,
    /// The right to use the bucket's key of KMS.
    Kms,
}

/// Where content comes from.
#[derive(Debug, clap::Args)]
pub(super) struct ContentFlags {
    /// A local file; `-` is standard input, and so is nothing
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl ContentFlags {
    /// The file; `None` is standard input.
    pub(super) fn file(&self) -> Option<&std::path::Path> {
        self.from.as_deref().filter(|file| file.as_os_str() != "-")
    }
}

/// What a caller may accept.
#[derive(Debug, clap::Args)]
pub(super) struct AcceptFlags {
    /// Go on where the server does no conditional writes; others' changes may then be lost
    #[arg(long)]
    accept_lost_updates: bool,
}

impl AcceptFlags {
    pub(super) fn of(&self, backend: &S3Backend) -> S3Backend {
        if self.accept_lost_updates { backend.accepting_lost_updates() } else { backend.clone() }
    }
}

/// How a catalogue is written.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum CatalogFlag {
    Markdown,
    Xml,
    XmlOneLine,
    Json,
}

fn whole_number<N: FromStr>(text: &str) -> Result<N, &'static str> {
    text.parse().map_err(|_| "it must be a whole number, 0 or more")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }
}
