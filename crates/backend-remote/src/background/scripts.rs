//! The scripts around commands that run without a caller. Each has a folder below one that lies on the disk: who it is,
//! what it printed last, and how it ended. So whoever comes later finds it there, and nothing of it is kept here.
//!
//! What a stream printed lies in files named by the offset of their first byte. Only the last two of them are kept.

use crate::scripts::HUNT;

/// Where the folders may lie, in the order of preference.
const FOLDERS: [&str; 3] = ["/var/tmp/.moltis-kept", "/dev/shm/.moltis-kept", "/tmp/.moltis-kept"];

/// The folder of a machine that names this one; it is part of scripts, and therefore nothing that a machine made up.
pub fn folder(told: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| *folder == told)
}

/// When a process started, which tells it from a later one of the same number.
const START: &str = r#"start() {
  IFS= read -r line 2>/dev/null <"/proc/$1/stat" || return 0
  set -- ${line##*) }
  shift 19
  echo "$1"
}
"#;

/// Runs a command and keeps what it prints. Arguments: mark, tag, seconds that it may take (0: no limit), whether it has
/// input, when it was started (milliseconds since 1970), its line in base64, what starts a program with its usual signals,
/// the script that turns itself into the program, and the arguments of that.
const KEEP: &str = r#"umask 077
exec </dev/null >/dev/null 2>&1
mark=$1 tag=$2 limit=$3 input=$4 began=$5 told=$6 launch=$7 inner=$8
shift 8
all=@KEPT@
room=$all/$tag
mkdir -p "$room" && mkfifo "$room/o" "$room/e" || exit 125
echo "$$ $(start $$)" >"$room/run"
# Whoever ends it may have come before it: one of the two sees the other.
[ -e "$room.over" ] && { rm -rf "$room" "$room.over"; exit 125; }
echo "$mark $tag $began $told" >"$room/about"
n=1
while [ -e "$all/$n" ] || ! mkdir "$all/$n"; do n=$((n+1)); [ $n -lt 100000 ] || exit 125; done
echo "$n" >"$room/id"
echo "$tag" >"$all/$n/tag"
echo >>@ROOM@/commands
# Of those that are over the latest are remembered; a number is never used again.
i=$n c=0
while [ $i -gt 1 ]; do
  i=$((i-1))
  [ -s "$all/$i/tag" ] && read -r old <"$all/$i/tag" && [ -n "$old" ] && [ -e "$all/$old/over" ] || continue
  c=$((c+1))
  [ $c -le 64 ] || rm -rf "$all/$old" "$all/$i/tag"
done
word=$(printf '\036%s\036' "$tag")
pour() {
  trap '' PIPE TERM INT HUP
  cd "$room" || exit
  LC_ALL=C
  base=0 size=0 old=
  while :; do
    f=$1.$base
    dd bs=65536 count=16 2>/dev/null >>"$f"
    now=$(wc -c <"$f")
    now=$((now))
    [ $now -gt $size ] || break
    if [ -e ending ]; then
      # What it wrote itself is before the word; what lives on of it may write behind that.
      from=0
      [ $size -gt 40 ] && from=$((size-40))
      fresh=$(tail -c +$((from+1)) "$f" | tr '\000' .; echo x)
      case $fresh in *"$word"*)
        fresh=${fresh%%"$word"*}
        echo $((base+from+${#fresh})) >"$1.new" && mv "$1.new" "$1.total"
        exec cat >/dev/null;;
      esac
      size=$now
    elif [ $now -ge 1048576 ]; then
      [ -z "$old" ] || rm -f "$old"
      old=$f base=$((base+now)) size=0
    else size=$now
    fi
  done
  echo $((base+size)) >"$1.new" && mv "$1.new" "$1.total"
}
pour o <"$room/o" &
pour e <"$room/e" &
stdin=/dev/null
if [ "$input" = 1 ]; then
  mkfifo "$room/i"
  stdin=$room/i
  (trap '' PIPE; exec >"$room/i"; exec sleep 2147483647) &
  echo $! >"$room/holder"
fi
read -r up x </proc/uptime
$launch /bin/sh -c "$inner" sh "$mark" "$@" <"$stdin" >"$room/o" 2>"$room/e" 7>"$room/began" &
pid=$!
trap '' PIPE HUP INT
watch=
if [ "$limit" != 0 ]; then
  (
    sleep "$limit" & s=$!
    trap 'kill $s; exit' TERM
    wait $s
    trap '' TERM
    echo t >"$room/why"
    # It may not have its mark yet.
    while [ -d "/proc/$pid" ]; do hunt "$mark"; sleep 0.03; done
    hunt "$mark"
  ) &
  watch=$!
fi
wait "$pid"
code=$?
read -r down x </proc/uptime
why=-
if [ -s "$room/why" ]; then
  read -r why <"$room/why"
  i=0
  while pass "$mark" count; [ $count != 0 ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done
else
  pass "$mark" count
fi
[ "$why" = t ] || [ -z "$watch" ] || kill "$watch"
: >"$room/ending"
i=0
while [ $i -lt 3000 ]; do
  [ -e "$room/o.total" ] && [ -e "$room/e.total" ] && break
  # A pipe that does not end is held by what lives on.
  for s in o e; do
    [ -e "$room/$s.total" ] || [ $i -lt 10 ] || {
      if [ $i = 10 ]; then printf %s "$word"; else printf .; fi 1<>"$room/$s"
    }
  done
  sleep 0.01
  i=$((i+1))
done
ot=0 et=0
read -r ot <"$room/o.total"
read -r et <"$room/e.total"
echo "$code $why $up $down $count $found, $ot $et" >"$room/over.new" && mv "$room/over.new" "$room/over"
[ ! -s "$room/holder" ] || { read -r h <"$room/holder"; kill "$h"; }
# Before it stops counting as one that runs.
read -r now x </proc/uptime
echo "$now" >@ROOM@/last
rm -f "$room/run" "$room.over" "$room/o" "$room/e" "$room/i"
exit 0"#;

/// Waits until a command runs, or says why it does not, and forgets it then. Argument: its tag.
const BEGAN: &str = r#"room=@KEPT@/$1
i=0
while [ ! -s "$room/began" ] && [ ! -s "$room/over" ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done
n=0 l=
read -r n 2>/dev/null <"$room/id"
read -r l 2>/dev/null <"$room/began"
case $l in no*)
  i=0
  while [ -e "$room/run" ] && [ $i -lt 200 ]; do sleep 0.05; i=$((i+1)); done
  rm -rf "$room" "@KEPT@/$n/tag";;
esac
echo "began $n $l""#;

/// Names commands, or one of them: number, tag, mark, process, start, line, and how it is.
const LIST: &str = r#"cd @KEPT@ 2>/dev/null || exit 0
for d in ${1:-[0-9]*}; do
  [ -s "$d/tag" ] && read -r t <"$d/tag" && read -r m x b c <"$t/about" || continue
  p=0
  [ -s "$t/began" ] && read -r x p <"$t/began"
  s=gone
  if [ ! -s "$t/over" ] && read -r k j 2>/dev/null <"$t/run" && [ "$(start "$k")" = "$j" ]; then s=runs
  elif [ -s "$t/over" ] && read -r s <"$t/over"; then s="over $s"
  fi
  echo "p $d $t $m $p $b $c $s"
done"#;

/// Prints what there is of a command's output, and what comes for a while. Arguments: tag, offsets of both streams,
/// whether to wait for more, and for how many tenths of a second. The last line says why it ends.
const TAKE: &str = r#"cd "@KEPT@/$1" 2>/dev/null || { echo gone; exit; }
oat=$2 eat=$3 follow=$4 rounds=$5 sent=0 i=0
ends() {
  b=-1 z=0
  for f in "$1".*; do
    k=${f#??}
    case $k in ''|*[!0-9]*) continue;; esac
    [ "$k" -gt $b ] && b=$k
  done
  [ $b -ge 0 ] || return 0
  s=$(stat -c %s "$1.$b" 2>/dev/null) && z=$((b+s))
}
give() {
  tries=0
  while [ "$at" -lt "$z" ] && [ $sent -lt 4194304 ] && [ $tries -lt 50 ]; do
    tries=$((tries+1)) g=-1 low=-1
    for f in "$1".*; do
      k=${f#??}
      case $k in ''|*[!0-9]*) continue;; esac
      if [ $low -lt 0 ] || [ "$k" -lt $low ]; then low=$k; fi
      [ "$k" -le "$at" ] && [ "$k" -gt $g ] && g=$k
    done
    [ $low -ge 0 ] || return 0
    # What was before is not kept any more.
    if [ $g -lt 0 ]; then
      at=$low g=$low
      # Said at once: of one that prints fast the rest may be gone, too, before it is read.
      echo "$1 $at"
      if [ "$at" -ge "$z" ]; then
        ends "$1"
        [ ! -e ending ] || return 0
      fi
    fi
    s=$(stat -c %s "$1.$g" 2>/dev/null) || continue
    n=$((g+s-at))
    [ $n -le $((z-at)) ] || n=$((z-at))
    [ $n -le 49152 ] || n=49152
    [ $n -gt 0 ] || continue
    x=$(tail -c +$((at-g+1)) "$1.$g" 2>/dev/null | head -c $n | base64 -w0)
    [ -n "$x" ] || continue
    echo "$1 $at $x"
    at=$((at+n)) sent=$((sent+n)) tries=0
  done
}
while :; do
  over= ot=0 et=0
  if [ -s over ]; then read -r over <over; t=${over% *}; et=${over##* }; ot=${t##* }
  else
    alive=
    read -r k j 2>/dev/null <run && [ "$(start "$k")" = "$j" ] && alive=1
    ends o
    ot=$z
    ends e
    et=$z
    # What it wrote itself ends with a word, which is no output.
    [ -e ending ] && ot=0 et=0
  fi
  at=$oat z=$ot
  give o
  oat=$at at=$eat z=$et
  give e
  eat=$at
  [ $sent -lt 4194304 ] || { echo more; exit; }
  [ -z "$over" ] || { echo "over $over"; exit; }
  [ -n "$alive" ] || [ -s over ] || { echo gone; exit; }
  [ "$follow" = 1 ] || [ -e ending ] || { echo there; exit; }
  [ $i -lt "$rounds" ] || { echo more; exit; }
  i=$((i+1))
  sleep 0.1
done"#;

/// Hands a piece of input to a command, waits until it is taken, and says so; or that the command takes none any more.
/// Arguments: tag, and the file that holds the piece.
const INPUT: &str = r#"room=@KEPT@/$1
[ -e "$room/run" ] && read -r h 2>/dev/null <"$room/holder" && kill -0 "$h" 2>/dev/null || { rm -f "$2"; echo closed; exit 0; }
(exec >"$room/i" || exit; : >"$2.open"; cat "$2"; : >"$2.done") 2>/dev/null &
i=0
while [ ! -e "$2.done" ] && [ -e "$room/run" ]; do
  # Nobody reads there any more.
  [ $i -lt 40 ] || [ -e "$2.open" ] || break
  sleep 0.05
  i=$((i+1))
done
kill $! 2>/dev/null
word=closed
[ ! -e "$2.done" ] || word=taken
rm -f "$2" "$2.open" "$2.done"
echo $word"#;

/// Ends the input of a command. Argument: its tag.
const CLOSE: &str = r#"read -r h 2>/dev/null <"@KEPT@/$1/holder" && kill "$h" 2>/dev/null; :"#;

fn at(script: &str, kept: &'static str) -> String {
    script.replace("@KEPT@", kept)
}

/// The script around a command.
pub fn keep(kept: &'static str, room: &'static str) -> String {
    format!("{HUNT}{START}{}", at(KEEP, kept).replace("@ROOM@", room))
}

/// The script that waits for a command's beginning.
pub fn began(kept: &'static str) -> String {
    at(BEGAN, kept)
}

/// The script that names commands.
pub fn list(kept: &'static str) -> String {
    format!("{START}{}", at(LIST, kept))
}

/// The script that prints output.
pub fn take(kept: &'static str) -> String {
    format!("{START}{}", at(TAKE, kept))
}

/// The script that hands on input.
pub fn input(kept: &'static str) -> String {
    at(INPUT, kept)
}

/// The script that ends input.
pub fn close(kept: &'static str) -> String {
    at(CLOSE, kept)
}
