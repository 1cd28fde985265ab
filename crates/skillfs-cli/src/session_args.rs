//! The options that select a session and its grants.

use clap::ValueEnum;
use skillfs::env;
use skillfs::{Access, Grants, LibraryId, Result, Session, ThreadId, TicketId, UserId};

use super::connect::or_env;

#[derive(Debug, clap::Args)]
pub(super) struct SessionArgs {
    /// Show this user's skills in /skills [env: SKILLFS_USER]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) user: Option<String>,
    /// Show this thread in /workspace [env: SKILLFS_THREAD]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    thread: Option<String>,
    /// Show this ticket in /ticket [env: SKILLFS_TICKET]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    ticket: Option<String>,
    /// Show this shared library in /skills, after the user's skills; repeatable [env: SKILLFS_LIBRARIES,
    /// comma-separated]
    #[arg(long, global = true, value_name = "ID", help_heading = "Session")]
    pub(super) library: Vec<String>,
    /// Grant more access: `ticket-write` allows writing to /ticket; repeatable
    #[arg(
        long,
        global = true,
        value_name = "GRANT",
        value_enum,
        hide_possible_values = true,
        help_heading = "Session"
    )]
    grant: Vec<Grant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Grant {
    TicketWrite,
}

impl SessionArgs {
    /// Whether `--user` or `--library` is given.
    pub(super) fn has_library(&self) -> bool {
        self.user.is_some() || !self.library.is_empty()
    }

    /// The session that the options select, with the environment as fallback.
    pub(super) fn session(&self, read_only: bool) -> Result<Session> {
        let mut session = Session::new().libraries(self.libraries()?).grants(self.grants(read_only));
        session.user = or_env(&self.user, env::USER).as_deref().map(UserId::parse).transpose()?;
        session.thread = or_env(&self.thread, env::THREAD).as_deref().map(ThreadId::parse).transpose()?;
        session.ticket = or_env(&self.ticket, env::TICKET).as_deref().map(TicketId::parse).transpose()?;
        Ok(session)
    }

    fn grants(&self, read_only: bool) -> Grants {
        match read_only {
            true => Grants::READ_ONLY,
            false if self.grant.contains(&Grant::TicketWrite) => Grants::default().ticket(Access::ReadWrite),
            false => Grants::default(),
        }
    }

    fn libraries(&self) -> Result<Vec<LibraryId>> {
        if !self.library.is_empty() {
            return self.library.iter().map(|id| LibraryId::parse(id)).collect();
        }
        let listed = or_env(&None, env::LIBRARIES).unwrap_or_default();
        listed.split(',').map(str::trim).filter(|id| !id.is_empty()).map(LibraryId::parse).collect()
    }
}
