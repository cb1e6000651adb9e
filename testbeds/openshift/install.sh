#!/bin/sh
# Builds the OpenShift that stands beside a Kubernetes cluster of the tests: its API server and the controllers that
# projects need, from their Go modules, and the definitions of what that server expects in the cluster. Prints where it
# is. Quick when it is there already; safe to run twice at once.
#
# OpenShift's API server is made for a variant of Kubernetes' library for API servers that is not to be had as a Go module.
# It is built with the library that the variant comes from, of the same version, with `missing` added to it. The
# controllers are older, and are led to where the library has what they use by now.
set -eu
cd "$(dirname "$0")"

sources="$(cat install.sh missing/* server/* | sha256sum | cut -c 1-12)"
version="$(sed -n 's|^	github.com/openshift/openshift-apiserver .*\.\([0-9]\{8\}\)[0-9]*-.*|\1|p' server/go.mod)"
cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}"
place="$cache/openshift-$version-$sources"

mkdir -p "$cache"
exec 9>"$cache/openshift.lock"
flock 9

# Made aside and moved, so that an interrupted run leaves nothing that looks finished.
if [ ! -d "$place" ]; then
    ../packages.sh python3 python3-venv util-linux >&2
    go="$(../go.sh server)"
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS="-buildvcs=false ${GOFLAGS:-}"
    rm -rf "$place.new"
    trap 'rm -rf "$place.new"' EXIT
    mkdir -p "$place.new/definitions"
    # Where the sources of a module are.
    directory_of() {
        (cd server && "$go" mod download "$1" && "$go" list -m -f '{{.Dir}}' "$1")
    }
    cp -R "$(directory_of k8s.io/apiserver)" "$place.new/library"
    controllers="$(directory_of github.com/openshift/openshift-controller-manager)"
    mkdir -p "$place.new/controllers/pkg/project" "$place.new/controllers/pkg/serviceaccounts"
    cp "$controllers/go.mod" "$place.new/controllers"
    cp -R "$controllers/pkg/project/controller" "$place.new/controllers/pkg/project"
    cp -R "$controllers/pkg/serviceaccounts/controllers" "$place.new/controllers/pkg/serviceaccounts"
    chmod -R u+w "$place.new"
    cp missing/openapi.go "$place.new/library/pkg/server/openshift.go"
    "$go" mod edit -go=1.20 "$place.new/controllers/go.mod"
    sed -i 's|k8s.io/apiserver/pkg/storage/etcd3|k8s.io/apiserver/pkg/storage|' \
        "$place.new/controllers/pkg/serviceaccounts/controllers/mutation_cache.go"
    sed -i -e 's|api.SecretTypeField|"type"|' -e '/k8s.io.kubernetes.pkg.apis.core/d' \
        "$place.new/controllers/pkg/serviceaccounts/controllers/pull_secrets.go"
    cp server/go.mod server/go.sum "$place.new"
    "$go" mod edit -replace "k8s.io/apiserver=$place.new/library" \
        -replace "github.com/openshift/openshift-controller-manager=$place.new/controllers" "$place.new/go.mod"
    (cd server && "$go" build -trimpath -modfile "$place.new/go.mod" -ldflags="-s -w" -o "$place.new/openshift" .) >&2
    rm -r "$place.new/library" "$place.new/controllers" "$place.new/go.mod" "$place.new/go.sum"
    definitions="$(directory_of github.com/openshift/api)"
    for definition in "$definitions"/quota/v1/*clusterresourcequota.crd.yaml "$definitions"/security/v1/*scc.crd.yaml; do
        cat "$definition" > "$place.new/definitions/$(basename "$definition")"
    done
    mv "$place.new" "$place"
fi
echo "$place"
