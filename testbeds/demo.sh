#!/usr/bin/env bash
# What `make demo` shows, with nothing but this machine: an image that is built, a container and a virtual machine that
# boot from it, a login on each; then what a store and a configuration can do. Leaves nothing behind, also on Ctrl-C.
set -euo pipefail

nodeyard=$(realpath "${1:?usage: demo.sh PATH-OF-NODEYARD}")
cd "$(dirname "$0")/.."

. testbeds/demo/stage.sh
. testbeds/demo/machines.sh
. testbeds/demo/store.sh

machines_story
store_story
say 'Done.'
