//! The examples that `--help` prints below the options.
//!
//! Lines stay within 100 columns, the width at which clap wraps them.

pub(super) const SKILLFS: &str = "\
Examples:
  skillfs demo                                              # Run a session on sample data
  skillfs --embedded ./data --user ana ls /skills           # Use a local store in ./data
  skillfs --bucket acme --user ana --thread t1 ls /         # List the mounts of a session on S3
  skillfs --bucket acme --user ana read /skills/contracts/sale/SKILL.md
  skillfs --bucket acme --thread t1 --json ls -R /workspace
  echo '# Plan' | skillfs --bucket acme --thread t1 write plan.md
  skillfs --bucket acme --thread t1 edit plan.md --old '# Plan' --new '# The plan'

Exit codes:
  0   success
  1   the answer is no: nothing matches, something differs, problems were found
  2   invalid arguments
  3   not found
  4   permission denied or read-only
  5   conflict with another change
  6   content that cannot be read
  7   storage unavailable
  70  internal error";

pub(super) const DOCTOR: &str = "\
Examples:
  skillfs --bucket acme doctor                              # Bucket, region, credentials and clock
  skillfs --bucket acme --user ana --thread t1 doctor       # Also check what this session may do
  skillfs --bucket acme --library contracts doctor --json

Exits with 1 if a check failed. Notes and warnings are not failures.";

pub(super) const COMPLETIONS: &str = "\
Examples:
  skillfs completions bash > /etc/bash_completion.d/skillfs
  skillfs completions zsh  > ~/.zfunc/_skillfs
  skillfs completions fish > ~/.config/fish/completions/skillfs.fish";

pub(super) const DEMO: &str = "\
Examples:
  skillfs demo
  skillfs demo --all
  skillfs demo --embedded ./data && skillfs --embedded ./data --user ana tree /skills";

pub(super) const LS: &str = "\
Examples:
  skillfs ls                                                # List the mounts
  skillfs ls -l /skills/contracts
  skillfs --json ls -R /workspace";

pub(super) const READ: &str = "\
Examples:
  skillfs read notes                                        # Print /workspace/notes.md
  skillfs read -n /ticket/log.txt --offset 100 --limit 50

Binary files are refused; the error reports their type and size.";

pub(super) const EXISTS: &str = "\
Example:
  skillfs exists /skills/contracts/sale/resources/schema.json && echo found";

pub(super) const STAT: &str = "\
Example:
  skillfs --json stat /workspace/notes.md";

pub(super) const TREE: &str = "\
Example:
  skillfs tree /skills";

pub(super) const WRITE: &str = "\
Examples:
  echo '# Notes' | skillfs write notes.md
  skillfs write /workspace/contract.pdf --from ./contract.pdf
  skillfs write notes.md --from new.md --if-match 9b0d4e…

An existing file is overwritten unless --create or --if-match is given.";

pub(super) const APPEND: &str = "\
Example:
  date | skillfs append log.txt

Concurrent changes by other writers are kept.";

pub(super) const EDIT: &str = "\
Examples:
  skillfs edit notes.md --old 'draft' --new 'final'
  skillfs edit notes.md --old $'one\\ntwo' --new '' --all

The text must occur exactly once, or at least once with --all. Concurrent changes by other writers \
are kept: the replacement is applied to the newest version.";

pub(super) const RM: &str = "\
Examples:
  skillfs rm drafts/old.md
  skillfs rm -r drafts";

pub(super) const CP: &str = "\
Examples:
  skillfs cp notes.md notes-old.md
  skillfs cp /skills/contracts/sale /workspace/sale

TO is the new name, not a directory to copy into. Existing files are replaced. Other files in an \
existing target directory are kept.";

pub(super) const MV: &str = "\
Example:
  skillfs mv drafts/sale.md contracts/2026-11.md

Everything is copied before anything is deleted, so an interrupted move loses nothing.";

pub(super) const GLOB: &str = "\
Examples:
  skillfs glob '*.md'                                       # At any depth below /workspace
  skillfs glob 'drafts/**/*.{md,txt}'
  skillfs glob '/skills/**/SKILL.md'                        # From the root

A name that starts with a dot matches only if the pattern has the dot.";

pub(super) const GREP: &str = "\
Examples:
  skillfs grep 'TODO'
  skillfs grep -i 'buyer|seller' /ticket --regex -C 2
  skillfs grep 'price' / --glob '*.md' --max 20

The pattern is literal text unless --regex is given. Binary files are skipped and counted. Exits \
with 1 if nothing matches.";

pub(super) const SKILLS: &str = "\
Examples:
  skillfs skills list --category contracts
  skillfs skills catalog --format xml --budget 8000
  skillfs skills load contracts/sale";

pub(super) const CATALOG: &str = "\
Examples:
  skillfs skills catalog --category engineering
  skillfs skills catalog --format xml --budget 8000

To fit the budget, descriptions are shortened first, then dropped; then skills are dropped, starting \
with the last. The text says what was left out.";

pub(super) const CREDENTIALS: &str = "\
Examples:
  skillfs --bucket acme --role-arn $ROLE --user ana --thread t1 credentials

  # ~/.aws/config
  [profile ana]
  credential_process = skillfs --bucket acme --role-arn arn:… --user ana --thread t1 credentials";

pub(super) const ADMIN: &str = "\
The target library is --user ID or --library ID. SKILLFS_USER and SKILLFS_LIBRARIES are ignored.

Examples:
  skillfs admin init lease-agreement
  skillfs --bucket acme admin push ./skills --library contracts --dry-run
  skillfs --bucket acme admin verify --library contracts";

pub(super) const VALIDATE: &str = "\
Examples:
  skillfs admin validate ./my-skill
  skillfs admin validate skills/ --lenient                  # Show what loading them would do

A folder without a SKILL.md is searched for skills. Exits with 1 if a skill is invalid.";

pub(super) const INIT: &str = "\
Examples:
  skillfs admin init lease-agreement --description 'Drafts lease agreements. Use for rentals.'
  skillfs admin init lease-agreement --into skills/contracts";

pub(super) const PUSH: &str = "\
Examples:
  skillfs --bucket acme admin push ./skills --user ana --dry-run
  skillfs --bucket acme admin push ./skills --library contracts
  skillfs --bucket acme admin push skills.zip --library contracts --delete
  skillfs --bucket acme admin push ./skills --users users.txt --yes

A push to an empty library publishes it: agents see all of a release or nothing of it. A plain \
library stays plain unless --publish is given. An interrupted push can be repeated. To give many \
users the same skills, prefer one shared library.";

pub(super) const DIFF: &str = "\
Examples:
  skillfs --bucket acme admin diff ./skills --user ana
  skillfs --bucket acme --json admin diff ./skills --library contracts --delete

Exits with 1 if there are differences.";

pub(super) const IMPORT: &str = "\
Examples:
  skillfs --bucket acme admin import https://example.com/skills.git --library contracts
  skillfs --bucket acme admin import hermes-checkout/ --layout hermes --user ana --translate-tools
  skillfs admin import downloaded.zip --into ./reviewed     # Review the skills first

Each imported skill gets a `.source` file with its origin and trust tier. Scripts are left out \
unless --with-scripts is given. Skills that request dangerous capabilities need confirmation.";

pub(super) const PULL: &str = "\
Example:
  skillfs --bucket acme admin pull ./skills --library contracts";

pub(super) const EXPORT: &str = "\
Examples:
  skillfs --bucket acme admin export contracts.zip --library contracts
  skillfs --bucket acme admin export ana.tar.gz --user ana

Unpack the archive at the root of a web server to let other agents discover the skills. \
`admin import` reads it back.";

pub(super) const VERIFY: &str = "\
Examples:
  skillfs --bucket acme admin verify --user ana
  skillfs --bucket acme admin verify --library contracts --repair
  skillfs --bucket acme admin verify --library contracts --repair --overwrite
  skillfs --bucket acme admin verify --library contracts --repair --release 41

--repair completes the mirror and restores blobs from other copies of their content. Changes by \
other tools are kept unless --overwrite is given. Exits with 1 if problems remain.";

pub(super) const RELEASES: &str = "\
Example:
  skillfs --bucket acme admin releases --library contracts

CHANGES counts skills: `+1 ~2 -0` is 1 created, 2 updated, 0 deleted. `*` marks the current release.";

pub(super) const ROLLBACK: &str = "\
Example:
  skillfs --bucket acme admin rollback 41 --library contracts --dry-run";

pub(super) const PIN: &str = "\
Example:
  skillfs --bucket acme admin pin contracts/sale@41 --library contracts";

pub(super) const UNPIN: &str = "\
Example:
  skillfs --bucket acme admin unpin contracts/sale --library contracts";

pub(super) const ADMIN_RM: &str = "\
Example:
  skillfs --bucket acme admin rm contracts/sale --library contracts --dry-run";

pub(super) const LIST: &str = "\
Examples:
  skillfs --bucket acme admin list
  skillfs --bucket acme admin list --library contracts";

pub(super) const STATS: &str = "\
Examples:
  skillfs --bucket acme admin stats
  skillfs --bucket acme admin stats --library contracts";

pub(super) const PRUNE: &str = "\
Example:
  skillfs --bucket acme admin prune --library contracts";

pub(super) const UNPUBLISH: &str = "\
Example:
  skillfs --bucket acme admin unpublish --user ana

The mirror is completed first. If other tools have changed it, publish their changes (`admin index`) \
or revert them (`admin verify --repair --overwrite`) before you unpublish.";

pub(super) const INDEX: &str = "\
Examples:
  aws s3 sync ./skills s3://acme/shared/contracts/skills/
  skillfs --bucket acme admin index --library contracts
  skillfs --bucket acme admin index --library contracts --dry-run
  skillfs --bucket acme admin index --user ana --publish    # Publish a plain library

Does nothing if nothing changed, so it can run after every upload.";
