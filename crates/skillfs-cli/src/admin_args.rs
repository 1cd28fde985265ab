//! The arguments of `skillfs admin`, as they are typed: its subcommands, and the options that several of them share.
//!
//! The arguments of all other commands are in `args`.

use std::path::PathBuf;

use clap::Subcommand;

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
    pub(super) kind: KindFlags,
    #[command(flatten)]
    pub(super) place: SourceFlags,
    #[command(flatten)]
    pub(super) how: How,
}

/// How a source is read.
#[derive(Debug, clap::Args)]
pub(super) struct SourceFlags {
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
pub(super) struct KindFlags {
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
    pub(super) kind: KindFlags,
    #[command(flatten)]
    pub(super) place: SourceFlags,
    #[command(flatten)]
    pub(super) how: How,
}
