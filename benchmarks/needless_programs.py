"""Programs that do work which is not needed, and healthy ones at their limit: are causes found, and promises true?

The same as ``programs.py`` for causes that its rules did not know: tensors that are expanded, dense gradients of
lookups, float32 copies of logits, work whose result is thrown away, own kernels that move more than their arguments
hold, convolutions in FP32 or in the slower layout, recomputation where memory suffices, computation on the host between
copies. What is ``fixed`` returns the same up to precision. Healthy programs are at the limit of what they do: nothing
that is promised of them could be kept.
"""

from collections.abc import Callable

import torch
from programs import BF16, DEVICE, FP32, Block, Program, Step, graphed, normal, run_each, scaled, weight
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without a GPU
    triton = None

ON_GPU = DEVICE == "cuda"


def both(make: Callable[[bool], Step], rule: str, note: str, *alternatives: str) -> Program:
    """Return a program that is made with and without its cause."""
    return Program(lambda: make(False), rule, note, alternatives, lambda: make(True))


def quiet(step: Step) -> Step:
    def without_gradients() -> object:
        with torch.no_grad():
            return step()

    return without_gradients


# needless expansion


def grouped_heads_decode(fixed: bool) -> Step:
    batch, length, heads, groups, width = 24, scaled(4096), 32, 8, 128
    query = normal(batch, heads, 1, width)
    keys, values = (normal(batch, groups, length, width) for _ in range(2))

    def step() -> torch.Tensor:
        if fixed:
            return functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        k, v = (one.repeat_interleave(heads // groups, 1) for one in (keys, values))
        return functional.scaled_dot_product_attention(query, k, v)

    return quiet(step)


def grouped_heads_prefill(fixed: bool) -> Step:
    batch, length, heads, groups, width = 4, scaled(2048), 32, 4, 128
    query = normal(batch, heads, length, width)
    keys, values = (normal(batch, groups, length, width) for _ in range(2))

    def repeated(one: torch.Tensor) -> torch.Tensor:
        shape = (batch, groups, heads // groups, length, width)
        return one[:, :, None].expand(shape).reshape(batch, heads, length, width)

    def step() -> torch.Tensor:
        if fixed:
            return functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
        return functional.scaled_dot_product_attention(query, repeated(keys), repeated(values), is_causal=True)

    return quiet(step)


def repeated_positions(fixed: bool) -> Step:
    x, positions = normal(64, scaled(1024), 2048), normal(1, scaled(1024), 2048)

    def step() -> torch.Tensor:
        return x + (positions if fixed else positions.repeat(64, 1, 1))

    return quiet(step)


def expanded_weights(fixed: bool) -> Step:
    x, w = normal(256, 64, 2048), weight(2048, 2048)

    def step() -> torch.Tensor:
        return x @ w if fixed else torch.bmm(x, w.expand(256, 2048, 2048).contiguous())

    return quiet(step)


def repeated_conditions(fixed: bool) -> Step:
    features, condition = normal(32, 256, 64, 64), normal(32, 256, 1, 1)

    def step() -> torch.Tensor:
        shift = condition if fixed else condition.expand(32, 256, 64, 64).clone()
        return features * (1 + shift) + shift

    return quiet(step)


# dense gradients of lookups


def table_training(fixed: bool, rows: int, adam: bool) -> Step:
    table = torch.nn.Embedding(scaled(rows), 128, sparse=fixed, device=DEVICE)
    top = torch.nn.Linear(128, 1, device=DEVICE)
    if adam:
        of_table: torch.optim.Optimizer = (
            torch.optim.SparseAdam(table.parameters()) if fixed else torch.optim.Adam(table.parameters(), fused=True)
        )
    else:
        of_table = torch.optim.SGD(table.parameters(), 0.1)
    of_top = torch.optim.SGD(top.parameters(), 0.1)
    tokens = torch.randint(0, scaled(rows), (4096,), device=DEVICE)

    def step() -> None:
        of_table.zero_grad()
        of_top.zero_grad()
        top(table(tokens)).square().mean().backward()
        of_table.step()
        of_top.step()

    return step


def rows_by_index(fixed: bool) -> Step:
    table = torch.nn.Parameter(normal(scaled(3_000_000), 128, dtype=FP32))
    optimizer = torch.optim.SGD([table], 0.1)
    rows = torch.randint(0, scaled(3_000_000), (8192,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        chosen = functional.embedding(rows, table, sparse=True) if fixed else table[rows]
        chosen.square().mean().backward()
        optimizer.step()

    return step


# float32 copies of large logits


def language_loss(fixed: bool, shifted: bool) -> Step:
    tokens, vocabulary, width = 4, scaled(128_256), 2048
    head = torch.nn.Linear(width, vocabulary, bias=False, device=DEVICE, dtype=BF16)
    hidden = normal(tokens, 1024, width).requires_grad_()
    labels = torch.randint(0, vocabulary, (tokens, 1024), device=DEVICE)
    moved = functional.pad(labels[:, 1:], (0, 1), value=-100)

    def step() -> torch.Tensor:
        head.weight.grad = hidden.grad = None
        logits = head(hidden)
        if fixed:
            loss = functional.cross_entropy(logits.flatten(0, 1), (moved if shifted else labels).flatten())
        elif shifted:
            logits = logits.float()
            near = logits[:, :-1].contiguous()
            loss = functional.cross_entropy(near.view(-1, vocabulary), labels[:, 1:].flatten())
        else:
            loss = functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        return loss.detach()

    return step


def scored_choices(fixed: bool) -> Step:
    logits = normal(8192, scaled(128_256))
    chosen = torch.randint(0, scaled(128_256), (8192, 1), device=DEVICE)

    def step() -> torch.Tensor:
        if fixed:
            return logits.gather(1, chosen).float() - logits.logsumexp(1, keepdim=True).float()
        return functional.log_softmax(logits.float(), -1).gather(1, chosen)

    return quiet(step)


# work that is thrown away


def sorted_scores(fixed: bool) -> Step:
    scores = normal(64, scaled(1_000_000), dtype=FP32)

    def step() -> object:
        if fixed:
            return scores.topk(1024, 1)
        values, places = scores.sort(1, descending=True)
        return values[:, :1024].clone(), places[:, :1024].clone()

    return quiet(step)


def ranked_documents(fixed: bool) -> Step:
    documents, query = normal(scaled(8_000_000), 128), normal(128, 1)

    def step() -> torch.Tensor:
        scores = (documents @ query).flatten()
        return scores.topk(100).indices if fixed else scores.argsort(descending=True)[:100].clone()

    return quiet(step)


def logits_of_all_positions(fixed: bool) -> Step:
    head = torch.nn.Linear(4096, scaled(128_256), bias=False, device=DEVICE, dtype=BF16)
    hidden = normal(8, 1024, 4096)

    def step() -> torch.Tensor:
        return head(hidden[:, -1]) if fixed else head(hidden)[:, -1].clone()

    return quiet(step)


def masked_words(fixed: bool) -> Step:
    head = torch.nn.Linear(1024, scaled(50_304), bias=False, device=DEVICE, dtype=BF16)
    hidden, labels = normal(64 * 512, 1024), torch.randint(0, scaled(50_304), (64 * 512,), device=DEVICE)
    masked = torch.randperm(64 * 512, device=DEVICE)[: 64 * 77]
    ignored = torch.full_like(labels, -100)
    ignored[masked] = labels[masked]

    def step() -> torch.Tensor:
        if fixed:
            return functional.cross_entropy(head(hidden[masked]), labels[masked])
        return functional.cross_entropy(head(hidden), ignored)

    return quiet(step)


def padded_encoder(fixed: bool) -> Step:
    model = torch.nn.Sequential(*[Block(1024) for _ in range(6)]).to(DEVICE, BF16)
    lengths = [512, *([128] * 31)]
    rows = [normal(1, length, 1024) for length in lengths]
    whole = torch.cat([functional.pad(row, (0, 0, 0, 512 - row.shape[1])) for row in rows])
    short = torch.cat(rows[1:])

    def step() -> object:
        return (model(rows[0]), model(short)) if fixed else model(whole)

    return quiet(step)


def one_hot_lookup(fixed: bool) -> Step:
    table, tokens = weight(scaled(50_304), 1024), torch.randint(0, scaled(50_304), (16_384,), device=DEVICE)

    def step() -> torch.Tensor:
        return table[tokens] if fixed else functional.one_hot(tokens, scaled(50_304)).to(BF16) @ table

    return quiet(step)


# own kernels that move more than their arguments hold

if triton is not None:

    @triton.jit
    def add_rows(x, y, out, rows, columns, row_tile: tl.constexpr, column_tile: tl.constexpr):  # type: ignore[no-untyped-def]
        """Add two matrices tile by tile."""
        row = tl.program_id(0) * row_tile + tl.arange(0, row_tile)
        column = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
        at = row[:, None] * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)

    @triton.jit
    def sum_rows(x, out, columns, tile: tl.constexpr, stride: tl.constexpr):  # type: ignore[no-untyped-def]
        """Sum each row; where ``stride`` is set, a lane reads neighbours and lanes are far apart."""
        row = tl.program_id(0)
        total = tl.zeros((tile,), tl.float32)
        for first in range(0, columns, tile):
            lane = tl.arange(0, tile)
            column = lane * (columns // tile) + first // tile if stride else first + lane
            total += tl.load(x + row * columns + column).to(tl.float32)
        tl.store(out + row, tl.sum(total))


def wrong_tile(fixed: bool) -> Step:
    rows = columns = scaled(16_384)
    x, y, out = (normal(rows, columns) for _ in range(3))
    tile = (1, 2048) if fixed else (2048, 1)

    def step() -> torch.Tensor:
        add_rows[(triton.cdiv(rows, tile[0]), triton.cdiv(columns, tile[1]))](x, y, out, rows, columns, *tile)
        return out

    return quiet(step)


def strided_lanes(fixed: bool) -> Step:
    rows, columns = scaled(16_384), 32_768
    x, out = normal(rows, columns), normal(rows, dtype=FP32)

    def step() -> torch.Tensor:
        sum_rows[(rows,)](x, out, columns, 1024, not fixed)
        return out

    return quiet(step)


# convolutions by precision and layout


def with_tf32_convolutions(work: Step, tf32: bool) -> Step:
    def step() -> object:
        torch.backends.cudnn.allow_tf32 = tf32
        try:
            return work()
        finally:
            torch.backends.cudnn.allow_tf32 = True

    return step


def vision_encoder(fixed: bool) -> Step:
    patches = torch.nn.Conv2d(3, 1024, 16, 16, device=DEVICE, dtype=BF16 if fixed else FP32)
    model = torch.nn.Sequential(*[Block(1024) for _ in range(4)]).to(DEVICE, BF16)
    images = normal(64, 3, 384, 384, dtype=FP32)

    def step() -> torch.Tensor:
        seen = patches(images.to(BF16) if fixed else images)
        return model(seen.flatten(2).transpose(1, 2).to(BF16))

    return quiet(with_tf32_convolutions(step, False))


def convolved(channels: int, depth: int, *, norm: bool = True) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for _ in range(depth):
        layers.append(torch.nn.Conv2d(channels, channels, 3, padding=1, bias=not norm))
        layers += [torch.nn.BatchNorm2d(channels), torch.nn.ReLU()] if norm else [torch.nn.ReLU()]
    return torch.nn.Sequential(*layers).to(DEVICE)


def segmentation(fixed: bool) -> Step:
    model, images = convolved(128, 6, norm=False), normal(16, 128, 128, 128, dtype=FP32)
    return quiet(with_tf32_convolutions(lambda: model(images), fixed))


def detector(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = convolved(256, 8).to(memory_format=layout).train()
    images = normal(16, 256, 96, 96, dtype=FP32).to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = model(images).square().mean()
        loss.backward()
        optimizer.step()

    return step


# recomputation where memory suffices


def checkpointed(fixed: bool, width: int, layers: int) -> Step:
    model = torch.nn.ModuleList([Block(width) for _ in range(layers)]).to(DEVICE, BF16)
    data = normal(8, scaled(1024), width)

    def step() -> None:
        model.zero_grad()
        x = data
        for layer in model:
            x = layer(x) if fixed else checkpoint(layer, x, use_reentrant=False)
        x.square().mean().backward()

    return step


# computation on the host between copies


def scheduler_on_host(fixed: bool) -> Step:
    model = torch.nn.Sequential(*[torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)]).to(DEVICE, BF16)
    noise = normal(16, 16, 128, 128, dtype=FP32)

    def step() -> torch.Tensor:
        x = noise
        for time in range(10):
            guess = model(x.to(BF16)).float()
            near = (x, guess) if fixed else (x.cpu(), guess.cpu())
            x = (near[0] - near[1] * (0.1 / (time + 1))).to(DEVICE)
        return x

    return quiet(step)


def metrics_on_host(fixed: bool) -> Step:
    head, hidden = weight(1024, scaled(32_000)), normal(2048, 1024)
    labels = torch.randint(0, scaled(32_000), (2048,), device=DEVICE)

    def step() -> float:
        logits = hidden @ head
        if fixed:
            return float((logits.argmax(1) == labels).float().mean())
        return float((logits.cpu().argmax(1) == labels.cpu()).float().mean())

    return quiet(step)


# healthy


def decode_of_weights() -> Step:
    weights = [weight(scaled(8192), scaled(8192)) for _ in range(16)]
    token = normal(1, scaled(8192))

    def step() -> torch.Tensor:
        x = token
        for one in weights:
            x = x @ one
        return x

    return quiet(step)


def spectra() -> Step:
    signals = torch.randn(64, scaled(1 << 20), device=DEVICE, dtype=torch.complex64)
    return quiet(lambda: torch.fft.ifft(torch.fft.fft(signals)))


def factorisations() -> Step:
    made = torch.randn(16, 2048, 2048, device=DEVICE, dtype=torch.float64)
    positive = made @ made.mT + 2048 * torch.eye(2048, device=DEVICE, dtype=torch.float64)
    del made
    return quiet(lambda: torch.linalg.cholesky_ex(positive).L)


def whole_sort() -> Step:
    keys = torch.randint(0, 1 << 60, (scaled(1 << 27),), device=DEVICE)
    return quiet(keys.sort)


def dependent_kernels() -> Step:
    state = normal(64, 64, dtype=FP32)

    def step() -> torch.Tensor:
        x = state
        for _ in range(2000):
            x = torch.sin(x)
        return x

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def large_products() -> Step:
    x, w = normal(scaled(8192), scaled(8192)), weight(scaled(8192), scaled(8192))

    def step() -> torch.Tensor:
        y = x
        for _ in range(4):
            y = y @ w
        return y

    return quiet(step)


def flash_attention() -> Step:
    q, k, v = (normal(4, 32, scaled(4096), 128) for _ in range(3))
    return quiet(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def running_sums() -> Step:
    values = normal(256, scaled(1_000_000), dtype=FP32)
    return quiet(lambda: values.cumsum(1))


def histogram() -> Step:
    values = torch.randint(0, 4096, (scaled(1 << 28),), device=DEVICE)
    return quiet(lambda: torch.bincount(values, minlength=4096))


def sparse_products() -> Step:
    size = scaled(1_000_000)
    rows, columns = (
        torch.randint(0, size, (size * 32,), device=DEVICE),
        torch.randint(0, size, (size * 32,), device=DEVICE),
    )
    matrix = torch.sparse_coo_tensor(
        torch.stack([rows, columns]), normal(size * 32, dtype=FP32), (size, size)
    ).coalesce()
    compressed, x = matrix.to_sparse_csr(), normal(size, 32, dtype=FP32)
    return quiet(lambda: compressed @ x)


PROGRAMS: dict[str, Program] = {
    "grouped_heads_decode": both(grouped_heads_decode, "expanded_copy", "keys and values repeated for grouped heads"),
    "grouped_heads_prefill": both(grouped_heads_prefill, "expanded_copy", "by expand and reshape, 2048 tokens"),
    "repeated_positions": both(repeated_positions, "expanded_copy", "positions repeated for each sequence, then added"),
    "expanded_weights": both(expanded_weights, "expanded_copy", "one weight made whole for each of 256 products"),
    "repeated_conditions": both(
        repeated_conditions, "expanded_copy", "a condition per channel is made whole", "fusible_chain"
    ),
    "table_sgd": both(lambda fixed: table_training(fixed, 6_000_000, False), "dense_gradient", "3 GB embedding, SGD"),
    "table_adam": both(lambda fixed: table_training(fixed, 2_000_000, True), "dense_gradient", "1 GB embedding, Adam"),
    "rows_by_index": both(rows_by_index, "dense_gradient", "a parameter indexed by 8192 rows"),
    "shifted_loss": both(
        lambda fixed: language_loss(fixed, True), "float32_logits", "float(), [:, :-1].contiguous(), cross_entropy",
        "contiguous_copies",
    ),
    "float_loss": both(lambda fixed: language_loss(fixed, False), "float32_logits", "float(), cross_entropy"),
    "scored_choices": both(scored_choices, "float32_logits", "log_softmax of float() of which one in a row is used"),
    "sorted_scores": both(sorted_scores, "full_sort", "64 sorts of a million of which 1024 are used"),
    "ranked_documents": both(ranked_documents, "full_sort", "argsort of 8 million of which 100 are used"),
    "logits_of_all_positions": both(logits_of_all_positions, "sliced_product", "logits of 1024 positions, one is used"),
    "masked_words": both(masked_words, "masked_rows", "logits of all words of which 15 % are masked: no rule knows"),
    "padded_encoder": both(padded_encoder, "padded_rows", "31 of 32 sequences are padded to 512: no rule knows"),
    "one_hot_lookup": both(one_hot_lookup, "one_hot_product", "a lookup as a product with one-hot rows"),
    "wrong_tile": both(wrong_tile, "excess_traffic", "Triton tile of 2048 rows and one column"),
    "strided_lanes": both(strided_lanes, "excess_traffic", "Triton lanes that are far apart"),
    "vision_encoder": both(vision_encoder, "fp32_products", "patches by an FP32 convolution"),
    "segmentation": both(segmentation, "fp32_products", "FP32 convolutions without TF32"),
    "detector": both(detector, "layout_conversion", "NCHW under autocast, with batch norm"),
    "checkpointed_wide": both(lambda fixed: checkpointed(fixed, 2048, 8), "recomputation", "8 layers of width 2048"),
    "checkpointed_small": both(lambda fixed: checkpointed(fixed, 512, 16), "recomputation", "16 layers of width 512"),
    "scheduler_on_host": both(scheduler_on_host, "blocking_copy", "a scheduler on the CPU", "blocking_read"),
    "metrics_on_host": both(metrics_on_host, "blocking_copy", "logits to the host for argmax", "blocking_read"),
    "decode_of_weights": Program(decode_of_weights, "near_limit", "a token through 2 GB of weights", ("none",)),
    "spectra": Program(spectra, "near_limit", "FFT and back", ("none", "dearest_work")),
    "factorisations": Program(factorisations, "near_limit", "16 Cholesky of 2048 in double", ("none", "dearest_work")),
    "whole_sort": Program(whole_sort, "near_limit", "radix sort of 134 million", ("none", "dearest_work")),
    "dependent_kernels": Program(dependent_kernels, "near_limit", "2,000 in one graph", ("none", "dearest_work")),
    "large_products": Program(large_products, "near_limit", "BF16 products of 8192", ("none",)),
    "flash_attention": Program(flash_attention, "near_limit", "attention over 4096", ("none", "dearest_work")),
    "running_sums": Program(running_sums, "near_limit", "cumsum of rows of a million", ("none", "dearest_work")),
    "histogram": Program(histogram, "near_limit", "bincount of 268 million", ("none", "dearest_work")),
    "sparse_products": Program(sparse_products, "near_limit", "CSR with 32 in a row", ("none", "dearest_work")),
}  # fmt: skip

if not ON_GPU or triton is None:
    for own in ("wrong_tile", "strided_lanes"):
        del PROGRAMS[own]
if __name__ == "__main__":
    run_each(PROGRAMS)
