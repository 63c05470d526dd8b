#!/usr/bin/env bash
# From a fresh clone to a report: installs, makes the embedded corpus, trains, decodes, scores, compares.
#
#   bash tools/demo.sh
#
# About nine minutes on two cores the first time, most of it installation, two trainings and their comparison. What is there
# already is not made again; an interrupted run goes on.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

run=exp/demo/full
asr prepare demo
asr train recipe=demo attention=full resume=auto
results=()
for split in test test_voices; do
    for attention in full i-clustered-25; do
        asr decode "$run" split="$split" attention="$attention"
        results+=("$run/decode/$split/$attention-greedy")
    done
    asr decode "$run" split="$split" decoder=beam
    results+=("$run/decode/$split/full-beam")
done
asr score "${results[@]}" details=false
# The training above is taken as it is; another one is made.
asr compare recipe=demo attentions=[full,i-clustered-25] evaluate=[full,clustered-25,i-clustered-25] folder=exp/demo/compare
cat <<END

The speech is synthetic: these error rates say that everything works, not how well people are understood.
  $run/                       configuration, metrics.csv, checkpoints, training.json, TensorBoard events
  $run/decode/<split>/<attention>-<decoder>/  hyp.jsonl, score.json, alignments.txt, speakers.tsv
  exp/demo/compare/report.html      the comparison: open it in a browser; results.json and results.csv beside it
  asr transcribe $run <file.wav>                  try it on a recording
END
