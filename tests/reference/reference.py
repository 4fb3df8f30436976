"""The schedules of torch.distributed.pipelining, built without processes or models."""

import types
from typing import NamedTuple

from torch.distributed.pipelining import schedules


class Orders(NamedTuple):
    """By rank, a list of actions; None is a bubble. `lowered` is None for the one-stage schedules."""

    compute: dict
    lowered: dict | None


def build(name, ranks, microbatches, stages_per_rank=1, **options):
    """The orders of the schedule called `name`, or None where the reference refuses these sizes."""
    stage = types.SimpleNamespace(
        group_rank=0,
        group_size=ranks,
        submod=None,
        num_stages=ranks * stages_per_rank,
        is_first=True,
        has_backward=True,
    )
    schedule_class = schedules.get_schedule_class(name)
    one_stage = issubclass(schedule_class, schedules.PipelineScheduleSingle)
    try:
        schedule = schedule_class(stage if one_stage else [stage] * stages_per_rank, microbatches, **options)
    except ValueError:
        return None
    return Orders(schedule.pipeline_order, None if one_stage else schedule.pipeline_order_with_comms)


def cells(order):
    """An order as rows of text, rank by rank; a bubble is empty."""
    return [["" if action is None else str(action) for action in order[rank]] for rank in sorted(order)]


def actions(rows):
    """The reverse of `cells`."""
    return {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}
