#!/bin/sh
# Installs diskimage-builder and what it calls. Quick when all is there; safe to run twice at once.
set -eu
cd "$(dirname "$0")/.."

./packages.sh e2fsprogs mount python3-venv qemu-utils sudo util-linux
./python/install.sh dib
