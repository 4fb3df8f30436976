"""Files of tensors that C++ reads from Python and Python from C++, and damaged ones.

PIPEWRIGHT_EXPORT_PEER names the program that copies them.
"""

import collections
import io
import os
import pickle
import random
import subprocess
import zipfile

import pytest
import safetensors.torch
import torch
from torch import nn

PLAIN = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip
COMPLEX = [torch.complex64, torch.complex128]
RARE = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture
def answers():
    """The program's answer to each line."""

    def ask(lines):
        result = subprocess.run(
            [os.environ["PIPEWRIGHT_EXPORT_PEER"]],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            errors="replace",  # names in damaged files may be anything
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        said = [line for line in result.stdout.split("\n") if line == "done" or line.startswith("error ")]
        assert len(said) == len(lines)
        return said

    return ask


@pytest.fixture
def copied(answers, tmp_path):
    def copy(content, source=".pt", target=".pt"):
        start, end = tmp_path / f"from{source}", tmp_path / f"to{target}"
        end.unlink(missing_ok=True)
        if source == ".pt":
            torch.save(content, start)
        else:
            safetensors.torch.save_file(content, start)
        answer = answers([f"copy {start} {end}"])[0]
        assert answer == "done", answer
        assert sorted(os.listdir(tmp_path)) == sorted({start.name, end.name})
        return torch.load(end, weights_only=True) if target == ".pt" else safetensors.torch.load_file(end)

    return copy


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    a, b = (each.detach().contiguous().flatten().view(torch.uint8) for each in (a, b))
    assert torch.equal(a, b)


def values(dtype):
    numbers = torch.arange(12).reshape(3, 4)
    return numbers % 3 == 0 if dtype == torch.bool else numbers.to(dtype)


@pytest.mark.parametrize("source", [".pt", ".safetensors"])
@pytest.mark.parametrize("target", [".pt", ".safetensors"])
def test_every_type(source, target, copied):
    types = PLAIN + (COMPLEX if (source, target) == (".pt", ".pt") else [])
    types += RARE if target == ".safetensors" else []
    tensors = {str(dtype): values(dtype) for dtype in types}
    tensors |= {"none": torch.empty(0, 3), "number": torch.tensor(2.5)}
    tensors |= {"no number": torch.tensor([float("nan"), float("-inf")])}
    result = copied(tensors, source, target)
    assert result.keys() == tensors.keys()
    for name, tensor in tensors.items():
        same(result[name], tensor)


@pytest.mark.parametrize("target", [".pt", ".safetensors"])
def test_every_layout(target, copied):
    base = torch.randn(4, 6, 5)
    tensors = {
        "whole": base,
        "transposed": base.transpose(0, 2),
        "slice": base[1:3, ::2, 1:],
        "expanded": torch.randn(3, 1).expand(3, 4),
        "column": base[:, 2, 3],
        "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    }
    result = copied(tensors, ".pt", target)
    for name, tensor in tensors.items():
        same(result[name], tensor)
    if target == ".pt":
        for name, tensor in tensors.items():
            assert result[name].stride() == tensor.stride() and result[name].storage_offset() == tensor.storage_offset()
        storages = {result[name].untyped_storage().data_ptr() for name in ["whole", "transposed", "slice", "column"]}
        assert len(storages) == 1  # shared as before


def test_state_dict_of_a_module(copied):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[2].weight = nn.Parameter(model[0].weight.detach().t().clone())
    state = copied(model.state_dict())
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    other.load_state_dict(state)
    for name, tensor in model.state_dict().items():
        same(other.state_dict()[name], tensor)


def test_tied_tensors_stay_tied(copied):
    weight = nn.Parameter(torch.randn(5, 3))
    state = copied({"tokens": weight, "head": weight, "part": weight[1:].detach()})
    state["tokens"].data[1, 0] = 42
    assert state["head"][1, 0] == 42 and state["part"][0, 0] == 42


def test_parameters_and_their_attributes(copied):
    named = nn.Parameter(torch.randn(2), requires_grad=False)
    named.note = "an attribute"
    tensors = {"a": nn.Parameter(torch.randn(3)), "b": named, "c": torch.randn(2, requires_grad=True)}
    result = copied(tensors)
    for name, tensor in tensors.items():
        same(result[name], tensor)


def test_dictionaries_and_lists_inside(copied):
    x = torch.randn(2)
    batch = {"ids": x, "more": collections.OrderedDict(y=x + 1)}
    content = {"batch": batch, "states": [x + 2, (x + 3, x + 4)], 7: x + 5}
    result = copied(content)
    wanted = {"batch.ids": 0, "batch.more.y": 1, "states.0": 2, "states.1.0": 3, "states.1.1": 4, "7": 5}
    assert result.keys() == wanted.keys()
    for name, added in wanted.items():
        same(result[name], x + added)


def many(count):
    return {f"layers.{number}.weight": torch.full((3,), float(number)) for number in range(count)}


def test_many_tensors(copied):
    result = copied(many(3000))  # more than the short forms of a pickle's references
    assert len(result) == 3000 and result["layers.2999.weight"][0] == 2999


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


REFUSED = {
    "number": ({"a": torch.ones(1), "step": 3}, "'step' is no tensor"),
    "nothing": ({"x": {"y": None}}, "'x.y' is no tensor"),
    "text": ({"x": ["words"]}, "'x.0' is no tensor"),
    "list": ([torch.ones(1)], "no dictionary of tensors"),
    "tensor": (torch.ones(1), "no dictionary of tensors"),
    "module": (nn.Linear(2, 2), "no dictionary of tensors"),
    "module inside": ({"x": nn.Linear(2, 2)}, "'x' is a"),
    "sparse": ({"x": torch.eye(3).to_sparse()}, "'x' is a torch._utils._rebuild_sparse_tensor"),
    "quantized": ({"x": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, "'x' is a"),
    "conjugated": ({"x": torch.randn(2, dtype=torch.complex64).conj()}, "'x' is conjugated"),
    "key": ({(1, 2): torch.ones(1)}, "neither text nor a whole number"),
    "twice": ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "several tensors 'a.b'"),
    "code": ({"x": Harmful()}, "'x' is a posix.system"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_plain_tensor_is_named(case, answers, tmp_path):
    content, told = REFUSED[case]
    torch.save(content, tmp_path / "x.pt")
    answer = answers([f"copy {tmp_path / 'x.pt'} {tmp_path / 'y.pt'}"])[0]
    assert answer.startswith(f"error {tmp_path / 'x.pt'}: ") and told in answer
    assert os.listdir(tmp_path) == ["x.pt"] and not os.path.exists("harmed")


@pytest.mark.parametrize("dtype", RARE)
def test_types_that_cannot_be_written_are_told(dtype, answers, tmp_path):
    torch.save({"x": values(dtype)}, tmp_path / "x.pt")
    answer = answers([f"copy {tmp_path / 'x.pt'} {tmp_path / 'y.pt'}"])[0]
    assert "'x' is of a kind" in answer and "cannot be written" in answer


def test_files_of_other_kinds(answers, tmp_path):
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_bytes(b"some text" * 100)
    (tmp_path / "text.safetensors").write_bytes(b"some text" * 100)
    with open(tmp_path / "pickle.pt", "wb") as file:
        pickle.dump({"x": 1}, file)
    torch.save({"x": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "folder.pt").mkdir()
    torch.save({"x": torch.ones(1)}, tmp_path / "good.pt")
    names = ["empty.pt", "text.pt", "text.safetensors", "pickle.pt", "old.pt", "folder.pt", "missing.pt", "good.txt"]
    for name, answer in zip(names, answers([f"copy {tmp_path / n} {tmp_path / 'to.pt'}" for n in names]), strict=True):
        assert answer.startswith(f"error {tmp_path / name}: "), answer
    for target in ["to.txt", "missing/to.pt", "missing/to.safetensors"]:
        answer = answers([f"copy {tmp_path / 'good.pt'} {tmp_path / target}"])[0]
        assert answer.startswith(f"error {tmp_path / target}: "), answer


def small_file(suffix, folder):
    path = folder / f"small{suffix}"
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.ones(2, dtype=torch.bool)}
    if suffix == ".pt":
        torch.save({**tensors, "d": nn.Parameter(tensors["a"][1:])}, path)
    else:
        safetensors.torch.save_file(tensors, path)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_truncated_files(suffix, answers, tmp_path):
    content = small_file(suffix, tmp_path)
    lengths = range(0, len(content), 64 if suffix == ".pt" else 8)
    for length in lengths:
        (tmp_path / f"{length}{suffix}").write_bytes(content[:length])
    said = answers([f"copy {tmp_path / f'{length}{suffix}'} {tmp_path / 'to.pt'}" for length in lengths])
    for length, answer in zip(lengths, said, strict=True):
        assert answer.startswith(f"error {tmp_path / f'{length}{suffix}'}: "), answer


def damaged_copies(content, count, rng):
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(rng.choice([1, 1, 2, 8])):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        yield bytes(changed)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_bytes_changed_at_random(suffix, answers, tmp_path):
    """Whatever comes of it, the program lives."""
    lines = []
    for number, content in enumerate(damaged_copies(small_file(suffix, tmp_path), 1500, random.Random(1))):
        (tmp_path / f"{number}{suffix}").write_bytes(content)
        lines.append(f"copy {tmp_path / f'{number}{suffix}'} {tmp_path / 'to.safetensors'}")
    said = answers(lines)
    assert all(answer == "done" or answer.startswith("error ") for answer in said)
    assert any(answer == "done" for answer in said) and any(answer.startswith("error ") for answer in said)


def with_pickle(content, change):
    """A file with another pickle in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            record = old.read(name)
            new.writestr(zipfile.ZipInfo(name), change(record) if name.endswith("/data.pkl") else record)
    return out.getvalue()


def test_pickles_changed_at_random(answers, tmp_path):
    """Where every byte matters."""
    content = small_file(".pt", tmp_path)
    rng = random.Random(2)
    lines = []
    for number in range(3000):
        changed = with_pickle(content, lambda record: next(damaged_copies(record, 1, rng)))
        (tmp_path / f"{number}.pt").write_bytes(changed)
        lines.append(f"copy {tmp_path / f'{number}.pt'} {tmp_path / 'to.safetensors'}")
    said = answers(lines)
    assert all(answer == "done" or answer.startswith("error ") for answer in said)
    assert sum(answer.startswith("error ") for answer in said) > 1000


def pickled(*parts):
    return b"\x80\x02" + b"".join(parts) + b"."


HOSTILE = {
    "lists in lists": pickled(b"]" * 1_000_000, b"a" * 999_999),
    "dictionaries in each other": pickled(b"}X\1\0\0\0x" * 200_000, b"}", b"s" * 200_000),
    "itself": pickled(b"}q\0X\1\0\0\0xh\0s"),
    "twice each": pickled(b"}q\0" + b"".join(b"}(X\1\0\0\0xh%cX\1\0\0\0yh%cuq%c" % (n, n, n + 1) for n in range(60))),
    "large text": pickled(b"}X\xff\xff\xff\xffx"),
    "large reference": pickled(b"}j\xff\xff\xff\xff"),
    "unknown reference": pickled(b"h\5"),
    "empty stack": pickled(b"a"),
    "below a mark": pickled(b"}X\1\0\0\0x(Ks"),
    "protocol": b"\x80\x04}.",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickles(case, answers, tmp_path):
    (tmp_path / "x.pt").write_bytes(with_pickle(small_file(".pt", tmp_path), lambda record: HOSTILE[case]))
    assert answers([f"copy {tmp_path / 'x.pt'} {tmp_path / 'y.pt'}"])[0].startswith(f"error {tmp_path / 'x.pt'}: ")


def tensor_pickle(offset, size, stride, elements):
    """Of one tensor with that geometry."""

    def number(value):
        return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)

    identity = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0" + b"X\3\0\0\0cpu" + number(elements) + b"tQ"
    return pickled(
        b"}X\1\0\0\0xctorch._utils\n_rebuild_tensor_v2\n(", identity, number(offset), number(size), b"\x85",
        number(stride), b"\x85", b"\x89ccollections\nOrderedDict\n)RtRs")  # fmt: skip


@pytest.mark.parametrize(
    "geometry, fits",
    [
        ((0, 12, 1, 12), True), ((4, 4, 2, 12), True), ((0, 1 << 40, 0, 12), True), ((0, 13, 1, 12), False),
        ((0, 1, 1, 1 << 60), False), ((0, 13, 1, 13), False), ((12, 1, 1, 12), False), ((-1, 1, 1, 12), False),
        ((0, -1, 1, 12), False), ((0, 2, 1 << 62, 12), False), ((0, 2, -1, 12), False), ((0, 1, 1, -1), False),
    ],
)  # fmt: skip
def test_tensors_lie_within_their_records(geometry, fits, answers, tmp_path):
    (tmp_path / "x.pt").write_bytes(with_pickle(small_file(".pt", tmp_path), lambda record: tensor_pickle(*geometry)))
    answer = answers([f"copy {tmp_path / 'x.pt'} {tmp_path / 'y.pt'}"])[0]
    assert answer == "done" if fits else ("does not fit" in answer or "is damaged" in answer), answer


def test_integers_cannot_have_a_gradient(answers, tmp_path):
    """A parameter of floats in a record of integers."""
    torch.save({"x": torch.nn.Parameter(torch.ones(3))}, tmp_path / "good.pt")
    changed = with_pickle((tmp_path / "good.pt").read_bytes(), lambda record: record.replace(b"FloatStorage", b"IntStorage"))
    (tmp_path / "x.pt").write_bytes(changed)
    answer = answers([f"copy {tmp_path / 'x.pt'} {tmp_path / 'y.pt'}"])[0]
    assert "'x' cannot have a gradient" in answer, answer


def test_an_older_file_stays_when_writing_fails(answers, tmp_path):
    torch.save({"x": torch.ones(1)}, tmp_path / "x.pt")
    torch.save({"x": torch.randn(2, dtype=torch.complex64)}, tmp_path / "y.pt")
    safetensors.torch.save_file({"x": torch.ones(1)}, tmp_path / "z.safetensors")
    before = (tmp_path / "z.safetensors").read_bytes()
    assert answers([f"copy {tmp_path / 'y.pt'} {tmp_path / 'z.safetensors'}"])[0].startswith("error ")
    assert (tmp_path / "z.safetensors").read_bytes() == before
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_full_disk_is_one_error(suffix, tmp_path):
    """The limit on the size of files stands for it."""
    torch.save({"x": torch.ones(100_000)}, tmp_path / "x.pt")
    command = f"trap '' XFSZ; ulimit -f 100; exec {os.environ['PIPEWRIGHT_EXPORT_PEER']}"
    line = f"copy {tmp_path / 'x.pt'} {tmp_path / f'y{suffix}'}\n"
    result = subprocess.run(["bash", "-c", command], input=line, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stdout.startswith(f"error {tmp_path / f'y{suffix}'}: "), result.stdout
    assert os.listdir(tmp_path) == ["x.pt"]
