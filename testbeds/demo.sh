#!/usr/bin/env bash
# What `make demo` shows: a store that needs no set-up, a configuration that explains its mistakes, a process that can
# be killed at any moment, and an image on its way from a program to a machine. Leaves nothing behind.
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

# Beside whatever else runs on this machine.
own=$(printf '\nstate-dir: %s/state\nwebapp: {port: %d, listen_address: 127.0.0.1}\n' "$work" $((20000 + RANDOM % 20000)))
{ cat examples/nodepool.yaml; echo "$own"; } > "$work/nodepool.yaml"
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
run "${config[@]}" store ls -r /nodepool/images

say '4. The launcher is at work: it serves the request that moved in with the machines of the static pool'
for _ in $(seq 100); do
  "$nodeyard" "${config[@]}" explain 200-0000000000 2> /dev/null | grep -q 'was fulfilled' && break
  sleep 0.1
done
run "${config[@]}" explain 200-0000000000
run "${config[@]}" store ls /nodepool/nodes

say '5. The configuration changes while it runs: a broken file changes nothing, a good one is taken over'
cp "$work/wrong.yaml" "$work/nodepool.yaml"
wait_for 'configuration rejected'
sed 's/max-servers: 20/max-servers: 30/' examples/nodepool.yaml > "$work/next.yaml"
echo "$own" >> "$work/next.yaml"
mv "$work/next.yaml" "$work/nodepool.yaml"
wait_for 'configuration reloaded'
grep -E 'configuration (rejected|reloaded)' "$work/log"

say '6. kill -9, and on again: nothing that was acknowledged is missing'
build=/nodepool/images/debian-bookworm/builds/0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b
before=$("$nodeyard" "${config[@]}" store get "$build")
kill -9 "$daemon"
wait "$daemon" 2> /dev/null || true
start
run "${config[@]}" store get "$build"
[ "$before" = "$("$nodeyard" "${config[@]}" store get "$build")" ] || { echo 'a record is missing' >&2; exit 1; }

say '7. An image: built by a small program, uploaded to a simulated cloud, and a machine that boots from it'
kill "$daemon"
wait "$daemon" 2> /dev/null || true
cat > "$work/make-image" <<'EOF'
#!/bin/sh
for part in 1 2 3; do sleep 0.5; echo "nodeyard: progress $part/3"; done
for format in $(echo "$NODEYARD_FORMATS" | tr , ' '); do echo "$NODEYARD_IMAGE" > "$NODEYARD_OUTPUT.$format"; done
EOF
chmod +x "$work/make-image"
cat > "$work/nodepool.yaml" <<EOF
state-dir: $work/images-state
images-dir: $work/images
build-log-dir: $work/logs
image-size-estimate: 1M
images-dir-reserve: 0
webapp: {port: $((20000 + RANDOM % 20000)), listen_address: 127.0.0.1}
labels: [{name: box, min-ready: 1}]
diskimages: [{name: tiny, builder: command, command: $work/make-image, pause: false}]
providers:
  - name: somewhere
    driver: fake
    diskimages: [{name: tiny}]
    pools: [{name: main, max-servers: 2, labels: [{name: box, diskimage: tiny, min-ram: 1024}]}]
EOF
start
run "${config[@]}" image build tiny --wait
run "${config[@]}" image why tiny
run "${config[@]}" image logs tiny
for _ in $(seq 100); do
  "$nodeyard" "${config[@]}" store ls /nodepool/nodes 2> /dev/null | grep -q /nodepool/nodes/ && break
  sleep 0.1
done
run "${config[@]}" image uploads
run "${config[@]}" store ls /nodepool/nodes
say 'Done.'
