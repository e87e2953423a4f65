# Runs a program and ends it when standard input closes: the harness holds the other end,
# so the program ends with it however it dies, SIGKILL included.
#   $1     how many tenths of a second a program gets between SIGTERM and SIGKILL
#   $2     a folder to remove when the program has ended, or empty
#   $3...  the program and its arguments
grace=$1 scratch=$2
shift 2
exec 3<&0
"$@" </dev/null 3<&- &
program=$!
(
  # Holds no output of ours open, so that a reader of it sees its end with the program's.
  exec >/dev/null 2>&1
  read -r _ <&3
  kill -TERM "$program"
  while [ "$grace" -gt 0 ] && kill -0 "$program"; do
    sleep 0.1
    grace=$((grace - 1))
  done
  kill -KILL "$program"
) &
reader=$!
exec 3<&-
wait "$program"
status=$?
kill "$reader" 2>/dev/null
[ -z "$scratch" ] || rm -rf -- "$scratch"
exit "$status"
