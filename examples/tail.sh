#!/bin/sh
# A channel with nothing but a shell: tail.sh MNT
set -eu
cd "$1"

mkdir -p notes
echo create notes/today buffers=single >control
trap 'echo remove notes/today >control; rmdir notes' EXIT

echo first >notes/today
echo second >>notes/today # as `>` does: nothing is ever cut off
cat notes/today           # what is read is consumed,
cat notes/today           # so here is nothing more

tail -f notes/today &
echo third >notes/today
sleep 2
kill $!
