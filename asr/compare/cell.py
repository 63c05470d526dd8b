"""Jobs of a comparison under a Hydra launcher: `python -m asr.compare.cell --multirun folder=… job=0,1,2`.

`asr compare … launcher=<name>` writes jobs.json, a list of lists of cells, and starts this program; it can
also be started by hand. conf/compare.yaml says how launchers are configured.
"""

import json
from pathlib import Path

import hydra
from omegaconf import DictConfig

from asr.compare.cells import read_cell
from asr.compare.processes import run_job


@hydra.main(config_path="pkg://asr_conf", config_name="compare", version_base="1.3")
def main(options: DictConfig) -> None:
    """Work on one job in a process of its own; failures are in the cells' states."""
    folder = Path(options.folder)
    names = json.loads((folder / "jobs.json").read_text())[options.job]
    run_job(folder, [read_cell(folder, name) for name in names])


if __name__ == "__main__":
    main()
