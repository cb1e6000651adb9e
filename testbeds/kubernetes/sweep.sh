#!/bin/sh
# Waits until whoever holds its standard input is gone, and removes what a cluster leaves then: its control groups and its
# directory.
#
# usage: sweep.sh DIRECTORY CGROUP
set -u
dir="$1"
group="$2"
cat > /dev/null

# Groups can be removed when all that ran in them has ended, which takes a moment.
for _ in $(seq 300); do
    find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null
    [ -z "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$group")" ] && break
    sleep 0.1
done
rm -rf "$dir"
# It had to be there to be covered.
rmdir /var/lib/kubelet 2>/dev/null || true
