"""What compare_device.py measures in Python: torch.distributed.pipelining on one rank, and a bare loop."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import gpt
from reference_runtime import make_pipeline

STAGES = 4


class Sizes(NamedTuple):
    config: gpt.Config
    microbatches: int
    rows: int  # of a microbatch


# As in device_bench.cpp.
MODELS = {
    "small": Sizes(gpt.Config(layers=8, width=256, heads=4, context=128, vocab=1024), 16, 2),
    "medium": Sizes(gpt.Config(layers=16, width=1024, heads=16, context=512, vocab=8192), 16, 2),
    "large": Sizes(gpt.Config(layers=16, width=2048, heads=16, context=1024, vocab=32000), 8, 2),
}


@contextmanager
def one_rank(device: torch.device) -> Iterator[None]:
    """This process as a world. Some versions of the reference then send to themselves, which Gloo cannot."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Model:
    """A model's stages and a batch on a device; all else is made for a measurement and freed after it."""

    def __init__(self, sizes: Sizes, device: torch.device):
        self.microbatches = sizes.microbatches
        with device:
            self.stages = nn.ModuleList(gpt.Piece(sizes.config, stage, STAGES) for stage in range(STAGES))
            words = torch.randint(sizes.config.vocab, (2, sizes.rows * sizes.microbatches, sizes.config.context))
        self.stages.to(torch.bfloat16)
        self.inputs, self.targets = words

    def loop(self) -> None:
        """A step as one would write it without pipelines."""
        losses = []
        for x, y in zip(self.inputs.chunk(self.microbatches), self.targets.chunk(self.microbatches)):
            loss = gpt.next_character_loss(self.forward(x), y) / self.microbatches
            loss.backward()
            losses.append(loss.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x

    def pipeline_step(self, name: str) -> Callable[[], None]:
        batch = (self.inputs, self.targets)
        pipeline = make_pipeline(
            name, self.microbatches, STAGES, lambda stage, _: self.stages[stage], gpt.next_character_loss, batch
        )
        step = pipeline.schedule.step
        return lambda: step(*pipeline.inputs, target=pipeline.target, losses=[], return_outputs=False)

    def measure(self, name: str, steps: int) -> dict:
        """The same numbers as device_bench.cpp, taken in the same way; `name`: "loop", or a schedule's."""
        result = measure_steps(self.loop if name == "loop" else self.pipeline_step(name), self.stages, steps)
        self.stages.zero_grad()
        free_unused_memory()
        return result


def free_unused_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def measure_steps(step: Callable[[], None], modules: nn.Module, steps: int) -> dict:
    def timed_step() -> float:
        modules.zero_grad()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    timed_step()  # the first one prepares much
    torch.cuda.empty_cache()
    timed_step()  # takes the memory again that the others find there
    torch.cuda.reset_peak_memory_stats()
    return {
        "ms": [timed_step() for _ in range(steps)],
        "allocated_MiB": torch.cuda.max_memory_allocated() / 2**20,
        "reserved_MiB": torch.cuda.max_memory_reserved() / 2**20,
    }
