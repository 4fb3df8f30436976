"""Exported models run in C++ as in Python, whole and in stages: outputs, every gradient, every buffer, bit for bit.

PIPEWRIGHT_MODEL_PEER names the program that runs them.
"""

import os
import subprocess

import pytest
import torch
from models import MODELS


WRITES_IN_PLACE = ["in_place", "written_on_the_way"]
# Cut anywhere, several stages use one parameter.
# Where both sides run what was exported on the CPU: there the same bits, elsewhere the same to rounding.
DEVICE = os.environ.get("PIPEWRIGHT_TEST_DEVICE", "cpu")
SHARES_PARAMETERS = ["repeated", "gpt_tied", "experts", "no_grad"]


@pytest.fixture(scope="module")
def peer():
    command = [os.environ["PIPEWRIGHT_MODEL_PEER"]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.stdin.close()
    process.wait(60)


def run_in_python(model, inputs):
    inputs = torch.utils._pytree.tree_map(lambda tensor: tensor.detach().to(DEVICE), inputs)
    model.to(DEVICE)
    torch.manual_seed(1)
    try:
        outputs = torch.utils._pytree.tree_leaves(model(*inputs))
    except RuntimeError as error:
        if DEVICE != "cpu" and "to be on the same device" in str(error):
            pytest.skip("Python's model makes tensors on the CPU")
        raise
    total = None
    for output in outputs:
        if output.requires_grad:
            weights = torch.linspace(0.5, 1.5, output.numel(), device=output.device)
            part = (output.float().reshape(-1) * weights).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()
    return outputs


def assert_same(ours, theirs, to_rounding=False):
    theirs = theirs.detach().cpu()
    if DEVICE == "cpu" and not to_rounding:
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    else:
        torch.testing.assert_close(ours, theirs)


def run_and_compare(name, cuts, peer, tmp_path):
    stages = cuts if isinstance(cuts, int) else 2
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs, dynamic = MODELS[name]()
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=dynamic or None), tmp_path / "model.pt2")
    torch.save(torch.utils._pytree.tree_leaves(inputs), tmp_path / "inputs.pt")
    peer.stdin.write(f"{cuts} {tmp_path}\n")
    peer.stdin.flush()
    answer = peer.stdout.readline()
    if isinstance(cuts, int) and name in WRITES_IN_PLACE and "share memory on both sides" in answer:
        return  # not every node can be cut at
    assert answer == "done\n", answer
    if name == "autocast" and DEVICE != "cpu":
        pytest.skip("Python's model has autocast for the CPU")
    expected = run_in_python(model, inputs)
    outputs = torch.load(tmp_path / "outputs.pt", weights_only=False)
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected, strict=True):
        assert_same(output.reshape(wanted.shape), wanted)  # numbers are merged into a list of them
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=False)
    wanted = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert wanted.keys() <= gradients.keys()
    for key, gradient in wanted.items():
        # Where stages share one, the sum is in another order.
        assert_same(gradients[key], gradient, to_rounding=stages > 1 and name in SHARES_PARAMETERS)
    buffers = torch.load(tmp_path / "buffers.pt", weights_only=False)
    wanted = dict(model.named_buffers())
    assert buffers.keys() == wanted.keys()
    for key, buffer in wanted.items():
        assert_same(buffers[key], buffer)


@pytest.mark.parametrize("name", MODELS)
def test_exported_model_runs_as_in_python(name, peer, tmp_path):
    run_and_compare(name, 0, peer, tmp_path)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_stages_run_as_in_python(name, stages, peer, tmp_path):
    """Cut at any node: what crosses is found by itself, numbers and shared parameters included."""
    run_and_compare(name, stages, peer, tmp_path)


@pytest.mark.parametrize(
    "name, cuts",
    [
        ("gpt", "blocks.1,blocks.2,head"),
        ("gpt_tied", "+tokens,+blocks.1"),
        ("encoder", "layers.1"),
        ("unet", "down2,up2,up1"),
        ("convolutions", "layers.4,layers.9"),
        ("repeated", "frozen"),
        ("marked", "marks"),
        ("written_on_the_way", "second,third,last"),
        ("written_on_the_way", "second,third,+third,last"),
    ],
)
def test_cuts_before_and_after_modules(name, cuts, peer, tmp_path):
    run_and_compare(name, cuts, peer, tmp_path)


def test_module_that_is_not_there_is_told(peer, tmp_path):
    with pytest.raises(AssertionError, match="no module 'blocks.7' that computes something; there are blocks.0"):
        run_and_compare("gpt", "blocks.7", peer, tmp_path)
