#!/usr/bin/env bash
# Builds packaging/Containerfile as far as that is possible without a registry, and runs what comes out: on a Debian that
# is made here, and with the program that was built before. What it does not try is the stage with the compiler.
set -euo pipefail

nodeyard=$(realpath "${1:?usage: containerfile.sh PATH-OF-NODEYARD}")
cd "$(dirname "$0")/.."
cache=${NODEYARD_CACHE:-$HOME/.cache/nodeyard}

# The small first process of `--init`.
testbeds/packages.sh catatonit
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
mkdir "$work/context"
strip -o "$work/context/nodeyard" "$nodeyard"
podman --remote build --quiet --network host "${limits[@]}" --build-arg BASE=localhost/debian-base --target runtime \
  --file packaging/Containerfile --tag localhost/runtime "$work/context" > /dev/null
printf 'FROM localhost/runtime\nCOPY nodeyard /usr/local/bin/nodeyard\n' > "$work/context/Containerfile"
podman --remote build --quiet --tag localhost/nodeyard "$work/context" > /dev/null

mkdir "$work/etc"
printf 'labels: []\n' > "$work/etc/nodepool.yaml"
inside() { podman --remote exec "$container" "$@"; }
container=$(podman --remote run --detach --init --network none "${limits[@]}" --volume "$work/etc:/etc/nodepool:ro" localhost/nodeyard)
wait_until 60 'the store in the container answers' inside nodeyard store ls /
for program in nodepool nodepool-launcher nodepool-builder; do inside "$program" --version; done
[ "$(inside id -un)" = nodeyard ] || give_up 'it runs as somebody else'
podman --remote stop --time 30 "$container" > /dev/null
[ "$(podman --remote inspect --format '{{.State.ExitCode}}' "$container")" = 0 ] || give_up 'it did not stop in order'
podman --remote image inspect --format 'the image has {{.Size}} bytes' localhost/nodeyard
