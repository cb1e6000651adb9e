#!/bin/sh
# Stops the clouds of this machine that nobody uses, sooner than they would by themselves, and waits until they are
# gone.
set -eu

for root in "${TMPDIR:-/tmp}"/nodeyard-testbeds/openstack-*/; do
    root=${root%/}
    [ -e "$root/cloud.json" ] || continue
    # Whoever uses it holds this lock; it looks at it itself from time to time.
    flock --exclusive --timeout 3 "$root.users" touch "$root/stop" || continue
    # Somebody may have begun to use it meanwhile: it stops after that.
    flock --timeout 60 "$root.alive" true || true
done
