#!/bin/sh
# Installs what the demo runs with: a container runtime, QEMU, and what the image is built with.
set -eu

# crun, which Podman would take by itself, does not start where both versions of control groups are mounted.
exec "$(dirname "$0")/../packages.sh" podman runc containernetworking-plugins iptables \
    qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fdisk mtools syslinux syslinux-common openssh-client util-linux
