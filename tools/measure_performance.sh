#!/bin/sh
# Every record behind docs/performance.md, then the page. A record that is there is kept: delete it to measure again, or run this again
# after an interruption. Wants a quiet machine, `pip install -e .[bench]`, and about an hour on two cores.
#   tools/measure_performance.sh [THREADS]
set -eu
cd "$(dirname "$0")/.."
threads=${1:-2}
folder=docs/results/performance
agl=${MPD_AGL:-mpd-agl}
mkdir -p "$folder"

quiet() { # waits, three minutes at most, until the load of what ran before has gone
    for _ in 1 2 3 4 5 6 7 8 9; do
        [ "$(cut -d. -f1 /proc/loadavg 2>/dev/null || echo 0)" = 0 ] && return
        sleep 20
    done
}

measure() { # NAME WORK OPTIONS...
    name=$1; shift
    [ -f "$folder/$name.json" ] && { echo "$name: kept"; return; }
    quiet
    echo "== $name: mpd-agl bench $*"
    $agl bench "$@" --threads "$threads" -o "$folder/$name.json"
}

measure train-narrow-all train --batch 100 --contenders native native+auto native+recompute compiled eager spikingjelly snntorch ann ann-compiled convs
measure train-narrow train --batch 100 --rounds 9 --contenders native native+auto native+recompute spikingjelly snntorch ann convs
measure train-full train --width-mult 1 --batch 16 --rounds 3 --contenders native native+auto spikingjelly ann convs
measure train-vggsnn train --model vggsnn --width-mult 0.25 --T 10 --batch 16 --contenders native native+auto native+recompute spikingjelly snntorch ann convs
measure infer-narrow infer --batch 64 --contenders native native+auto native-unfolded compiled eager spikingjelly snntorch ann ann-compiled convs
measure infer-full infer --width-mult 1 --batch 64 --rounds 3 --contenders native native+auto spikingjelly ann convs
# a sweep continues where it stopped; it is complete when its last point is there. T in full rounds: it has a target
$agl bench growth --threads "$threads" --axes num_steps --contenders native native+auto spikingjelly ann -o "$folder/growth-train.json"
$agl bench growth --threads "$threads" --quick --contenders native native+auto spikingjelly ann -o "$folder/growth-train.json"
$agl bench growth --growth-work infer --axes batch --threads "$threads" --quick --contenders native native+auto spikingjelly ann -o "$folder/growth-infer.json"
# a trained network: the demo at T=4 (about 2 minutes), its paths to an answer
run=${TMPDIR:-/tmp}/mpd-agl-performance
if [ ! -f "$folder/evaluate-early.json" ]; then
    [ -f "$run/demo/model.safetensors" ] ||
        $agl train --preset demo --model.num-steps 4 --train.threads "$threads" --name demo --runs-dir "$run" --overwrite --quiet
    for path in plain fast int8; do
        option=$([ "$path" = plain ] || echo "--$path")
        $agl evaluate "$run/demo" $option --json >"$folder/.part" && mv "$folder/.part" "$folder/evaluate-$path.json"
    done
    $agl evaluate "$run/demo" --exit-threshold 0.3,0.5,0.7,0.8,0.9,0.95,0.99,1 --plot "$folder/evaluate-early.svg" --json >"$folder/.part"
    mv "$folder/.part" "$folder/evaluate-early.json"
fi
$agl bench page --records "$folder" -o docs/performance.md
