#!/bin/sh
# Installs QEMU, and makes a small guest for tests: Debian's kernel, and a file system with busybox and an SSH
# server, from packages that are unpacked but not installed. Prints where it is. Quick when it is there
# already; safe to run twice at once.
#
# The guest does what cloud-init does with a NoCloud seed, as far as tests need it: see init.sh.
set -eu
cd "$(dirname "$0")"

# Change it when the guest changes: an old one is not used any more then.
version=1
cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
guest="$cache/qemu-guest-$version"

mkdir -p "$cache"
exec 9>"$cache/qemu.lock"
flock 9

../packages.sh dnsmasq-base iproute2 ovmf qemu-system-x86 qemu-utils e2fsprogs kmod openssh-client util-linux >&2

if [ ! -d "$guest" ]; then
    rm -rf "$guest.new"
    mkdir -p "$guest.new/packages"
    ./guest.sh "$guest.new" >&2
    rm -rf "$guest.new/packages" "$guest.new/unpacked" "$guest.new/root" "$guest.new/start"
    # Made aside and moved, so that an interrupted run leaves nothing that looks finished.
    mv "$guest.new" "$guest"
fi
echo "$guest"
