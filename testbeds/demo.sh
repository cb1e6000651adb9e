#!/usr/bin/env bash
# What `make demo` shows: a store that needs no set-up, a configuration that explains its mistakes, and a
# process that can be killed at any moment. Leaves nothing behind.
set -euo pipefail

nodeyard=${1:?usage: demo.sh PATH-OF-NODEYARD}
cd "$(dirname "$0")/.."
work=$(mktemp -d)
daemon=
finish() {
  if [ -n "$daemon" ]; then kill "$daemon" 2> /dev/null || true; wait "$daemon" 2> /dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ nodeyard %s\n' "$*"; "$nodeyard" "$@"; }
start() {
  printf '$ nodeyard -c nodepool.yaml up &\n'
  "$nodeyard" -c "$work/nodepool.yaml" up 2>> "$work/log" &
  daemon=$!
  for _ in $(seq 100); do
    "$nodeyard" -c "$work/nodepool.yaml" store --timeout 1 ls / > /dev/null 2>&1 && return
    kill -0 "$daemon" 2> /dev/null || { cat "$work/log" >&2; return 1; }
    sleep 0.1
  done
  cat "$work/log" >&2
  return 1
}
wait_for() { # TEXT in the log
  for _ in $(seq 100); do grep -q "$1" "$work/log" && return; sleep 0.1; done
  cat "$work/log" >&2
  return 1
}

cp examples/nodepool.yaml "$work/nodepool.yaml"
printf '\nstate-dir: %s/state\n' "$work" >> "$work/nodepool.yaml"
config=(-c "$work/nodepool.yaml")

say '1. A file with mistakes: all of them at once, each at its place'
sed -e 's/min-ready:/min-redy:/' -e 's/diskimage: debian-bookworm/diskimage: debian-bokworm/' -e 's/min-ram: 8192/min-ram: plenty/' \
  examples/nodepool.yaml > "$work/wrong.yaml"
run -c "$work/wrong.yaml" config check || true

say '2. The right one'
run "${config[@]}" config check

say '3. Everything in one process; the state of a Nodepool moves in'
start
run "${config[@]}" store import examples/state.jsonl
run "${config[@]}" store ls -r /nodepool

say '4. Any record can be looked at'
run "${config[@]}" --format json store get /nodepool/requests/200-0000000000

say '5. The configuration changes while it runs: a broken file changes nothing, a good one is taken over'
cp "$work/wrong.yaml" "$work/nodepool.yaml"
wait_for 'configuration rejected'
sed 's/max-servers: 20/max-servers: 30/' examples/nodepool.yaml > "$work/next.yaml"
printf '\nstate-dir: %s/state\n' "$work" >> "$work/next.yaml"
mv "$work/next.yaml" "$work/nodepool.yaml"
wait_for 'configuration reloaded'
grep -E 'configuration (rejected|reloaded)' "$work/log"

say '6. kill -9, and on again: nothing that was acknowledged is missing'
before=$("$nodeyard" "${config[@]}" store ls -r /nodepool | awk '{print $1}')
kill -9 "$daemon"
wait "$daemon" 2> /dev/null || true
start
after=$("$nodeyard" "${config[@]}" store ls -r /nodepool | awk '{print $1}')
[ "$before" = "$after" ] || { echo 'records are missing' >&2; exit 1; }
echo "$(wc -l <<< "$after") lines before and after"
say 'Done.'
