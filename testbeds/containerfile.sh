#!/usr/bin/env bash
# Builds packaging/Containerfile as far as that is possible without a registry, and runs what comes out: on a Debian that
# is made here, and with the program that was built before. The Debian package is tried in the same way.
#
# The stage with the compiler is not run. Its base is only in a registry, and in any other one an optimised build of
# everything, from nothing and behind no cache, would take longer than all other tests together. What is tried of it is
# what it is given: every file that the program is made from must be in the context.
set -euo pipefail

nodeyard=$(realpath "${1:?usage: containerfile.sh PATH-OF-NODEYARD}")
cd "$(dirname "$0")/.."
cache=${NODEYARD_CACHE:-$HOME/.cache/nodeyard}

# The small first process of `--init`.
testbeds/packages.sh catatonit curl
. testbeds/demo/stage.sh

base=$cache/debian-base-1.tar
if [ ! -f "$base" ]; then
  mkdir -p "$cache"
  mmdebstrap --quiet --variant=apt --format=tar bookworm "$base.new"
  mv "$base.new" "$base"
fi
if ! start_containers; then
  warn 'Podman does not run here, so packaging/Containerfile is not tried' \
    'this needs root, and the packages podman and runc'
  exit 0
fi
# More than root may have on some machines is what a runtime asks for by itself.
limits=(--ulimit nofile=20000:20000 --ulimit nproc=4096:4096)
podman --remote import --quiet "$base" localhost/debian-base > /dev/null

mkdir "$work/context" "$work/source"
printf 'FROM scratch\nCOPY . .\n' > "$work/context/Source"
podman --remote build --quiet --file "$work/context/Source" --tag localhost/source . > /dev/null
podman --remote export "$(podman --remote create localhost/source none)" | tar -x -C "$work/source"
while read -r file; do
  [ -f "$work/source/$file" ] || give_up "the context lacks $file; see .containerignore"
done < <(git ls-files '*Cargo.toml' Cargo.lock 'crates/*/src/*' 'drivers/*/src/*')

strip -o "$work/context/nodeyard" "$nodeyard"
podman --remote build --quiet --network host "${limits[@]}" --build-arg BASE=localhost/debian-base --target runtime \
  --file packaging/Containerfile --tag localhost/runtime "$work/context" > /dev/null
printf 'FROM localhost/runtime\nCOPY nodeyard /usr/local/bin/nodeyard\n' > "$work/context/Containerfile"
podman --remote build --quiet --tag localhost/nodeyard "$work/context" > /dev/null

mkdir "$work/package"
packaging/deb.sh "$nodeyard" "$work/package" -Znone
podman --remote run --rm --network host "${limits[@]}" --volume "$work/package:/package:ro" localhost/debian-base sh -euc '
  apt-get update -q
  apt-get install -y -q --no-install-recommends /package/*.deb
  for program in nodeyard nodepool nodepool-launcher nodepool-builder; do $program --version; done
  getent passwd nodeyard
  apt-get purge -y -q nodeyard
  for path in /usr/bin/nodepool /usr/lib/systemd/system/nodeyard.service /etc/nodepool; do test ! -e $path; done' \
  > "$work/package.log" 2>&1 || give_up "the Debian package does not install: $(tail -5 "$work/package.log")"

mkdir "$work/etc"
cat > "$work/etc/nodepool.yaml" << 'END'
labels: []
api:
  listen-address: 0.0.0.0
  tokens: [{name: ci, token-file: /etc/nodepool/ci.token, right: request}]
END
printf 'a-token-of-the-test\n' > "$work/etc/ci.token"
inside() { podman --remote exec "$container" "$@"; }
published() { podman --remote port "$container" "$1/tcp"; }
container=$(podman --remote run --detach --init --publish 127.0.0.1::8005 --publish 127.0.0.1::8006 "${limits[@]}" \
  --volume "$work/etc:/etc/nodepool:ro" localhost/nodeyard)
wait_until 60 'the store in the container answers' inside nodeyard store ls /
answers() { curl -fsS -H 'authorization: Bearer a-token-of-the-test' "http://$(published 8006)/api/v1/info" | grep -q '"token":"ci"'; }
wait_until 60 'the API of the container answers outside' answers
wait_until 60 'the pages of the container answer outside' curl -fsS "http://$(published 8005)/ready"
for program in nodepool nodepool-launcher nodepool-builder; do inside "$program" --version; done
[ "$(inside id -un)" = nodeyard ] || give_up 'it runs as somebody else'
podman --remote stop --time 30 "$container" > /dev/null
[ "$(podman --remote inspect --format '{{.State.ExitCode}}' "$container")" = 0 ] || give_up 'it did not stop in order'
podman --remote image inspect --format 'the image has {{.Size}} bytes' localhost/nodeyard
