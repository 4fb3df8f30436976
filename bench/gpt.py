"""The GPT of examples/gpt, layer for layer, as modules of Python."""

from torch import nn
from torch.nn import functional

LAYERS, HEADS, CONTEXT, VOCAB = 8, 4, 64, 64


class Embedding(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = nn.Embedding(CONTEXT, width)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]


class Attention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        rows, length, width = x.shape
        qkv = self.qkv(x).view(rows, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Piece(nn.Module):
    """What one stage of several computes."""

    def __init__(self, width: int, stage: int, stages: int):
        super().__init__()
        blocks = range(stage * LAYERS // stages, (stage + 1) * LAYERS // stages)
        self.embedding = Embedding(width) if stage == 0 else None
        self.blocks = nn.ModuleList(Block(width) for _ in blocks)
        self.norm = nn.LayerNorm(width) if stage == stages - 1 else None
        self.head = nn.Linear(width, VOCAB, bias=False) if stage == stages - 1 else None

    def forward(self, x):
        x = self.embedding(x) if self.embedding else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.head else x


def next_character_loss(logits, targets):
    """Mean cross entropy of the logits against the characters that follow."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
