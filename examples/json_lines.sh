#!/bin/sh
# JSON lines of a program's log, of all CPUs in the order of their times, read with jq: json_lines.sh MNT [PYTHON]
set -eu
mnt=$1
python=${2:-python3}
here=$(dirname "$0")

"$python" "$here/json_log.py" "$mnt/app/json"
trap 'echo remove app/json >"$mnt/control"' EXIT

echo 'errors:'
jq -c 'select(.level == "ERROR") | [.request, .ms]' "$mnt/.channels/app/json/merged"
echo 'mean of ms:'
jq -s 'map(.ms) | add / length' "$mnt/.channels/app/json/merged"
