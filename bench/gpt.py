"""The GPT of examples/gpt, layer for layer, as modules of Python."""

from typing import NamedTuple

from torch import nn
from torch.nn import functional


class Config(NamedTuple):
    """As gpt::Config."""

    layers: int = 8
    width: int = 64
    heads: int = 4
    context: int = 64
    vocab: int = 64


class Embedding(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.width)
        self.positions = nn.Embedding(config.context, config.width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x):
        rows, length, width = x.shape
        qkv = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = Mlp(config)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Piece(nn.Module):
    """What one stage of several computes."""

    def __init__(self, config: Config, stage: int, stages: int):
        super().__init__()
        blocks = range(stage * config.layers // stages, (stage + 1) * config.layers // stages)
        last = stage == stages - 1
        self.embedding = Embedding(config) if stage == 0 else None
        self.blocks = nn.ModuleList(Block(config) for _ in blocks)
        self.norm = nn.LayerNorm(config.width) if last else None
        self.head = nn.Linear(config.width, config.vocab, bias=False) if last else None

    def forward(self, x):
        x = self.embedding(x) if self.embedding else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head else x


def next_character_loss(logits, targets):
    """Mean cross entropy of the logits against the characters that follow."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
