#!/bin/sh
# Measures every record behind docs/performance.md and docs/active.md, then writes the pages. It keeps a record that is
# there: delete it to measure it again, or run this again after an interruption. Wants a quiet machine,
# `pip install -e .[bench]`, and about an hour on two cores.
#   tools/measure_performance.sh [THREADS]
set -eu
cd "$(dirname "$0")/.."
threads=${1:-2}
folder=docs/results/performance
agl=${MPD_AGL:-mpd-agl}
python=${PYTHON:-python}
mkdir -p "$folder"

measure() { # NAME WORK OPTIONS...
    name=$1; shift
    [ -f "$folder/$name.json" ] && { echo "$name: kept"; return; }
    echo "== $name: mpd-agl bench $*"
    $agl bench "$@" --threads "$threads" -o "$folder/$name.json"
}

# What a user gets by default, in a folder per kind of machine; the other contenders below are 0.1's names for parts of
# it.
vendor=$(lscpu 2>/dev/null | grep -q AuthenticAMD && echo -amd || true)
now=docs/results/performance-$(lscpu 2>/dev/null | grep -q avx512f && echo avx512 || echo avx2)$vendor
mkdir -p "$now"
[ -f "$now/overview.json" ] || $agl bench --threads "$threads" -o "$now/overview.json"
old=$folder folder=$now
measure train-full train --width-mult 1 --batch 16 --rounds 3 --contenders ours native spikingjelly convs
measure train-vggsnn train --model vggsnn --width-mult 0.25 --T 10 --batch 16 --contenders ours spikingjelly ann convs
measure train-narrow train --batch 100 --contenders ours native spikingjelly snntorch ann convs
$agl bench growth --axes num_steps --rounds 2 --threads "$threads" --contenders ours -o "$now/growth-train.json"
[ -f "$now/first-step.json" ] || $python -m tools.first_step -o "$now/first-step.json"
folder=$old

ours="native native+auto"
peers="spikingjelly snntorch ann"
most="$ours native+recompute $peers convs"
measure train-narrow-all train --batch 100 --contenders $most compiled eager ann-compiled
measure train-narrow train --batch 100 --rounds 9 --contenders $most
measure train-full train --width-mult 1 --batch 16 --rounds 3 --contenders $ours spikingjelly ann convs
measure train-vggsnn train --model vggsnn --width-mult 0.25 --T 10 --batch 16 --contenders $most
measure infer-narrow infer --batch 64 --contenders $ours native-unfolded compiled eager $peers ann-compiled convs
measure infer-full infer --width-mult 1 --batch 64 --rounds 3 --contenders $ours spikingjelly ann convs

# A sweep continues where it stopped. T has a target, so it gets all five rounds.
grow() { # NAME OPTIONS...
    name=$1; shift
    $agl bench growth "$@" --threads "$threads" --contenders $ours spikingjelly ann -o "$folder/$name.json"
}
grow growth-train --axes num_steps
grow growth-train --rounds 2
grow growth-infer --work infer --axes batch --rounds 2

# A trained network: the demo at T=4 (about 2 minutes), and its ways to an answer.
run=${TMPDIR:-/tmp}/mpd-agl-performance
if [ ! -f "$folder/evaluate-early.json" ]; then
    [ -f "$run/demo/model.safetensors" ] ||
        $agl train --preset demo --model.num-steps 4 --train.threads "$threads" --name demo --runs-dir "$run" \
            --overwrite --quiet
    for path in plain fast int8; do
        option=$([ "$path" = plain ] || echo "--$path")
        $agl evaluate "$run/demo" $option --json >"$folder/.part" && mv "$folder/.part" "$folder/evaluate-$path.json"
    done
    $agl evaluate "$run/demo" --exit-threshold 0.3,0.5,0.7,0.8,0.9,0.95,0.99,1 --plot "$folder/evaluate-early.svg" \
        --json >"$folder/.part"
    mv "$folder/.part" "$folder/evaluate-early.json"
fi

# When skipping zeros pays, in single layers and in a network. A network needs the firing rates of a trained one.
table=docs/results/active-table.json
network=docs/results/active-network.json
[ -f "$table" ] || $agl bench active --threads "$threads" -o "$table"
[ -f "$network" ] || $agl bench active --part inference,training --threads "$threads" -o "$network" \
    --rates "${RATES:?names a monitored run, or an earlier record of bench active}"

$python tools/performance_page.py --records "$folder"
$python tools/active_page.py "$table"
$python tools/active_page.py "$network"
