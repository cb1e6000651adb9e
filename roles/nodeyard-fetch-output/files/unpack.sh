#!/bin/sh
# On the executor: unpacks the archive on standard input into the directory that is named.
#
# A node is not trusted. Links of its making could lead whoever publishes the directory, or the next archive, to the files
# of the executor; so only files and directories are kept, and they are unpacked where nothing is yet.
set -eu
mkdir -p "$1"
aside=$(mktemp -d "$1/.fetched-XXXXXX")
trap 'rm -rf "$aside"' EXIT
tar --extract --no-same-owner --no-same-permissions --directory "$aside"
chmod -R u+rwX "$aside"
find "$aside" ! -type f ! -type d -exec rm -f {} +
cp -Rlf "$aside/." "$1"
