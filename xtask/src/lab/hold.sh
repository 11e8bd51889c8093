# Runs the lab's machine until the input ends, then ends it and takes its folder away, whatever became of who started
# this. Arguments: the folder, then the program. The machine's second disk is its input, and has no name any more.
folder=$1
shift
exec 3< "$folder/bring.tar"
rm "$folder/bring.tar"
# Should this itself be killed, the machine ends with it.
setpriv --pdeathsig KILL -- "$@" <&3 > "$folder/said" 2>&1 3<&- &
machine=$!
exec 3<&-
echo "$machine"
exec 1>&-
cat > /dev/null
kill -KILL "$machine"
wait "$machine" 2> /dev/null
rm -rf "$folder"
