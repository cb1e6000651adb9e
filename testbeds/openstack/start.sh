#!/bin/sh
# Runs cloud.py as the first process of a namespace, so that nothing of what it starts outlives it.
#
# usage: start.sh PYTHON make STATE
#        start.sh PYTHON run STATE ROOT
set -eu
here="$(cd "$(dirname "$0")" && pwd)"
python="$1"
shift
# Nothing is left in the tree.
export PYTHONDONTWRITEBYTECODE=1
# The directory that this was called from may be removed meanwhile.
cd /
exec unshare --pid --fork --kill-child --mount-proc --ipc --uts "$python" "$here/cloud.py" "$@"
