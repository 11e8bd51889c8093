//! What shells of images are told: POSIX `sh`, as dash, BusyBox and bash understand it. Nothing that a caller said is
//! ever part of a script; it comes as an argument.

use std::time::Duration;

/// Waits. Counts how long nobody has written to `beat`, and ends then. Waiting for a child of its own also reaps what
/// others left. Arguments: seconds of a step, and how many of them may pass.
const FIRST: &str = r#"trap 'exit 0' TERM INT HUP
last= n=0
while :; do
  sleep "$1" & wait $!
  now=
  read -r now 2>/dev/null </.moltis/agent/beat
  if [ "$now" = "$last" ]; then n=$((n+1)); else n=0 last=$now; fi
  [ "$n" -ge "$2" ] && exit 0
done"#;

/// Answers orders, one a line, each answer ended by a line of a dot. Needs no further process for anything but names, so
/// that it can end a descent that has taken all there may be. Argument: 1 if the sandbox ends with this one's input.
pub const STEWARD: &str = r#"room=/.moltis/agent
trap '' HUP INT
n=0
locks() {
  lock=
  while read -r a b c soft hard rest; do
    [ "$a $b $c" = "Max file locks" ] && { lock=$hard; return 0; }
  done 2>/dev/null <"$1/limits"
  return 1
}
state() {
  st=
  IFS= read -r line 2>/dev/null <"$1/stat" || return 1
  st=${line##*) }
  st=${st%% *}
}
pass() {
  count=0
  for p in /proc/[0-9]*; do
    locks "$p" || continue
    if [ "$lock" != "$1" ]; then
      case $2$lock in
        *unlimited|list*|halt*|term*) continue;;
        # One that lowered its limit below all marks meant to hide.
        ????*?????????????) continue;;
      esac
    fi
    state "$p" || continue
    case $st in Z|X) continue;; esac
    case $2 in
      list) echo "p ${p#/proc/}"; count=$((count+1));;
      stop) case $st in T|t) ;; *) kill -STOP "${p#/proc/}" 2>/dev/null; count=$((count+1));; esac;;
      halt) kill -STOP "${p#/proc/}" 2>/dev/null;;
      term) kill -TERM "${p#/proc/}" 2>/dev/null; kill -CONT "${p#/proc/}" 2>/dev/null;;
      kill) kill -KILL "${p#/proc/}" 2>/dev/null; count=$((count+1));;
    esac
  done
}
echo .
while read -r order one two rest; do
  case $order in
    list) pass "$one" list;;
    # A shell whose child went first would tell of that.
    term) pass "$one" halt; pass "$one" term;;
    kill)
      i=0
      while [ $i -lt 12 ]; do pass "$one" stop; [ $count = 0 ] && break; i=$((i+1)); done
      i=0
      while [ $i -lt 60 ]; do pass "$one" kill; [ $count = 0 ] && break; i=$((i+1)); done
      [ $count = 0 ] || echo left;;
    group) kill "-$one" "-$two" 2>/dev/null;;
    name)
      for p in $one $two $rest; do
        printf 'n %s ' "$p"
        { head -c 256 | tr '\000\n\r' '   '; } 2>/dev/null <"/proc/$p/cmdline"
        echo
      done;;
    use) n=$((n+1)); echo "$one" >"$room/use-$$"; echo "$$ $n" >"$room/beat";;
    beat) n=$((n+1)); echo "$$ $n" >"$room/beat";;
    uses)
      for f in "$room"/use-*; do
        [ -d "/proc/${f##*use-}" ] && read -r x 2>/dev/null <"$f" && echo "u $x"
      done
      IFS= read -r x 2>/dev/null <"$room/beat" && echo "b $x";;
  esac
  echo .
done
rm -f "$room/use-$$"
[ "$1" = 1 ] && kill -TERM 1
exit 0"#;

/// Turns itself into a program, after saying so. Arguments: mark, whether there is input, whether all that follows is
/// escaped, how many names of variables come, these, the directory (or nothing), and the program with its arguments.
pub const PROGRAM: &str = r#"if [ "$3" = 1 ]; then
  n=$#
  while [ $n -gt 0 ]; do x=$(printf '%b.' "$1"); shift; set -- "$@" "${x%.}"; n=$((n-1)); done
fi
ulimit -c 0 2>/dev/null
{ ulimit -w "$1" || ulimit -x "$1"; } 2>/dev/null || { echo "no mark"; exit 125; }
[ "$2" = 1 ] || exec </dev/null
n=$4
shift 4
while [ $n -gt 0 ]; do unset "$1" 2>/dev/null; shift; n=$((n-1)); done
if [ -n "$1" ]; then
  [ -d "$1" ] || { [ -e "$1" ] && echo "no directory" || echo "no there"; exit 125; }
  cd "$1" 2>/dev/null || { echo "no enter"; exit 125; }
fi
shift
umask 022
echo "ok $$"
unset PWD OLDPWD SHLVL _
exec "$@""#;

/// The first process of a container: something that waits until nobody has used the sandbox for this long.
pub fn first_process(limit: Duration) -> Vec<String> {
    let step = (limit / 5).clamp(Duration::from_millis(200), Duration::from_secs(5));
    let steps = limit.as_millis().div_ceil(step.as_millis()).max(2);
    ["/bin/sh", "-c", FIRST, "sh"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("{:.3}", step.as_secs_f64()), steps.to_string()])
        .collect()
}
