# shellcheck shell=bash disable=SC2154
# Without any machine: mistakes that are explained, a store that needs no set-up, a state that moves in from Nodepool,
# and a process that can be killed at any moment.

store_story() {
  own=$(printf '\nstate-dir: %s/state\nwebapp: {port: 8005, listen_address: 127.0.0.1}\napi: {port: 8006}\n' "$work")
  { cat examples/nodepool.yaml; echo "$own"; } > "$work/nodepool.yaml"
  own_port "$work/nodepool.yaml"
  config=(-c "$work/nodepool.yaml")

  say '7. A file with mistakes: all of them at once, each at its place'
  sed -e 's/min-ready:/min-redy:/' -e 's/diskimage: debian-bookworm/diskimage: debian-bokworm/' -e 's/min-ram: 8192/min-ram: plenty/' \
    examples/nodepool.yaml > "$work/wrong.yaml"
  run -c "$work/wrong.yaml" config check || true

  say '8. The right one'
  run "${config[@]}" config check

  say '9. Everything in one process; the state of a Nodepool moves in'
  start_daemon
  run "${config[@]}" store import examples/state.jsonl
  run "${config[@]}" store ls -r /nodepool/images

  say '10. The launcher is at work: it serves the request that moved in with the machines of the static pool'
  wait_until 30 'the request is fulfilled' eval "quiet explain 200-0000000000 | grep -q 'was fulfilled'"
  run "${config[@]}" explain 200-0000000000
  run "${config[@]}" store ls /nodepool/nodes

  say '11. The configuration changes while it runs: a broken file changes nothing, a good one is taken over'
  cp "$work/wrong.yaml" "$work/nodepool.yaml"
  wait_until 30 'the broken file is refused' in_log 'configuration rejected'
  sed 's/max-servers: 20/max-servers: 30/' examples/nodepool.yaml > "$work/next.yaml"
  echo "$own" >> "$work/next.yaml"
  own_port "$work/next.yaml"
  mv "$work/next.yaml" "$work/nodepool.yaml"
  wait_until 30 'the good file is taken over' in_log 'configuration reloaded'
  grep -E 'configuration (rejected|reloaded)' "$work/log"

  say '12. kill -9, and on again: nothing that was acknowledged is missing'
  build=/nodepool/images/debian-bookworm/builds/0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b
  before=$("$nodeyard" "${config[@]}" store get "$build")
  kill -9 "$daemon"
  wait "$daemon" 2> /dev/null || true
  start_daemon
  run "${config[@]}" store get "$build"
  [ "$before" = "$("$nodeyard" "${config[@]}" store get "$build")" ] || { echo 'a record is missing' >&2; exit 1; }
  stop_daemon
}
