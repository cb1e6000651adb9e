#!/bin/sh
# Installs what a Kubernetes cluster on this machine needs: containerd and runc from Debian, Kubernetes and etcd built
# from their Go modules as one program, and the images of its pods. Prints where it is. Quick when it is there already;
# safe to run twice at once.
set -eu
cd "$(dirname "$0")"

# Change it when the images change: old ones are not used any more then.
images=2
kubernetes="$(sed -n 's|^	k8s.io/kubernetes v||p' cluster/go.mod)"
cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
place="$cache/kubernetes-$kubernetes"

mkdir -p "$cache"
exec 9>"$cache/kubernetes.lock"
flock 9

../packages.sh busybox-static containerd containernetworking-plugins iproute2 iptables mmdebstrap openssh-client python3 \
    python3-venv runc util-linux >&2

# Made aside and moved, so that an interrupted run leaves nothing that looks finished.
if [ ! -x "$place/cluster" ]; then
    mkdir -p "$place"
    go="$(../go.sh cluster)"
    # What the parts tell each other their version is comes from here; a build from modules knows none.
    version="-X k8s.io/component-base/version.gitVersion=v$kubernetes"
    (cd cluster && CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-buildvcs=false ${GOFLAGS:-}" \
        "$go" build -trimpath -ldflags="-s -w $version" -o "$place/cluster.new" .) >&2
    mv "$place/cluster.new" "$place/cluster"
fi
if [ ! -x "$place/kubectl" ]; then
    printf '#!/bin/sh\nexec "%s" kubectl "$@"\n' "$place/cluster" > "$place/kubectl.new"
    chmod +x "$place/kubectl.new"
    mv "$place/kubectl.new" "$place/kubectl"
fi
if [ ! -d "$place/images-$images" ]; then
    rm -rf "$place/images.new"
    mkdir -p "$place/images.new"
    ./node-image.sh "$place/images.new" >&2
    mv "$place/images.new" "$place/images-$images"
fi
echo "$place"
