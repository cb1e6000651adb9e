#!/bin/sh
# Makes a Python environment with the real counterpart of a test, and prints its path.
#
#   install.sh [--find] nodepool|zuul|kazoo|dib|schemathesis|openstack
#
# With --find it makes nothing, and fails if the environment is not there.
#
# The environments are kept in ${NODEYARD_CACHE:-~/.cache/nodeyard}/python, one for each list of
# packages next to this script and each version of Python. One that is there already is used without the
# network; two calls at once make it once. kazoo comes with nodepool.
set -eu

find=no
if [ "${1-}" = --find ]; then
    find=yes
    shift
fi

case "${1-}" in
    nodepool | kazoo) packages=nodepool ;;
    zuul) packages=zuul ;;
    dib) packages=dib ;;
    schemathesis) packages=schemathesis ;;
    openstack) packages=openstack ;;
    *)
        echo "usage: $0 [--find] nodepool|zuul|kazoo|dib|schemathesis|openstack" >&2
        exit 2
        ;;
esac

python=${PYTHON:-python3}
list=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)/$packages.txt
cache=${NODEYARD_CACHE:-$HOME/.cache/nodeyard}/python
key=$("$python" -c '
import hashlib, sys
digest = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()
print("py%d.%d-%s" % (*sys.version_info[:2], digest[:12]))
' "$list")
venv=$cache/$packages-$key

if [ ! -e "$venv/complete" ]; then
    if [ $find = yes ]; then
        echo "the Python environment of $packages is not there: run \`make testbeds\`" >&2
        exit 1
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || {
        echo "$0: $python cannot make environments; on Debian: apt-get install python3-venv" >&2
        exit 1
    }
    mkdir -p "$cache"
    (
        flock 9
        # Another call may have made it while this one waited.
        [ ! -e "$venv/complete" ] || exit 0
        rm -rf "$venv"
        "$python" -m venv "$venv"
        "$venv/bin/pip" install --quiet --no-deps --disable-pip-version-check -r "$list"
        : >"$venv/complete"
    ) 9>"$venv.lock" >&2
fi

echo "$venv"
