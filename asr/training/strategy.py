"""How ranks share the work of a step: they average gradients or weights, or divide the model."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy, Strategy
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    OptimStateKeyType,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from asr.model.encoder import Encoder
from asr.training.options import TrainerConfig
from asr.training.ranks import Launcher, connect_restarted, ended_by_signals, waiting


def training_strategy(options: TrainerConfig) -> str | Strategy:
    """Return the strategy: sharding, averaging of gradients or of weights, or Lightning's for one rank."""
    ranks = options.devices * options.nodes
    if options.strategy == "fsdp":
        return Sharded(data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)
    if ranks == 1:
        return options.strategy
    return LocalGradients() if options.average_every else AverageGradients()


class _Ranks(ParallelStrategy):
    """Starts and connects the ranks as `asr.training.ranks` does."""

    num_nodes: int
    num_processes: Any
    _get_process_group_backend: Callable[[], str]

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_environment(self) -> None:
        """Connect the ranks."""
        place = self.cluster_environment
        assert place is not None
        connect_restarted(place, self._get_process_group_backend())
        if self.num_nodes > 1 and place.node_rank() == place.local_rank() == 0:
            seconds = default_pg_timeout.total_seconds()
            print(waiting(place, self.num_nodes, self.num_processes, seconds), file=sys.stderr, flush=True)
        with ended_by_signals(self._launcher.procs if isinstance(self._launcher, Launcher) else []):
            super().setup_environment()


class AverageGradients(_Ranks, DDPStrategy):
    """Distributed data parallel training."""

    def configure_ddp(self) -> None:
        """Wrap the model; leave out the loss, whose sparse matrices can't be broadcast and never change."""
        assert self.model is not None
        constant = [name for name, _ in self.model.named_buffers() if name.startswith("loss.")]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, constant)
        super().configure_ddp()


class LocalGradients(AverageGradients):
    """Distributed data parallel training in which every process keeps its own gradients."""

    def configure_ddp(self) -> None:
        """Wrap the model, and replace the reduction of gradients."""
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        self.model.register_comm_hook(None, _keep)


def _keep(_: None, bucket: distributed.GradBucket) -> Future[Tensor]:
    done: Future[Tensor] = Future()
    done.set_result(bucket.buffer())
    return done


class Sharded(_Ranks, ModelParallelStrategy):
    """Fully sharded training (FSDP2): each rank holds a part of weights, gradients and optimiser state.

    Checkpoints hold the whole model, so they serve like any others; the optimiser's state is in FSDP's order.
    """

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load weights and optimiser state through the checkpoint plugin, unlike Lightning's own."""
        checkpoint = self.checkpoint_io.load_checkpoint(Path(checkpoint_path))
        assert self.model is not None
        options = StateDictOptions(full_state_dict=True)
        # Whole in the file, so that a run resumes on another number of ranks.
        set_model_state_dict(self.model, checkpoint["state_dict"], options=options)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            named = FullyShardedDataParallel.rekey_optim_state_dict(
                state, OptimStateKeyType.PARAM_NAME, self.model
            )
            set_optimizer_state_dict(self.model, optimizer, named, options=options)
        return checkpoint


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the parameters of a model among the ranks of a mesh, in place: each block's, then the rest.

    Parameters that are not trained stay whole.
    """
    fixed = {x for x in model.parameters() if not x.requires_grad}
    for encoder in [module for module in model.modules() if isinstance(module, Encoder)]:
        for block in encoder.blocks:
            fully_shard(block, mesh=mesh, ignored_params=fixed)
    fully_shard(model, mesh=mesh, reshard_after_forward=True, ignored_params=fixed)
    if hasattr(model, "emit"):  # called by the loss instead of `forward`
        register_fsdp_forward_method(model, "emit")


def whole(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights with those that ranks share gathered; all ranks must call it."""
    return {name: x.full_tensor().cpu() if isinstance(x, DTensor) else x for name, x in weights.items()}
