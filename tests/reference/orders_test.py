"""Schedules and plans compared, live, with those of torch.distributed.pipelining.

PIPEWRIGHT_BIN names the program.
"""

import csv
import io
import itertools
import json
import multiprocessing
import os
import subprocess
from collections import Counter

import pytest
from torch.distributed.pipelining.schedules import _format_pipeline_order, _validate_schedule

import reference

MULTI_STAGE = ["Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
V_SHAPED = {"ZBVZeroBubble", "DualPipeV"}
MAX_RANKS, MAX_MICROBATCHES, MAX_STAGES_PER_RANK = 12, 32, 4
TIMEOUT = 60


def accepted(name, ranks, microbatches):
    """The reference's own condition on the number of microbatches."""
    if name in ("Interleaved1F1B", "InterleavedZeroBubble"):
        return microbatches % max(1, microbatches // ranks) == 0
    return microbatches >= {"DualPipeV": 2 * ranks, "1F1B": ranks}.get(name, 1)


def next_accepted(name, ranks, microbatches):
    return next(count for count in itertools.count(microbatches + 1) if accepted(name, ranks, count))


# ---- calling the program -----------------------------------------------------------------------


def program():
    path = os.environ.get("PIPEWRIGHT_BIN")
    if not path:
        pytest.fail("PIPEWRIGHT_BIN is not set: it must name the pipewright program")
    return path


def call(*arguments, stdin=""):
    return subprocess.run(
        [program(), *map(str, arguments)], input=stdin.encode(), capture_output=True, timeout=TIMEOUT
    )


def output(*arguments):
    result = call(*arguments)
    assert result.returncode == 0, f"{' '.join(map(str, arguments))}: {result.stderr.decode()}"
    return result.stdout.decode()


def source(name, ranks, microbatches, stages_per_rank=None):
    sizes = ["--ranks", ranks, "--microbatches", microbatches]
    return [name, *sizes, *(["--stages-per-rank", stages_per_rank] if stages_per_rank else [])]


def parse(text):
    return list(csv.reader(io.StringIO(text)))


def crlf_csv(rows):
    """The rows as the reference's `_dump_csv` writes them."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def names():
    return [line.split()[0] for line in output("list").splitlines()[1:]]


@pytest.fixture(scope="module")
def workers():
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        yield pool


@pytest.fixture(scope="module")
def tally(request):
    """Counts by subject, printed at the end whatever is captured."""
    counts = Counter()
    yield counts
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *(f"{subject}: {count}" for subject, count in counts.items()), sep="\n")


# ---- cell for cell -----------------------------------------------------------------------------


def with_reshards_sorted(row):
    """The reference frees stages in the order of a set: neighbouring RESHARDs have no order."""
    result = []
    for is_reshard, run in itertools.groupby(row, key=lambda cell: cell.endswith("RESHARD")):
        result.extend(sorted(run) if is_reshard else run)
    return result


def first_difference(ours, theirs):
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, not {len(theirs)}"
    for rank, (our_row, their_row) in enumerate(zip(ours, theirs)):
        for step, (our_cell, their_cell) in enumerate(itertools.zip_longest(our_row, their_row)):
            if our_cell != their_cell:
                return f"rank {rank} step {step}: {our_cell!r}, not {their_cell!r}"
    return None


def difference(case):
    """Whether the reference accepts the case and, if so, where the program's orders first differ."""
    orders = reference.build(*case)
    if orders is None:
        return False, None
    compute = first_difference(parse(output("generate", *source(*case))), reference.cells(orders.compute))
    if compute:
        return True, f"{case} computes {compute}"
    ours = map(with_reshards_sorted, parse(output("generate", *source(*case), "--lowered")))
    theirs = map(with_reshards_sorted, reference.cells(orders.lowered))
    lowered = first_difference(list(ours), list(theirs))
    return True, f"{case} lowered {lowered}" if lowered else None


@pytest.mark.parametrize("ranks", range(1, MAX_RANKS + 1))
@pytest.mark.parametrize("name", MULTI_STAGE)
def test_orders_are_identical_wherever_the_reference_accepts(name, ranks, workers, tally):
    stages = [2] if name in V_SHAPED else range(1, MAX_STAGES_PER_RANK + 1)
    microbatches = range(1, MAX_MICROBATCHES + 1)
    cases = [(name, ranks, count, v) for count in microbatches for v in stages]
    found = workers.map(difference, cases, chunksize=4)
    assert [text for _, text in found if text] == []
    compared = sum(is_accepted for is_accepted, _ in found)
    assert compared == len(stages) * sum(accepted(name, ranks, count) for count in microbatches) > 0
    tally[f"{name}: cases compared cell for cell"] += compared


# ---- beyond what the reference accepts ---------------------------------------------------------


def makespan(*case):
    return json.loads(output("simulate", *source(*case), "--json"))["makespan"]


def fault_beyond(case):
    """What is wrong with our schedule for sizes that the reference refuses."""
    name, ranks, microbatches, stages_per_rank = case
    if reference.build(*case) is not None:
        return f"{case}: the reference accepts it"
    result = call("validate", "-", stdin=output("generate", *source(*case)))
    if (result.returncode, result.stdout) != (0, b"valid\n"):
        return f"{case}: {result.stdout.decode()}"
    larger = next_accepted(name, ranks, microbatches)
    ours, limit = makespan(*case), makespan(name, ranks, larger, stages_per_rank)
    return f"{case}: {ours} is longer than {limit} of {larger} microbatches" if ours > limit else None


@pytest.mark.parametrize("ranks", range(2, 10))
@pytest.mark.parametrize("name", ["1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV"])
def test_refused_sizes_are_valid_and_no_slower_than_the_next_accepted(name, ranks, workers, tally):
    stages = {"1F1B": [1], "DualPipeV": [2]}.get(name, [1, 2, 3])
    counts = [count for count in range(1, 25) if not accepted(name, ranks, count)]
    cases = [(name, ranks, count, v) for count in counts for v in stages]
    assert cases
    assert [text for text in workers.map(fault_beyond, cases, chunksize=4) if text] == []
    tally[f"{name}: cases beyond the reference"] += len(cases)


# ---- the one-stage schedules -------------------------------------------------------------------


def expected_1f1b(rank, ranks, microbatches):
    warm_up = min(ranks - 1 - rank, microbatches)
    order = [f"{rank}F{index}" for index in range(warm_up)]
    for index in range(microbatches - warm_up):
        order += [f"{rank}F{warm_up + index}", f"{rank}B{index}"]
    return order + [f"{rank}B{index}" for index in range(microbatches - warm_up, microbatches)]


def expected_gpipe(rank, _ranks, microbatches):
    return [f"{rank}{kind}{index}" for kind in "FB" for index in range(microbatches)]


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize(("name", "expected"), [("GPipe", expected_gpipe), ("1F1B", expected_1f1b)])
def test_one_stage_schedules(name, expected, ranks):
    for microbatches in range(1, 17):
        rows = parse(output("generate", *source(name, ranks, microbatches)))
        _validate_schedule(reference.actions(rows), ranks, ranks, microbatches)
        computed = [[cell for cell in row if cell] for row in rows]
        assert computed == [expected(rank, ranks, microbatches) for rank in range(ranks)], microbatches


@pytest.mark.parametrize("ranks", range(1, 9))
def test_last_rank_of_1f1b_runs_every_microbatch_once(ranks):
    for microbatches in range(1, 17):
        last = parse(output("generate", *source("1F1B", ranks, microbatches)))[-1]
        forwards = [cell for cell in last if "F" in cell]
        assert forwards == [f"{ranks - 1}F{index}" for index in range(microbatches)]


# ---- the text format ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--defer-recv"], ["--merge-backward"]], ids=" ".join)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_plans_are_read_and_validated_by_the_reference(ranks, options):
    assert len(names()) == 12
    for name, microbatches in itertools.product(names(), [1, 4, 9]):
        case = source(name, ranks, microbatches)
        rows = parse(output("generate", *case, "--lowered", *options))
        actions = reference.actions(rows)
        assert reference.cells(actions) == rows, case
        if name == "ForwardOnly":
            continue
        stages = 1 + max(action.stage_index for row in actions.values() for action in row)
        placement = _validate_schedule(actions, ranks, stages, microbatches)
        assert sorted(placement) == list(range(stages)), case


@pytest.mark.parametrize("size", [(2, 2), (3, 6), (4, 8), (6, 12), (11, 22)], ids=str)
@pytest.mark.parametrize("name", MULTI_STAGE)
def test_grid_is_printed_as_the_reference_prints_it(name, size):
    ranks, microbatches = size
    microbatches = max(microbatches, 2 * ranks)
    order = reference.build(name, ranks, microbatches, 2).compute
    # The reference cuts columns off where there are fewer steps than ranks.
    assert max(map(len, order.values())) >= ranks
    shown = output("show", *source(name, ranks, microbatches, 2), "--format", "grid")
    assert shown == _format_pipeline_order(order)


# ---- the proof on the reference's plans --------------------------------------------------------

PROVED_SIZES = [(1, 2), (2, 4), (2, 8), (3, 6), (4, 8), (4, 16), (6, 12), (8, 16)]


def verdict(rows):
    result = call("validate", "-", "--lowered", stdin=crlf_csv(rows))
    assert result.returncode in (0, 1), result.stderr.decode()
    return result.stdout.decode()


@pytest.mark.parametrize("size", PROVED_SIZES, ids=str)
@pytest.mark.parametrize("name", MULTI_STAGE)
def test_plans_of_the_reference_are_proved(name, size):
    orders = reference.build(name, *size, 2)
    assert verdict(reference.cells(orders.lowered)) == "valid\n"


@pytest.mark.parametrize("size", PROVED_SIZES, ids=str)
@pytest.mark.parametrize("name", MULTI_STAGE)
def test_deferred_receives_are_proved(name, size, tally):
    ours = parse(output("generate", *source(name, *size, 2), "--lowered", "--defer-recv"))
    assert verdict(ours) == "valid\n"
    theirs = verdict(reference.cells(reference.build(name, *size, 2, defer_pp_recv=True).lowered))
    # What is known to be wrong with some of them; anything else would be a fault of the rules.
    rules = {line.split()[0] for line in theirs.splitlines()}
    assert rules in ({"valid"}, {"[deadlock]"}, {"[messages]"}), theirs
    tally["plans with deferred receives: ours, all proved"] += 1
    tally[f"plans with deferred receives: the reference's, {rules.pop()}"] += 1
