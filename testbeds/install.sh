#!/bin/sh
# Installs everything that the tests run against, and keeps what is not a Debian package in
# ${NODEYARD_CACHE:-~/.cache/nodeyard}. Quick when it is there already.
set -eu
cd "$(dirname "$0")"

./packages.sh curl jq openjdk-17-jre-headless libzookeeper-java openssh-client openssh-server python3 python3-venv \
    qemu-utils util-linux zstd
./python/install.sh nodepool >/dev/null
./python/install.sh schemathesis >/dev/null
./zuul/install.sh >/dev/null
./gearman/install.sh >/dev/null
./dib/install.sh >/dev/null
./containers/install.sh >/dev/null
./qemu/install.sh >/dev/null
./demo/install.sh >/dev/null
./qemu/debian.sh >/dev/null
./qemu/debian.sh cloud-init >/dev/null
./kubernetes/install.sh >/dev/null
./openshift/install.sh >/dev/null
./openstack/install.sh >/dev/null
