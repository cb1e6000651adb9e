#!/bin/sh
# Installs a real OpenStack that runs on loopback: Keystone, Glance, Placement, Neutron, Nova and Cinder as Python
# packages, MariaDB and RabbitMQ as Debian's; and makes the databases that a cloud starts with.
#
#   install.sh [--find]
#
# Prints the place of these databases, which has a link `venv` to the Python environment. With --find it makes nothing,
# and fails if they are not there. Quick when all is there; safe to run twice at once.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
cache=${NODEYARD_CACHE:-$HOME/.cache/nodeyard}/openstack

if [ "${1-}" = --find ]; then
    venv=$("$here/../python/install.sh" --find openstack)
else
    "$here/../packages.sh" mariadb-client-core mariadb-server-core python3-venv rabbitmq-server util-linux >&2
    venv=$("$here/../python/install.sh" openstack)
fi

# Another version of these programs starts with databases of its own.
digest=$(cd "$here" && LC_ALL=C && cat ./*.py plugin/*.py plugin/*.dist-info/* | sha256sum | cut -c 1-12)
place=$cache/$(basename "$venv")-$digest

if [ ! -e "$place/state" ]; then
    if [ "${1-}" = --find ]; then
        echo "the databases of OpenStack are not there: run \`make testbeds\`" >&2
        exit 1
    fi
    mkdir -p "$place"
    (
        flock 9
        # Another call may have made them while this one waited.
        [ ! -e "$place/state" ] || exit 0
        ln -sfn "$venv" "$place/venv"
        "$here/start.sh" "$venv/bin/python" make "$place/state"
    ) 9>"$place/lock" >&2
fi

echo "$place"
