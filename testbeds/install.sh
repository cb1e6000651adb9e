#!/bin/sh
# Installs Debian packages. Quick when they are there already; run it as often as you like.
#
#   install.sh build    what compiling needs beside Rust
#   install.sh          that, and what the tests need
#   install.sh zuul     that, and what a complete Zuul needs
set -eu

packages="gcc libc6-dev"
[ "${1-}" = build ] ||
    packages="$packages openjdk-17-jre-headless libzookeeper-java python3 python3-venv util-linux \
openssh-client openssh-server"
[ "${1-}" != zuul ] ||
    packages="$packages bubblewrap git postgresql procps"

missing=""
for package in $packages; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "these Debian packages are missing, and installing them needs root:$missing" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$as_root apt-get update -q
# shellcheck disable=SC2086
$as_root apt-get install -y -q --no-install-recommends $missing
