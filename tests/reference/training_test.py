"""The program's plans carried out by the runtime of torch.distributed.pipelining.

Two processes train a small model for one step; loss and gradients must be those
of the model in one piece. PIPEWRIGHT_BIN names the program.
"""

import multiprocessing
import subprocess
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

RANKS = 2
MICROBATCHES = 6
WIDTH = 8
TIMEOUT = 60

PLANS = [
    "ZBVZeroBubble",
    "ZBVZeroBubble --defer-recv",
    "Interleaved1F1B",
    "InterleavedZeroBubble",
    "DualPipeV",
    "V-Half",
    "ZB-H2",
]
ONE_STAGE_A_RANK = {"ZB-H2"}
V_SHAPED = {"ZBVZeroBubble", "DualPipeV", "V-Half"}


def stages_of(name, rank):
    if name in ONE_STAGE_A_RANK:
        return [rank]
    return [rank, 2 * RANKS - 1 - rank] if name in V_SHAPED else [rank, rank + RANKS]


def make_model(stages):
    torch.manual_seed(1)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        for _ in range(stages)
    ]
    return torch.nn.Sequential(*layers).double()


def make_batch():
    generator = torch.Generator().manual_seed(2)
    shape = (4 * MICROBATCHES, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]


def gradients(model, stages):
    return {
        f"{stage}.{name}": parameter.grad.tolist()
        for stage in stages
        for name, parameter in model[stage].named_parameters()
    }


def train(rank, port, name, plan, results):
    """One rank: puts its losses, where it has the last stage, and its gradients into `results`."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=limit)
    mine = stages_of(name, rank)
    count = RANKS * len(mine)
    model = make_model(count)
    stages = [PipelineStage(model[stage], stage, count, torch.device("cpu")) for stage in mine]
    runtime = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    runtime._load_csv(plan, format="compute_comms")
    inputs, targets = make_batch()
    losses = []
    arguments = (inputs,) if 0 in mine else ()
    runtime.step(*arguments, target=targets if count - 1 in mine else None, losses=losses)
    results.put(([loss.item() for loss in losses], gradients(model, mine)))
    dist.barrier()
    dist.destroy_process_group()


def collect(workers, results):
    """One result of each worker; ends as soon as one of them has failed."""
    deadline = time.monotonic() + TIMEOUT
    collected = []
    while len(collected) < RANKS:
        if not results.empty():
            collected.append(results.get())
            continue
        assert not any(worker.exitcode for worker in workers), "a rank failed: see its output"
        assert time.monotonic() < deadline, "the plan did not end in time"
        time.sleep(0.01)
    return collected


def run_ranks(name, plan):
    """Losses of the microbatches, and all gradients, of one step by two processes."""
    # Workers start from a process that has loaded torch but started none of its threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.pipelining.schedules"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = context.Queue()
    workers = [
        context.Process(target=train, args=(rank, store.port, name, plan, results), daemon=True)
        for rank in range(RANKS)
    ]
    for worker in workers:
        worker.start()
    try:
        collected = collect(workers, results)
        for worker in workers:
            worker.join(TIMEOUT)
            assert worker.exitcode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    losses = [loss for rank_losses, _ in collected for loss in rank_losses]
    return losses, {name: grad for _, rank_gradients in collected for name, grad in rank_gradients.items()}


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize("arguments", PLANS)
def test_training_step_equals_that_of_the_whole_model(arguments, program, tmp_path):
    name, *options = arguments.split()
    plan = str(tmp_path / "plan.csv")
    sizes = ["--ranks", str(RANKS), "--microbatches", str(MICROBATCHES)]
    subprocess.run(
        [program, "generate", name, *sizes, "--lowered", *options, "-o", plan], check=True, timeout=TIMEOUT
    )
    losses, found = run_ranks(name, plan)

    count = RANKS * len(stages_of(name, 0))
    model = make_model(count)
    inputs, targets = make_batch()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    expected = gradients(model, range(count))

    # Microbatches are of equal size and REDUCE_GRAD divides by their number: both are means.
    assert len(losses) == MICROBATCHES
    assert sum(losses) / MICROBATCHES == pytest.approx(loss.item(), rel=1e-5)
    assert found.keys() == expected.keys()
    for parameter in expected:
        torch.testing.assert_close(
            torch.tensor(found[parameter], dtype=torch.float64),
            torch.tensor(expected[parameter], dtype=torch.float64),
            rtol=1e-5,
            atol=1e-12,
            msg=lambda text, parameter=parameter: f"{parameter}: {text}",
        )
