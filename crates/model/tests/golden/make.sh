#!/bin/sh
# Writes the golden records, as the real Python programs write them, to this directory or the one given.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
install=$here/../../../../testbeds/python/install.sh
nodepool=$("$install" nodepool)/bin/python
zuul=$("$install" zuul)/bin/python
to=${1:-$here}
"$nodepool" "$here/nodepool_records.py" make "$to"
"$zuul" "$here/zuul_records.py" make "$to"
"$nodepool" "$here/nodepool_records.py" answer "$to"
