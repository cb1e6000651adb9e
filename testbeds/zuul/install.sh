#!/bin/sh
# Installs what a complete Zuul runs on, and prints the root of its Ansible installation.
#
#   install.sh [--find]
#
# With --find it makes nothing, and fails if Ansible is not there.
#
# Debian packages, Zuul's Python environment (../python/install.sh zuul), and Ansible by Zuul's own manager, in
# the versions of ansible.txt. Zuul 14 wants to see two versions of Ansible and its executor refuses to start
# without both; jobs use the default one. Only that is installed, and the other name is a link to it: half the
# time, and 0.8 GB less.
#
# Ansible is kept in ${NODEYARD_CACHE:-~/.cache/nodeyard}/ansible, one for each environment of Zuul and each
# ansible.txt. One that is there already is used without the network; two calls at once make it once.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
default_version=11
other_version=9

find=no
[ "${1-}" != --find ] || find=yes

if [ $find = yes ]; then
    venv=$("$here/../python/install.sh" --find zuul)
else
    "$here/../packages.sh" bubblewrap git openssh-client openssh-server postgresql procps python3-venv util-linux zstd >&2
    venv=$("$here/../python/install.sh" zuul)
fi

cache=${NODEYARD_CACHE:-$HOME/.cache/nodeyard}/ansible
digest=$(sha256sum "$here/ansible.txt" | cut -c 1-12)
root=$cache/$(basename "$venv")-$digest

if [ ! -e "$root/complete" ]; then
    if [ $find = yes ]; then
        echo "Ansible for Zuul is not there: run testbeds/zuul/install.sh" >&2
        exit 1
    fi
    mkdir -p "$cache"
    (
        flock 9
        # Another call may have made it while this one waited.
        [ ! -e "$root/complete" ] || exit 0
        rm -rf "$root"
        PIP_CONSTRAINT="$here/ansible.txt" PIP_DISABLE_PIP_VERSION_CHECK=1 \
            "$venv/bin/python" "$here/install_ansible.py" "$root" "$default_version"
        ln -s "$default_version" "$root/$other_version"
        : >"$root/complete"
    ) 9>"$root.lock" >&2
fi

echo "$root"
