"""Models that are exported, each as (module, inputs, dynamic shapes); what they do is what counts, not what for."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import pipe_split
from torch.export import Dim

BATCH = Dim("batch", min=2, max=64)
LENGTH = Dim("length", min=2, max=64)


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self, layers=3, width=16, heads=2, vocab=23, tied=False, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(8, 12, num_layers=2, batch_first=True)
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.cell(x)[0])


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 5))  # fmt: skip

    def forward(self, x):
        return self.layers(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.relu(self.middle(F.max_pool2d(b, 2)))
        c = F.interpolate(c, scale_factor=2.0, mode="nearest")
        b = F.interpolate(F.relu(self.up2(torch.cat([c, b], 1))), scale_factor=2.0, mode="nearest")
        return self.up1(torch.cat([b, a], 1))


class Experts(nn.Module):
    """Every token through every expert, weighted: no control flow that depends on data."""

    def __init__(self, experts=3, width=8):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.3)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.3)

    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        scattered = torch.zeros_like(self.gate(x)).scatter(-1, chosen, weights)
        hidden = torch.einsum("btw,ewh->beth", x, self.up).relu()
        return torch.einsum("beth,ehw,bte->btw", hidden, self.down, scattered)


class DictModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, batch, scale=None):
        h = torch.tanh(self.a(batch["x"])) * batch["weight"]
        if scale is not None:
            h = h * scale
        return {"logits": self.b(h), "hidden": (h, h.mean())}


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.relu(self.b(self.a(x)))
        return self.c(h.float())


class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            target = self.b(h).softmax(-1)
        return self.b(h) * target, h.detach() + h


class Shapes(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(0, 1, 64))

    def forward(self, x):
        batch, length = x.shape[0], x.shape[1]
        h = self.a(x).reshape(batch * length, 4)
        h = h + torch.arange(batch * length, dtype=torch.float32)[:, None] / (2 * length + 1)
        h = torch.cat([h.view(batch, length, 4), torch.ones(batch, 1, 4)], 1)
        h = h.flip(1)[:, :length].pow(2) + self.table[:length, None]
        return torch.split(h, [1, 3], -1), h.masked_fill(h > 0.5, float("-inf")).exp()


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        h = self.a(x).clone()
        h[:, 0] = 3.0
        h.mul_(2)
        h[:, 1:3] += h[:, 2:4].clone()
        return h.relu_() * self.calls.clone()


class WrittenOnTheWay(nn.Module):
    """What one layer gives is read by the second, written to by the third through a view, and read again."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x):
        h = self.first(x)
        y = self.second(h * 2)
        added = self.third(y)[:, 0]
        h[:, 0].add_(added)
        z = torch.tanh(y * 3)
        return self.last(h + z), h * 1.5


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.frozen = nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return self.frozen(x)


class Sines(nn.Module):
    def forward(self, x):
        freqs = torch.exp(torch.arange(0, 4) * -0.5)
        angle = x[..., None] * freqs
        return torch.cat([angle.sin(), angle.cos()], -1).flatten(1).logsumexp(-1)


def encoder(dropout=0.0):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def ids(batch=4, length=7):
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(3))


def data(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


class Marked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
            pipe_split()
        return x.sum(1)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True)

    def forward(self, source, target):
        return self.model(source, target)


class UnsavedBuffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("rates", 0.5 ** torch.arange(6.0), persistent=False)
        self.register_buffer("offset", torch.ones(6))

    def forward(self, x):
        return torch.relu(self.linear(x * self.rates) + self.offset) * self.rates


MODELS = {
    "mlp": lambda: (mlp(6, 12, 3), (data(4, 6),), {}),
    "mlp_dynamic": lambda: (mlp(6, 12, 3), (data(4, 6),), ({0: BATCH},)),
    "mlp_tanh": lambda: (mlp(6, 9, 9, 3, activation=nn.Tanh), (data(4, 6),), {}),
    "mlp_silu": lambda: (mlp(6, 9, 9, 3, activation=nn.SiLU), (data(4, 6),), {}),
    "gpt": lambda: (GPT(), (ids(),), {}),
    "gpt_dynamic": lambda: (GPT(), (ids(),), {"ids": {0: BATCH, 1: LENGTH}}),
    "gpt_tied": lambda: (GPT(tied=True), (ids(),), {"ids": {0: BATCH}}),
    "gpt_dropout": lambda: (GPT(dropout=0.3), (ids(),), {}),
    "gpt_eval": lambda: (GPT(dropout=0.3).eval(), (ids(),), {}),
    "encoder": lambda: (encoder(), (data(3, 5, 16),), {}),
    "encoder_dropout": lambda: (encoder(0.2), (data(3, 5, 16),), {}),
    "transformer": lambda: (TwoInputs(), (data(3, 5, 16), data(3, 4, 16)), {}),
    "lstm": lambda: (Recurrent(nn.LSTM), (data(3, 6, 8),), {}),
    "gru": lambda: (Recurrent(nn.GRU), (data(3, 6, 8),), {}),
    "rnn": lambda: (Recurrent(nn.RNN), (data(3, 6, 8),), {}),
    "convolutions": lambda: (Convolutions(), (data(4, 3, 8, 8),), {"x": {0: BATCH}}),
    "convolutions_eval": lambda: (Convolutions().eval(), (data(4, 3, 8, 8),), {}),
    "unet": lambda: (UNet(), (data(2, 1, 16, 16),), {}),
    "experts": lambda: (Experts(), (data(3, 5, 8),), {}),
    "dict": lambda: (DictModel(), ({"x": data(4, 6), "weight": data(6)},), {}),
    "autocast": lambda: (Autocast(), (data(4, 8),), {}),
    "no_grad": lambda: (NoGrad(), (data(4, 8),), {}),
    "shapes": lambda: (Shapes(), (data(3, 5, 4),), {"x": {0: BATCH, 1: LENGTH}}),
    "marked": lambda: (Marked(), (data(4, 6),), {}),
    "in_place": lambda: (InPlace(), (data(4, 5),), {}),
    "repeated": lambda: (Repeated(), (data(4, 6),), {}),
    "written_on_the_way": lambda: (WrittenOnTheWay(), (data(4, 6),), {}),
    "sines": lambda: (Sines(), (data(4, 3).requires_grad_(False),), {}),
    "group_norm": lambda: (nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.GELU()), (data(2, 4, 9),), {}),
    "embedding_bag": lambda: (nn.EmbeddingBag(23, 6, mode="mean"), (ids(3, 4),), {}),
    "unsaved_buffers": lambda: (UnsavedBuffers(), (data(4, 6),), {}),
    "bilinear": lambda: (nn.Bilinear(3, 4, 5), (data(4, 3), data(4, 4)), {}),
}
