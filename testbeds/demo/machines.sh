# shellcheck shell=bash disable=SC2154,SC2016
# One machine, one command: an image is built, a container and a virtual machine boot from it, and somebody logs in.

# A node of a label, once it is ready: its record.
ready_node() { # LABEL
  local path record
  for path in $(quiet store ls /nodepool/nodes | grep -o '/nodepool/nodes/[0-9]*'); do
    record=$(quiet store get "$path") || continue
    case $record in *"\"type\": [\"$1\"]"* | *"\"type\":[\"$1\"]"*) ;; *) continue ;; esac
    case $record in *'"state": "ready"'* | *'"state":"ready"'*) printf '%s' "$record"; return ;; esac
  done
  return 1
}

field() { # RECORD NAME
  printf '%s' "$1" | sed -n "s/.*\"$2\": *\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# By the host keys that the node's record has, so that there is nothing to answer yes to.
log_in() { # LABEL
  local record host port
  wait_until 600 "a node of $1 is ready" ready_node "$1"
  record=$(ready_node "$1")
  host=$(field "$record" interface_ip) port=$(field "$record" connection_port)
  printf '%s' "$record" | sed 's/.*"host_keys": *\[\([^]]*\)\].*/\1/' | tr ',' '\n' | tr -d '"' |
    sed "s/^ */[$host]:$port /" >> "$work/known_hosts"
  note "ready after $(since "$begin"); anybody with the key logs in by"
  local login=(ssh -p "$port" -i "$yard/id_ed25519" -o "UserKnownHostsFile=$work/known_hosts" "$(field "$record" username)@$host")
  printf '$ %s\n' "${login[*]}"
  "${login[@]}" -F none -o BatchMode=yes -o StrictHostKeyChecking=yes \
    'echo "  this is $(hostname): $(. /etc/os-release; echo "$PRETTY_NAME"), Linux $(uname -r), $(python3 --version)"'
}

machines_story() {
  yard=$work/yard
  config=(-c "$yard/nodepool.yaml")
  local drivers=()

  say '1. A configuration for this machine, and a key to log in with'
  if start_containers; then drivers+=(--driver container); else
    cat "$work/podman.log" >&2
    warn 'Podman does not run here, so no containers are shown' \
      'this demo needs root, and the packages podman and runc; see docs/local-machines.md'
  fi
  if command -v qemu-system-x86_64 > /dev/null; then drivers+=(--driver qemu); else
    warn 'QEMU is not there, so no virtual machines are shown' 'install the packages qemu-system-x86 and qemu-utils'
  fi
  [ "${#drivers[@]}" -gt 0 ] || give_up 'neither containers nor virtual machines can run here'
  run init "$yard" "${drivers[@]}"
  own_port "$yard/nodepool.yaml"
  # `ACCELERATOR=kvm make demo` shows what becomes of a machine that must have KVM where it does not work.
  if [ -n "${ACCELERATOR:-}" ]; then
    sed -i "s/^    driver: qemu$/&\n    accelerator: $ACCELERATOR/" "$yard/nodepool.yaml"
  fi
  run "${config[@]}" config check

  say '2. Everything in one process: store, job server, builder, launcher'
  begin=$(date +%s)
  start_daemon

  say '3. The image is built because a label needs it'
  wait_until 60 'the build has begun' eval 'quiet build ls | grep -q ^debian-'
  run "${config[@]}" image wait debian
  note "built and given to its providers in $(since "$begin")"
  run "${config[@]}" upload ls

  case "${drivers[*]}" in *container*)
    say '4. A container boots from it'
    log_in debian-container ;;
  esac
  case "${drivers[*]}" in *qemu*)
    say '5. A virtual machine boots from the same build'
    log_in debian-vm
    note "accelerator: $(sed -n 's/.*"reason": *"\(.*\)".*/KVM: \1/p' "$yard"/state/qemu/virtual-machines/accelerator.json)" ;;
  esac

  local took
  took=$(since "$begin")
  say '6. A machine for the time of one command; it is given back and goes, and another takes its place'
  local label=debian-container
  case "${drivers[*]}" in *container*) ;; *) label=debian-vm ;; esac
  run "${config[@]}" request "$label" -i "$yard/id_ed25519" -- python3 -c 'print("six times seven is", 6 * 7)'
  run "${config[@]}" lease ls
  nodepool list
  note "the first command to the last login took $took"
  stop_daemon
  end_virtual_machines
  end_containers
}
