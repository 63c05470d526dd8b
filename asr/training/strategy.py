"""Data parallel training: ranks average their gradients."""

import sys
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.distributed.constants import default_pg_timeout
from torch.nn.parallel import DistributedDataParallel

from asr.training.options import TrainerConfig
from asr.training.ranks import Launcher, ended_by_signals, waiting


def training_strategy(options: TrainerConfig) -> str | Strategy:
    """Return the strategy: averaging of gradients, or Lightning's for one rank."""
    return AverageGradients() if options.devices * options.nodes > 1 else "auto"


class AverageGradients(DDPStrategy):
    """Distributed data parallel training; starts and connects the ranks as `asr.training.ranks` does."""

    num_nodes: int
    num_processes: Any

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        """Connect the ranks."""
        place = self.cluster_environment
        assert place is not None
        if self.num_nodes > 1 and place.node_rank() == place.local_rank() == 0:
            seconds = default_pg_timeout.total_seconds()
            print(waiting(place, self.num_nodes, self.num_processes, seconds), file=sys.stderr, flush=True)
        with ended_by_signals(self._launcher.procs if isinstance(self._launcher, Launcher) else []):
            super().setup_environment()

    def configure_ddp(self) -> None:
        """Wrap the model without the loss, whose sparse matrices can't be broadcast and never change."""
        assert self.model is not None
        constant = [name for name, _ in self.model.named_buffers() if name.startswith("loss.")]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, constant)
        super().configure_ddp()
