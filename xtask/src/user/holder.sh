# Makes the mount namespace of an ordinary user, says that it is ready, and holds it until the input ends. Arguments: a
# folder of its own, folders to show, folders to cover, the user's id, the first of its subordinate ids and their
# number, and its name, empty for one that the system does not know.
scratch=$1 shows=$2 covers=$3 uid=$4 first=$5 count=$6 name=$7
hold=$scratch/hold home=$scratch/home run=$scratch/run
chown "$uid:$uid" "$home" "$run"
mount -t tmpfs none "$hold"

n=0
printf '%s' "$shows" | while IFS= read -r path; do
    [ -n "$path" ] || continue
    n=$((n+1)); mkdir "$hold/$n"; mount --bind "$path" "$hold/$n"
done
printf '%s' "$covers" | while IFS= read -r path; do
    [ -n "$path" ] || continue
    mount -t tmpfs -o mode=755 none "$path"
done
n=0
printf '%s' "$shows" | while IFS= read -r path; do
    [ -n "$path" ] || continue
    n=$((n+1)); [ -e "$path" ] || { mkdir -p "$path"; mount --bind "$hold/$n" "$path"; }
    # Where cargo lets tests keep their own things.
    [ ! -d "$path/tmp" ] || mount -t tmpfs -o mode=1777 none "$path/tmp"
done

if [ -n "$name" ]; then
    for file in passwd group subuid subgid; do
        case $file in
            passwd) line=$name:x:$uid:$uid::$home:/bin/sh ;;
            group) line=$name:x:$uid: ;;
            *) line=$name:$first:$count ;;
        esac
        # A file that is not there cannot be made without changing the machine.
        [ -f "/etc/$file" ] || continue
        { cat "/etc/$file"; echo "$line"; } > "$hold/$file"
        mount --bind "$hold/$file" "/etc/$file"
    done
    # Some machines keep it for root.
    if [ -c /dev/net/tun ]; then
        mknod -m 666 "$hold/tun" c 10 200
        mount --bind "$hold/tun" /dev/net/tun
    fi
    chown -R "$uid:$uid" "$home"
fi

echo ready
cat > /dev/null

# When a process began, in the kernel's ticks; nothing for one that is over.
born() {
    sed 's/.*) //; /^Z/d' "/proc/$1/stat" 2> /dev/null | cut -d ' ' -f 20
}

# Podman keeps a process that holds its namespaces. Where there is none, it has done nothing.
pause=$(cat "$run/libpod/tmp/pause.pid" 2> /dev/null || :)
if [ -n "$name" ] && [ -n "$pause" ]; then
    cd /
    export HOME="$home" USER="$name" XDG_RUNTIME_DIR="$run"
    setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all -- \
        podman rm --all --force --time 0 > /dev/null 2>&1 || :
    since=$(born "$pause")
    if [ -n "$since" ] && [ "$since" -ge "$(born $$)" ] && [ "$(stat -c %u "/proc/$pause")" = "$uid" ]; then
        kill "$pause"
        n=0
        while [ "$(born "$pause")" = "$since" ]; do
            n=$((n+1)); [ "$n" -le 100 ] || { echo "Podman's process $pause does not end" >&2; exit 1; }
            sleep 0.1
        done
    fi
fi
# Also what belongs to ids that the user has given away.
rm -rf --one-file-system "$home" "$run"
