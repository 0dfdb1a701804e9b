#!/usr/bin/env bash
# What a stranger sees: clones HEAD into a temporary folder, with an empty home and a clean environment, and runs
# `make demo` and `make test` there. Run by hand; takes some minutes and downloads everything. Extra arguments go to
# `make test`: tests/fresh_clone.sh FAST=1
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/home"
git clone --quiet --no-local "$root" "$work/tidings"

source "$root/tests/support/clean_environment.sh"
clean_environment "$work/home"

run() {
    local start=$SECONDS
    echo "== make $*"
    (cd "$work/tidings" && env -i "${clean[@]}" make "$@")
    echo "== make $*: $((SECONDS - start)) s"
}

run demo
run test "$@"
run lint
changed=$(git -C "$work/tidings" status --porcelain)
if [[ -n $changed ]]; then
    echo "These files were left behind in the clone:" >&2
    echo "$changed" >&2
    exit 1
fi
stray=$(find "$work/home" -mindepth 1 -maxdepth 1 ! -name .cache -printf '%f ')
echo "== done; besides .cache, the home folder holds: ${stray:-nothing}"
