#!/bin/sh
# Installs Podman, Docker and a registry, and makes the root file system that tests run in them: busybox, and this machine's own
# sshd with the libraries it needs. No network is needed for it. Quick when all is there; safe to run twice at once.
set -eu

cache="${NODEYARD_CACHE:-$HOME/.cache/nodeyard}/containers"
archive="$cache/rootfs-1.tar"

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

# crun, which Podman would take by itself, does not start where both versions of control groups are mounted.
"$(dirname "$0")/../packages.sh" podman docker.io docker-registry runc containernetworking-plugins \
    iptables busybox-static openssh-client openssh-server util-linux

[ ! -f "$archive" ] || exit 0

root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT

cd "$root"
mkdir -p bin dev etc/ssh home/zuul proc root run sys tmp usr/bin usr/sbin var/empty
chmod 1777 tmp
chmod 700 root
cp /bin/busybox bin/busybox
for tool in cat echo hostname id kill ls mkdir nproc sh sleep stat touch true; do
    ln -s busybox "bin/$tool"
done

cp /usr/sbin/sshd usr/sbin/sshd
ldd /usr/sbin/sshd | grep -o '/[^ ]*' | sort -u | while read -r library; do
    mkdir -p ".$(dirname "$library")"
    cp -L "$library" ".$library"
done

cat > etc/passwd <<EOF
root:x:0:0:root:/root:/bin/sh
zuul:x:1000:1000::/home/zuul:/bin/sh
homeless:x:1001:1001::/home/homeless:/bin/sh
sshd:x:100:65534::/run/sshd:/bin/false
EOF
cat > etc/group <<EOF
root:x:0:
zuul:x:1000:
homeless:x:1001:
nogroup:x:65534:
EOF
# No password fits, and yet the accounts are not locked.
cat > etc/shadow <<EOF
root:*:19000:0:99999:7:::
zuul:*:19000:0:99999:7:::
homeless:*:19000:0:99999:7:::
EOF
cat > etc/ssh/sshd_config <<EOF
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PrintMotd no
EOF

tar --numeric-owner --owner=0 --group=0 --exclude=./home/zuul -cf "$archive.new" .
tar --numeric-owner --owner=1000 --group=1000 -rf "$archive.new" ./home/zuul
mv "$archive.new" "$archive"
