//! The arguments of `skillfs admin`: its subcommands, and the options that several of them share.
//!
//! The arguments of all other commands are in `args`.

use std::path::PathBuf;

use clap::Subcommand;

use super::help;

#[derive(Debug, Subcommand)]
pub(super) enum AdminCommand {
    /// Check local skill folders against the specification
    #[command(
        after_help = help::VALIDATE
    )]
    Validate {
        /// Skill folders, or folders that contain them
        #[arg(required = true, value_name = "DIR")]
        folders: Vec<PathBuf>,
        /// Check whether the skills load, instead of whether they conform to the specification
        #[arg(long)]
        lenient: bool,
    },

    /// Create a new skill in a local folder
    #[command(
        after_help = help::INIT
    )]
    Init {
        /// The name: lowercase letters, digits and single hyphens
        name: String,
        /// What the skill does, and when to use it
        #[arg(
            long,
            value_name = "TEXT",
            default_value = "Says what this skill does, and when an agent should use it."
        )]
        description: String,
        /// Create the skill in this folder
        #[arg(long, value_name = "DIR", default_value = ".")]
        into: PathBuf,
    },

    /// Publish skills to a library, or to the libraries of many users
    #[command(
        after_help = help::PUSH
    )]
    Push(Push),

    /// Show what a push would change, and what other tools have changed
    #[command(
        after_help = help::DIFF
    )]
    Diff(Push),

    /// Import skills from archives, git repositories, Hermes or OpenClaw
    #[command(
        after_help = help::IMPORT
    )]
    Import(Import),

    /// Download a library to a local folder
    #[command(after_help = help::PULL)]
    Pull {
        /// The folder; created if it does not exist
        target: PathBuf,
        /// Include only this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
        /// Replace existing files that differ
        #[arg(long)]
        overwrite: bool,
    },

    /// Export a library as one archive, in the layout of the Agent Skills discovery RFC
    #[command(
        after_help = help::EXPORT
    )]
    Export {
        /// The archive to create: `.zip`, `.tar.gz` or `.tgz`
        target: PathBuf,
        /// Include only this category
        #[arg(long, value_name = "C")]
        category: Option<String>,
        /// Replace an existing file
        #[arg(long)]
        overwrite: bool,
    },

    /// Verify the index, the blobs and the mirror of a library
    #[command(
        after_help = help::VERIFY
    )]
    Verify {
        /// Repair what can be repaired
        #[arg(long)]
        repair: bool,
        /// Skip reading the blobs and comparing their digests
        #[arg(long)]
        quick: bool,
        /// With --repair: revert keys that other tools have changed
        #[arg(long, requires = "repair")]
        overwrite: bool,
        /// With --repair: restore a damaged index from this release
        #[arg(long, value_name = "N", requires = "repair")]
        release: Option<String>,
    },

    /// List the releases of a library, newest first
    #[command(after_help = help::RELEASES)]
    Releases,

    /// Roll back to an earlier release, by creating a new release with its content
    #[command(
        after_help = help::ROLLBACK
    )]
    Rollback {
        /// The number of the release, as shown by `admin releases`
        release: u64,
        #[command(flatten)]
        how: How,
    },

    /// Pin a skill to a release, so that pushes do not change it
    #[command(
        after_help = help::PIN
    )]
    Pin {
        /// The skill and the release, such as contracts/sale@41
        #[arg(value_name = "SKILL@RELEASE")]
        skill: String,
        #[command(flatten)]
        how: How,
    },

    /// Unpin a skill, so that pushes change it again
    #[command(after_help = help::UNPIN)]
    Unpin {
        /// The path of the skill, such as contracts/sale
        skill: String,
    },

    /// Delete skills from a library; earlier releases keep them
    #[command(after_help = help::ADMIN_RM)]
    Rm {
        /// The paths of the skills, such as contracts/sale
        #[arg(required = true, value_name = "SKILL")]
        skills: Vec<String>,
        #[command(flatten)]
        how: How,
    },

    /// List users and libraries, or the skills of one library
    #[command(
        after_help = help::LIST
    )]
    List,

    /// Count skills, files and bytes of one library, or of all
    #[command(after_help = help::STATS)]
    Stats,

    /// Delete stored content older than a week that no listed release uses
    #[command(after_help = help::PRUNE)]
    Prune,

    /// Make a published library plain: sessions then read its keys directly
    #[command(
        after_help = help::UNPUBLISH
    )]
    Unpublish,

    /// Publish changes that other tools made to a library
    #[command(
        after_help = help::INDEX
    )]
    Index {
        #[command(flatten)]
        how: How,
        /// Publish a plain library; later uploads by other tools are hidden until `admin index` runs
        #[arg(long)]
        publish: bool,
    },
}

/// Arguments of `push` and `diff`.
#[derive(Debug, clap::Args)]
pub(super) struct Push {
    /// A folder, a `.zip`, `.skill` or `.tar.gz` archive, or a git repository
    pub(super) source: String,
    /// Publish to each user in this file, one ID per line
    #[arg(long, value_name = "FILE")]
    pub(super) users: Option<PathBuf>,
    /// Put the skills into this category
    #[arg(long, value_name = "C")]
    pub(super) category: Option<String>,
    /// Delete skills that are not in the source; with --category, only within that category
    #[arg(long)]
    pub(super) delete: bool,
    /// Refuse skills that do not conform to the specification
    #[arg(long)]
    pub(super) strict: bool,
    #[command(flatten)]
    pub(super) kind: KindFlags,
    #[command(flatten)]
    pub(super) place: SourceFlags,
    #[command(flatten)]
    pub(super) how: How,
}

/// Options for reading a source.
#[derive(Debug, clap::Args)]
pub(super) struct SourceFlags {
    /// The layout of the source: folder, hermes, openclaw, repository or discovery [default: detected]
    #[arg(long, value_name = "NAME")]
    pub(super) layout: Option<String>,
    /// Allow at most this many files and folders [default: 50000]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(super) max_entries: Option<usize>,
    /// Allow an archive to unpack to at most this many MiB [default: 512]
    #[arg(long, value_name = "MIB", help_heading = "Limits")]
    pub(super) max_unpacked: Option<u64>,
    /// Allow an archive to unpack to at most this many times its size [default: 100]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(super) max_ratio: Option<u64>,
}

/// Options of every command that changes a library.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct How {
    /// Show what would change, without changing anything
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace keys that other tools have changed, files outside of skills, and damaged content
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Record this author in the release [default: user@host]
    #[arg(long, value_name = "NAME")]
    pub(super) by: Option<String>,
}

/// The kind of library after a push.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct KindFlags {
    /// Publish a plain library with everything in it; later uploads by other tools are hidden until `admin index`
    /// runs
    #[arg(long, conflicts_with = "plain")]
    pub(super) publish: bool,
    /// Keep an empty library plain: sessions read its keys directly, whichever tool writes them
    #[arg(long)]
    pub(super) plain: bool,
}

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// A folder, a `.zip`, `.skill` or `.tar.gz` archive, or a git repository (`URL` or `URL#ref`)
    pub(super) source: String,
    /// Write the skills to this folder instead of publishing them
    #[arg(long, value_name = "DIR")]
    pub(super) into: Option<PathBuf>,
    /// Put the skills into this category
    #[arg(long, value_name = "C")]
    pub(super) category: Option<String>,
    /// Rename the tools of other agents in `allowed-tools` and in code, such as Bash to shell_exec
    #[arg(long)]
    pub(super) translate_tools: bool,
    /// Include files in `scripts/`
    #[arg(long)]
    pub(super) with_scripts: bool,
    /// The trust tier to record: unreviewed, workspace, indexed or bundled
    #[arg(long, value_name = "TIER", default_value = "unreviewed")]
    pub(super) trust: String,
    /// Accept skills that request shell:execute, network:listen or filesystem:write without confirmation
    #[arg(long)]
    pub(super) accept_dangerous: bool,
    #[command(flatten)]
    pub(super) kind: KindFlags,
    #[command(flatten)]
    pub(super) place: SourceFlags,
    #[command(flatten)]
    pub(super) how: How,
}
