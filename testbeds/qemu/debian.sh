#!/bin/sh
# Makes a Debian for QEMU as `nodeyard init` does, with cloud-init if that is its argument, and prints where its disk is.
# Quick when it is there already; safe to run twice at once.
set -eu
script="$(cd "$(dirname "$0")" && pwd)/../../crates/nodeyard/src/commands/init/build-debian.sh"

cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
mkdir -p "$cache"
exec 9>"$cache/qemu-debian.lock"
flock 9
"$(dirname "$0")/../demo/install.sh" >&2

# What it is made by is part of its name: an old one is not used any more when that has changed.
version="$(sha256sum "$script" | cut -c 1-12)"
disk="$cache/qemu-debian-${1:-plain}-$version"
if [ ! -f "$disk.qcow2" ]; then
    rm -f "$cache/qemu-debian-${1:-plain}"-*.qcow2
    NODEYARD_CACHE="$cache" NODEYARD_OUTPUT="$disk.new" NODEYARD_FORMATS=qcow2 PACKAGES="${1:-}" sh "$script" >&2
    mv "$disk.new.qcow2" "$disk.qcow2"
fi
echo "$disk.qcow2"
