# Makes a kernel, its modules and a root file system of Debian's packages. Arguments: the tree's archive, a folder for what
# comes of it, the root file system's size. As somebody who may give files away, if only in a namespace.
set -eu
archive=$1 to=$2 size=$3
tree=$to/tree
mkdir "$tree"
# The agent makes the devices itself, and nobody but root could here.
tar -C "$tree" --exclude './dev/*' --xattrs --xattrs-include='security.capability' -xf "$archive"
cd "$tree"

kernel=$(echo boot/vmlinuz-*)
version=${kernel#boot/vmlinuz-}
case $(uname -m) in
x86_64)
    # The ELF file behind the loader, packed by lz4 in its old form. What follows it makes lz4 complain after it has
    # written all.
    offset=$(LC_ALL=C grep -abo "$(printf '\002\041\114\030')" "$kernel" | head -n 1 | cut -d : -f 1)
    tail -c +$((offset + 1)) "$kernel" | chroot . lz4 -dcq > "$to/kernel" 2> /dev/null || :
    ;;
*) chroot . sh -c "gzip -dc /$kernel || cat /$kernel" > "$to/kernel" ;;
esac
[ -s "$to/kernel" ]

# What the kernel has not built in, in the order in which it is loaded.
mkdir "$to/modules"
number=100
for module in virtio_mmio virtio_blk ext4 crc32c_generic overlay vmw_vsock_virtio_transport virtio_rng virtio_net; do
    chroot . modprobe -S "$version" --show-depends "$module" 2> /dev/null || :
done | while read -r kind path _; do
    [ "$kind" = insmod ] || continue
    name=${path##*/}
    case $(echo "$to/modules"/*) in *"-$name"*) continue ;; esac
    number=$((number + 1))
    cp "./$path" "$to/modules/$number-$name"
done

# None of it is needed inside.
rm -rf boot/* usr/lib/modules/* lib/modules/* var/cache/apt/archives/*.deb var/lib/apt/lists/* initrd.img* vmlinuz*
echo sandbox > etc/hostname
: > etc/machine-id
# A home with nothing in it, as everywhere: no rc files are read.
chroot . useradd --uid 1000 --no-create-home --shell /bin/bash sandbox
mkdir -m 0755 home/sandbox
chroot . chown sandbox:sandbox home/sandbox
# A locked account can do nothing by ssh, where somebody installs that.
chroot . usermod -p '*' sandbox
mkdir -p workspace
truncate -s "$size" "$to/rootfs"
mke2fs -q -F -t ext4 -O '^has_journal' -E lazy_itable_init=1 -L moltis-root -d "$tree" "$to/rootfs"
cd /
rm -rf "$tree"
