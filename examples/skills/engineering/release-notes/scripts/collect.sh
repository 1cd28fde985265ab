#!/bin/sh
# List the changes merged between two git tags, oldest first.
# Output: short hash, date, author, title; separated by tabs. Reads only.
set -eu

usage() {
    cat <<'EOF'
Usage: collect.sh [-a] FROM_TAG [TO_TAG]

  FROM_TAG  tag of the previous release (not included)
  TO_TAG    tag of the new release (included); default: HEAD
  -a        list every commit, not only what was merged on the main line
  -h        show this help
EOF
}

fail() {
    printf 'collect.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

mainline=--first-parent
while getopts ah opt; do
    case $opt in
        a) mainline=--no-merges ;;
        h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    usage >&2
    exit 2
fi

command -v git >/dev/null 2>&1 || fail 'git is not installed'
git rev-parse --git-dir >/dev/null 2>&1 || fail 'not inside a git repository'

# Turn a tag name into a commit hash, so that no name is ever read as an option.
commit_of() {
    if [ "$1" = HEAD ]; then
        git rev-parse --verify --quiet 'HEAD^{commit}'
    else
        git rev-parse --verify --quiet "refs/tags/$1^{commit}"
    fi
}

from=$(commit_of "$1") || fail "no such tag: $1"
to=$(commit_of "${2:-HEAD}") || fail "no such tag: ${2:-HEAD}"

git merge-base --is-ancestor "$from" "$to" ||
    printf 'collect.sh: warning: %s is not an ancestor of %s\n' "$1" "${2:-HEAD}" >&2

# A merge commit made by a hosting service keeps the real title in its body.
git --no-pager log "$mainline" --reverse --date=short --no-color --no-show-signature \
    --format='%x1e%h%x1f%ad%x1f%an%x1f%s%x1f%b' "$from..$to" |
    awk 'BEGIN { RS = "\036"; FS = "\037"; OFS = "\t" }
        NF >= 4 {
            title = $4
            if (title ~ /^Merge (pull request|branch|remote-tracking branch) /) {
                number = ""
                if (match(title, /#[0-9]+/))
                    number = " (" substr(title, RSTART, RLENGTH) ")"
                lines = split($5, body, "\n")
                for (i = 1; i <= lines; i++)
                    if (body[i] ~ /[^ \t\r]/) { title = body[i] number; break }
            }
            gsub(/[\t\r\n]+/, " ", title)
            print $1, $2, $3, title
        }'
