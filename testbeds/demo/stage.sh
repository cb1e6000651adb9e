# shellcheck shell=bash disable=SC2154
# What all parts of the demo use: a directory that goes away, processes that end with it, and ways to show things.
#
# Expects $nodeyard, the program that is shown.

work=$(mktemp -d "${TMPDIR:-/tmp}/nodeyard-demo.XXXXXX")
daemon=
runtime=
config=()
"$nodeyard" install-links "$work/bin" > /dev/null

# However the demo ends, nothing of it stays: first the machines, which outlive the daemon on purpose, then the rest.
finish() {
  local status=$?
  trap '' INT TERM
  stop_daemon
  end_virtual_machines
  end_containers
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
note() { printf '  %s\n' "$*"; }
run() { printf '$ nodeyard %s\n' "$*"; "$nodeyard" "$@"; }
nodepool() { printf '$ nodepool %s\n' "$*"; "$work/bin/nodepool" "${config[@]}" "$@"; }
quiet() { "$nodeyard" "${config[@]}" "$@" 2> /dev/null; }
since() { echo "$(($(date +%s) - $1)) s"; }

# Another port than the usual one, beside whatever else runs on this machine.
own_port() {
  local port=$((20000 + RANDOM % 20000))
  sed -i -e "s/port: 8005/port: $port/" -e "s/port: 8006/port: $((port + 1))/" "$1"
}

start_daemon() {
  printf '$ nodeyard -c nodepool.yaml up &\n'
  "$nodeyard" "${config[@]}" up 2>> "$work/log" &
  daemon=$!
  wait_until 30 'the store answers' quiet store --timeout 1 ls /
}

stop_daemon() {
  [ -n "$daemon" ] || return 0
  kill "$daemon" 2> /dev/null || true
  wait "$daemon" 2> /dev/null || true
  daemon=
}

wait_until() { # SECONDS WHAT COMMAND...
  local begin=$SECONDS end=$((SECONDS + $1)) what=$2 said=0
  shift 2
  until "$@" > /dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ]; then give_up "timed out after $((SECONDS - begin)) s waiting until $what"; fi
    if [ -n "$daemon" ] && ! kill -0 "$daemon" 2> /dev/null; then give_up "nodeyard ended while waiting until $what"; fi
    if [ "$(failed_launches)" -ge 3 ]; then give_up "launches keep failing while waiting until $what"; fi
    if [ -t 1 ]; then
      printf '\r  waiting until %s: %s s' "$what" "$((SECONDS - begin))"
      said=1
    elif [ $((SECONDS - begin)) -ge $(((said + 1) * 10)) ]; then
      said=$((said + 1))
      note "still waiting until $what: $((SECONDS - begin)) s"
    fi
    sleep 0.2
  done
  if [ -t 1 ] && [ "$said" != 0 ]; then printf '\r\033[K'; fi
}

failed_launches() {
  [ -f "$work/log" ] || { echo 0; return; }
  grep -c 'failed to launch node' "$work/log" || true
}

# What went wrong, in the words of the program, and where the rest is.
give_up() {
  printf '\n\033[1;31mFAILED: %s\033[0m\n' "$*" >&2
  if [ -f "$work/log" ]; then
    local log=${TMPDIR:-/tmp}/nodeyard-demo.log
    cp "$work/log" "$log"
    # The last problem, without time and span.
    grep -E 'WARN|ERROR' "$log" | tail -n 1 | sed -e 's/^[^ ]* *//' -e 's/[a-z]*{[^}]*}:* *//g' | cut -c 1-1000 >&2 || true
    printf '\nMore: grep -E "WARN|ERROR" %s\n' "$log" >&2
  fi
  exit 1
}

# For what cannot be shown here; an error where nothing may be left out, as in nodeyard_testbeds::skipped.
warn() { # WHAT REMEDY
  printf '\n\033[1;31mSKIPPED: %s.\033[0m\n  %s\n' "$1" "$2" >&2
  for required in "${CI:-}" "${NODEYARD_REQUIRE:-}"; do
    case $required in '' | 0 | false) ;; *) give_up 'CI or NODEYARD_REQUIRE is set, so nothing may be skipped' ;; esac
  done
}

in_log() { grep -q "$1" "$work/log"; }

# A Podman of the demo's own, in namespaces that end with it, so that not even a killed demo leaves a container.
start_containers() {
  local socket=$work/podman.sock storage=$work/podman
  mkdir -p "$storage"
  printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n' > "$storage/containers.conf"
  # The shell picks up what containers leave behind when they end.
  CONTAINERS_CONF="$storage/containers.conf" setpriv --pdeathsig KILL \
    unshare --pid --fork --kill-child --mount-proc --ipc --uts \
    sh -c 'mount -t tmpfs tmpfs /dev/shm && "$@" & wait' sh \
    podman --runtime runc --root "$storage/images" --runroot "$storage/run" --tmpdir "$storage/tmp" \
    system service --time=0 "unix://$socket" > "$work/podman.log" 2>&1 &
  runtime=$!
  export CONTAINER_HOST="unix://$socket"
  local end=$((SECONDS + 30))
  until podman --remote info > /dev/null 2>&1; do
    if [ "$SECONDS" -ge "$end" ] || ! kill -0 "$runtime" 2> /dev/null; then return 1; fi
    sleep 0.2
  done
}

end_containers() {
  [ -n "$runtime" ] || return 0
  # With them go their addresses and firewall rules.
  podman --remote rm --all --force > /dev/null 2>&1 || true
  # Nothing less ends the namespaces.
  kill -KILL "$runtime" 2> /dev/null || true
  wait "$runtime" 2> /dev/null || true
  runtime=
}

end_virtual_machines() {
  local description pid
  for description in "$work"/*/state/qemu/*/machines/*.json; do
    [ -f "$description" ] || continue
    pid=$(sed -n 's/^ *"pid": *\([0-9]*\).*/\1/p' "$description")
    # A number alone may be another's by now.
    case $(readlink "/proc/${pid:-none}/cwd") in "$work"/*) kill -KILL "$pid" 2> /dev/null || true ;; esac
  done
}
