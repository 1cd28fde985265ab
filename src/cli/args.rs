//! The arguments as they are typed.

use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use clap::{ArgAction, Parser, Subcommand};

use crate::backend::S3Backend;

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
#[command(version, styles = STYLES, after_help = EXAMPLES, max_term_width = 100)]
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
    /// Whose skills `/skills` shows [env: SKILLFS_USER]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) user: Option<String>,
    /// Which thread `/workspace` shows [env: SKILLFS_THREAD]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) thread: Option<String>,
    /// Which ticket `/ticket` shows [env: SKILLFS_TICKET]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) ticket: Option<String>,
    /// A shared library that `/skills` shows behind the user's own; repeatable [env: SKILLFS_LIBRARIES, a comma list]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) library: Vec<String>,
    /// Allow more than by default: `ticket-write` is to write to /ticket; repeatable
    #[arg(
        long,
        global = true,
        value_name = "GRANT",
        value_enum,
        hide_possible_values = true,
        help_heading = "Session"
    )]
    pub(super) grant: Vec<Grant>,
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
        #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
        offset: Option<u64>,
        /// How many lines at most
        #[arg(long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
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
        source: Source,
        /// Refuse to overwrite a file that is there
        #[arg(long, conflicts_with = "if_match")]
        create: bool,
        /// Overwrite this version only; `stat` shows its ETag
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        #[command(flatten)]
        accept: Accept,
    },
    /// Put text or bytes behind a file; make it when it is not there
    #[command(after_help = "Example:\n  date | skillfs append log.txt\n\nOther writers' changes stay.")]
    Append {
        /// What to append to, by its whole name
        path: String,
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        accept: Accept,
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
        accept: Accept,
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
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = character_count, allow_negative_numbers = true)]
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
        #[arg(short = 'C', long, value_name = "N", default_value_t = 0, value_parser = character_count, allow_negative_numbers = true)]
        context: usize,
        /// How many matches at most
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = whole_number, allow_negative_numbers = true)]
        max: u64,
        /// How many matches of one file at most
        #[arg(short = 'm', long, value_name = "N", value_parser = whole_number, allow_negative_numbers = true)]
        max_per_file: Option<u64>,
    },
    /// Find, describe and load skills
    #[command(
        subcommand,
        after_help = "Examples:\n  skillfs skills list --category escrituras\n  skillfs skills catalog --format xml --budget 8000\n  skillfs skills load escrituras/compraventa"
    )]
    Skills(SkillsCommand),
    /// Look after skill libraries: publish, compare, verify, go back
    #[command(
        subcommand,
        after_help = "The library is named by --user ID or --library ID, never by the environment.\n\nExamples:\n  skillfs admin init lease-agreement\n  skillfs --bucket acme admin push ./skills --library notaries --dry-run\n  skillfs --bucket acme admin verify --library notaries"
    )]
    Admin(AdminCommand),
    /// Print credentials that reach what the session reaches, and nothing else
    ///
    /// For other tools, as the `credential_process` of an AWS profile. They hold for an hour at most.
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme --role-arn $ROLE --user ana --thread t1 credentials\n\n  # ~/.aws/config\n  [profile ana]\n  credential_process = skillfs --bucket acme --role-arn arn:… --user ana --thread t1 credentials"
    )]
    Credentials,
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
    /// Show a session on sample skills, with no set-up
    ///
    /// Everything happens in memory, on the real S3 protocol. With `--embedded DIR` the sample data
    /// stays in DIR, to try the other commands on; files that are there already are left as they are.
    #[command(
        after_help = "Examples:\n  skillfs demo\n  skillfs demo --embedded ./demo-data && skillfs --embedded ./demo-data --user ana tree /skills"
    )]
    Demo,
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
        #[arg(long, value_enum, default_value_t = Format::Markdown)]
        format: Format,
        /// The most characters it may have
        #[arg(long, value_name = "CHARS", value_parser = character_count, allow_negative_numbers = true)]
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

#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Check local skill folders against the specification
    #[command(
        after_help = "Examples:\n  skillfs admin validate ./my-skill\n  skillfs admin validate skills/ --lenient     what loading them would do\n\nA folder without a SKILL.md is searched for skills. Exit code 1 when there are problems."
    )]
    Validate {
        /// Folders: a skill each, or folders that hold skills
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
        /// Show what loading would do, instead of what the specification says
        #[arg(long)]
        lenient: bool,
    },

    /// Write a new skill that is valid, to begin with
    #[command(
        after_help = "Example:\n  skillfs admin init lease-agreement --description 'Drafts lease agreements. Use for rentals.'\n  skillfs admin init lease-agreement --into skills/contracts"
    )]
    Init {
        /// Its name: lowercase letters, digits and single hyphens
        name: String,
        /// What it does, and when to use it
        #[arg(
            long,
            value_name = "TEXT",
            default_value = "Says what this skill does, and when an agent should use it."
        )]
        description: String,
        /// The folder to make it in
        #[arg(long, value_name = "DIR", default_value = ".")]
        into: PathBuf,
    },

    /// Publish skills to a user, many users or a shared library
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme admin push ./skills --user ana --dry-run     what would change\n  skillfs --bucket acme admin push ./skills --library notaries\n  skillfs --bucket acme admin push skills.zip --library notaries --delete\n  skillfs --bucket acme admin push ./skills --users users.txt --yes\n\nAn empty library is published: readers see all of a release or nothing of it. A plain library stays plain,\nunless --publish. Interrupted, run it again. What many users need is better in one shared library."
    )]
    Push(Push),

    /// Show what a push would change, and what others have changed; exit with 1 when anything would
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme admin diff ./skills --user ana\n  skillfs --bucket acme --json admin diff ./skills --library notaries --delete"
    )]
    Diff(Push),

    /// Take skills from other places: archives, git repositories, Hermes, OpenClaw
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme admin import https://example.com/skills.git --library notaries\n  skillfs --bucket acme admin import hermes-checkout/ --layout hermes --user ana --translate-tools\n  skillfs admin import downloaded.zip --into ./reviewed      to look at it first\n\nEach skill gets a `.source` that says where it came from and how far it is trusted. Scripts stay out\nunless --with-scripts; skills that ask for dangerous capabilities are asked about."
    )]
    Import(Import),

    /// Write a library to a local folder
    #[command(after_help = "Example:\n  skillfs --bucket acme admin pull ./skills --library notaries")]
    Pull {
        /// The folder; it is made when it is not there
        target: PathBuf,
        /// Only this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
        /// Replace files that are there and say something else
        #[arg(long)]
        overwrite: bool,
    },

    /// Write a library as one archive, in the layout of the Agent Skills discovery RFC
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme admin export notaries.zip --library notaries\n  skillfs --bucket acme admin export ana.tar.gz --user ana\n\nUnpacked at the root of a web server, other agents find the skills; `admin import` reads it back."
    )]
    Export {
        /// The archive: `.zip`, `.tar.gz` or `.tgz`
        target: PathBuf,
        /// Only this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
        /// Replace a file that is there
        #[arg(long)]
        overwrite: bool,
    },

    /// Compare the index, the blobs and the keys of a library; exit with 1 when something is wrong
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme admin verify --user ana\n  skillfs --bucket acme admin verify --library notaries --repair\n  skillfs --bucket acme admin verify --library notaries --repair --overwrite   revert what others changed\n  skillfs --bucket acme admin verify --library notaries --repair --release 41  restore a damaged index\n\n--repair completes the mirror and restores blobs from other copies. What others have changed stays,\nunless --overwrite."
    )]
    Verify {
        /// Repair what can be
        #[arg(long)]
        repair: bool,
        /// Do not read the blobs
        #[arg(long)]
        quick: bool,
        /// With --repair: replace keys that others have changed
        #[arg(long, requires = "repair")]
        overwrite: bool,
        /// With --repair: the release that a damaged index is restored from
        #[arg(long, value_name = "N", requires = "repair")]
        release: Option<String>,
    },

    /// List the releases of a library, the newest first
    Releases,

    /// Go back to a release: makes a new one that is the same
    #[command(
        after_help = "Example:\n  skillfs --bucket acme admin rollback 41 --library notaries --dry-run"
    )]
    Rollback {
        /// Its number, as `releases` shows it
        release: u64,
        #[command(flatten)]
        how: How,
    },

    /// Keep a skill at a release: pushes leave it alone
    #[command(
        after_help = "Example:\n  skillfs --bucket acme admin pin escrituras/compraventa@41 --library notaries"
    )]
    Pin {
        /// SKILL@RELEASE
        skill: String,
        #[command(flatten)]
        how: How,
    },

    /// Let pushes change a pinned skill again
    Unpin {
        /// Its path, such as escrituras/compraventa
        skill: String,
    },

    /// Delete skills from a library; releases keep them
    Rm {
        /// Their paths, such as escrituras/compraventa
        #[arg(required = true, value_name = "SKILL")]
        skills: Vec<String>,
        #[command(flatten)]
        how: How,
    },

    /// List users and libraries; of one library, its skills
    #[command(
        after_help = "Examples:\n  skillfs --bucket acme admin list\n  skillfs --bucket acme admin list --library notaries"
    )]
    List,

    /// Count skills, files and bytes: of one library, or of all
    Stats,

    /// Delete stored content that no listed release refers to, once it is a week old
    Prune,

    /// Make a published library plain: its keys are what sessions see, and its releases stay
    #[command(
        after_help = "Example:\n  skillfs --bucket acme admin unpublish --user ana\n\nThe keys are completed first; what others have changed there is in the way until it is published\n(`admin index`) or reverted (`admin verify --repair --overwrite`)."
    )]
    Unpublish,

    /// Publish what other tools have changed in a library
    #[command(
        after_help = "Examples:\n  aws s3 sync ./skills s3://acme/shared/notaries/skills/ && skillfs --bucket acme admin index --library notaries\n  skillfs --bucket acme admin index --library notaries --dry-run\n  skillfs --bucket acme admin index --user ana --publish     publish a plain library as it is\n\nWithout changes it does nothing, so it can run after every upload."
    )]
    Index {
        #[command(flatten)]
        how: How,
        /// Publish a plain library: uploads by other programs are no longer visible until they are indexed
        #[arg(long)]
        publish: bool,
    },
}

/// What is published, and to whom.
#[derive(Debug, clap::Args)]
pub(super) struct Push {
    /// A folder, `.zip`, `.skill`, `.tar.gz`, or a git repository
    pub(super) source: String,
    /// A file of user ids, one a line: publish to each of them
    #[arg(long, value_name = "FILE")]
    pub(super) users: Option<PathBuf>,
    /// Put the skills into this category
    #[arg(long, value_name = "C")]
    pub(super) category: Option<String>,
    /// Also delete skills that are not in the source; with --category, of that category
    #[arg(long)]
    pub(super) delete: bool,
    /// Refuse skills that the specification objects to
    #[arg(long)]
    pub(super) strict: bool,
    #[command(flatten)]
    pub(super) kind: Kind,
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    pub(super) how: How,
}

/// How a source is read.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// How the source is laid out: folder, hermes, openclaw, repository, discovery [default: told from it]
    #[arg(long, value_name = "NAME")]
    pub(super) layout: Option<String>,
    /// How many files and folders it may have [default: 50000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(super) max_entries: Option<usize>,
    /// How many MiB an archive may unpack to [default: 512]
    #[arg(long, value_name = "MIB", help_heading = "Limits")]
    pub(super) max_unpacked: Option<u64>,
    /// How many times its size an archive may unpack to [default: 100]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(super) max_ratio: Option<u64>,
}

/// How a change is made.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct How {
    /// Only show what would change
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace keys that others have changed, files that belong to no skill, and stored content that is damaged
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Who publishes, for the release [default: user@host]
    #[arg(long, value_name = "NAME")]
    pub(super) by: Option<String>,
}

/// What kind of library a push leaves.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Kind {
    /// Publish a plain library: what it contains is part of the release, and later uploads by other programs are
    /// not visible until `admin index`
    #[arg(long, conflicts_with = "plain")]
    pub(super) publish: bool,
    /// Leave an empty library plain: its keys are what sessions see, whatever program writes them
    #[arg(long)]
    pub(super) plain: bool,
}

/// What is imported, and how.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// A folder, `.zip`, `.skill`, `.tar.gz`, or a git repository (`URL`, or `URL#ref`)
    pub(super) source: String,
    /// Write the skills to this folder instead of publishing them
    #[arg(long, value_name = "DIR")]
    pub(super) into: Option<PathBuf>,
    /// Put the skills into this category
    #[arg(long, value_name = "C")]
    pub(super) category: Option<String>,
    /// Rename tools of other agents, in `allowed-tools` and in code: Bash becomes shell_exec
    #[arg(long)]
    pub(super) translate_tools: bool,
    /// Take what lies in `scripts/`, too
    #[arg(long)]
    pub(super) with_scripts: bool,
    /// How far the skills are trusted: unreviewed, workspace, indexed, bundled
    #[arg(long, value_name = "TIER", default_value = "unreviewed")]
    pub(super) trust: String,
    /// Take skills that ask for shell:execute, network:listen or filesystem:write without asking back
    #[arg(long)]
    pub(super) accept_dangerous: bool,
    #[command(flatten)]
    pub(super) kind: Kind,
    #[command(flatten)]
    pub(super) place: Place,
    #[command(flatten)]
    pub(super) how: How,
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

/// What a session may be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Grant {
    TicketWrite,
}

/// Where content comes from.
#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// A local file; `-` is standard input, and so is nothing
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

impl Source {
    /// The file; `None` is standard input.
    pub(super) fn file(&self) -> Option<&std::path::Path> {
        self.from.as_deref().filter(|file| file.as_os_str() != "-")
    }
}

/// What a caller may accept.
#[derive(Debug, clap::Args)]
pub(super) struct Accept {
    /// Go on where the server does no conditional writes; others' changes may then be lost
    #[arg(long)]
    accept_lost_updates: bool,
}

impl Accept {
    pub(super) fn of(&self, backend: &S3Backend) -> S3Backend {
        if self.accept_lost_updates { backend.accepting_lost_updates() } else { backend.clone() }
    }
}

/// How a catalogue is written.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum Format {
    Markdown,
    Xml,
    XmlOneLine,
    Json,
}

fn character_count(text: &str) -> Result<usize, &'static str> {
    text.parse().map_err(|_| "it must be a whole number, 0 or more")
}

fn whole_number(text: &str) -> Result<u64, &'static str> {
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
