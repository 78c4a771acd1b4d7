"""A fourth set of programs with work that is not needed, and healthy ones, written when the rules were frozen again.

The same kinds as ``blind_programs.py``, in other forms, after the rules had learnt from those. Frozen: the commit
before this file's. What was measured then stays in ``results/h200-unknown-frozen.json``.
"""

import torch
from blind_programs import Residual
from needless_programs import ON_GPU, both, convolved, quiet, triton, with_tf32_convolutions
from programs import BF16, DEVICE, FP32, Block, Program, Step, graphed, normal, run_each, scaled, weight
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# needless expansion


def repeated_cache(fixed: bool) -> Step:
    batch, length, heads, groups, width = 16, scaled(8192), 32, 8, 128
    project, out = (nn.Linear(4096, 4096, bias=False, device=DEVICE, dtype=BF16) for _ in range(2))
    token, keys, values = (
        normal(batch, 1, 4096),
        normal(batch, groups, length, width),
        normal(batch, groups, length, width),
    )

    def repeated(one: torch.Tensor) -> torch.Tensor:
        return (
            one[:, :, None].expand(batch, groups, heads // groups, length, width).reshape(batch, heads, length, width)
        )

    def step() -> torch.Tensor:
        query = project(token).view(batch, 1, heads, width).transpose(1, 2)
        if fixed:
            seen = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        else:
            seen = functional.scaled_dot_product_attention(query, repeated(keys), repeated(values))
        return out(seen.transpose(1, 2).reshape(batch, 1, 4096))

    return quiet(step)


def whole_gains(fixed: bool) -> Step:
    x, gain = normal(32, 256, 96, 96, dtype=FP32), normal(32, 256, 1, 1, dtype=FP32)

    def step() -> torch.Tensor:
        return x * (gain if fixed else gain.repeat(1, 1, 96, 96))

    return quiet(step)


def all_pairs(fixed: bool) -> Step:
    left, right = normal(scaled(2048), 128, dtype=FP32), normal(scaled(2048), 128, dtype=FP32)

    def step() -> torch.Tensor:
        a, b = left[:, None], right[None]
        if not fixed:
            a, b = a.repeat(1, scaled(2048), 1), b.repeat(scaled(2048), 1, 1)
        return (a - b).square().sum(-1)

    return quiet(step)


def masks_for_heads(fixed: bool) -> Step:
    q, k, v = (normal(8, 16, scaled(2048), 64) for _ in range(3))
    allowed = torch.rand(8, 1, scaled(2048), scaled(2048), device=DEVICE) > 0.2

    def step() -> torch.Tensor:
        mask = allowed if fixed else allowed.repeat(1, 16, 1, 1)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return quiet(step)


# dense gradients of lookups


def two_bags(fixed: bool) -> Step:
    bags = nn.ModuleList(nn.EmbeddingBag(scaled(3_000_000), 64, mode="mean", sparse=fixed) for _ in range(2)).to(DEVICE)
    optimizer = torch.optim.SGD(bags.parameters(), 0.05)
    chosen = [torch.randint(0, scaled(3_000_000), (4096, 10), device=DEVICE) for _ in range(2)]

    def step() -> None:
        optimizer.zero_grad()
        seen = [bag(rows) for bag, rows in zip(bags, chosen, strict=True)]
        (seen[0] * seen[1]).sum(1).sigmoid().mean().backward()
        optimizer.step()

    return step


def items_by_fused_adam(fixed: bool) -> Step:
    table = nn.Parameter(normal(scaled(2_500_000), 128, dtype=FP32))
    optimizer: torch.optim.Optimizer = (
        torch.optim.SparseAdam([table]) if fixed else torch.optim.Adam([table], fused=ON_GPU)
    )
    items, other = torch.randint(0, scaled(2_500_000), (8192,), device=DEVICE), normal(8192, 128, dtype=FP32)

    def step() -> None:
        optimizer.zero_grad()
        (functional.embedding(items, table, sparse=fixed) * other).sum(1).tanh().mean().backward()
        optimizer.step()

    return step


def large_memory(fixed: bool) -> Step:
    memory = nn.Embedding(scaled(6_000_000), 96, sparse=fixed, device=DEVICE)
    top = nn.Sequential(nn.Linear(96, 512), nn.ReLU(), nn.Linear(512, 1)).to(DEVICE)
    optimizers = [torch.optim.SGD(one.parameters(), 0.05) for one in (memory, top)]
    places = torch.randint(0, scaled(6_000_000), (256, 32), device=DEVICE)

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        top(memory(places).mean(1)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


# float32 logits


def small_language_model(fixed: bool) -> Step:
    vocabulary = scaled(128_256)
    layers = nn.Sequential(*[Block(1536) for _ in range(2)]).to(DEVICE, BF16)
    head, words = nn.Linear(1536, vocabulary, bias=False, device=DEVICE, dtype=BF16), normal(4, 1024, 1536)
    labels = torch.randint(0, vocabulary, (4, 1024), device=DEVICE)
    moved = functional.pad(labels[:, 1:], (0, 1), value=-100)

    def step() -> torch.Tensor:
        layers.zero_grad()
        head.zero_grad()
        logits = head(layers(words))
        if fixed:
            loss = functional.cross_entropy(logits.view(-1, vocabulary), moved.view(-1))
        else:
            near = logits.float()[..., :-1, :].contiguous()
            loss = functional.cross_entropy(near.view(-1, vocabulary), labels[..., 1:].reshape(-1))
        loss.backward()
        return loss.detach()

    return step


def smoothed_labels(fixed: bool) -> Step:
    classes = scaled(65_536)
    logits, labels = normal(8192, classes).requires_grad_(), torch.randint(0, classes, (8192,), device=DEVICE)

    def step() -> torch.Tensor:
        logits.grad = None
        seen = logits if fixed else logits.float()
        loss = functional.cross_entropy(seen, labels, label_smoothing=0.1)
        loss.backward()
        return loss.detach()

    return step


def reference_policy(fixed: bool) -> Step:
    vocabulary = scaled(151_936)
    head, hidden = nn.Linear(1024, vocabulary, bias=False, device=DEVICE, dtype=BF16), normal(4, 1024, 1024)
    tokens = torch.randint(0, vocabulary, (4, 1024), device=DEVICE)

    def step() -> torch.Tensor:
        logits = head(hidden)
        if fixed:
            return -functional.cross_entropy(logits.view(-1, vocabulary), tokens.view(-1), reduction="none")
        return logits.float().log_softmax(-1).gather(-1, tokens[..., None])

    return quiet(step)


# thrown away


def last_of_sorted(fixed: bool) -> Step:
    scores = normal(128, scaled(250_000), dtype=FP32)

    def step() -> torch.Tensor:
        return scores.topk(64).values if fixed else scores.sort(-1).values[:, -64:].clone()

    return quiet(step)


def nearest_neighbours(fixed: bool) -> Step:
    queries, points = normal(512, 64, dtype=FP32), normal(scaled(200_000), 64, dtype=FP32)

    def step() -> torch.Tensor:
        distances = torch.cdist(queries, points)
        return distances.topk(16, largest=False).indices if fixed else distances.argsort(-1)[:, :16].clone()

    return quiet(step)


def scores_of_all(fixed: bool) -> Step:
    head, hidden = nn.Linear(2048, scaled(128_256), bias=False, device=DEVICE, dtype=BF16), normal(8, 512, 2048)

    def step() -> torch.Tensor:
        return head(hidden[:, -1]).log_softmax(-1) if fixed else head(hidden).log_softmax(-1)[:, -1].clone()

    return quiet(step)


def labelled_places(fixed: bool) -> Step:
    head, hidden = nn.Linear(2048, 8192, device=DEVICE, dtype=BF16), normal(32, 1024, 2048)
    mask = torch.rand(32, 1024, device=DEVICE) < 0.1

    def step() -> torch.Tensor:
        return head(hidden[mask]) if fixed else head(hidden)[mask]

    return quiet(step)


def one_hot_features(fixed: bool) -> Step:
    table, codes = weight(scaled(16_384), 512, FP32), torch.randint(0, scaled(16_384), (16_384,), device=DEVICE)

    def step() -> torch.Tensor:
        return table[codes] if fixed else functional.one_hot(codes, scaled(16_384)).float() @ table

    return quiet(step)


# own kernels

if triton is not None:
    import triton.language as tl

    @triton.jit
    def gate(x, y, out, columns, x_row, x_column, tile: tl.constexpr):  # type: ignore[no-untyped-def]
        """Multiply by a sigmoid, row by row."""
        row, column = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
        inside = column < columns
        value = tl.load(x + row * x_row + column * x_column, inside).to(tl.float32)
        other = tl.load(y + row * x_row + column * x_column, inside).to(tl.float32)
        tl.store(out + row * x_row + column * x_column, value * tl.sigmoid(other), inside)

    @triton.jit
    def largest(x, out, columns, tile: tl.constexpr, far: tl.constexpr):  # type: ignore[no-untyped-def]
        """Find each row's largest value; where ``far`` is set, each lane reads a stretch of its own."""
        row = tl.program_id(0)
        best = tl.full((tile,), float("-inf"), tl.float32)
        lane, length = tl.arange(0, tile), columns // tile
        for at in range(0, length):
            column = lane * length + at if far else at * tile + lane
            best = tl.maximum(best, tl.load(x + row * columns + column).to(tl.float32))
        tl.store(out + row, tl.max(best))


def gated_columns(fixed: bool) -> Step:
    rows, columns = scaled(16_384), scaled(8192)
    x, y, out = (normal(rows, columns) for _ in range(3))

    def step() -> torch.Tensor:
        if fixed:
            gate[(rows, triton.cdiv(columns, 1024))](x, y, out, columns, columns, 1, 1024)
        else:
            gate[(columns, triton.cdiv(rows, 1024))](x, y, out, rows, 1, columns, 1024)
        return out

    return quiet(step)


def largest_of_rows(fixed: bool) -> Step:
    rows, columns = scaled(8192), 65_536
    x, out = normal(rows, columns), normal(rows, dtype=FP32)

    def step() -> torch.Tensor:
        largest[(rows,)](x, out, columns, 512, not fixed)
        return out

    return quiet(step)


# convolutions


def decoder_in_fp32(fixed: bool) -> Step:
    model = convolved(256, 4, norm=False)
    images = normal(8, 256, 128, 128, dtype=FP32)
    if fixed:
        model, images = model.to(BF16), images.to(BF16)
    return quiet(with_tf32_convolutions(lambda: model(images), False))


def vocoder(fixed: bool) -> Step:
    model = nn.Sequential(
        *(nn.ConvTranspose1d(512, 256, 16, 8, 4), nn.LeakyReLU(0.1), nn.ConvTranspose1d(256, 128, 8, 4, 2))
    ).to(DEVICE)
    sound = normal(16, 512, scaled(512), dtype=FP32)
    return quiet(with_tf32_convolutions(lambda: model(sound), fixed))


def detector_inference(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = nn.Sequential(*[Residual(256) for _ in range(4)]).to(DEVICE, memory_format=layout).eval()
    images = normal(16, 256, 112, 112, dtype=FP32).to(memory_format=layout)

    def step() -> torch.Tensor:
        with torch.autocast(DEVICE, BF16):
            return model(images)

    return quiet(step)


def upsampler_training(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = convolved(160, 8).to(DEVICE, BF16, memory_format=layout).train()
    images = normal(16, 160, 128, 128).to(memory_format=layout)

    def step() -> None:
        model.zero_grad()
        model(images).float().square().mean().backward()

    return step


# recomputation


def checkpointed_products(fixed: bool) -> Step:
    layers = nn.ModuleList([Block(3072) for _ in range(4)]).to(DEVICE, BF16)
    data = normal(4, scaled(1024), 3072)

    def step() -> None:
        layers.zero_grad()
        x = data
        for layer in layers:
            x = layer(x) if fixed else checkpoint(layer, x, use_reentrant=False)
        x.square().mean().backward()

    return step


# computation on the host


def drawn_on_host(fixed: bool) -> Step:
    head, start = weight(2048, scaled(64_000)), normal(32, 2048)
    table = normal(scaled(64_000), 2048)

    def step() -> torch.Tensor:
        x = start
        for _ in range(6):
            chances = (x @ head).float().softmax(-1)
            chances = chances if fixed else chances.cpu()
            x = table[chances.multinomial(1).flatten().to(DEVICE)]
        return x

    return quiet(step)


def overlaps_on_host(fixed: bool) -> Step:
    low = torch.rand(scaled(4000), 2, device=DEVICE)
    boxes = torch.cat([low, low + torch.rand(scaled(4000), 2, device=DEVICE)], 1)

    def step() -> torch.Tensor:
        ours = boxes * 1.5
        ours = ours if fixed else ours.cpu()
        corner = torch.maximum(ours[:, None, :2], ours[None, :, :2])
        other = torch.minimum(ours[:, None, 2:], ours[None, :, 2:])
        return (other - corner).clamp(min=0).prod(-1).sum(1).to(DEVICE)

    return quiet(step)


def double_solver_on_host(fixed: bool) -> Step:
    model = nn.Sequential(nn.Conv2d(4, 256, 3, padding=1), nn.GELU(), nn.Conv2d(256, 4, 3, padding=1)).to(DEVICE, BF16)
    latents = normal(16, 4, 128, 128, dtype=FP32)

    def step() -> torch.Tensor:
        x = latents
        for time in range(8):
            guess = model(x.to(BF16)).float()
            here, there = (guess, x) if fixed else (guess.cpu(), x.cpu())
            x = (there.double() - here.double() * (0.05 * (time + 1))).float().to(DEVICE)
        return x

    return quiet(step)


# healthy


def normed_decode() -> Step:
    weights, gain = [weight(scaled(6144), scaled(6144)) for _ in range(20)], normal(scaled(6144))
    token = normal(1, scaled(6144))

    def step() -> torch.Tensor:
        x = token
        for one in weights:
            x = x + functional.rms_norm(x, (scaled(6144),), gain) @ one
        return x

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def cubes_in_frequency() -> Step:
    cubes = torch.randn(8, 256, 256, 256, device=DEVICE, dtype=torch.complex64) if ON_GPU else torch.randn(1, 8, 8, 8)
    return quiet(lambda: torch.fft.fftn(cubes, dim=(1, 2, 3)))


def symmetric_eigenvalues() -> Step:
    size = scaled(512)
    made = torch.randn(8, size, size, device=DEVICE)
    symmetric = made + made.mT
    return quiet(lambda: torch.linalg.eigvalsh(symmetric))


def solved_by_factors() -> Step:
    size = scaled(2048)
    made = torch.randn(8, size, size, device=DEVICE, dtype=torch.float64)
    factor = torch.linalg.cholesky(made @ made.mT + size * torch.eye(size, device=DEVICE, dtype=torch.float64))
    right = torch.randn(8, size, 256, device=DEVICE, dtype=torch.float64)
    return quiet(lambda: torch.cholesky_solve(right, factor))


def order_of_floats() -> Step:
    values = torch.randn(scaled(1 << 26), device=DEVICE)
    return quiet(lambda: values.sort(descending=True))


def small_steps_in_graph() -> Step:
    state = normal(256, 256, dtype=FP32)

    def step() -> torch.Tensor:
        x = state
        for _ in range(600):
            x = torch.tanh(x) + x.mean(1, keepdim=True)
        return x

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def sums_down_columns() -> Step:
    values = normal(scaled(65_536), 2048, dtype=FP32)
    return quiet(lambda: values.cumsum(0))


def scattered_sums() -> Step:
    target = torch.zeros(scaled(1_000_000), 128, device=DEVICE)
    rows, values = (
        torch.randint(0, scaled(1_000_000), (scaled(2_000_000),), device=DEVICE),
        normal(scaled(2_000_000), 128, dtype=FP32),
    )
    return quiet(lambda: target.index_add_(0, rows, values))


def batched_products() -> Step:
    x, w = normal(64, 2048, 2048), normal(64, 2048, 2048)
    return quiet(lambda: x @ w)


def large_norm() -> Step:
    x, gain = normal(scaled(131_072), 4096), normal(4096)
    return quiet(lambda: functional.layer_norm(x, (4096,), gain))


def recurrent() -> Step:
    model = nn.LSTM(1024, 1024, 2, batch_first=True).to(DEVICE, BF16)
    words = normal(64, 256, 1024)
    return quiet(lambda: model(words))


PROGRAMS: dict[str, Program] = {
    "repeated_cache": both(repeated_cache, "expanded_copy", "a layer's cache repeated for grouped heads, decoding"),
    "whole_gains": both(whole_gains, "expanded_copy", "a gain per channel repeated, FP32", "fusible_chain"),
    "all_pairs": both(all_pairs, "expanded_copy", "both sides repeated for all pairs", "fusible_chain"),
    "masks_for_heads": both(masks_for_heads, "expanded_copy", "a mask repeated for 16 heads"),
    "two_bags": both(two_bags, "dense_gradient", "two tables of bags, SGD"),
    "items_by_fused_adam": both(items_by_fused_adam, "dense_gradient", "one table, fused Adam"),
    "large_memory": both(large_memory, "dense_gradient", "a table of 2.3 GB beside a small network"),
    "small_language_model": both(small_language_model, "float32_logits", "shifted logits behind two layers",
                                 "contiguous_copies"),
    "smoothed_labels": both(smoothed_labels, "float32_logits", "label smoothing of float()"),
    "reference_policy": both(reference_policy, "float32_logits", "log-probabilities of a reference model"),
    "last_of_sorted": both(last_of_sorted, "full_sort", "the last 64 of 250,000 in rising order"),
    "nearest_neighbours": both(nearest_neighbours, "full_sort", "16 of 200,000 distances by argsort"),
    "scores_of_all": both(scores_of_all, "sliced_product", "log_softmax of all positions, the last is read"),
    "labelled_places": both(labelled_places, "sliced_product", "a mask of 10 % behind a product"),
    "one_hot_features": both(one_hot_features, "one_hot_product", "FP32 one-hot rows", "fp32_products"),
    "gated_columns": both(gated_columns, "excess_traffic", "Triton gate along columns", "dearest_work"),
    "largest_of_rows": both(largest_of_rows, "excess_traffic", "Triton lanes far apart", "dearest_work"),
    "decoder_in_fp32": both(decoder_in_fp32, "fp32_products", "FP32 convolutions, BF16 would do"),
    "vocoder": both(vocoder, "fp32_products", "transposed convolutions of sound without TF32"),
    "detector_inference": both(detector_inference, "layout_conversion", "NCHW under autocast, inference"),
    "upsampler_training": both(upsampler_training, "layout_conversion", "BF16 in NCHW with batch norm"),
    "checkpointed_products": both(checkpointed_products, "recomputation", "4 layers of width 3072"),
    "drawn_on_host": both(drawn_on_host, "blocking_copy", "multinomial on the CPU", "blocking_read", "host_work"),
    "overlaps_on_host": both(overlaps_on_host, "host_work", "overlaps of boxes on the CPU", "blocking_copy"),
    "double_solver_on_host": both(double_solver_on_host, "blocking_copy", "a solver in double on the CPU",
                                  "blocking_read", "host_work"),
    "normed_decode": Program(normed_decode, "near_limit", "one token through 1.5 GB", ("none", "dearest_work")),
    "cubes_in_frequency": Program(cubes_in_frequency, "near_limit", "FFT of cubes", ("none", "dearest_work")),
    "symmetric_eigenvalues": Program(symmetric_eigenvalues, "near_limit", "eigenvalues", ("none", "dearest_work")),
    "solved_by_factors": Program(solved_by_factors, "near_limit", "cholesky_solve", ("none", "dearest_work")),
    "order_of_floats": Program(order_of_floats, "near_limit", "sort of 67 million", ("none", "dearest_work")),
    "small_steps_in_graph": Program(small_steps_in_graph, "near_limit", "1,800 kernels", ("none", "dearest_work")),
    "sums_down_columns": Program(sums_down_columns, "near_limit", "cumsum of columns", ("none", "dearest_work")),
    "scattered_sums": Program(scattered_sums, "near_limit", "index_add_ of rows", ("none", "dearest_work")),
    "batched_products": Program(batched_products, "near_limit", "64 products of 2048", ("none", "dearest_work")),
    "large_norm": Program(large_norm, "near_limit", "one layer norm", ("none", "dearest_work")),
    "recurrent": Program(recurrent, "near_limit", "LSTM of cuDNN", ("none", "dearest_work")),
}  # fmt: skip

if not ON_GPU or triton is None:
    for own in ("gated_columns", "largest_of_rows"):
        del PROGRAMS[own]
if __name__ == "__main__":
    run_each(PROGRAMS)
