# Puts the tree of an archive on a disk. Arguments: the archive, a folder for what comes of it. As somebody who may give
# files away, if only in a namespace.
set -eu
archive=$1 to=$2
tree=$to/tree
mkdir "$tree"
# The kernel makes the devices itself, and nobody but root could.
tar -C "$tree" --exclude './dev/*' --xattrs --xattrs-include='security.capability' -xf "$archive"
cp "$tree"/boot/vmlinuz-* "$to/vmlinuz"
cp "$tree"/boot/initrd.img-* "$to/initrd"
printf 'lab %s\n' "$(cut -d ' ' -f 1,2 "$tree/etc/ssh/ssh_host_ed25519_key.pub")" > "$to/known_hosts"
truncate -s 8G "$to/disk"
# It lives for one run: no journal, and nothing to check.
mke2fs -q -t ext4 -O '^has_journal,^metadata_csum' -d "$tree" "$to/disk"
rm -rf "$tree"
