"""Stages and whole models that C++ writes: Python loads, runs and trains them as it does the model.

PIPEWRIGHT_EXPORT_PEER names the program that writes them.
"""

import os
import subprocess

import pytest
import safetensors.torch
import torch
from models import MODELS
from torch.utils._pytree import tree_leaves

# Cut anywhere, several stages use one parameter: gradients are summed in another order.
SHARES_PARAMETERS = ["repeated", "gpt_tied", "experts", "no_grad"]
# What cannot be cut, or not be written, by stages, and why.
REFUSED = {
    ("in_place", 2): "'mul_' and 'slice_1' share memory on both sides of it, which is written to behind it",
    ("in_place", 3): "'clone' and 'select' share memory on both sides of it, which is written to behind it",
}


@pytest.fixture(scope="module")
def peer():
    command = [os.environ["PIPEWRIGHT_EXPORT_PEER"]]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return process.stdout.readline().rstrip("\n")

    yield ask
    process.stdin.close()
    process.wait(60)


def make(name, folder):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs, dynamic = MODELS[name]()
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=dynamic or None), folder / "model.pt2")
    return model, inputs, dynamic


def larger(inputs, dynamic):
    """One more in every dimension that is dynamic."""
    dims = dynamic[0] if isinstance(dynamic, tuple) else next(iter(dynamic.values()))
    (x,) = inputs
    for dim in dims:
        x = torch.cat([x, x.narrow(dim, 0, 1)], dim)
    return (x,)


def backward(outputs):
    total = None
    for output in tree_leaves(outputs):
        if isinstance(output, torch.Tensor) and output.requires_grad:
            part = (output.float().reshape(-1) * torch.linspace(0.5, 1.5, output.numel())).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()


def load_stages(folder):
    files = sorted(folder.glob("stage*.pt2"))
    return [torch.export.load(file).module() for file in files]


def run_chain(stages, inputs):
    values = stages[0](*inputs)
    for stage in stages[1:]:
        values = stage(*values) if isinstance(values, tuple) else stage(values)
    return values


def first_names(model):
    """Of all names of a tensor, the one that `named_parameters` gives."""
    by_tensor = {parameter: name for name, parameter in model.named_parameters()}
    return {name: by_tensor[p] for name, p in model.named_parameters(remove_duplicate=False)}


def parameters_of(stages, model):
    """Each of the model's parameters on each stage: those that share memory there, of which one is used."""
    names = first_names(model)
    copies = {}
    for stage in stages:
        here = {}
        for name, parameter in stage.named_parameters():
            here.setdefault((names[name], parameter.data_ptr()), []).append(parameter)
        for (name, _), together in here.items():
            copies.setdefault(name, []).append(together)
    return copies


def compare_step(stages, model, inputs, same, same_outputs):
    """Outputs, gradients, buffers, and parameters after a step of SGD."""
    torch.manual_seed(1)
    expected = model(*inputs)
    backward(expected)
    torch.manual_seed(1)
    outputs = run_chain(stages, inputs)
    backward(outputs)
    assert torch.utils._pytree.tree_structure(outputs) == torch.utils._pytree.tree_structure(expected)
    for output, wanted in zip(tree_leaves(outputs), tree_leaves(expected), strict=True):
        same_outputs(output, wanted)
        assert output.requires_grad == wanted.requires_grad
    copies = parameters_of(stages, model)
    for name, parameter in model.named_parameters():
        tensors = [each for together in copies.get(name, []) for each in together]
        gradients = [each.grad for each in tensors if each.grad is not None]
        assert all(each.requires_grad == parameter.requires_grad for each in tensors)
        if parameter.grad is None:
            assert not gradients, name
            continue
        total = sum(gradients[1:], gradients[0])
        same(total, parameter.grad)
        for together in copies[name]:
            for each in together:
                each.grad = None
            together[0].grad = total
    buffers = {}
    for stage in stages:
        buffers.update(stage.named_buffers())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffers[name], buffer), name
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for stage in stages:
        if list(stage.parameters()):
            torch.optim.SGD(stage.parameters(), lr=0.1).step()
    for name, parameter in model.named_parameters():
        for together in copies.get(name, []):
            for each in together:
                same(each, parameter)
    model.zero_grad()
    for stage in stages:
        stage.zero_grad()


def equal(a, b):
    assert a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_python_trains_the_stages(name, stages, peer, tmp_path):
    model, inputs, dynamic = make(name, tmp_path)
    answer = peer(f"export {stages} {tmp_path}")
    if (name, stages) in REFUSED:
        assert REFUSED[name, stages] in answer
        return
    assert answer == "done"
    loaded = load_stages(tmp_path)
    assert len(loaded) == stages or stages > 1
    same = torch.testing.assert_close if stages > 1 and name in SHARES_PARAMETERS else equal
    compare_step(loaded, model, inputs, same, equal)
    compare_step(loaded, model, inputs, same, same)
    if dynamic:
        compare_step(loaded, model, larger(inputs, dynamic), same, same)
