//! What the shell of a rented machine is told: POSIX `sh`, as dash and bash understand it, with coreutils or BusyBox.
//! Nothing that a caller said is ever part of a script; it comes as an argument.
//!
//! A provider carries text, tells one exit code and knows nothing of descents. So each command runs within [`WRAPPER`]: its
//! output goes through two named pipes and leaves them as lines of base64, its descendants are known by a limit of file
//! locks that is theirs alone, and how it ended is written into both pipes behind the last that it wrote.

/// Finds processes by their mark. `$1` is the mark, `$2` what is done with those that live: count, halt, stop, term or
/// kill. They are halted before they are asked to end: a shell whose child went first would tell of that.
pub const HUNT: &str = r#"pass() {
  count=0 found=
  for p in /proc/[0-9]*; do
    lock=
    while read -r a b c soft hard rest; do
      [ "$a $b $c" = "Max file locks" ] && { lock=$hard; break; }
    done 2>/dev/null <"$p/limits"
    [ -n "$lock" ] || continue
    if [ "$lock" != "$1" ]; then
      case $2$lock in
        *unlimited|count*|halt*|term*) continue;;
        # One that lowered its limit below all marks meant to hide.
        ????*?????????????) continue;;
      esac
    fi
    IFS= read -r line 2>/dev/null <"$p/stat" || continue
    st=${line##*) }
    st=${st%% *}
    case $st in Z|X) continue;; esac
    p=${p#/proc/}
    case $2 in
      count) count=$((count+1)); [ $count -le 64 ] && found="$found$p,";;
      stop) case $st in T|t) ;; *) kill -STOP "$p" 2>/dev/null; count=$((count+1));; esac;;
      halt) kill -STOP "$p" 2>/dev/null;;
      term) kill -TERM "$p" 2>/dev/null; kill -CONT "$p" 2>/dev/null;;
      kill) kill -KILL "$p" 2>/dev/null; count=$((count+1));;
    esac
  done
}
hunt() {
  pass "$1" halt
  pass "$1" term
  i=0
  while [ $i -lt 20 ]; do pass "$1" count; [ $count = 0 ] && return; sleep 0.1; i=$((i+1)); done
  i=0
  while [ $i -lt 12 ]; do pass "$1" stop; [ $count = 0 ] && break; i=$((i+1)); done
  i=0
  while [ $i -lt 60 ]; do pass "$1" kill; [ $count = 0 ] && break; i=$((i+1)); done
}
"#;

/// Where what belongs to commands may lie inside, in the order of preference; scripts are made for one of them.
const ROOMS: [&str; 3] = ["/dev/shm/.moltis", "/var/tmp/.moltis", "/tmp/.moltis"];

/// The room of a machine that names this one; it is part of scripts, and therefore nothing that a machine made up.
pub fn room(told: &str) -> Option<&'static str> {
    ROOMS.into_iter().find(|room| *room == told)
}

/// Runs a command. Arguments: mark, tag, seconds that it may take (0: no limit), whether it has input, whether it counts as
/// a command, what starts a program with the signals that programs expect, the text of [`INNER`], and the arguments of
/// that.
const WRAPPER: &str = r#"umask 077
mark=$1 tag=$2 limit=$3 input=$4 counts=$5 launch=$6 inner=$7
shift 7
all=@ROOM@
room=$all/$tag
mkdir -p "$room/in" && mkfifo "$room/o" "$room/e" || { echo '!room'; exit 125; }
echo $$ >"$room/run"
# Whoever ends it may have come before it: one of the two sees the other.
[ -e "$room.over" ] && { rm -rf "$room" "$room.over"; exit 125; }
[ "$counts" = 1 ] && echo >>"$all/commands"
pour() {
  trap '' PIPE TERM INT HUP
  rounds=0
  while :; do
    [ -e "$room/end" ] && rounds=$((rounds+1))
    b=$(dd bs=65536 count=1 2>/dev/null | base64 -w0)
    [ -n "$b" ] || break
    printf '%s\n' "$b"
    # A short read that began after the end has all that there was before it.
    if [ $rounds -gt 0 ]; then
      if [ ${#b} -lt 87000 ] || [ $rounds -gt 16 ]; then break; fi
    fi
  done
  { : >"$room/$1.ack"; } 2>/dev/null
  exec cat >/dev/null 2>&1
}
feed() {
  exec >"$room/i" 2>/dev/null
  n=0
  while [ -e "$room/run" ]; do
    if [ -e "$room/in/$n.ok" ]; then
      cat "$room/in/$n" || { : >"$room/in/gone"; exit; }
      rm -f "$room/in/$n" "$room/in/$n.ok"
      n=$((n+1))
    elif [ -e "$room/in/$n.end" ]; then exit
    else sleep 0.03
    fi
  done
}
pour o <"$room/o" &
pour e <"$room/e" >&2 &
exec 8>"$room/o" 9>"$room/e"
stdin=/dev/null
if [ "$input" = 1 ]; then
  mkfifo "$room/i"
  stdin=$room/i
  (trap '' PIPE; feed 8>&- 9>&-) &
fi
read -r up x </proc/uptime
$launch /bin/sh -c "$inner" sh "$mark" "$@" <"$stdin" >&8 2>&9 8>&- 9>&- &
pid=$!
trap '' PIPE HUP INT
watch=
if [ "$limit" != 0 ]; then
  (
    exec 8>&- 9>&- </dev/null >/dev/null 2>&1
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
wait "$pid" 2>/dev/null
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
# At its time it ends by itself.
[ "$why" = t ] || [ -z "$watch" ] || kill "$watch" 2>/dev/null
said=$(printf '\036%s %s %s %s %s %s %s\036' "$tag" "$code" "$why" "$up" "$down" "$count" "$found,")
exec 2>/dev/null
printf %s "$said" >&8
printf %s "$said" >&9
: >"$room/end"
i=0
while [ $i -lt 3000 ]; do
  o=0 e=0
  [ -e "$room/o.ack" ] && o=1 || printf . >&8
  [ -e "$room/e.ack" ] && e=1 || printf . >&9
  [ $o$e = 11 ] && break
  sleep 0.01
  i=$((i+1))
done
# Before it stops counting as one that runs.
read -r now x </proc/uptime
echo "$now" >"$all/last"
rm -rf "$room" "$room.over"
exit 0"#;

/// Turns itself into a program, after saying so. Arguments: mark, whether all that follows is escaped, names of the
/// variables that it keeps, between colons, the directory (or nothing), and the program with its arguments.
const INNER: &str = r#"mark=$1
shift
if [ "$1" = 1 ]; then
  n=$#
  while [ $n -gt 0 ]; do x=$(printf '%b.' "$1"); shift; set -- "$@" "${x%.}"; n=$((n-1)); done
fi
ulimit -c 0 2>/dev/null
{ ulimit -w "$mark" || ulimit -x "$mark"; } 2>/dev/null || { echo "no mark" >&@SAID@; exit 125; }
for n in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $2 in *":$n:"*) ;; *) unset "$n" 2>/dev/null;; esac
done
if [ -n "$3" ]; then
  [ -d "$3" ] || { [ -e "$3" ] && echo "no directory" >&@SAID@ || echo "no there" >&@SAID@; exit 125; }
  cd "$3" 2>/dev/null || { echo "no enter" >&@SAID@; exit 125; }
fi
case $2 in *:PWD:*) ;; *) unset PWD;; esac
shift 3
umask 022
echo "ok $$" >&@SAID@
unset OLDPWD SHLVL _ mark n x
exec "$@" 7>&-"#;

/// Ends a descent, whatever it does; one that has not begun yet never does. Arguments: mark, tag, and why.
const END: &str = r#"umask 077
room=@ROOM@/$2
{ mkdir -p @ROOM@ && : >"$room.over"; } 2>/dev/null
{ [ -d "$room" ] && [ ! -s "$room/why" ] && echo "$3" >"$room/why"; } 2>/dev/null
hunt "$1"
# It may not have begun yet, or not have its mark.
i=0
while [ ! -d "$room" ] && [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done
i=0 begun=
while [ -e "$room/run" ] && [ $i -lt 200 ]; do
  begun=1
  { [ -s "$room/why" ] || echo "$3" >"$room/why"; } 2>/dev/null
  hunt "$1"
  sleep 0.05
  i=$((i+1))
done
# What came to its end needs no word any more against its beginning.
[ -z "$begun" ] || [ -e "$room" ] || rm -f "$room.over"
pass "$1" count
[ $count = 0 ] || echo left"#;

/// Sends a signal. Arguments: its number, and the process whose group gets it.
pub const SIGNAL: &str = r#"kill "-$1" "-$2" 2>/dev/null || kill "-$1" "$2" 2>/dev/null || :"#;

/// Waits until a piece of input has been taken, or nobody takes any more. Arguments: tag and number of the piece.
const TAKEN: &str = r#"room=@ROOM@/$1
while [ -e "$room/run" ] && [ -e "$room/in/$2.ok" ] && [ ! -e "$room/in/gone" ]; do sleep 0.03; done"#;

/// Command lines of processes.
pub const NAMES: &str = r#"for p; do
  printf 'n %s ' "$p"
  { head -c 256 | tr '\000\n\r' '   '; } 2>/dev/null <"/proc/$p/cmdline"
  echo
done"#;

/// How much is in use: commands that run, how many there were, when the last one ended and how late it is now, in
/// seconds since the machine started.
const USES: &str = r#"n=0
for r in @ROOM@/*/run @KEPT@/*/run; do
  read -r p x 2>/dev/null <"$r" || continue
  [ -d "/proc/$p" ] && n=$((n+1))
done
c=0
[ -f @ROOM@/commands ] && c=$(wc -c <@ROOM@/commands)
l=0
read -r l x <@ROOM@/last
read -r u x </proc/uptime
echo "uses $n $c $l $u""#;

/// What there is: variables, the tools that are needed, and what starts a program with its usual signals.
pub const LOOK: &str = r#"for t in base64 cat chmod cp dd env find head mkdir mkfifo mv readlink rm sed sleep stat tail tar touch tr wc; do
  command -v $t >/dev/null || echo "missing $t"
done
(ulimit -w 1000 || ulimit -x 1000) 2>/dev/null || echo "missing ulimit"
s=
command -v setsid >/dev/null && s=setsid
env --default-signal=INT,QUIT,HUP,PIPE true 2>/dev/null && s="$s env --default-signal=INT,QUIT,HUP,PIPE"
r=
for d in /dev/shm /var/tmp /tmp; do
  { mkdir -p -m 700 $d/.moltis && rm -f $d/.moltis/try && mkfifo $d/.moltis/try && rm $d/.moltis/try && read -r u x </proc/uptime && echo "$u" >$d/.moltis/last; } 2>/dev/null && { r=$d/.moltis; break; }
done
[ -n "$r" ] || echo "missing place for pipes"
k=
for d in /var/tmp /dev/shm /tmp; do [ $d -ef /tmp ] && [ $d != /tmp ] && continue; { mkdir -p -m 700 $d/.moltis-kept && [ -w $d/.moltis-kept ]; } 2>/dev/null && { k=$d/.moltis-kept; break; }; done
echo "kept $k"
echo "room $r"
echo "launch $s"
echo "home $HOME"
echo "path $PATH"
echo done"#;

/// The script around commands.
pub fn wrapper(room: &'static str) -> String {
    format!("{HUNT}{}", WRAPPER.replace("@ROOM@", room))
}

/// The script that turns itself into a program, and says so to this descriptor.
pub fn inner(said: u8) -> String {
    INNER.replace("@SAID@", &said.to_string())
}

/// The script that ends a descent.
pub fn end(room: &'static str) -> String {
    format!("{HUNT}{}", END.replace("@ROOM@", room))
}

/// The script that waits for input to be taken.
pub fn taken(room: &'static str) -> String {
    TAKEN.replace("@ROOM@", room)
}

/// The script that tells how much is in use.
pub fn uses(room: &'static str, kept: &'static str) -> String {
    USES.replace("@ROOM@", room).replace("@KEPT@", kept)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_was_ended_before_it_began_never_begins() {
        let folder = tempfile::tempdir().unwrap();
        let room: &'static str = Box::leak(folder.path().join("room").to_str().unwrap().into());
        let ran = folder.path().join("ran");
        let mark = moltis_agentless::mark().unwrap().to_string();
        let run = |script: &str, words: &[&str]| {
            Command::new("/bin/sh").arg("-c").arg(script).arg("sh").args(words).output().unwrap()
        };
        let ended = run(&end(room), &[&mark, "tag", "c"]);
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "");
        let late = [&mark, "tag", "0", "0", "1", "", &inner(1), "0", ":PATH:", "", "touch"];
        let late = run(&wrapper(room), &[&late[..], &[ran.to_str().unwrap()]].concat());
        assert_eq!((late.status.code(), late.stdout.len(), ran.exists()), (Some(125), 0, false), "{late:?}");
        // Another one does, and nothing is left of either.
        let next = [&mark, "next", "0", "0", "1", "", &inner(1), "0", ":PATH:", "", "touch"];
        let next = run(&wrapper(room), &[&next[..], &[ran.to_str().unwrap()]].concat());
        assert_eq!((next.status.code(), ran.exists()), (Some(0), true), "{next:?}");
        let mut left: Vec<_> = std::fs::read_dir(room)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["commands", "last"]);
    }
}
