#!/usr/bin/env bash
# From a fresh clone to a report and a model: install, make the demo corpus, train, decode, score, export, compare.
#
#   bash tools/demo.sh
#
# The first run takes about eleven minutes on two cores, mostly installation, two trainings and the comparison.
# Existing results are reused, and an interrupted run resumes.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" demo

run=exp/demo/full
echo "Times are those of two idle cores; a loaded machine takes several times as long."
echo "1. Corpus: about 15 seconds"
asr prepare demo
echo "2. Training: about two minutes"
asr train recipe=demo attention=full resume=auto
echo "3. Decoding, scoring and export: about a minute"
for split in test test_voices; do
    for attention in full i-clustered-25; do
        asr decode "$run" split="$split" attention="$attention"
    done
    asr decode "$run" split="$split" decoder=beam
done
asr score "$run/decode/test/full-beam"
asr export "$run" out=exp/demo/model
echo "4. Comparison: two minutes for a second training, then timing and the report"
# Reuses the model trained above and trains the second one.
asr compare recipe=demo attentions=[full,i-clustered-25] evaluate=[full,clustered-25,i-clustered-25] folder=exp/demo/compare
python - "$run" <<END
import json, sys
from pathlib import Path
print(f"\nThree utterances of test, and what {sys.argv[1]} recognises with beam search:")
lines = Path(sys.argv[1], "decode/test/full-beam/hyp.jsonl").read_text(encoding="utf-8").splitlines()
for found in map(json.loads, lines[:3]):
    print(f"  reference  {found['reference']}\n  heard      {found['text']}")
END
cat <<END

The speech is synthetic: these error rates show that everything works, not how well real speech is recognised.
  $run/                       configuration, metrics.csv, checkpoints, training.json, TensorBoard events
  $run/decode/<split>/<attention>-<decoder>/  hyp.jsonl, score.json, alignments.txt, speakers.tsv
  exp/demo/compare/report.html      the comparison, for a browser; results.json and results.csv are beside it
  exp/demo/model/                   the model alone, with its lexicon, for any machine with this package

In each new shell, run: source .venv/bin/activate
next: asr transcribe exp/demo/model <recording>, or asr prepare folder audio=<recordings> transcripts=<table>
END
