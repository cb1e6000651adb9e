#!/bin/sh
# Installs gearmand, the gearman tools and Python's gear for tests. Quick when all is there; safe to run twice at once.
set -eu

gear_version=0.16.0
cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
venv="$cache/gear-$gear_version"

mkdir -p "$cache"
exec 9>"$cache/gearman.lock"
flock 9

"$(dirname "$0")/../packages.sh" gearman-job-server gearman-tools python3-venv util-linux

# Made aside and moved, so that an interrupted run leaves nothing that looks finished. The interpreter's own
# path is all that a venv remembers of its place, and the scripts that do more are called through it.
if [ ! -x "$venv/bin/python" ]; then
    rm -rf "$venv.new"
    python3 -m venv "$venv.new"
    "$venv.new/bin/python" -m pip install -q --disable-pip-version-check "gear==$gear_version"
    mv "$venv.new" "$venv"
fi
