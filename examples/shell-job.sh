#!/bin/sh
# A job of any CI, or of none: takes a machine by the HTTP API, runs on it, and gives it back.
#
#   NODEYARD_API=http://127.0.0.1:8006 NODEYARD_TOKEN=... examples/shell-job.sh LABEL SCRIPT
#
# SCRIPT is a file; it runs on the machine, and its exit code is that of the job. SSH_KEY names the private key to log
# in with. Needs curl, jq and ssh. The machine is given back however the job ends; should even that fail, its lease
# ends by itself after LEASE seconds without a renewal.
set -eu

label=$1
script=$2
LEASE=${LEASE:-600}
: "${NODEYARD_API:?the address of the HTTP API}" "${NODEYARD_TOKEN:?a token with the right \"request\"}"

work=$(mktemp -d)
lease=
renewing=

# The token goes through a file: arguments can be seen by everybody on the host.
(umask 077 && printf 'header = "authorization: Bearer %s"\n' "$NODEYARD_TOKEN" >"$work/curlrc")

api() {
    curl --silent --show-error --fail-with-body --config "$work/curlrc" "$@"
}

give_back() {
    code=$?
    trap - EXIT
    [ -z "$renewing" ] || kill "$renewing" 2>/dev/null || true
    if [ -n "$lease" ]; then
        api --request DELETE "$NODEYARD_API/api/v1/leases/$lease" >/dev/null || echo "the lease ends by itself" >&2
    fi
    rm -rf "$work"
    exit "$code"
}
trap give_back EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The same key gives the same lease, so that asking again after a lost answer takes no second machine.
key=$(date +%s)-$$
request=$(jq --null-input --arg what "$label" --argjson time "$LEASE" '{labels: [$what], duration: $time}')
lease=$(api --retry 3 --header "idempotency-key: $key" --header "content-type: application/json" \
    --data "$request" "$NODEYARD_API/api/v1/requests" | jq --raw-output .id)

# A sign of life every now and then, while waiting as well as while running.
while sleep "$((LEASE / 3))"; do
    api --request POST "$NODEYARD_API/api/v1/leases/$lease/renew" || true
done >/dev/null 2>&1 &
renewing=$!

while
    api "$NODEYARD_API/api/v1/leases/$lease?wait=30" >"$work/lease.json"
    phase=$(jq --raw-output .phase "$work/lease.json")
    [ "$phase" != active ]
do
    case $phase in
        waiting | taking | dropping) echo "waiting for $label" >&2 ;;
        *)
            jq --raw-output '.end.detail' "$work/lease.json" >&2
            exit 1
            ;;
    esac
done

value() {
    jq --raw-output ".nodes[0].connection | $1" "$work/lease.json"
}
host=$(value .host)
port=$(value '.port // 22')
user=$(value .user)
value ".host_keys[] | \"[$host]:$port \" + ., \"$host \" + ." >"$work/known_hosts"
echo "running $script on $user@$host:$port" >&2
ssh -o BatchMode=yes -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=/dev/null \
    -o UserKnownHostsFile="$work/known_hosts" -p "$port" ${SSH_KEY:+-i "$SSH_KEY"} -- "$user@$host" 'sh -s' <"$script"
