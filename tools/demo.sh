#!/usr/bin/env bash
# From a fresh clone to a trained model and a report: install, make the demo corpus, train, decode, score, export, and
# exchange the attention of the trained model.
#
#   bash tools/demo.sh
#
# The first run takes four to ten minutes on two idle cores, a third of them the installation. Existing results are
# reused, and an interrupted run resumes.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" demo

run=exp/demo/full
echo "Times are those of two idle cores; a loaded machine takes several times as long."
echo "1. Corpus: about 15 seconds"
asr prepare demo
echo "2. Training: about two minutes"
asr train recipe=demo attention=full resume=auto
echo "3. Decoding, scoring and export: about half a minute"
asr decode "$run" split=test decoder=beam
asr score "$run/decode/test/full-beam"
asr export "$run" out=exp/demo/model
echo "4. Time and memory of the model by length, from a second to ten minutes of audio: a minute or two"
asr bench unit=model model="$run" attentions=full,near-25,local-64 lengths=100,3000,30000,60000 \
    passes=forward rounds=5 seconds=1 out=exp/demo/bench.json
echo "5. The attention of the trained model exchanged, on its test set joined to a minute each: half a minute"
asr compare model="$run" data=data/demo join_s=60 attentions=full,near-25,i-clustered-25,local-64 folder=exp/demo/exchange
python - "$run" <<END
import json, sys
from pathlib import Path
print(f"\nThree utterances of test, and what {sys.argv[1]} recognises with beam search:")
lines = Path(sys.argv[1], "decode/test/full-beam/hyp.jsonl").read_text(encoding="utf-8").splitlines()
for found in map(json.loads, lines[:3]):
    print(f"  reference   {found['reference']}\n  hypothesis  {found['text']}")
END
cat <<END

The speech is synthetic: these error rates show that everything works, not how well real speech is recognised.
  $run/                       configuration, metrics.csv, checkpoints, training.json, TensorBoard events
  $run/decode/test/full-beam/ hyp.jsonl, score.json, alignments.txt, speakers.tsv
  exp/demo/model/                   the model alone, with its lexicon, for any machine with this package
  exp/demo/exchange/report.html     for a browser: what each mechanism costs, and from which length it pays

In each new shell, run: source .venv/bin/activate
next: asr transcribe exp/demo/model <recording>, or asr prepare folder audio=<recordings> transcripts=<table>,
or train and compare mechanisms: asr compare recipe=demo attentions=full,i-clustered-25 budget=10min
END
