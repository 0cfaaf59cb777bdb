#!/bin/sh
# Run programs side by side, and show what they traced: record.sh MNT './traced 3' 'python3 traced.py 3'
set -eu
mnt=$1
shift
export RELAYFS="$mnt"
dir=$(mktemp -d)

echo trace create example >"$mnt/control"
trap 'echo trace remove example >"$mnt/control"; rm -r "$dir"' EXIT
echo trace start example >"$mnt/control"
relayctl record example -o "$dir" --until-stopped &
recorder=$!

programs=
for program; do
	sh -c "$program" &
	programs="$programs $!"
done
for program in $programs; do
	wait "$program"
done

echo trace stop example >"$mnt/control"
wait "$recorder"
babeltrace2 "$dir"
