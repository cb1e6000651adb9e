#!/bin/sh
# Brings the machine up as its seed says: host name, keys that may log in, network, an SSH server.
PATH=/bin:/sbin:/usr/bin:/usr/sbin
export PATH
mount -t sysfs sys /sys
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
mount -t vfat -o ro /dev/vdb /seed
hostname "$(sed 's/.*"local-hostname":"\([^"]*\)".*/\1/' /seed/meta-data)"
cp /seed/authorized_keys /root/.ssh/authorized_keys
chmod 600 /root/.ssh/authorized_keys
ip link set lo up
ip link set eth0 up
udhcpc -q -n -t 20 -T 1 -i eth0 -s /etc/udhcpc.sh
dropbearkey -t ed25519 -f /run/host-key >/dev/null 2>&1
echo "the guest is up"
dropbear -F -E -s -r /run/host-key &
# The first process collects the others.
while true; do
    wait
    sleep 1
done
