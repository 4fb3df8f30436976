"""Exported models run in C++ as in Python: outputs, every gradient and every buffer, bit for bit.

PIPEWRIGHT_MODEL_PEER names the program that runs them.
"""

import os
import subprocess

import pytest
import torch
from models import MODELS


@pytest.fixture(scope="module")
def peer():
    command = [os.environ["PIPEWRIGHT_MODEL_PEER"]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.stdin.close()
    process.wait(60)


def run_in_python(model, inputs):
    torch.manual_seed(1)
    outputs = torch.utils._pytree.tree_leaves(model(*inputs))
    total = None
    for output in outputs:
        if output.requires_grad:
            part = (output.float().reshape(-1) * torch.linspace(0.5, 1.5, output.numel())).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()
    return outputs


@pytest.mark.parametrize("name", MODELS)
def test_exported_model_runs_as_in_python(name, peer, tmp_path):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs, dynamic = MODELS[name]()
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=dynamic or None), tmp_path / "model.pt2")
    torch.save(torch.utils._pytree.tree_leaves(inputs), tmp_path / "inputs.pt")
    peer.stdin.write(f"{tmp_path}\n")
    peer.stdin.flush()
    answer = peer.stdout.readline()
    assert answer == "done\n", answer
    expected = run_in_python(model, inputs)
    outputs = torch.load(tmp_path / "outputs.pt", weights_only=False)
    assert len(outputs) == len(expected)
    for output, wanted in zip(outputs, expected, strict=True):
        assert output.dtype == wanted.dtype and torch.equal(output, wanted.detach())
    gradients = torch.load(tmp_path / "gradients.pt", weights_only=False)
    wanted = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert wanted.keys() <= gradients.keys()
    for key, gradient in wanted.items():
        assert torch.equal(gradients[key], gradient), key
    buffers = torch.load(tmp_path / "buffers.pt", weights_only=False)
    for key, buffer in model.named_buffers():
        assert torch.equal(buffers[key], buffer), key
