#!/bin/sh
# Record every preset of the paper on one GPU, the most important first; fire it again to go on where it stopped.
#
#   DATA=dir WEIGHTS=dir OUT=dir [BUDGET=720] [WORKERS=4] [N=4992] [SEEDS=0,1] benchmarks/record_paper.sh [LANE ...]
#
# A rehearsal without a GPU: OPTIONS=--dry-run plans every step, QUICK=1 runs each preset on the embedded model.
#
# Lanes run at the same time, each with WORKERS workers, and go through their steps in order; a step whose
# weights or data are missing is skipped with a sentence. Every lane stops when BUDGET seconds are over.
# DATA: cifar10 and cifar100 as sheets, mnist. WEIGHTS: cifar10-resnet18.safetensors and so on.
set -u
: "${DATA:?folder with the data}" "${WEIGHTS:?folder with the source models}" "${OUT:?folder for the records}"
BUDGET=${BUDGET:-720} WORKERS=${WORKERS:-4} N=${N:-4992} SEEDS=${SEEDS:-0,1} DEVICE=${DEVICE:-cuda}
OPTIONS=${OPTIONS:-} QUICK=${QUICK:-}
SICL=${SICL:-sicl} PLANS=$(cd "$(dirname "$0")/../results/plans" && pwd)
FEW=${FEW:-gaussian_noise,glass_blur,fog,contrast,jpeg_compression}
END=$(($(date +%s) + BUDGET))
mkdir -p "$OUT/logs"
DATA=$(cd "$DATA" && pwd) WEIGHTS=$(cd "$WEIGHTS" && pwd) OUT=$(cd "$OUT" && pwd)
ln -sfn "$WEIGHTS" "$OUT/weights"

step() { # step FOLDER PRESET [OPTION ...]: the first seed alone, then all of them
    folder=$1 preset=$2 log=$OUT/logs/$(echo "$1" | tr / -).log
    shift 2
    [ -z "$QUICK" ] || set -- --quick
    mkdir -p "$OUT/$folder"
    for seeds in "${SEEDS%%,*}" "$SEEDS"; do
        left=$((END - $(date +%s)))
        [ "$left" -gt 15 ] || { echo "$folder: no time left"; return; }
        began=$(date +%s)
        timeout -s INT -k 10 "$left" $SICL paper run "$preset" --out "$OUT/$folder" --data "$DATA" --weights "$WEIGHTS" \
            --cache "$OUT/cache" --device "$DEVICE" --workers "$WORKERS" --threads 1 --seeds "$seeds" "$@" $OPTIONS \
            >>"$log" 2>&1
        echo "$folder, seeds $seeds: status $?, $(($(date +%s) - began)) s, $(find "$OUT/$folder" -maxdepth 1 -name '*seed*.json' | wc -l) records"
        [ "$seeds" = "$SEEDS" ] && return
    done
}

plan() { # plan NAME: one of results/plans, which look for weights/ where they are run
    left=$((END - $(date +%s)))
    [ "$left" -gt 15 ] || { echo "$1: no time left"; return; }
    began=$(date +%s)
    mkdir -p "$OUT/$1"
    (cd "$OUT" && timeout -s INT -k 10 "$left" $SICL bench "$PLANS/$1.toml" --out "$OUT/$1" --data "$DATA" \
        --cache "$OUT/cache" --device "$DEVICE" --workers "$WORKERS" --threads 1 $OPTIONS >>"$OUT/logs/$1.log" 2>&1)
    echo "$1: status $?, $(($(date +%s) - began)) s, $(find "$OUT/$1" -maxdepth 1 -name '*seed*.json' | wc -l) records"
}

# Behind each step: its share of an H200 for one seed of 4,992 images. Tables and plans: from the timings of earlier
# records (41 ms a batch of 64 and panel of seven, with the machine full); figures: from their forward passes at the
# tables' rate (7.5 s a million).
tables() {
    step table3 table3 --n "$N"     # 240 s
    step table4 table4 --n "$N"     # 240 s
}
streams() {
    plan resnet18-collapse          # 30 s
    plan resnet18-dynamic           # 110 s a seed; the plan has three
}
figures() { # the cheap ones first
    step figure2 figure2 --models resnet18 --n "$N"                             # 25 s
    step figure8b figure8b --models resnet18 --n "$N"                           # 50 s
    step figure8a figure8a --models resnet18 --n "$N"                           # 95 s
    step figure3 figure3 --models resnet18 --n "$N" --corruptions "$FEW"        # 30 s; has figure 5's numbers too
    step figure7ab figure7ab --models resnet18 --n "$N" --corruptions "$FEW"    # 80 s
    step figure7c figure7c --models resnet18 --n "$N" --corruptions "$FEW"      # 220 s
    step figure6 figure6 --models resnet18 --n "$N" --corruptions "$FEW"        # 500 s
}
networks() { # ResNet-50: 1,050 s a data set, of which the dynamic stream is half; ViT-Tiny: 200 s
    for model in resnet50 vit_tiny resnet101; do
        for dataset in cifar10 cifar100; do
            file=$model
            [ "$model" = vit_tiny ] && file=vit_tiny128
            [ -e "$WEIGHTS/$dataset-$file.safetensors" ] || { echo "no $dataset-$file.safetensors: skipped"; continue; }
            step "table2/$model-$dataset-c" table2 --datasets "$dataset-c" --models "$model" --n "$N"
        done
    done
}

for lane in ${*:-figures tables streams networks}; do "$lane" & done
wait
rm -rf "$OUT/cache" "$OUT/weights"
