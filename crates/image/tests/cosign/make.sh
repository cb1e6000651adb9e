#!/bin/sh
# Makes the files beside it with cosign, as docs/zuul-images.md says: a key, a small file and the bundles that are
# signed over it. The private key is thrown away. The tests need only what is checked in.
#
#   go install github.com/sigstore/cosign/v2/cmd/cosign@v2.4.3
set -eu
cd "$(dirname "$0")"

secrets=$(mktemp -d)
trap 'rm -rf "$secrets"' EXIT
export COSIGN_PASSWORD=

(cd "$secrets" && cosign generate-key-pair)
cp "$secrets/cosign.pub" images.pub
printf 'a very small disk\n' > disk.raw
cat > "$secrets/build.json" <<'BUILD'
{"project": "opendev.org/images", "pipeline": "post", "job": "build-debian", "branch": "main"}
BUILD
# What cosign calls custom it wraps; a type that is an address it leaves as it is.
for type in custom https://example.com/zuul-build; do
    cosign attest-blob --yes --key "$secrets/cosign.key" --type "$type" --predicate "$secrets/build.json" \
        --bundle "disk.raw.$(basename "$type").json" --new-bundle-format --tlog-upload=false disk.raw > /dev/null
done
chmod 644 disk.raw.*.json
