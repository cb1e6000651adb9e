#!/bin/sh
# Makes a small Debian with an SSH server, Python and sudo: a root file system for containers, a bootable disk for
# virtual machines, or both from the same packages. Change it as you like; what is expected of it is little:
# it writes $NODEYARD_OUTPUT.<format> for every format in $NODEYARD_FORMATS, and says how far it is.
#
# What it is told by `env-vars` of the image, all of it optional:
#   PACKAGES    Debian packages to install in addition, separated by blanks
#   MIRROR      where Debian comes from, if not from its usual place
#   DISK_SIZE   of the bootable disk; only what is in it takes room (default 3G)
#
# Loop devices and device-mapper are not needed. Without root, user namespaces (newuidmap) and fakeroot are.
set -eu

script=$(realpath "$0")
release=${NODEYARD_RELEASE:-bookworm}
cache=${NODEYARD_CACHE:-$(dirname "$script")/cache}/debian-packages
user=zuul
boot_mib=64
steps=6

progress() { # STEPS-DONE TEXT
    echo "nodeyard: progress $1/$steps"
    echo "==> $2"
}

fail() {
    echo "build-debian: $*" >&2
    exit 1
}

need() { # PROGRAM PACKAGE
    [ -n "$(PATH=$PATH:/sbin:/usr/sbin command -v "$1")" ] ||
        fail "$1 is missing; on Debian: apt-get install $2"
}

wants() { # FORMAT...
    for wanted in "$@"; do
        case ",$NODEYARD_FORMATS," in *",$wanted,"*) return 0 ;; esac
    done
    return 1
}

# Before the first package is installed.
prepare() { # ROOT
    mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/var/cache/apt/archives"
    # Only what a virtual machine needs to find its disk.
    echo MODULES=list > "$1/etc/initramfs-tools/conf.d/small"
    printf '%s\n' virtio_pci virtio_blk ext4 > "$1/etc/initramfs-tools/modules"
}

# After the last one.
adapt() { # ROOT
    chroot "$1" useradd --create-home --shell /bin/bash "$user"
    # No password fits, and yet the account is not locked: sshd would refuse that one.
    chroot "$1" usermod --password '*' "$user"
    echo "$user ALL=(ALL) NOPASSWD: ALL" > "$1/etc/sudoers.d/$user"
    # These are a machine's own, not an image's.
    rm -f "$1"/etc/ssh/ssh_host_*
    rm -f "$1/var/lib/dbus/machine-id"
    : > "$1/etc/machine-id"
    mkdir -p "$1/run/sshd"
    if [ -d "$1/boot/grub" ] || [ -e "$1/sbin/init" ]; then
        as_machine "$1"
    fi
    # What is superseded need not be kept for the next time.
    chroot "$1" apt-get autoclean -qq > /dev/null
    rm -f "$cache"/*.deb
}

# What a root file system needs to be a machine of its own.
as_machine() { # ROOT
    printf '[Match]\nType=ether\n[Network]\nDHCP=ipv4\n' > "$1/etc/systemd/network/dhcp.network"
    chroot "$1" systemctl --quiet enable systemd-networkd systemd-resolved
    # Whoever starts a machine does not want it to be busy with itself.
    chroot "$1" systemctl --quiet mask systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer \
        dpkg-db-backup.timer fstrim.timer
    if [ -e "$1/usr/bin/cloud-init" ]; then
        # It does all the rest. Of locales there is only this one.
        echo 'locale: C.UTF-8' > "$1/etc/cloud/cloud.cfg.d/90-locale.cfg"
        return 0
    fi
    printf '#!/bin/sh\nuser=%s\n' "$user" > "$1/usr/local/sbin/take-seed"
    cat >> "$1/usr/local/sbin/take-seed" << 'SEED'
# Runs at every start, before the SSH server does: who this machine is and who may log in is on the seed disk.
set -u

read_seed() {
    blockdev --flushbufs "$disk"
    mount -t vfat -o ro "$disk" /run/seed && cp /run/seed/meta-data /run/seed/authorized_keys /run/ && umount /run/seed
}
is_template() { grep -q '"instance-id":"nodeyard-template"' /run/meta-data; }

# A template is saved here, when nothing but this is left to do. Whoever continues from it is another machine with the
# same memory: the clock, what random numbers come from and the machine's id must not be the same.
wait_as_template() {
    modprobe -q virtio_rng
    [ -c /dev/hwrng ] || return 1
    while systemctl list-jobs --no-legend | grep -v take-seed | grep -q ' running *$'; do sleep 0.5; done
    echo 'nodeyard: template ready' > /dev/console
    while is_template; do sleep 0.2; read_seed; done
    python3 - << 'PYTHON' || return 1
import fcntl, os, time
RESEED = 0x5207
with open('/dev/hwrng', 'rb', buffering=0) as source:
    fresh = source.read(64)
assert fresh
pool = os.open('/dev/random', os.O_RDWR)
os.write(pool, fresh)
fcntl.ioctl(pool, RESEED)
with open('/sys/class/rtc/rtc0/since_epoch') as clock:
    time.clock_settime(time.CLOCK_REALTIME, int(clock.read()))
PYTHON
    rm -f /var/lib/dbus/machine-id
    : > /etc/machine-id
    systemd-machine-id-setup || return 1
    systemctl --no-block restart systemd-journald || true
}

udevadm settle --timeout 20
mkdir -p /run/seed /run/sshd
if disk=$(blkid -L CIDATA) && read_seed; then
    # Should it fail, this machine is nobody, and stays closed.
    if is_template; then wait_as_template || exit 1; fi
    sed -n 's/.*"local-hostname":"\([^"]*\)".*/\1/p' /run/meta-data > /etc/hostname
    hostname -F /etc/hostname
    install -d -m 700 -o "$user" -g "$user" "/home/$user/.ssh"
    install -m 600 -o "$user" -g "$user" /run/authorized_keys "/home/$user/.ssh/authorized_keys"
fi
for type in ed25519 ecdsa; do
    key=/etc/ssh/ssh_host_${type}_key
    [ -s "$key" ] || ssh-keygen -q -t "$type" -N '' -f "$key"
done
SEED
    chmod 755 "$1/usr/local/sbin/take-seed"
    cat > "$1/etc/systemd/system/take-seed.service" <<UNIT
[Unit]
Description=Name and login keys from the seed disk
DefaultDependencies=no
After=local-fs.target systemd-udev-trigger.service
Before=ssh.service

[Service]
Type=oneshot
TimeoutStartSec=infinity
RemainAfterExit=yes
ExecStart=/usr/local/sbin/take-seed

[Install]
RequiredBy=ssh.service
WantedBy=multi-user.target
UNIT
    chroot "$1" systemctl --quiet enable take-seed
}

# From a root file system to the files that were asked for.
pack() { # WORK-DIRECTORY
    root=$1/root
    if [ -f "$root.tar" ]; then
        mkdir "$root"
        tar -C "$root" -xf "$root.tar"
    fi
    if wants tar; then
        progress 4 'the root file system as an archive'
        # Containers have the kernel of their host.
        tar -C "$root" --numeric-owner --exclude='./boot/*' --exclude='./usr/lib/modules/*' -cf "$NODEYARD_OUTPUT.tar" .
    fi
    if wants qcow2 raw; then
        progress 5 'the bootable disk'
        make_disk "$root" "$1/disk"
    fi
}

# A partition that the firmware boots from, with the kernel, and one for the rest.
make_disk() { # ROOT DISK
    disk=$2
    truncate -s "${DISK_SIZE:-3G}" "$disk"
    size_mib=$(($(stat -c %s "$disk") / 1048576 - boot_mib - 1))
    printf 'label: dos\nstart=1MiB, size=%sMiB, type=e, bootable\nstart=%sMiB, type=83\n' \
        "$boot_mib" "$((boot_mib + 1))" | PATH=$PATH:/sbin:/usr/sbin sfdisk -q "$disk"
    dd if=/usr/lib/syslinux/mbr/mbr.bin of="$disk" conv=notrunc status=none

    printf '%s\n' 'SERIAL 0 115200' 'DEFAULT linux' 'LABEL linux' 'LINUX vmlinuz' 'INITRD initrd' \
        'APPEND root=/dev/vda2 rw console=ttyS0 quiet fsck.mode=skip' > "$disk.cfg"
    export MTOOLS_SKIP_CHECK=1
    mformat -i "$disk@@1M" -T "$((boot_mib * 2048))" -h 64 -s 32 -v BOOT ::
    mcopy -i "$disk@@1M" "$1"/boot/vmlinuz-* ::vmlinuz
    mcopy -i "$disk@@1M" "$1"/boot/initrd.img-* ::initrd
    mcopy -i "$disk@@1M" "$disk.cfg" ::syslinux.cfg
    syslinux --offset 1048576 --install "$disk"

    PATH=$PATH:/sbin:/usr/sbin mkfs.ext4 -q -F -L root -E "offset=$(((boot_mib + 1) * 1048576))" \
        -d "$1" "$disk" "${size_mib}M"
    for format in qcow2 raw; do
        if wants "$format"; then
            qemu-img convert -f raw -O "$format" "$disk" "$NODEYARD_OUTPUT.$format"
        fi
    done
}

# The steps that others call: mmdebstrap inside the new system, fakeroot where there is no root.
case ${1:-} in
    progress) progress "$2" "$3"; exit ;;
    prepare | adapt | pack) "$1" "$2"; exit ;;
esac

for format in $(echo "$NODEYARD_FORMATS" | tr , ' '); do
    case $format in
        tar | qcow2 | raw) ;;
        *) fail "cannot make format $format, only tar (containers), qcow2 and raw (virtual machines)" ;;
    esac
done
need mmdebstrap mmdebstrap
packages="openssh-server python3 sudo ${PACKAGES:-}"
if wants qcow2 raw; then
    [ "$(uname -m)" = x86_64 ] || fail "disks are made for x86_64 only; leave the provider of virtual machines out, or give it a disk of yours"
    need mkfs.ext4 e2fsprogs
    need sfdisk fdisk
    need mformat mtools
    need syslinux 'syslinux syslinux-common'
    need qemu-img qemu-utils
    packages="$packages systemd-sysv systemd-resolved dbus e2fsprogs linux-image-cloud-amd64"
fi
# Mounts and processes of its own, which go all at once and without a trace whenever the build ends.
target=root
as_root=
enclosed='unshare --mount --pid --fork --kill-child --mount-proc'
if [ "$(id -u)" != 0 ]; then
    need fakeroot fakeroot
    target=root.tar
    as_root=fakeroot
    # There it makes namespaces by itself.
    enclosed=
fi

work=$NODEYARD_OUTPUT.d/work
rm -rf --one-file-system "$work"
mkdir -p "$work" "$cache"
child=
finish() {
    if [ -n "$child" ]; then
        # Nothing less ends namespaces.
        if [ -n "$enclosed" ]; then kill -KILL "$child"; else kill "$child"; fi 2> /dev/null || true
        wait "$child" || true
    fi
    rm -rf --one-file-system "$work"
    rmdir "$NODEYARD_OUTPUT.d" 2> /dev/null || true
}
trap finish EXIT
trap 'exit 143' INT TERM

progress 0 "packages of Debian $release: $packages"
# In the background, so that this shell notices when it is told to end.
# shellcheck disable=SC2086
TMPDIR=$work $enclosed mmdebstrap --variant=apt --include="$(echo $packages | tr ' ' ,)" \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --skip=essential/unlink \
    --setup-hook="sh '$script' prepare \"\$1\"" \
    --setup-hook="sync-in '$cache' /var/cache/apt/archives" \
    --extract-hook="sh '$script' progress 1 'the most necessary packages'" \
    --essential-hook="sh '$script' progress 2 'all others'" \
    --customize-hook="sh '$script' progress 3 'a user, and what makes a machine of it'" \
    --customize-hook="sh '$script' adapt \"\$1\"" \
    --customize-hook="sync-out /var/cache/apt/archives '$cache'" \
    "$release" "$work/$target" ${MIRROR:-} &
child=$!
wait "$child"
child=
$as_root sh "$script" pack "$work"
echo "nodeyard: progress $steps/$steps"
