# SPDX-License-Identifier: Apache-2.0
"""delta_steps.py: how much of a bf16 state dict changes from one optimizer step to the next, and in what pattern.

A small character-level transformer is trained on this project's sources: first from scratch (AdamW, master weights in f32, published
in bf16), then as reinforcement learning does it, by policy-gradient steps with a small learning rate. For each phase it prints, over
the published bf16 tensors: the part of the values that changed, the part of chunks of 4 KiB and 64 KiB that changed at all, and the
bytes of a delta by index and value beside the whole: a byte or three for the gap to the last changed value, two for the value.

    python tests/bench/delta_steps.py [STEPS]     (needs torch)"""
import glob
import os
import sys

import torch
from torch import nn
from torch.nn import functional

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTH, BATCH, WIDTH, LAYERS, HEADS = 96, 12, 256, 6, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, symbols):
        x = self.symbols(symbols) + self.places(torch.arange(symbols.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def published(model):
    return [p.detach().to(torch.bfloat16).reshape(-1).view(torch.int16).clone() for p in model.parameters()]


def chunks_changed(changed, values):
    whole = functional.pad(changed, (0, -len(changed) % values)).view(-1, values)
    return int(whole.any(1).sum()), len(whole)


def delta_bytes(changed):
    where = changed.nonzero().reshape(-1)
    gaps = torch.diff(where, prepend=torch.tensor([-1])) - 1
    return int(where.numel() * 3 + 2 * (gaps > 254).sum())


def compare(before, after):
    totals = [0] * 7
    for old, new in zip(before, after):
        changed = old != new
        small, smalls = chunks_changed(changed, 2048)
        large, larges = chunks_changed(changed, 32768)
        for i, n in enumerate((int(changed.sum()), changed.numel(), small, smalls, large, larges, delta_bytes(changed))):
            totals[i] += n
    return totals


def train(model, step, rate, steps, betas=(0.9, 0.95)):
    """Takes optimizer steps, and yields the loss after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=betas, weight_decay=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss


def phase(name, model, step, rate, steps):
    rows, before = [], published(model)
    for loss in train(model, step, rate, steps):
        after = published(model)
        rows.append(compare(before, after))
        before = after
    for label, part in (("first 5 steps", rows[:5]), ("last 20 steps", rows[-20:])):
        sums = [sum(row[i] for row in part) for i in range(7)]
        print(f"{name:34} lr {rate:7.0e} {label}: values {100 * sums[0] / sums[1]:6.2f} %, chunks of 4 KiB {100 * sums[2] / sums[3]:5.1f} %, "
              f"of 64 KiB {100 * sums[4] / sums[5]:5.1f} %, whole / delta {2 * sums[1] / max(1, sums[6]):6.1f}, loss {float(loss):.3f}", flush=True)


def losses():
    """The losses of supervised training and of policy gradients, for a model."""
    text = b"".join(open(path, "rb").read() for path in sorted(glob.glob(os.path.join(HERE, "../..", "daemon/**/*.c"), recursive=True)))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def batch():
        starts = torch.randint(len(data) - LENGTH - 1, (BATCH,))
        return torch.stack([data[s:s + LENGTH + 1] for s in starts])

    def supervised(model):
        rows = batch()
        return functional.cross_entropy(model(rows[:, :-1]).reshape(-1, 256), rows[:, 1:].reshape(-1))

    def policy_gradient(model):  # continue a prompt by 16 symbols; the reward is the part of the symbols that the text has as well
        rows = batch()
        prompt = rows[:, :LENGTH - 16]
        with torch.no_grad():
            for _ in range(16):
                prompt = torch.cat([prompt, torch.multinomial(model(prompt)[:, -1].softmax(-1), 1)], 1)
        reward = (prompt[:, -16:] == rows[:, LENGTH - 16:LENGTH]).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        chosen = model(prompt[:, :-1]).log_softmax(-1).gather(2, prompt[:, 1:, None])[:, -16:, 0]
        return -(advantage[:, None] * chosen).mean()

    return supervised, policy_gradient


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.manual_seed(1)
    torch.set_num_threads(2)
    supervised, policy_gradient = losses()
    model = Model()
    print(f"{sum(p.numel() for p in model.parameters())} values in {len(list(model.parameters()))} tensors")
    phase("training from scratch", model, supervised, 3e-4, steps)
    phase("fine-tuning", model, supervised, 1e-5, steps // 4)
    for rate in (1e-5, 3e-6, 1e-6, 5e-7):
        phase("policy gradient", model, policy_gradient, rate, steps // 6)


if __name__ == "__main__":
    main()
