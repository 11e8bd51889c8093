# Makes the lab of the packages, once they are installed: who is in it, how it is reached, what starts with it. Argument:
# its root. The key that is let in is in $LAB_KEY.
set -eu
root=$1
cd "$root"

echo lab > etc/hostname
printf '127.0.0.1 localhost lab\n::1 localhost\n' > etc/hosts
echo 'nameserver 10.0.2.3' > etc/resolv.conf
echo '/dev/vda / ext4 defaults 0 0' > etc/fstab
# What this machine's package manager was told says nothing to the lab's.
rm -f etc/apt/apt.conf.d/99mmdebstrap

# The addresses that QEMU's network always has.
cat > etc/systemd/network/lab.network <<'END'
[Match]
Name=en*
[Network]
Address=10.0.2.15/24
Gateway=10.0.2.2
END

# Someone who is not root, as Debian makes them: with ids to give away, and with a key.
chroot . useradd --create-home --shell /bin/bash person
# A locked account cannot log in by key either.
chroot . usermod -p '*' person
for home in root home/person; do
    mkdir -p "$home/.ssh"
    printf '%s\n' "$LAB_KEY" > "$home/.ssh/authorized_keys"
    chmod 0700 "$home/.ssh"
done
chroot . chown -R person:person /home/person

printf 'kvm-amd\ntun\nvsock\nvhost_vsock\n' > etc/modules-load.d/lab.conf

# Says that people can log in now, where the run reads it.
cat > etc/systemd/system/lab-ready.service <<'END'
[Unit]
Description=Say that the lab is ready
After=ssh.service systemd-user-sessions.service systemd-logind.service dbus.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo lab-ready > /dev/ttyS0'
[Install]
WantedBy=multi-user.target
END
chroot . systemctl --quiet enable systemd-networkd lab-ready
# It starts by its socket, when somebody asks.
chroot . systemctl --quiet disable podman.service
# What only takes time here.
chroot . systemctl --quiet mask getty@tty1.service serial-getty@ttyS0.service e2scrub_reap.service \
    systemd-networkd-wait-online.service systemd-pstore.service podman-auto-update.service podman-auto-update.timer \
    podman-restart.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer fstrim.timer
chroot . systemctl --quiet set-default multi-user.target

# A small initrd: the disk's modules and no more.
echo MODULES=list > etc/initramfs-tools/conf.d/lab
echo COMPRESS=lz4 >> etc/initramfs-tools/conf.d/lab
printf 'virtio_pci\nvirtio_blk\next4\n' >> etc/initramfs-tools/modules
chroot . update-initramfs -u > /dev/null 2>&1

# The kernel as an ELF file, which Firecracker starts: the payload behind the loader, packed by lz4 in its old form.
kernel=$(echo boot/vmlinuz-*)
mkdir -p srv/lab
offset=$(LC_ALL=C grep -abo "$(printf '\002\041\114\030')" "$kernel" | head -n 1 | cut -d : -f 1)
# What follows the payload makes lz4 complain after it has written all.
tail -c +$((offset + 1)) "$kernel" | chroot . lz4 -dcq > srv/lab/vmlinux 2> /dev/null || :
[ "$(head -c 4 srv/lab/vmlinux | tail -c 3)" = ELF ]
