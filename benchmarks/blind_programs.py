"""A third set of programs with work that is not needed, and healthy ones, written when the rules were frozen.

The same kinds as ``needless_programs.py``, in other forms. Frozen: the commit before this file's. What was measured
then stays in ``results/h200-blind-frozen.json``, whatever rules learnt from it later.
"""

import torch
from needless_programs import ON_GPU, both, quiet, triton, with_tf32_convolutions
from programs import BF16, DEVICE, FP32, Block, Program, Step, graphed, normal, run_each, scaled, weight
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# needless expansion


def one_head_of_keys(fixed: bool) -> Step:
    batch, heads, length, width = 48, 16, scaled(4096), 128
    query, keys, values = (
        normal(batch, heads, 1, width),
        normal(batch, 1, length, width),
        normal(batch, 1, length, width),
    )

    def step() -> torch.Tensor:
        if fixed:
            return functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        k, v = (one.expand(batch, heads, length, width).contiguous() for one in (keys, values))
        return functional.scaled_dot_product_attention(query, k, v)

    return quiet(step)


def grouped_scores(fixed: bool) -> Step:
    batch, groups, times, length, width = 32, 8, 4, scaled(4096), 128
    query = normal(batch, groups * times, 1, width)
    keys, values = (normal(batch, groups, length, width) for _ in range(2))

    def step() -> torch.Tensor:
        if fixed:
            grouped = query.view(batch, groups, times, width)
            return (grouped @ keys.mT).softmax(-1) @ values
        k, v = (one.repeat_interleave(times, 1) for one in (keys, values))
        return (query @ k.mT).softmax(-1) @ v

    return quiet(step)


def repeated_rows(fixed: bool) -> Step:
    x, bias = normal(scaled(65_536), 2048, dtype=FP32), normal(2048, dtype=FP32)

    def step() -> torch.Tensor:
        return x + (bias if fixed else bias.repeat(scaled(65_536), 1))

    return quiet(step)


def weighted_by_samples(fixed: bool) -> Step:
    x, gains = normal(128, 512, 2048), normal(128, 1, 2048)

    def step() -> torch.Tensor:
        return x * (gains if fixed else gains.expand_as(x).clone())

    return quiet(step)


# dense gradients of lookups


def word_pairs(fixed: bool) -> Step:
    words = scaled(2_000_000)
    inner, outer = (nn.Embedding(words, 128, sparse=fixed, device=DEVICE) for _ in range(2))
    optimizer = torch.optim.SGD([*inner.parameters(), *outer.parameters()], 0.05)
    center = torch.randint(0, words, (4096,), device=DEVICE)
    around = torch.randint(0, words, (4096, 6), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        scores = torch.einsum("bd,bnd->bn", inner(center), outer(around))
        (-functional.logsigmoid(scores).mean()).backward()
        optimizer.step()

    return step


def factors(fixed: bool) -> Step:
    users = nn.Embedding(scaled(4_000_000), 64, sparse=fixed, device=DEVICE)
    items = nn.Embedding(scaled(500_000), 64, sparse=fixed, device=DEVICE)
    parameters = [*users.parameters(), *items.parameters()]
    optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(parameters) if fixed else torch.optim.Adam(parameters)
    who = torch.randint(0, scaled(4_000_000), (16_384,), device=DEVICE)
    what = torch.randint(0, scaled(500_000), (16_384,), device=DEVICE)
    rating = torch.rand(16_384, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss((users(who) * items(what)).sum(1), rating).backward()
        optimizer.step()

    return step


def selected_rows(fixed: bool) -> Step:
    table = nn.Parameter(normal(scaled(5_000_000), 96, dtype=FP32))
    optimizer = torch.optim.SGD([table], 0.1)
    rows = torch.randint(0, scaled(5_000_000), (4096,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        chosen = functional.embedding(rows, table, sparse=True) if fixed else table.index_select(0, rows)
        chosen.sin().mean().backward()
        optimizer.step()

    return step


# float32 logits


def perplexity(fixed: bool) -> Step:
    vocabulary = scaled(128_256)
    head, hidden = nn.Linear(2048, vocabulary, bias=False, device=DEVICE, dtype=BF16), normal(4, 1024, 2048)
    labels = torch.randint(0, vocabulary, (4, 1024), device=DEVICE)
    moved = functional.pad(labels[:, 1:], (0, 1), value=-100)

    def step() -> torch.Tensor:
        if fixed:
            return functional.cross_entropy(head(hidden).flatten(0, 1), moved.flatten())
        logits = head(hidden).float()
        near, wanted = logits[:, :-1, :].contiguous(), labels[:, 1:].contiguous()
        return functional.cross_entropy(near.view(-1, vocabulary), wanted.view(-1))

    return quiet(step)


def policy_gradient(fixed: bool) -> Step:
    vocabulary = scaled(100_352)
    head = nn.Linear(1536, vocabulary, bias=False, device=DEVICE, dtype=BF16)
    hidden = normal(6, 1024, 1536).requires_grad_()
    tokens = torch.randint(0, vocabulary, (6, 1024), device=DEVICE)
    advantage = torch.randn(6, 1024, device=DEVICE)

    def step() -> torch.Tensor:
        head.weight.grad = hidden.grad = None
        logits = head(hidden)
        if fixed:
            minus = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none").view_as(tokens)
        else:
            minus = -logits.float().log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
        loss = (minus * advantage).mean()
        loss.backward()
        return loss.detach()

    return step


def labelled_tokens(fixed: bool) -> Step:
    classes = scaled(32_768)
    logits = normal(32_768, classes).requires_grad_()
    labels = torch.randint(0, classes, (32_768,), device=DEVICE)

    def step() -> torch.Tensor:
        logits.grad = None
        loss = functional.cross_entropy(logits if fixed else logits.to(FP32), labels)
        loss.backward()
        return loss.detach()

    return step


# thrown away


def box_candidates(fixed: bool) -> Step:
    scores = normal(32, scaled(500_000))

    def step() -> object:
        if fixed:
            return scores.topk(300)
        values, places = scores.sort(-1, descending=True)
        return values[..., :300].contiguous(), places[..., :300].contiguous()

    return quiet(step)


def routed(fixed: bool) -> Step:
    gates = normal(scaled(262_144), 512, dtype=FP32)

    def step() -> torch.Tensor:
        return gates.topk(4, -1).indices if fixed else gates.argsort(-1, descending=True)[:, :4].clone()

    return quiet(step)


def masked_after(fixed: bool) -> Step:
    classes = scaled(50_304)
    head = nn.Linear(1024, classes, device=DEVICE, dtype=BF16)
    hidden = normal(64, 512, 1024).requires_grad_()
    mask = torch.rand(64, 512, device=DEVICE) < 0.15
    labels = torch.randint(0, classes, (int(mask.sum()),), device=DEVICE)

    def step() -> torch.Tensor:
        head.zero_grad()
        hidden.grad = None
        logits = head(hidden[mask]) if fixed else head(hidden)[mask]
        loss = functional.cross_entropy(logits, labels)
        loss.backward()
        return loss.detach()

    return step


def ends_of_prompts(fixed: bool) -> Step:
    head, hidden = nn.Linear(4096, scaled(128_256), bias=False, device=DEVICE, dtype=BF16), normal(16, 512, 4096)
    row, last = torch.arange(16, device=DEVICE), torch.randint(100, 512, (16,), device=DEVICE)

    def step() -> torch.Tensor:
        return head(hidden[row, last]) if fixed else head(hidden)[row, last]

    return quiet(step)


def first_token(fixed: bool) -> Step:
    layers = nn.Sequential(*[Block(1024) for _ in range(2)]).to(DEVICE, BF16)
    head, tokens = nn.Linear(1024, 32_768, device=DEVICE, dtype=BF16), normal(32, 512, 1024)

    def step() -> torch.Tensor:
        hidden = layers(tokens)
        return head(hidden[:, 0]).softmax(-1) if fixed else head(hidden)[:, 0].softmax(-1)

    return quiet(step)


def one_hot_tables(fixed: bool) -> Step:
    table, codes = weight(scaled(8192), 4096), torch.randint(0, scaled(8192), (64, 1024), device=DEVICE)

    def step() -> torch.Tensor:
        return table[codes] if fixed else functional.one_hot(codes, scaled(8192)).to(BF16) @ table

    return quiet(step)


# own kernels

if triton is not None:
    import triton.language as tl

    @triton.jit
    def scale_columns(x, out, rows, columns, along: tl.constexpr, tile: tl.constexpr):  # type: ignore[no-untyped-def]
        """Double a matrix, each program a piece of a row, or of a column."""
        if along:
            row, column = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
        else:
            row, column = tl.program_id(1) * tile + tl.arange(0, tile), tl.program_id(0)
        at = row * columns + column
        inside = (row < rows) & (column < columns)
        tl.store(out + at, tl.load(x + at, inside) * 2, inside)

    @triton.jit
    def total_of_columns(x, out, rows, columns, tile: tl.constexpr, step: tl.constexpr):  # type: ignore[no-untyped-def]
        """Sum each column of a matrix."""
        column = tl.program_id(0) * tile + tl.arange(0, tile)
        total = tl.zeros((tile,), tl.float32)
        for row in range(0, rows, step):
            total += tl.load(x + row * columns + column, column < columns, 0.0).to(tl.float32)
        tl.store(out + column, total, column < columns)


def by_columns(fixed: bool) -> Step:
    rows = columns = scaled(16_384)
    x, out = normal(rows, columns), normal(rows, columns)

    def step() -> torch.Tensor:
        scale_columns[(rows if fixed else columns, triton.cdiv(columns if fixed else rows, 1024))](
            x, out, rows, columns, fixed, 1024
        )
        return out

    return quiet(step)


def narrow_sums(fixed: bool) -> Step:
    rows, columns = scaled(65_536), 4096
    x, out = normal(rows, columns, dtype=FP32), normal(columns, dtype=FP32)
    ones = torch.ones(1, rows, device=DEVICE)

    def step() -> torch.Tensor:
        if fixed:
            return x.sum(0) if ON_GPU else ones @ x
        total_of_columns[(triton.cdiv(columns, 16),)](x, out, rows, columns, 16, 1)
        return out

    return quiet(step)


# convolutions


def patches_in_fp32(fixed: bool) -> Step:
    patches = nn.Conv2d(3, 768, 14, 14, device=DEVICE, dtype=BF16 if fixed else FP32)
    model = nn.Sequential(*[Block(768) for _ in range(3)]).to(DEVICE, BF16)
    images = normal(256, 3, 224, 224, dtype=FP32)

    def step() -> torch.Tensor:
        seen = patches(images.to(BF16) if fixed else images)
        return model(seen.flatten(2).transpose(1, 2).to(BF16))

    return quiet(with_tf32_convolutions(step, False))


def waveforms(fixed: bool) -> Step:
    model = nn.Sequential(
        *(nn.Conv1d(64, 512, 10, 5), nn.GELU(), nn.Conv1d(512, 512, 3, 2), nn.GELU(), nn.Conv1d(512, 512, 3, 2))
    ).to(DEVICE)
    sound = normal(16, 64, scaled(16_000), dtype=FP32)
    return quiet(with_tf32_convolutions(lambda: model(sound), fixed))


class Residual(nn.Module):
    """A residual block of convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.norm2(self.two(functional.relu(self.norm1(self.one(x))))))


def residual_training(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = nn.Sequential(*[Residual(192) for _ in range(5)]).to(DEVICE, memory_format=layout).train()
    images = normal(24, 192, 96, 96, dtype=FP32).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = model(images).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def generator(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Conv2d(256, 256, 3, padding=1), nn.SiLU()]
    model = nn.Sequential(*layers).to(DEVICE, torch.float16, memory_format=layout)
    images = normal(16, 256, 128, 128, dtype=torch.float16).to(memory_format=layout)
    return quiet(lambda: model(images))


# recomputation


def checkpointed_words(fixed: bool) -> Step:
    embed = nn.Embedding(8192, 1024, device=DEVICE, dtype=BF16)
    layers = nn.ModuleList([Block(1024) for _ in range(10)]).to(DEVICE, BF16)
    head = nn.Linear(1024, 8192, device=DEVICE, dtype=BF16)
    parts = nn.ModuleList([embed, layers, head])
    words = torch.randint(0, 8192, (16, scaled(1024)), device=DEVICE)
    optimizer = torch.optim.SGD(parts.parameters(), 1e-3)

    def step() -> None:
        optimizer.zero_grad()
        x = embed(words)
        for layer in layers:
            x = layer(x) if fixed else checkpoint(layer, x, use_reentrant=False)
        functional.cross_entropy(head(x).flatten(0, 1), words.flatten()).backward()
        optimizer.step()

    return step


def checkpointed_halves(fixed: bool) -> Step:
    halves = nn.ModuleList([nn.Sequential(*[Residual(128) for _ in range(4)]) for _ in range(2)])
    halves.to(DEVICE, BF16, memory_format=torch.channels_last)
    images = normal(32, 128, 96, 96).to(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        halves.zero_grad()
        x = images
        for half in halves:
            x = half(x) if fixed else checkpoint(half, x, use_reentrant=True)
        x.float().square().mean().backward()

    return step


# computation on the host


def candidates_on_host(fixed: bool) -> Step:
    head, start = weight(2048, scaled(128_256)), normal(16, 2048)
    back = normal(16, 2048)

    def step() -> torch.Tensor:
        x = start
        for _ in range(8):
            logits = x @ head
            best = (logits if fixed else logits.cpu()).topk(5).values.to(DEVICE)
            x = back * best.float().mean().to(BF16)
        return x

    return quiet(step)


def solver_on_host(fixed: bool) -> Step:
    model = nn.Sequential(nn.Conv2d(4, 320, 3, padding=1), nn.SiLU(), nn.Conv2d(320, 4, 3, padding=1)).to(DEVICE, BF16)
    latents = normal(32, 4, 128, 128, dtype=FP32)

    def step() -> torch.Tensor:
        x, before = latents, None
        for time in range(12):
            guess = model(x.to(BF16)).float()
            here, there = (guess, x) if fixed else (guess.cpu(), x.cpu())
            slope = here if before is None else 1.5 * here - 0.5 * before
            x = (there - slope * (0.05 * (time + 1))).to(DEVICE)
            before = here
        return x

    return quiet(step)


def metrics_of_masks(fixed: bool) -> Step:
    model, images = nn.Conv2d(64, 21, 1, device=DEVICE, dtype=BF16), normal(16, 64, 256, 256)
    labels = torch.randint(0, 21, (16, 256, 256), device=DEVICE)

    def step() -> float:
        scores = model(images).float()
        if fixed:
            return float((scores.argmax(1) == labels).float().mean())
        return float((scores.cpu().argmax(1) == labels.cpu()).float().mean())

    return quiet(step)


# healthy


def gated_decode() -> Step:
    up, gate, down = ([weight(8192, 14_336) for _ in range(3)], [weight(8192, 14_336) for _ in range(3)],
                      [weight(14_336, 8192) for _ in range(3)])  # fmt: skip
    token = normal(2, 8192)

    def step() -> torch.Tensor:
        x = token
        for one, two, three in zip(up, gate, down, strict=True):
            x = x + (functional.silu(x @ two) * (x @ one)) @ three
        return x

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def sound_in_frequency() -> Step:
    sound = torch.randn(512, scaled(1 << 18), device=DEVICE)
    return quiet(lambda: torch.fft.irfft(torch.fft.rfft(sound)))


def orthogonal() -> Step:
    made = torch.randn(8, scaled(1024), scaled(1024), device=DEVICE)
    return quiet(lambda: torch.linalg.qr(made))


def lower_upper() -> Step:
    made = torch.randn(16, scaled(2048), scaled(2048), device=DEVICE, dtype=torch.float64)
    return quiet(lambda: torch.linalg.lu_factor_ex(made).LU)


def stable_order() -> Step:
    keys = torch.randint(0, 1 << 30, (16, scaled(1 << 22)), device=DEVICE, dtype=torch.int32)
    return quiet(lambda: keys.sort(dim=-1, stable=True))


def chain_in_graph() -> Step:
    x, w = normal(128, 512), weight(512, 512)

    def step() -> torch.Tensor:
        y = x
        for _ in range(700):
            y = functional.relu(y @ w)
        return y

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def running_best() -> Step:
    values = normal(512, scaled(500_000), dtype=FP32)
    return quiet(lambda: values.cummax(1).values)


def many_best() -> Step:
    values = normal(64, scaled(2_000_000), dtype=FP32)
    return quiet(lambda: values.topk(4096, 1).values)


def pooled_rows() -> Step:
    table, rows = normal(scaled(3_000_000), 128), torch.randint(0, scaled(3_000_000), (65_536, 32), device=DEVICE)
    return quiet(lambda: functional.embedding_bag(rows, table, mode="sum"))


def attention_training() -> Step:
    q, k, v = (normal(4, 32, scaled(4096), 128).requires_grad_() for _ in range(3))
    gradient = normal(4, 32, scaled(4096), 128)

    def step() -> None:
        q.grad = k.grad = v.grad = None
        functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(gradient)

    return step


def copied() -> Step:
    source = normal(scaled(1 << 30))
    target = torch.empty_like(source)
    return quiet(lambda: target.copy_(source))


PROGRAMS: dict[str, Program] = {
    "one_head_of_keys": both(one_head_of_keys, "expanded_copy", "one head of keys made whole for 16"),
    "grouped_scores": both(grouped_scores, "expanded_copy", "grouped heads repeated for eager attention"),
    "repeated_rows": both(repeated_rows, "expanded_copy", "a bias repeated for each row, FP32", "fusible_chain"),
    "weighted_by_samples": both(
        weighted_by_samples, "expanded_copy", "a gain per sample made whole", "fusible_chain"
    ),
    "word_pairs": both(word_pairs, "dense_gradient", "two tables of word2vec, SGD"),
    "factors": both(factors, "dense_gradient", "factors of users and items, Adam", "unfused_optimizer"),
    "selected_rows": both(selected_rows, "dense_gradient", "index_select of a parameter"),
    "perplexity": both(perplexity, "float32_logits", "evaluation of shifted logits in FP32", "contiguous_copies"),
    "policy_gradient": both(policy_gradient, "float32_logits", "log_softmax of float(), gather"),
    "labelled_tokens": both(labelled_tokens, "float32_logits", "32,768 classes to FP32"),
    "box_candidates": both(box_candidates, "full_sort", "300 of 500,000 by a sort"),
    "routed": both(routed, "full_sort", "4 of 512 experts by argsort"),
    "masked_after": both(masked_after, "sliced_product", "15 % of the logits by a mask, training"),
    "ends_of_prompts": both(ends_of_prompts, "sliced_product", "logits of the last of 512 tokens by an index"),
    "first_token": both(first_token, "sliced_product", "logits of all tokens of which the first is read"),
    "one_hot_tables": both(one_hot_tables, "one_hot_product", "codes looked up by one-hot products"),
    "by_columns": both(by_columns, "excess_traffic", "Triton programs along columns", "dearest_work"),
    "narrow_sums": both(narrow_sums, "excess_traffic", "Triton sums with 16 columns a program", "dearest_work"),
    "patches_in_fp32": both(patches_in_fp32, "fp32_products", "FP32 patches of a BF16 encoder"),
    "waveforms": both(waveforms, "fp32_products", "FP32 convolutions of sound without TF32"),
    "residual_training": both(residual_training, "layout_conversion", "residual blocks in NCHW under autocast"),
    "generator": both(generator, "layout_conversion", "FP16 convolutions in NCHW"),
    "checkpointed_words": both(checkpointed_words, "recomputation", "each of 10 layers checkpointed"),
    "checkpointed_halves": both(checkpointed_halves, "recomputation", "two halves of 4 blocks, reentrant"),
    "candidates_on_host": both(candidates_on_host, "blocking_copy", "top 5 on the CPU", "blocking_read"),
    "solver_on_host": both(solver_on_host, "blocking_copy", "a second-order solver on the CPU", "blocking_read"),
    "metrics_of_masks": both(metrics_of_masks, "blocking_copy", "argmax of masks on the CPU", "blocking_read"),
    "gated_decode": Program(gated_decode, "near_limit", "two tokens through 2.1 GB", ("none", "dearest_work")),
    "sound_in_frequency": Program(sound_in_frequency, "near_limit", "rfft and back", ("none", "dearest_work")),
    "orthogonal": Program(orthogonal, "near_limit", "QR of 8 matrices", ("none", "dearest_work")),
    "lower_upper": Program(lower_upper, "near_limit", "LU of 16 in double", ("none", "dearest_work")),
    "stable_order": Program(stable_order, "near_limit", "16 sorts of 4 million", ("none", "dearest_work")),
    "chain_in_graph": Program(chain_in_graph, "near_limit", "1,400 small kernels", ("none", "dearest_work")),
    "running_best": Program(running_best, "near_limit", "cummax of rows", ("none", "dearest_work")),
    "many_best": Program(many_best, "near_limit", "topk of 4,096", ("none", "dearest_work")),
    "pooled_rows": Program(pooled_rows, "near_limit", "bags of 32 rows", ("none", "dearest_work")),
    "attention_training": Program(attention_training, "near_limit", "attention and its gradient",
                                  ("none", "dearest_work")),
    "copied": Program(copied, "near_limit", "2 GB copied", ("none", "dearest_work", "device_copies")),
}  # fmt: skip

if not ON_GPU or triton is None:
    for own in ("by_columns", "narrow_sums"):
        del PROGRAMS[own]
if __name__ == "__main__":
    run_each(PROGRAMS)
