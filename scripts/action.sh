#!/usr/bin/env bash
# Run by action.yml: compares two checkouts of an app. Exits like `workerlab compare`: with 4 if a
# limit is exceeded. Writes Markdown to $GITHUB_STEP_SUMMARY and, if PULL_REQUEST has a number, to
# a comment on that pull request, which the next run replaces. Other environment variables:
#
#   WORKERLAB                       the command
#   BASE HEAD                       the checkouts: A and B
#   APP CLASSES LEVELS FAIL_IF      arguments of `workerlab compare`
#   OPTIONS                         further options, quoted as in a shell
#   TITLE                           the heading, which also identifies the comment
#   GH_TOKEN GITHUB_REPOSITORY      for the comment
set -euo pipefail

markdown=$(mktemp)
trap 'rm -f "$markdown"' EXIT

# The lab uses the .venv of each side; if neither has one, the Python on PATH runs both.
python=
if [ ! -x "$BASE/.venv/bin/python" ] && [ ! -x "$HEAD/.venv/bin/python" ]; then
  python=$(command -v python || command -v python3)
fi

# side DIRECTORY
side() { printf 'chdir=%q' "$1"; [ -z "$python" ] || printf ' python=%q' "$python"; }

comment() {
  local comments="repos/$GITHUB_REPOSITORY/issues" id
  id=$(gh api --paginate "$comments/$PULL_REQUEST/comments" \
    --jq '.[] | select(.body | startswith(env.MARKER)) | .id' | head -n 1)
  if [ -n "$id" ]; then
    gh api --method PATCH "$comments/comments/$id" -F "body=@$markdown"
  else
    gh api --method POST "$comments/$PULL_REQUEST/comments" -F "body=@$markdown"
  fi
}

export MARKER="<!-- $TITLE -->"
printf '%s\n### %s\n\n' "$MARKER" "$TITLE" >"$markdown"
arguments=()
words=$(xargs printf '%s\n' <<<"$OPTIONS")
while IFS= read -r word; do [ -z "$word" ] || arguments+=("$word"); done <<<"$words"
if [ -n "$FAIL_IF" ]; then arguments+=(--fail-if "$FAIL_IF"); fi

code=0
"$WORKERLAB" compare "$CLASSES" "$LEVELS" --app "$APP" --a "$(side "$BASE")" --b "$(side "$HEAD")" \
  --format markdown ${arguments[@]+"${arguments[@]}"} >>"$markdown" || code=$?
[ "$code" = 0 ] || printf '\nExit code %s\n' "$code" >>"$markdown"
cat "$markdown" >>"$GITHUB_STEP_SUMMARY"
if [ -n "${PULL_REQUEST:-}" ]; then
  comment >/dev/null || echo "::warning::Could not comment on the pull request (does the job have pull-requests: write?)."
fi
exit "$code"
