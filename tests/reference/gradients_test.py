"""Training steps of the runtime compared, live, with those of torch.distributed.pipelining.

The same weights and batches go to three: the reference's processes, the program
gradient_peer, whose ranks are threads, and the model in one piece. Losses by
microbatch and every gradient must agree, in the first step and after an update.

PIPEWRIGHT_PEER names gradient_peer.
"""

import functools
import os
import subprocess

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.nn import functional

import reference
from world import World

BLOCKS, WIDTH, WORDS, LENGTH = 12, 16, 29, 5
ROWS, MOST_MICROBATCHES, STEPS, LEARNING_RATE = 3, 16, 2, 0.5
TOLERANCE = 1e-5
TIMEOUT = 60

ONE_STAGE = ["GPipe", "1F1B"]
LOOPED = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"]
V_SHAPED = ["ZBVZeroBubble", "DualPipeV"]
BEYOND = ["ZB-H1", "ZB-H2", "V-Half", "V-Min"]


# ---- the model ---------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Piece(nn.Module):
    """What one stage of several computes; parameters are called as in the whole model."""

    def __init__(self, stage=0, stages=1):
        super().__init__()
        first, last = stage * BLOCKS // stages, (stage + 1) * BLOCKS // stages
        self.embedding = nn.Embedding(WORDS, WIDTH) if stage == 0 else None
        self.blocks = nn.ModuleDict({str(index): Block() for index in range(first, last)})
        self.norm = nn.LayerNorm(WIDTH) if stage == stages - 1 else None
        self.head = nn.Linear(WIDTH, WORDS) if stage == stages - 1 else None

    def forward(self, x):
        x = self.embedding(x) if self.embedding else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.head else x


def loss_of(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def with_weights(piece, data):
    names = piece.state_dict().keys()
    piece.load_state_dict({name: data[name] for name in names})
    return piece


def gradients(module):
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def update(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= LEARNING_RATE * parameter.grad
            parameter.grad = None


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The path of a dictionary of weights, and inputs and targets of every step."""
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("data") / "data.pt"
    weights = {name: value.detach().clone() for name, value in Piece().named_parameters()}
    words = torch.randint(WORDS, (2, STEPS, ROWS * MOST_MICROBATCHES, LENGTH))
    torch.save(weights | {"inputs": words[0], "targets": words[1]}, path)
    return path


# ---- the three that train ----------------------------------------------------------------------


@functools.cache
def train_whole(path, microbatches):
    """The losses of each step, and the gradients of the last, of the model in one piece."""
    data = torch.load(path)
    model = with_weights(Piece(), data)
    losses = []
    for step in range(STEPS):
        if step:
            update(model)
        inputs, targets = (data[name][step, : ROWS * microbatches] for name in ("inputs", "targets"))
        by_microbatch = zip(model(inputs).chunk(microbatches), targets.chunk(microbatches))
        losses.append(torch.stack([loss_of(*pair) for pair in by_microbatch]))
        losses[-1].mean().backward()
    return torch.stack(losses).detach(), gradients(model)


def train_rank(path, name, microbatches, stages_per_rank, plan):
    """One rank of the reference: its losses, where it has the last stage, and its gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data = torch.load(path)
    count = ranks * stages_per_rank
    mine = [rank, count - 1 - rank] if name in V_SHAPED else range(rank, count, ranks)
    pieces = {stage: with_weights(Piece(stage, count), data) for stage in mine}
    stages = [PipelineStage(pieces[stage], stage, count, torch.device("cpu")) for stage in mine]
    schedule = schedules.get_schedule_class(name)(
        stages[0] if name in ONE_STAGE else stages, microbatches, loss_fn=loss_of, scale_grads=True
    )
    if plan and rank == 0:
        schedule._dump_csv(plan, format="compute_comms")
    losses = []
    for step in range(STEPS):
        if step:
            for piece in pieces.values():
                update(piece)
        inputs, targets = (data[name][step, : ROWS * microbatches] for name in ("inputs", "targets"))
        step_losses = []
        target = targets if count - 1 in mine else None
        schedule.step(*([inputs] if 0 in mine else []), target=target, losses=step_losses)
        losses.append([loss.item() for loss in step_losses])
    found = {}
    for piece in pieces.values():
        found |= {name: gradient.numpy() for name, gradient in gradients(piece).items()}
    return losses, found


def train_reference(world, *arguments):
    results = world.call(train_rank, *arguments)
    (losses,) = [losses for losses, _ in results if losses[0]]
    found = {name: torch.from_numpy(value) for _, part in results for name, value in part.items()}
    return torch.tensor(losses), found


def train_peer(path, result, *schedule):
    peer = os.environ.get("PIPEWRIGHT_PEER")
    if not peer:
        pytest.fail("PIPEWRIGHT_PEER is not set: it must name the program gradient_peer")
    arguments = [peer, path, result, LEARNING_RATE, ROWS, *schedule]
    ended = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, f"{schedule}: {ended.stderr}"
    # Not weights alone: libtorch marks the type of a dictionary. The file is our own.
    found = torch.load(result, weights_only=False)
    return found.pop("losses"), found


# ---- what must agree ---------------------------------------------------------------------------


def assert_equal(found, expected):
    losses, found_gradients = found
    expected_losses, expected_gradients = expected
    torch.testing.assert_close(losses, expected_losses, rtol=TOLERANCE, atol=0)
    assert found_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        difference = found_gradients[name] - gradient
        assert difference.norm() <= TOLERANCE * gradient.norm(), name
        # Small elements may be sums of large terms that cancel.
        assert (difference.abs() <= TOLERANCE * (gradient.abs() + gradient.abs().max())).all(), name


@pytest.fixture(scope="module")
def world_of():
    """The world of so many ranks, started when first asked for and again after a failure."""
    worlds = {}

    def get(ranks):
        if ranks not in worlds or worlds[ranks].closed:
            worlds[ranks] = World(ranks, TIMEOUT)
        return worlds[ranks]

    yield get
    for world in worlds.values():
        world.close()


def sizes(name, ranks):
    """Microbatches and stages a rank, of those that the reference accepts."""
    stages = 1 if name in ONE_STAGE else 2
    found = [(count, stages) for count in sorted({2, ranks, 2 * ranks + 1, 4 * ranks})]
    found += [(2 * ranks, 3)] if name in LOOPED else []
    return [size for size in found if reference.build(name, ranks, *size)]


CASES = [
    (ranks, name, microbatches, stages_per_rank)
    for ranks in (2, 3, 4)
    for name in ONE_STAGE + LOOPED + V_SHAPED
    for microbatches, stages_per_rank in sizes(name, ranks)
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_step_equals_that_of_the_reference_and_of_the_whole_model(case, data, world_of, tmp_path):
    ranks, name, microbatches, stages_per_rank = case
    ours = train_peer(data, tmp_path / "ours.pt", name, ranks, microbatches, stages_per_rank)
    theirs = train_reference(world_of(ranks), data, name, microbatches, stages_per_rank, None)
    whole = train_whole(data, microbatches)
    assert_equal(theirs, whole)
    assert_equal(ours, whole)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", LOOPED + V_SHAPED)
def test_plan_of_the_reference_trains_here(name, ranks, data, world_of, tmp_path):
    microbatches, plan = 2 * ranks, tmp_path / "plan.csv"
    theirs = train_reference(world_of(ranks), data, name, microbatches, 2, str(plan))
    assert_equal(train_peer(data, tmp_path / "ours.pt", plan), theirs)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ONE_STAGE + LOOPED + V_SHAPED + BEYOND)
def test_any_schedule_of_any_size_equals_the_whole_model(name, ranks, data, tmp_path):
    for microbatches in (1, 2 * ranks + 1):
        ours = train_peer(data, tmp_path / "ours.pt", name, ranks, microbatches, 0)
        assert_equal(ours, train_whole(data, microbatches))
