#!/usr/bin/env bash
# Makes a Debian package of a program that was built: with Nodepool's names for it, manual pages, completions and units.
set -euo pipefail
umask 022

usage='usage: deb.sh PATH-OF-NODEYARD FOLDER-FOR-THE-PACKAGE [OPTION-OF-DPKG-DEB...]'
program=$(realpath "${1:?$usage}")
folder=$(realpath "${2:?$usage}")
shift 2
cd "$(dirname "$0")"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
put() { install -D --mode 644 "$1" "$root/$2"; }

install -D "$program" "$root/usr/bin/nodeyard"
# Keeps the link to the symbols of a program from release.sh.
strip --strip-all --keep-section=.gnu_debuglink "$root/usr/bin/nodeyard"
for name in nodepool nodepool-launcher nodepool-builder; do ln -s nodeyard "$root/usr/bin/$name"; done
for unit in systemd/*.service; do put "$unit" "usr/lib/systemd/system/${unit##*/}"; done
put systemd/nodeyard.sysusers usr/lib/sysusers.d/nodeyard.conf
put ../LICENSE usr/share/doc/nodeyard/copyright
put ../CHANGELOG.md usr/share/doc/nodeyard/CHANGELOG.md

mkdir -p "$root/etc/nodepool" "$root/usr/share/man/man1"
"$program" man "$root/usr/share/man/man1" > /dev/null
gzip --best --no-name "$root"/usr/share/man/man1/*
completions() { "$program" completions "$1" > "$root/completions" && put "$root/completions" "usr/share/$2"; }
completions bash bash-completion/completions/nodeyard
completions zsh zsh/vendor-completions/_nodeyard
completions fish fish/vendor_completions.d/nodeyard.fish
rm "$root/completions"

version=$("$program" --version | cut -d ' ' -f 2)
architecture=$(dpkg --print-architecture)
libc=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
size=$(du -sk --apparent-size "$root" | cut -f 1)
mkdir "$root/DEBIAN"
install --mode 755 debian/postinst debian/prerm "$root/DEBIAN/"
sed "s/@version@/$version/; s/@architecture@/$architecture/; s/@libc@/$libc/; s/@size@/$size/" debian/control \
  > "$root/DEBIAN/control"

package=$folder/nodeyard_${version}_$architecture.deb
dpkg-deb --root-owner-group "$@" --build "$root" "$package" > /dev/null
echo "$package"
