#!/bin/sh
# Installs everything that the tests run against, and keeps what is not a Debian package in
# ${NODEYARD_CACHE:-~/.cache/nodeyard}. Quick when it is there already.
set -eu
cd "$(dirname "$0")"

./packages.sh curl jq openjdk-17-jre-headless libzookeeper-java openssh-client openssh-server python3 python3-venv \
    qemu-utils util-linux zstd
# Some take minutes the first time.
step() {
    echo "testbeds/install.sh: $*"
    "$@" >/dev/null
}

step ./python/install.sh nodepool
step ./python/install.sh schemathesis
step ./zuul/install.sh
step ./gearman/install.sh
step ./dib/install.sh
step ./containers/install.sh
step ./qemu/install.sh
step ./demo/install.sh
step ./qemu/debian.sh
step ./qemu/debian.sh cloud-init
step ./kubernetes/install.sh
step ./openshift/install.sh
step ./openstack/install.sh
