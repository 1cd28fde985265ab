//! The command-line arguments: global options, and the commands of sessions. Those of `skillfs admin` are in
//! `admin_args`.

use std::path::PathBuf;
use std::str::FromStr;

use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use clap::{Arg, ArgAction, Parser, Subcommand};
use skillfs::S3Backend;

use super::admin_args::AdminCommand;
use super::help;
use super::session_args::SessionArgs;

const STYLES: Styles = Styles::styled()
    .header(Style::new().bold())
    .usage(Style::new().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(Style::new().dimmed());

/// An S3-backed virtual filesystem and skill library for AI agents
#[derive(Debug, Parser)]
#[command(name = "skillfs", version, styles = STYLES, after_help = help::SKILLFS, max_term_width = 100)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(super) struct Global {
    /// Use this bucket [env: SKILLFS_BUCKET]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Storage")]
    pub(super) bucket: Option<String>,
    /// Use this S3-compatible server [env: SKILLFS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = "Storage")]
    pub(super) endpoint_url: Option<String>,
    /// Set the region of the bucket [default: from the AWS configuration]
    #[arg(long, global = true, value_name = "REGION", help_heading = "Storage")]
    pub(super) region: Option<String>,
    /// Use a local store in this directory instead of S3
    #[arg(long, global = true, value_name = "DIR", help_heading = "Storage", conflicts_with_all = ["endpoint_url", "region"])]
    pub(super) embedded: Option<PathBuf>,
    /// Assume this role, restricted to the session's prefixes [env: SKILLFS_ROLE_ARN]
    #[arg(long, global = true, value_name = "ARN", help_heading = "Session")]
    pub(super) role_arn: Option<String>,
    /// Enable an option of the role: `compact` policies, session `tags` or `kms`; repeatable
    #[arg(
        long,
        global = true,
        value_name = "OPTION",
        value_enum,
        hide_possible_values = true,
        help_heading = "Session"
    )]
    pub(super) role_with: Vec<RoleWith>,
    /// Send this external ID when assuming the role
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) role_external_id: Option<String>,
    #[command(flatten)]
    pub(super) session: SessionArgs,
    /// Reject all changes
    #[arg(long, global = true, help_heading = "Session", conflicts_with = "grant")]
    pub(super) read_only: bool,
    /// Answer yes to all confirmation prompts
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(super) yes: bool,
    /// Print JSON: one document, or one per line for lists
    #[arg(long, global = true, help_heading = "Output")]
    pub(super) json: bool,
    /// Log operations and requests to stderr; -vv logs everything
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Output")]
    pub(super) verbose: u8,
    /// Do not print notes to stderr
    #[arg(short, long, global = true, help_heading = "Output")]
    pub(super) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[command(flatten)]
    Session(SessionCommand),
    /// Administer skill libraries: publish, compare, verify, roll back
    #[command(
        subcommand,
        after_help = help::ADMIN,
        arg = target("user", ArgAction::Set, "Target the library of this user"),
        arg = target("library", ArgAction::Append, "Target this shared library")
    )]
    Admin(AdminCommand),
    /// Diagnose the bucket, credentials, permissions and libraries, and suggest fixes
    ///
    /// Checks the bucket, its region, the credentials and the clock. Then checks what the session may list, read and
    /// write, versioning, conditional writes and the indexes of its libraries. Writes one small object to each
    /// writable mount, and deletes it again.
    #[command(
        after_help = help::DOCTOR
    )]
    Doctor,
    /// Generate a shell completion script
    #[command(
        after_help = help::COMPLETIONS
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Run a session on sample data, without any setup
    ///
    /// Runs in memory, over the real S3 protocol. With `--embedded DIR`, the sample data stays in DIR, so that you
    /// can try other commands on it. Existing files are not replaced.
    #[command(
        after_help = help::DEMO
    )]
    Demo {
        /// Show all operations instead of a summary on one screen
        #[arg(long)]
        all: bool,
    },
}

/// Commands that run in a session.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List a directory, one path per line
    #[command(
        after_help = help::LS
    )]
    Ls {
        /// The directory; a relative path starts at /workspace
        #[arg(default_value = "/")]
        path: String,
        /// Show kind, size and modification time
        #[arg(short, long)]
        long: bool,
        /// List all descendants
        #[arg(short = 'R', long)]
        recursive: bool,
    },
    /// Print a text file, or a range of its lines
    #[command(
        after_help = help::READ
    )]
    Read {
        /// The file; `.md` may be omitted
        path: String,
        /// Start at this line, counted from 0
        #[arg(long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        offset: Option<u64>,
        /// Print at most this many lines
        #[arg(long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        limit: Option<u64>,
        /// Number the lines, starting at 1
        #[arg(short = 'n', long)]
        number: bool,
    },
    /// Check whether a path exists: print true or false, exit with 0 or 1
    #[command(
        after_help = help::EXISTS
    )]
    Exists {
        /// The file or directory
        path: String,
    },
    /// Show kind, size, modification time and ETag of a file or directory
    #[command(after_help = help::STAT)]
    Stat {
        /// The file or directory
        path: String,
    },
    /// Show a directory as a tree
    #[command(after_help = help::TREE)]
    Tree {
        /// The directory
        #[arg(default_value = "/")]
        path: String,
    },
    /// Write a file from a local file or standard input
    #[command(
        after_help = help::WRITE
    )]
    Write {
        /// The file, with its extension
        path: String,
        #[command(flatten)]
        source: ContentFlags,
        /// Fail if the file exists
        #[arg(long, conflicts_with = "if_match")]
        create: bool,
        /// Overwrite only this version; `stat` shows the ETag
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        #[command(flatten)]
        accept: AcceptFlags,
    },
    /// Append to a file, or create it if it does not exist
    #[command(after_help = help::APPEND)]
    Append {
        /// The file, with its extension
        path: String,
        #[command(flatten)]
        source: ContentFlags,
        #[command(flatten)]
        accept: AcceptFlags,
    },
    /// Replace text in a file
    #[command(
        after_help = help::EDIT
    )]
    Edit {
        /// The file, with its extension
        path: String,
        /// The text to replace, verbatim
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        old: String,
        /// The replacement
        #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
        new: String,
        /// Replace all occurrences
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        accept: AcceptFlags,
    },
    /// Delete a file, or a directory with -r
    #[command(after_help = help::RM)]
    Rm {
        /// The file or directory, with its extension
        path: String,
        /// Delete a directory and everything in it
        #[arg(short, long)]
        recursive: bool,
    },
    /// Copy a file or a directory
    #[command(
        after_help = help::CP
    )]
    Cp {
        /// The file or directory, in any mount
        from: String,
        /// The new name
        to: String,
        /// Fail instead of replacing existing files
        #[arg(short, long)]
        no_clobber: bool,
        /// Accepted for compatibility; directories are always copied
        #[arg(short, long, hide = true)]
        recursive: bool,
    },
    /// Move a file or a directory
    #[command(
        after_help = help::MV
    )]
    Mv {
        /// The file or directory
        from: String,
        /// The new name
        to: String,
        /// Fail instead of replacing existing files
        #[arg(short, long)]
        no_clobber: bool,
    },
    /// Find files by name, one path per line
    #[command(
        after_help = help::GLOB
    )]
    Glob {
        /// `*`, `?`, `**`, `{a,b}`, `[a-z]`; without a `/`, matches names at any depth
        pattern: String,
        /// Search below this directory [default: /workspace, or / if the pattern starts with /]
        path: Option<String>,
        /// Show kind, size and modification time
        #[arg(short, long)]
        long: bool,
        /// Stop after this many files
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = whole_number::<usize>, allow_negative_numbers = true)]
        max: usize,
    },
    /// Search file contents, printing PATH:LINE:TEXT
    #[command(
        after_help = help::GREP
    )]
    Grep {
        /// The text to find; put `--` before one that starts with `-`
        pattern: String,
        /// Search this directory or file [default: /workspace]
        path: Option<String>,
        /// Treat the pattern as a regular expression
        #[arg(long)]
        regex: bool,
        /// Ignore case
        #[arg(short, long)]
        ignore_case: bool,
        /// Search only files that match this pattern, as in `glob`
        #[arg(long, value_name = "G")]
        glob: Option<String>,
        /// Show this many lines before and after each match
        #[arg(short = 'C', long, value_name = "N", default_value_t = 0, value_parser = whole_number::<usize>, allow_negative_numbers = true)]
        context: usize,
        /// Stop after this many matches
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        max: u64,
        /// Show at most this many matches per file
        #[arg(short = 'm', long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
        max_per_file: Option<u64>,
    },
    /// List, describe and load skills
    #[command(
        subcommand,
        after_help = help::SKILLS
    )]
    Skills(SkillsCommand),
    /// Print temporary credentials that are restricted to the session's prefixes
    ///
    /// The output is the format of `credential_process` in an AWS profile. The credentials are valid for up to an hour.
    #[command(
        after_help = help::CREDENTIALS
    )]
    Credentials,
}

/// Commands that read skills. A category is a path below `/skills`; `all` selects every skill.
#[derive(Debug, Subcommand)]
pub(super) enum SkillsCommand {
    /// List skills, one path per line
    List {
        /// Include only skills in this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
    },
    /// Print the frontmatter of all skills as a YAML stream
    Frontmatter {
        /// Include only skills in this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
    },
    /// Print the catalog for a prompt: names and descriptions
    #[command(
        after_help = help::CATALOG
    )]
    Catalog {
        /// Include only skills in this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
        /// The output format
        #[arg(long, value_enum, default_value_t = CatalogFlag::Markdown)]
        format: CatalogFlag,
        /// Limit the catalog to this many characters
        #[arg(long, value_name = "CHARS", value_parser = whole_number::<usize>, allow_negative_numbers = true)]
        budget: Option<usize>,
    },
    /// Print a hash of the catalog
    ///
    /// It changes whenever a skill, a category description or the order of libraries changes.
    Version,
    /// Print the SKILL.md of a skill
    Load {
        /// The path of the skill, such as contracts/sale, or its name
        skill: String,
        /// Omit the frontmatter
        #[arg(long)]
        body: bool,
    },
    /// List the other files of a skill: kind, size, path
    Resources {
        /// The path of the skill, such as contracts/sale, or its name
        skill: String,
    },
}

/// Options of a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum RoleWith {
    /// One pattern per library in policies, so that more libraries fit.
    Compact,
    /// Session tags in addition to the policy.
    Tags,
    /// Permission to use the KMS key of the bucket.
    Kms,
}

/// Where `write` and `append` read content from.
#[derive(Debug, clap::Args)]
pub(super) struct ContentFlags {
    /// Read from this local file instead of standard input; `-` is standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl ContentFlags {
    /// The local file; `None` for standard input.
    pub(super) fn file(&self) -> Option<&std::path::Path> {
        self.from.as_deref().filter(|file| file.as_os_str() != "-")
    }
}

/// Risks that the user accepts.
#[derive(Debug, clap::Args)]
pub(super) struct AcceptFlags {
    /// Write even if the server ignores conditional writes; concurrent changes may be lost
    #[arg(long)]
    accept_lost_updates: bool,
}

impl AcceptFlags {
    pub(super) fn of(&self, backend: &S3Backend) -> S3Backend {
        if self.accept_lost_updates { backend.accepting_lost_updates() } else { backend.clone() }
    }
}

/// The format of a catalog.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum CatalogFlag {
    Markdown,
    Xml,
    XmlOneLine,
    Json,
}

/// `--user` or `--library` as `skillfs admin` uses it. It replaces the session's option of the same name in the help of
/// the subcommands; both set the same value.
fn target(name: &'static str, action: ArgAction, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .global(true)
        .value_name("ID")
        .action(action)
        .help(help)
        .help_heading("Target library")
}

fn whole_number<N: FromStr>(text: &str) -> Result<N, &'static str> {
    text.parse().map_err(|_| "must be a whole number, 0 or more")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }
}
