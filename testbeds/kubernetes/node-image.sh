#!/bin/sh
# Makes the images of the test cluster in the directory that is named: `node.tar` is Debian with git, Python, an
# SSH server and a registry for images, `pause.tar` holds the namespaces of a pod.
set -eu
to="$1"
here="$(cd "$(dirname "$0")" && pwd)"
. /etc/os-release

mkdir -p "$to/pause/bin" "$to/pause/tmp"
cp /bin/busybox "$to/pause/bin/busybox"
ln -s busybox "$to/pause/bin/sh"
tar --numeric-owner --owner=0 --group=0 -C "$to/pause" -cf "$to/pause.rootfs" .
python3 "$here/image.py" "$to/pause.rootfs" "$to/pause.tar" localhost/pause:1 \
    /bin/sh -c 'trap "exit 0" TERM; while :; do busybox sleep 3600 & wait $!; done'

mmdebstrap --quiet --variant=essential --include=git,python3,openssh-server,docker-registry \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --customize-hook='chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash zuul' \
    --customize-hook='sed -i "s/^zuul:!/zuul:*/" "$1/etc/shadow"' \
    --customize-hook='rm -f "$1"/etc/ssh/ssh_host_*' \
    --customize-hook='mkdir -p "$1/etc/ssh/authorized_keys.d"; printf "%s\n" "AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/authorized_keys.d/%u" \
        "UsePAM no" "PasswordAuthentication no" > "$1/etc/ssh/sshd_config.d/test.conf"' \
    --customize-hook='rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
    "$VERSION_CODENAME" "$to/node.rootfs.tar"
python3 "$here/image.py" "$to/node.rootfs.tar" "$to/node.tar" localhost/node:1 \
    /bin/sh -c 'mkdir -p /run/sshd && ssh-keygen -A && exec /usr/sbin/sshd -D -e'
rm -r "$to/pause" "$to/pause.rootfs" "$to/node.rootfs.tar"
