#!/bin/sh
# Every record behind docs/performance.md, then the page. A record that is there is kept: delete it to measure again, or run this again
# after an interruption. Wants a quiet machine, `pip install -e .[bench]`, and about 25 minutes on two cores.
#   tools/measure_performance.sh [THREADS]
set -eu
cd "$(dirname "$0")/.."
threads=${1:-2}
folder=docs/results/performance
agl=${MPD_AGL:-mpd-agl}
mkdir -p "$folder"

measure() { # NAME WORK OPTIONS...
    name=$1; shift
    [ -f "$folder/$name.json" ] && { echo "$name: kept"; return; }
    echo "== $name: mpd-agl bench $*"
    $agl bench "$@" --threads "$threads" -o "$folder/$name.json"
}

measure train-narrow train --batch 100 --contenders native native+recompute compiled eager spikingjelly snntorch ann ann-compiled convs
measure train-full train --width 1 --batch 16 --rounds 3 --contenders native spikingjelly ann convs
measure train-vggsnn train --model vggsnn --width 0.25 --T 10 --batch 16 --contenders native native+recompute spikingjelly snntorch ann convs
measure infer-narrow infer --batch 64 --contenders native native-unfolded compiled eager spikingjelly snntorch ann ann-compiled convs
measure infer-full infer --width 1 --batch 64 --rounds 3 --contenders native spikingjelly ann convs
# a sweep continues where it stopped; it is complete when its last point is there
$agl bench growth --threads "$threads" --quick -o "$folder/growth-train.json"
$agl bench growth --growth-work infer --axes batch --threads "$threads" --quick -o "$folder/growth-infer.json"
$agl bench page --records "$folder" -o docs/performance.md
