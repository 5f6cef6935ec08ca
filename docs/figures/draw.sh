#!/usr/bin/env bash
# draw.sh [WORK_DIRS]: draw the figures of this folder anew, from the work dirs in WORK_DIRS (default: work_dirs).
# Losses on the embedded digits and scenes are trained if they are not there, which takes some minutes. The other
# figures need the trainings of docs/results: those whose runs are missing stay as they are. At the end a table says
# which figures are older than the code that they show.
set -euo pipefail

figures=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$(dirname "$figures")")
mkdir -p "${1:-work_dirs}" && cd "${1:-work_dirs}"
missing=()

# draw FIGURE TOOL ARGUMENT…
draw() {
    local figure=$1 tool=$2
    shift 2
    if python "$root/tools/$tool" "$@" --out "$figures/$figure"; then
        python "$root/tools/maintenance/figure_ages.py" --drawn "$figure"
    else
        missing+=("$figure")
    fi
}

for run in {ce,ls,fl,mbls}/digits {ce,mbls}/digit_scenes; do
    [ -f "$run/results.json" ] || python "$root/tools/train.py" "$root/configs/$run.py" --work-dir "$run"
done
draw reliability_digits.png visualize.py reliability {ce,ls,fl,mbls}/digits --dpi 130
draw confidence_maps_digit_scenes.png visualize.py maps {ce,mbls}/digit_scenes --images 'test image 0' --dpi 130

draw reliability_20news.png visualize.py reliability {ce,ls,fl,mbls}/gpool_cnn_20news --dpi 130
trio=(--names cross-entropy 'cross-entropy + temperature' 'MbLS, m=10')
draw reliability_tinyimagenet.png visualize.py reliability {ce/tiny/seed0{,/temperature},mbls/tiny/seed0} "${trio[@]}"
long=photographs_long
draw reliability_photographs_long.png visualize.py reliability \
    {ce/$long/seed0{,/temperature},mbls/$long/seed0} "${trio[@]}" --dpi 130
draw confidence_maps_photographs_long.png visualize.py maps {ce/$long/seed2{,/temperature},{mbls,fl}/$long/seed2} \
    --images 2010_004320.jpg 2009_000731.jpg --dpi 130
photos=deeplabv3plus_efflite0_people_animals
draw reliability_photographs.png visualize.py reliability {ce,ls,fl,mbls}/$photos/seed0 --dpi 130
draw confidence_maps_photographs.png visualize.py maps {ce,fl,mbls}/$photos/seed0 \
    --images 2007_000175.jpg 2009_000727.jpg 2011_000780.jpg
draw margin_sweep_photographs.png sweep.py --plot mbls_margins

# Work dirs of tools/test_robustness.py.
warm() { for name in "$@"; do only+=("$name" "$name + temperature"); done; }
only=() && warm CE && only+=('MbLS m=4 α=0.1' 'LS α=0.05') && warm 'FL γ=3'
draw shift_cifar10.png visualize.py robustness shift/cifar10 --only "${only[@]}"
only=() && warm CE 'LS α=0.05' 'FL γ=3' 'MbLS m=4 α=0.1' 'IFL γ=1'
draw shift_cifar10_temperature.png visualize.py robustness shift/cifar10 --figure lines --only "${only[@]}"
draw shift_tinyimagenet.png visualize.py robustness shift/tinyimagenet --figure lines
draw shift_photographs.png visualize.py robustness shift/photographs --figure lines

# Pictures of a prediction and of its gallery.html, cut out by hand.
missing+=(predicted_photograph.jpg gallery_photographs.jpg)
echo "Not drawn: ${missing[*]}"
python "$root/tools/maintenance/figure_ages.py"
