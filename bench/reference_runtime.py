"""What each rank of torch.distributed.pipelining runs for compare_runtime.py and compare_device.py."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

import gpt

V_SHAPED = {"ZBVZeroBubble", "DualPipeV"}


class Pipeline(NamedTuple):
    """This rank's part: a schedule object, its modules, and what a step takes."""

    schedule: Any
    modules: nn.ModuleList
    inputs: tuple
    target: Any


def peak_mebibytes() -> float:
    """The most memory this process has had resident."""
    with open("/proc/self/status") as status:
        return next(float(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def make_pipeline(
    name: str,
    microbatches: int,
    stages_per_rank: int,
    build: Callable[[int, int], nn.Module],
    loss: Callable,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> Pipeline:
    """A pipeline over all ranks, where the batch is; `build(stage, stages)` makes a stage's module."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * stages_per_rank
    mine = [rank, count - 1 - rank] if name in V_SHAPED else list(range(rank, count, ranks))
    modules = nn.ModuleList(build(stage, count) for stage in mine)
    stages = [PipelineStage(each, stage, count, batch[0].device) for each, stage in zip(modules, mine)]
    schedule_class = schedules.get_schedule_class(name)
    one_stage = issubclass(schedule_class, schedules.PipelineScheduleSingle)
    schedule = schedule_class(stages[0] if one_stage else stages, microbatches, loss_fn=loss)
    inputs = (batch[0],) if 0 in mine else ()
    return Pipeline(schedule, modules, inputs, batch[1] if count - 1 in mine else None)


def run_steps(pipeline: Pipeline, run: Callable[[Pipeline], Any], steps: int) -> list[tuple[float, float]]:
    """Start and end of each step on this rank; the ranks start together."""
    times = []
    for _ in range(steps):
        pipeline.modules.zero_grad()
        dist.barrier()
        start = time.monotonic()
        run(pipeline)
        times.append((start, time.monotonic()))
    return times


def train_step(pipeline: Pipeline) -> None:
    pipeline.schedule.step(*pipeline.inputs, target=pipeline.target, losses=[])


def forward_step(pipeline: Pipeline) -> None:
    with torch.no_grad():
        pipeline.schedule.eval(*pipeline.inputs)


@functools.cache
def tiny_pipeline(name: str, stages: int, microbatches: int, rows: int, width: int) -> Pipeline:
    def build(_stage, _stages):
        return nn.Sequential(nn.Linear(width, width), nn.ReLU())

    batch = (torch.randn(rows * microbatches, width), torch.randn(rows * microbatches, width))
    return make_pipeline(name, microbatches, stages, build, nn.functional.mse_loss, batch)


@functools.cache
def gpt_pipeline(name: str, width: int, microbatches: int, rows: int) -> Pipeline:
    config = gpt.Config(width=width)

    def build(stage, stages):
        return gpt.Piece(config, stage, stages)

    one_stage = issubclass(schedules.get_schedule_class(name), schedules.PipelineScheduleSingle)
    words = torch.randint(config.vocab, (2, rows * microbatches, config.context))
    stages_per_rank = 1 if one_stage else 2
    return make_pipeline(
        name, microbatches, stages_per_rank, build, gpt.next_character_loss, (words[0], words[1])
    )


@functools.cache
def handover_pipeline(size: int, stages: int) -> Pipeline:
    def build(_stage, _stages):
        return nn.Identity()

    message = torch.ones(1, size // torch.float.itemsize)
    return make_pipeline("LoopedBFS", 1, stages // dist.get_world_size(), build, None, (message, None))


def tiny(case: tuple, steps: int) -> list[tuple[float, float]]:
    return run_steps(tiny_pipeline(*case), train_step, steps)


def train(case: tuple, steps: int) -> list[tuple[float, float]]:
    return run_steps(gpt_pipeline(*case), train_step, steps)


def handover(case: tuple, steps: int) -> list[tuple[float, float]]:
    return run_steps(handover_pipeline(*case), forward_step, steps)


def train_peak(case: tuple, steps: int) -> float:
    train(case, steps)
    return peak_mebibytes()


def idle_peak() -> float:
    """After tensors, autograd and the other ranks have been used, and nothing else."""
    weight = torch.ones(8, 8, requires_grad=True)
    (weight @ weight).sum().backward()
    dist.all_reduce(weight.grad)
    return peak_mebibytes()
