#!/bin/sh
# Installs gearmand, the gearman tools and Python's gear for tests. Quick when all is there; safe to run twice at once.
set -eu

gear_version=0.16.0
packages="gearman-job-server gearman-tools python3-venv util-linux"
cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
venv="$cache/gear-$gear_version"

mkdir -p "$cache"
exec 9>"$cache/gearman.lock"
flock 9

missing=""
for package in $packages; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] ||
        missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ]; then
        as_root=""
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root="sudo"
    else
        echo "testbeds: these Debian packages are missing, and installing them needs root:$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    $as_root apt-get update -q
    # shellcheck disable=SC2086
    $as_root apt-get install -y -q --no-install-recommends $missing
fi

# Made aside and moved, so that an interrupted run leaves nothing that looks finished. The interpreter's own
# path is all that a venv remembers of its place, and the scripts that do more are called through it.
if [ ! -x "$venv/bin/python" ]; then
    rm -rf "$venv.new"
    python3 -m venv "$venv.new"
    "$venv.new/bin/python" -m pip install -q --disable-pip-version-check "gear==$gear_version"
    mv "$venv.new" "$venv"
fi
