#!/bin/busybox sh
# Finds the disk and goes on from there.
bb=/bin/busybox
$bb mount -t devtmpfs dev /dev
$bb mount -t proc proc /proc
for module in /modules/*; do
    $bb insmod "$module"
done
until $bb mount -t ext4 /dev/vda /new 2>/dev/null; do
    $bb usleep 20000
done
$bb mount --move /dev /new/dev
$bb mount --move /proc /new/proc
exec $bb switch_root /new /sbin/init
