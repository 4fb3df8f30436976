"""`pipewright split`, `train` and `run` on exported models, as users call them. PIPEWRIGHT_BIN names the program."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.export import Dim

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "frontend"))
from models import GPT, UNet, mlp  # noqa: E402

TIMEOUT = 120
VOCAB = 23
ROWS = 16
SCHEDULES = [
    "GPipe -p 2",
    "1F1B -p 3",
    "1F1B -p 4",
    "Interleaved1F1B -p 2 -v 2",
    "LoopedBFS -p 2 -v 2",
    "InterleavedZeroBubble -p 2 -v 2",
    "ZBVZeroBubble -p 2",
    "DualPipeV -p 2",
    "ZB-H1 -p 3",
    "ZB-H2 -p 2",
    "V-Half -p 2",
    "V-Min -p 2",
]


@pytest.fixture(scope="module")
def call(program):
    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT)

    return run


@pytest.fixture(scope="module")
def fine(call):
    """Standard output of a call that must succeed."""

    def run(*arguments):
        result = call(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def export(model, inputs, path, dynamic=None):
    torch.export.save(torch.export.export(model, inputs, dynamic_shapes=dynamic), path)


def gpt(tied=False):
    torch.manual_seed(0)
    return GPT(layers=4, tied=tied)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """gpt.pt2 and tied.pt2 with data.pt: characters that follow from those before."""
    path = tmp_path_factory.mktemp("models")
    ids = torch.randint(0, VOCAB, (ROWS, 10), generator=torch.Generator().manual_seed(1))
    for name, tied in (("gpt", False), ("tied", True)):
        export(gpt(tied), (ids[:4],), path / f"{name}.pt2", ({0: Dim("rows", min=2, max=64)},))
    torch.save({"ids": ids, "target": (3 * ids + 1) % VOCAB}, path / "data.pt")
    return path


def trained_in_python(model, data, loss, steps, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model, data)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def next_loss(model, data):
    return F.cross_entropy(model(data["ids"]).flatten(0, 1), data["target"].flatten())


def losses_of(text):
    return [json.loads(line)["loss"] for line in text.splitlines()]


# ---- split -------------------------------------------------------------------------------------


def test_stages_are_balanced_and_have_all(folder, fine):
    whole = json.loads(fine("split", folder / "gpt.pt2", "--stages", 1, "--json"))["stages"][0]
    assert whole["parameters"] == sum(p.numel() for p in gpt().parameters())
    assert whole["modules"] == ["tokens", "positions", "blocks.0–3", "norm", "head"]
    for stages in (2, 3, 4, 6):
        split = json.loads(fine("split", folder / "gpt.pt2", "--stages", stages, "--json"))["stages"]
        assert len(split) == stages
        for field in ("nodes", "parameters", "parameter_bytes"):
            assert sum(stage[field] for stage in split) == whole[field]
        assert sum(stage["cost"] for stage in split) == pytest.approx(1)
        assert max(stage["cost"] for stage in split) < 1.35 / stages


@pytest.mark.parametrize("costs", ["estimated", "measured", "parameters"])
def test_costs(costs, folder, fine):
    split = json.loads(fine("split", folder / "gpt.pt2", "--stages", 3, "--costs", costs, "--json"))["stages"]
    assert max(stage["cost"] for stage in split) < 0.6
    if costs == "parameters":
        total = sum(stage["parameters"] for stage in split)
        assert [stage["cost"] for stage in split] == pytest.approx([s["parameters"] / total for s in split])


def test_table_for_people(folder, fine):
    text = fine("split", folder / "gpt.pt2", "--at", "blocks.1", "--after", "blocks.2")
    assert re.search(r"^ +0 .*  tokens, positions, blocks.0$", text, re.M)
    assert re.search(r"^ +1 .*  blocks.1–2$", text, re.M)
    assert re.search(r"^ +2 .*  blocks.3, norm, head$", text, re.M)
    assert re.search(r"^stage 2 takes$", text, re.M)
    assert re.search(r"^ +\w+  Float\[4, 10, 16\]  from stage 1$", text, re.M)
    assert "tokens.weight head.weight" not in text
    assert "head.weight" in fine("split", folder / "tied.pt2", "--stages", 2)


def test_lists_of_modules(folder, fine, call):
    lists = ["--modules", "tokens,positions,blocks.0", "--modules", "blocks.1,blocks.2,blocks.3,norm,head"]
    split = json.loads(fine("split", folder / "gpt.pt2", *lists, "--json"))["stages"]
    assert [stage["modules"] for stage in split] == [
        ["tokens", "positions", "blocks.0"],
        ["blocks.1–3", "norm", "head"],
    ]
    wrong = call("split", folder / "gpt.pt2", "--modules", "tokens,blocks.2", "--modules", "blocks.1,head")
    assert wrong.returncode == 2
    assert "'blocks.2' cannot be on stage 0: a part of it runs after stage 1 has begun" in wrong.stderr


def test_marks(fine, tmp_path):
    from torch.distributed.pipelining import pipe_split

    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = torch.relu(self.first(x))
            pipe_split()
            return self.second(x)

    export(Marked(), (torch.zeros(2, 4),), tmp_path / "model.pt2")
    split = json.loads(fine("split", tmp_path / "model.pt2", "--at-marks", "--json"))["stages"]
    assert [stage["modules"] for stage in split] == [["first"], ["second"]]


def test_what_a_stage_computes(folder, fine):
    text = fine("split", folder / "gpt.pt2", "--stages", 2, "--graphs")
    assert text.count("## stage ") == 2 and "# blocks.0.norm1" in text
    assert "aten::scaled_dot_product_attention" in text


@pytest.mark.parametrize("name, shared", [("gpt", "replicate"), ("tied", "replicate"), ("tied", "transmit")])
def test_stage_files_load_in_python(name, shared, folder, fine, tmp_path):
    fine("split", folder / f"{name}.pt2", "--stages", 3, "--shared", shared, "-o", tmp_path / "stages")
    folder_of = tmp_path / "stages"
    files = [f"stage_{n}.pt2" for n in range(3)]
    assert sorted(path.name for path in folder_of.iterdir()) == [*files, "stages.json"]
    stages = [torch.export.load(folder_of / file).module() for file in files]
    names = {each for stage in stages for each, _ in stage.named_parameters()}
    assert names >= {each for each, _ in gpt(name == "tied").named_parameters()}

    # One after the other, as stages.json says.
    ids = torch.load(folder / "data.pt")["ids"]
    given = []
    for stage, told in zip(stages, json.loads((folder_of / "stages.json").read_text())["stages"]):
        sources = [each["from"] for each in told["inputs"] if "from" in each]
        outputs = stage(*(given[each["stage"]][each["output"]] for each in sources)) if given else stage(ids)
        given.append(outputs if isinstance(outputs, tuple) else (outputs,))
    torch.testing.assert_close(given[-1][0], gpt(name == "tied")(ids))


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--at", "blocks.9"], "no module 'blocks.9' that computes something; there are"),
        (["--stages", 5000], "cannot be cut into 5000 stages"),
        (["--stages", -1], "--stages must be at least 1"),
        (["--stages", 3, "--at", "blocks.1"], "the model is cut into 2"),
        (["--at", "blocks.1", "--at", "blocks.1"], "leaves a stage without nodes"),
    ],
)
def test_wrong_splits_are_told(arguments, word, folder, call):
    result = call("split", folder / "gpt.pt2", *arguments)
    assert result.returncode == 2 and word in result.stderr


def test_no_such_file(call, tmp_path):
    result = call("split", tmp_path / "none.pt2", "--stages", 2)
    assert result.returncode == 1 and "none.pt2" in result.stderr and result.stdout == ""


# ---- train -------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["gpt", "tied"])
def test_losses_are_those_of_python(name, schedule, folder, fine):
    """A step takes all rows, so that their order does not matter."""
    data = torch.load(folder / "data.pt")
    expected = trained_in_python(gpt(name == "tied"), data, next_loss, 4, 0.3)
    text = fine(
        *["train", folder / f"{name}.pt2", "--data", folder / "data.pt", "--steps", 4, "--json"],
        *["--schedule", *schedule.split(), "-m", 4, "--optimizer", "sgd", "--lr", 0.3],
    )
    assert losses_of(text) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("schedule", ["1F1B -p 4", "Interleaved1F1B -p 2 -v 2", "ZB-H1 -p 3", "ZBVZeroBubble -p 2"])
def test_parameters_can_be_sent_along(schedule, folder, fine, tmp_path):
    model = gpt(True)
    expected = trained_in_python(model, torch.load(folder / "data.pt"), next_loss, 4, 0.3)
    text = fine(
        *["train", folder / "tied.pt2", "--data", folder / "data.pt", "--steps", 4, "--json", "--shared", "transmit"],
        *["--schedule", *schedule.split(), "-m", 4, "--optimizer", "sgd", "--lr", 0.3, "--save", tmp_path / "state.pt"],
    )
    assert losses_of(text) == pytest.approx(expected, rel=1e-4)
    for key, tensor in torch.load(tmp_path / "state.pt").items():
        torch.testing.assert_close(tensor, model.state_dict()[key], rtol=1e-4, atol=1e-5)
    split = json.loads(fine("split", folder / "tied.pt2", "--stages", 4, "--shared", "transmit", "--json"))
    assert split["tied"] == []
    assert sum(stage["parameters"] for stage in split["stages"]) == sum(p.numel() for p in model.parameters())
    sent = [each for stage in split["stages"] for each in stage["inputs"] if each.get("sizes") == [VOCAB, 16]]
    assert len(sent) == 1


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("name", ["gpt", "tied"])
def test_saved_parameters_are_those_of_python(name, suffix, folder, fine, tmp_path):
    model = gpt(name == "tied")
    trained_in_python(model, torch.load(folder / "data.pt"), next_loss, 3, 0.3)
    saved = tmp_path / f"state.{suffix}"
    fine(
        *["train", folder / f"{name}.pt2", "--data", folder / "data.pt", "--steps", 3, "--schedule", "1F1B"],
        *["-p", 3, "-m", 4, "--optimizer", "sgd", "--lr", 0.3, "--save", saved],
    )
    state = torch.load(saved, weights_only=True) if suffix == "pt" else load_file(saved)
    assert state.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-4, atol=1e-5)

    outputs = tmp_path / "outputs.pt"
    fine("run", folder / f"{name}.pt2", "--weights", saved, "--inputs", folder / "data.pt", "--outputs", outputs, "-p", 2)
    model.load_state_dict(state)
    torch.testing.assert_close(torch.load(outputs)["0"], model(torch.load(folder / "data.pt")["ids"]).detach())


def test_trained_model_as_an_exported_one(folder, fine, tmp_path):
    model = gpt()
    data = torch.load(folder / "data.pt")
    trained_in_python(model, data, next_loss, 3, 0.3)
    fine(
        *["train", folder / "gpt.pt2", "--data", folder / "data.pt", "--steps", 3, "--schedule", "1F1B"],
        *["-p", 3, "-m", 4, "--optimizer", "sgd", "--lr", 0.3, "--save", tmp_path / "trained.pt2"],
    )
    again = torch.export.load(tmp_path / "trained.pt2").module()
    torch.testing.assert_close(again(data["ids"]), model(data["ids"]), rtol=1e-4, atol=1e-4)


def test_processes_train_alike_and_save_one_file(folder, fine, program, tmp_path):
    common = [folder / "tied.pt2", "--data", folder / "data.pt", "--steps", 3, "--schedule", "1F1B", "-p", 2, "-m", 2]
    alone = fine("train", *common, "--json", "--save", tmp_path / "alone.pt")
    together = fine("launch", "-n", 2, "--", program, "train", *common, "--json", "--save", tmp_path / "together.pt")
    assert losses_of(together) == pytest.approx(losses_of(alone))
    first, second = (torch.load(tmp_path / name) for name in ("alone.pt", "together.pt"))
    assert first.keys() == second.keys()
    for key in first:
        torch.testing.assert_close(first[key], second[key])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.pt", "together.pt"]


@pytest.mark.parametrize("first, second", [(1, 3), (3, 1), (4, 2), (2, 4)])
def test_goes_on_under_another_split(first, second, folder, fine, tmp_path):
    """Parameters that stages share have other names in each split; their optimizer's memory, too."""
    common = [folder / "tied.pt2", "--data", folder / "data.pt", "--schedule", "1F1B", "-m", 4, "--json"]
    alone = losses_of(fine("train", *common, "-p", 1, "--steps", 6))
    saved = ["--checkpoint", tmp_path / "saved"]
    before = losses_of(fine("train", *common, "-p", first, "--steps", 3, *saved))
    after = losses_of(fine("train", *common, "-p", second, "--steps", 6, *saved, "--resume"))
    assert before + after == pytest.approx(alone, rel=1e-4)


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp(6, 12, 3)

    def forward(self, x, wanted):
        out = self.layers(x)
        return {"guess": out, "loss": F.mse_loss(out, wanted)}


def test_model_with_a_loss_of_its_own(fine, tmp_path):
    torch.manual_seed(0)
    model, x, wanted = OwnLoss(), torch.randn(8, 6), torch.randn(8, 3)
    export(model, (x[:2], wanted[:2]), tmp_path / "model.pt2")
    save_file({"x": x, "wanted": wanted}, tmp_path / "data.safetensors")
    text = fine(
        *["train", tmp_path / "model.pt2", "--data", tmp_path / "data.safetensors", "--loss", "output", "--json"],
        *["--schedule", "1F1B", "-p", 2, "-m", 4, "--steps", 5, "--optimizer", "sgd", "--lr", 0.1],
    )
    expected = trained_in_python(model, None, lambda m, _: m(x, wanted)["loss"], 5, 0.1)
    assert losses_of(text) == pytest.approx(expected, rel=1e-4)


def test_inputs_by_position_and_mean_squares(fine, tmp_path):
    torch.manual_seed(0)
    model, x, target = UNet(), torch.randn(4, 1, 16, 16), torch.randn(4, 1, 16, 16)
    target = torch.randn_like(model(x))
    export(model, (x[:2],), tmp_path / "model.pt2")
    torch.save({0: x, "target": target}, tmp_path / "data.pt")
    text = fine(
        *["train", tmp_path / "model.pt2", "--data", tmp_path / "data.pt", "--loss", "mse", "--json"],
        *["--schedule", "ZB-H1", "-p", 4, "-m", 2, "--steps", 3, "--optimizer", "sgd", "--lr", 0.1],
    )
    expected = trained_in_python(model, None, lambda m, _: F.mse_loss(m(x), target), 3, 0.1)
    assert losses_of(text) == pytest.approx(expected, rel=1e-4)


def test_rows_come_in_another_order_each_epoch_and_all_of_them(fine, tmp_path):
    """A model whose loss is the row itself: what a step has seen."""

    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.other = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return (x * self.scale * self.other).sum()

    export(Row(), (torch.zeros(1, 1),), tmp_path / "model.pt2")
    torch.save({"x": torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0]])}, tmp_path / "data.pt")
    common = [tmp_path / "model.pt2", "--data", tmp_path / "data.pt", "--loss", "output", "--json"]
    size = ["--schedule", "GPipe", "-p", 1, "-m", 1, "--optimizer", "sgd", "--lr", 0]
    seen = losses_of(fine("train", *common, *size, "--steps", 15))
    epochs = [seen[at : at + 5] for at in (0, 5, 10)]
    assert all(sorted(epoch) == [1, 2, 4, 8, 16] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert losses_of(fine("train", *common, *size, "--steps", 15)) == seen
    assert losses_of(fine("train", *common, *size, "--steps", 15, "--seed", 5)) != seen


@pytest.mark.parametrize(
    "arguments, code, word",
    [
        (["--data", "NONE"], 1, "NONE"),
        ([], 2, "--data is missing"),
        (["--data", "wrong.pt"], 1, "has no 'ids' and no '0': the model takes 'ids', the file has 'target', 'x'"),
        (["--data", "few.pt"], 2, "has 4 rows, a step takes 8"),
        (["--data", "data.pt", "--layers", "3"], 2, "excludes"),
        (["--data", "data.pt", "--at", "blocks.1", "--at", "blocks.2"], 2, "2 stages are wanted, and the model is cut into 3"),
        (["--data", "data.pt", "--loss", "output"], 1, "loss"),
        (["--data", "data.pt", "--dtype", "bf16"], 2, "export it in bfloat16"),
    ],
)
def test_wrong_trainings_are_told(arguments, code, word, folder, call, tmp_path):
    data = torch.load(folder / "data.pt")
    torch.save(data, tmp_path / "data.pt")
    torch.save({"x": data["ids"], "target": data["target"]}, tmp_path / "wrong.pt")
    torch.save({key: tensor[:4] for key, tensor in data.items()}, tmp_path / "few.pt")
    arguments = [str(tmp_path / each) if each.endswith(".pt") else each for each in arguments]
    result = call("train", folder / "gpt.pt2", "--schedule", "1F1B", "-p", 2, "-m", 2, "--steps", 1, *arguments)
    assert result.returncode == code, result.stderr
    assert word in result.stderr and result.stderr.count("\n") <= 3


def test_model_in_bf16_takes_rows_in_float32(fine, tmp_path):
    torch.manual_seed(0)
    model, x, target = mlp(6, 12, 3).bfloat16(), torch.randn(8, 6), torch.randn(8, 3)
    export(model, (x[:2].bfloat16(),), tmp_path / "model.pt2")
    torch.save({"0": x, "target": target}, tmp_path / "data.pt")
    saved = tmp_path / "state.pt"
    text = fine(
        *["train", tmp_path / "model.pt2", "--data", tmp_path / "data.pt", "--loss", "mse", "--json"],
        *["--schedule", "1F1B", "-p", 2, "-m", 4, "--steps", 20, "--save", saved, "--lr", 0.02],
    )
    assert losses_of(text)[-1] < losses_of(text)[0] / 2
    assert {tensor.dtype for tensor in torch.load(saved, weights_only=True).values()} == {torch.bfloat16}


with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@with_cuda
@pytest.mark.parametrize("schedule", ["1F1B -p 3", "ZBVZeroBubble -p 2"])
@pytest.mark.parametrize("name", ["gpt", "tied"])
def test_losses_are_those_of_python_on_a_device(name, schedule, folder, fine, tmp_path):
    model = gpt(name == "tied")
    expected = trained_in_python(model, torch.load(folder / "data.pt"), next_loss, 4, 0.3)
    for more in ([], ["--cuda-graph"]):
        text = fine(
            *["train", folder / f"{name}.pt2", "--data", folder / "data.pt", "--steps", 4, "--json", *more],
            *["--schedule", *schedule.split(), "-m", 4, "--optimizer", "sgd", "--lr", 0.3, "--device", "cuda"],
            *["--save", tmp_path / "state.pt"],
        )
        assert losses_of(text) == pytest.approx(expected, rel=1e-3)
        for key, tensor in torch.load(tmp_path / "state.pt", weights_only=True).items():
            torch.testing.assert_close(tensor.cpu(), model.state_dict()[key], rtol=1e-3, atol=1e-4)


# ---- run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [[], ["-p", 2], ["-p", 3, "-m", 5], ["-p", 2, "-v", 2, "-m", 8]])
def test_outputs_are_those_of_python(size, folder, fine, tmp_path):
    fine("run", folder / "gpt.pt2", "--inputs", folder / "data.pt", "--outputs", tmp_path / "out.pt", *size)
    outputs = torch.load(tmp_path / "out.pt", weights_only=True)
    assert list(outputs) == ["0"]
    torch.testing.assert_close(outputs["0"], gpt()(torch.load(folder / "data.pt")["ids"]).detach())


@with_cuda
@pytest.mark.parametrize("size", [["-p", 1], ["-p", 3, "-m", 5]])
def test_outputs_of_a_device_are_those_of_python(size, folder, fine, tmp_path):
    given = ["--inputs", folder / "data.pt", "--outputs", tmp_path / "out.pt", "--device", "cuda"]
    fine("run", folder / "gpt.pt2", *given, *size)
    outputs = torch.load(tmp_path / "out.pt", weights_only=True)
    expected = gpt()(torch.load(folder / "data.pt")["ids"]).detach()
    torch.testing.assert_close(outputs["0"].cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device(folder, call, tmp_path):
    given = ["--inputs", folder / "data.pt", "--outputs", tmp_path / "out.pt", "--device", "cuda"]
    result = call("run", folder / "gpt.pt2", *given)
    assert (result.returncode, result.stderr) == (2, "pipewright: --device cuda: there is no CUDA device\n")


def test_help_tells_all(fine):
    common = ["--at", "--after", "--at-marks", "--modules", "--costs", "--shared", "--weights", "--help"]
    for command, options in {
        "split": ["--stages", "--output", "--graphs", "--json"],
        "run": ["--inputs", "--outputs", "--ranks", "--microbatches", "--stages-per-rank", "--threads-per-rank", "--device"],
        "train": ["--data", "--loss", "--save", "--batch", "--seed", "--device", "--dtype", "--cuda-graph"],
    }.items():
        text = fine(command, "--help")
        assert [option for option in common + options if option not in text] == []


# ---- architectures of others -------------------------------------------------------------------


class Translation(nn.Module):
    """PyTorch's own Transformer between embeddings and a head."""

    def __init__(self):
        super().__init__()
        self.source, self.goal = nn.Embedding(VOCAB, 16), nn.Embedding(VOCAB, 16)
        self.model = nn.Transformer(16, 2, 2, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, source, goal):
        mask = nn.Transformer.generate_square_subsequent_mask(goal.shape[1])
        return self.head(self.model(self.source(source), self.goal(goal), tgt_mask=mask, tgt_is_causal=True))


def fine_tune(model, inputs, names, logits, fine, folder):
    """Trains an exported model to say 3x + 1, loads it back into Python, and compares outputs and loss."""
    rows = {name: torch.randint(0, VOCAB, (32, 8)) for name in names}
    rows["target"] = (3 * rows[names[0]] + 1) % VOCAB
    torch.save(rows, folder / "data.pt")
    sample = tuple(rows[name][:4] for name in names)
    dynamic = {name: {0: Dim("rows", min=2, max=64)} for name in names}
    exported = torch.export.export(
        model, () if inputs == "kwargs" else sample,
        kwargs=dict(zip(names, sample)) if inputs == "kwargs" else None, dynamic_shapes=dynamic,
    )
    torch.export.save(exported, folder / "model.pt2")
    text = fine(
        *["train", folder / "model.pt2", "--data", folder / "data.pt", "--steps", 60, "--json", "--lr", 0.01],
        *["--schedule", "Interleaved1F1B", "-p", 2, "-v", 2, "-m", 4, "--save", folder / "state.pt"],
    )
    losses = losses_of(text)
    assert losses[-1] < losses[0] / 3

    model.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    fine(
        *["run", folder / "model.pt2", "--weights", folder / "state.pt", "--inputs", folder / "data.pt"],
        *["--outputs", folder / "out.pt", "-p", 3],
    )
    expected = logits(model(**{name: rows[name] for name in names})).detach()
    outputs = torch.load(folder / "out.pt", weights_only=True)
    torch.testing.assert_close(next(iter(outputs.values())), expected)
    final = F.cross_entropy(expected.flatten(0, 1), rows["target"].flatten())
    assert final < losses[0] / 3


def test_transformer_of_pytorch(fine, tmp_path):
    torch.manual_seed(0)
    fine_tune(Translation(), "args", ["source", "goal"], lambda out: out, fine, tmp_path)


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_models_of_a_public_package(name, fine, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if name == "Llama":
        config = transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, use_cache=False, **special,
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=3, n_head=4, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **special,
        )
        model = transformers.GPT2LMHeadModel(config)
    fine_tune(model.train(), "kwargs", ["input_ids"], lambda out: out.logits, fine, tmp_path)
