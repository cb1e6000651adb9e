#!/bin/sh
# Makes `vmlinuz`, `initrd` and `root.ext4` in the given directory. Needs neither root nor loop devices.
set -eu
scripts="$(cd "$(dirname "$0")" && pwd)"
cd "$1"

kernel="$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)"
if [ -z "$kernel" ]; then
    echo "apt knows no kernel; run apt-get update" >&2
    exit 1
fi
(cd packages && apt-get download -q "$kernel" busybox-static dropbear-bin libc6 libcrypt1 libgmp10 libtomcrypt1 libtommath1 zlib1g)
for package in packages/*.deb; do
    dpkg-deb -x "$package" unpacked
done
cp unpacked/boot/vmlinuz-* vmlinuz
modules="$(echo unpacked/lib/modules/*)"
busybox="unpacked/bin/busybox"

# Prints the files of modules, each after those that it needs.
in_order() {
    for name in "$@"; do
        path="$(find "$modules" -name "$name.ko" -printf '%P\n')"
        # What is built into the kernel has no file.
        [ -n "$path" ] || continue
        in_order_of_path "$path"
    done | awk '!seen[$0]++'
}
in_order_of_path() {
    for needed in $(awk -v path="$1:" '$1 == path { for (i = NF; i > 1; i--) print $i }' dependencies); do
        echo "$needed"
    done
    echo "$1"
}
# Debian's package has no list of dependencies: it is made when a kernel is installed.
/sbin/depmod -b unpacked "$(basename "$modules")"
cp "$modules/modules.dep" dependencies

mkdir -p start/bin start/modules start/dev start/proc start/new
cp "$busybox" start/bin/busybox
number=100
for file in $(in_order virtio_pci virtio_blk virtio_net virtio_rng ext4 nls_cp437 nls_ascii vfat af_packet); do
    cp "$modules/$file" "start/modules/$number-$(basename "$file")"
    number=$((number + 1))
done
cp "$scripts/start.sh" start/init
chmod +x start/init
(cd start && find . | "../$busybox" cpio -o -H newc --quiet 2>/dev/null | gzip -1) >initrd

mkdir -p root/bin root/sbin root/etc root/dev root/proc root/sys root/seed root/run root/tmp root/var/log root/root/.ssh root/usr/share/udhcpc
cp -a unpacked/lib unpacked/lib64 unpacked/usr root/ 2>/dev/null || true
rm -rf root/lib/modules root/usr/share/doc root/usr/share/locale root/usr/share/man root/usr/lib/x86_64-linux-gnu/gconv
cp "$busybox" root/bin/busybox
for name in $("$busybox" --list | grep -vx busybox); do
    ln -sf busybox "root/bin/$name"
done
cp "$scripts/init.sh" root/sbin/init
cp "$scripts/udhcpc.sh" root/etc/udhcpc.sh
chmod +x root/sbin/init root/etc/udhcpc.sh
chmod 700 root/root root/root/.ssh
echo 'root:*:0:0:root:/root:/bin/sh' >root/etc/passwd
echo 'root:x:0:' >root/etc/group
echo /bin/sh >root/etc/shells
rm -f dependencies

/sbin/mkfs.ext4 -q -F -E root_owner=0:0 -d root root.ext4 64M
