"""A fifth set of programs with work that is not needed, and healthy ones, written when the rules were frozen again.

The same kinds as ``unknown_programs.py``, in other forms, after the rules had learnt from those. Frozen: the commit
before this file's. What was measured then stays in ``results/h200-strange-frozen.json``. The last two are of the set
before, which called them healthy: what was promised of them is measured here.
"""

import torch
from blind_programs import Residual
from needless_programs import ON_GPU, both, convolved, quiet, triton, with_tf32_convolutions
from programs import BF16, DEVICE, FP32, Block, Program, Step, graphed, normal, run_each, scaled, weight
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

FP16 = torch.float16

# needless expansion


def four_layers_of_cache(fixed: bool) -> Step:
    batch, length, heads, groups, width = 8, scaled(8192), 32, 4, 128
    layers = [(weight(4096, 4096, FP16), weight(4096, 4096, FP16)) for _ in range(4)]
    caches = [[normal(batch, groups, length, width, dtype=FP16) for _ in range(2)] for _ in range(4)]
    token = normal(batch, 4096, dtype=FP16)

    def step() -> torch.Tensor:
        x = token
        for (into, out), cache in zip(layers, caches, strict=True):
            query = (x @ into).view(batch, heads, 1, width)
            keys, values = cache if fixed else (one.repeat_interleave(heads // groups, dim=1) for one in cache)
            seen = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=fixed)
            x = x + seen.view(batch, 4096) @ out
        return x

    return quiet(step)


def repeated_waves(fixed: bool) -> Step:
    x, wave = normal(16, 16, scaled(2048), 128, dtype=FP32), normal(1, 1, scaled(2048), 128, dtype=FP32)

    def step() -> torch.Tensor:
        return x * (wave if fixed else wave.repeat(16, 16, 1, 1))

    return quiet(step)


def tiled_targets(fixed: bool) -> Step:
    guesses, target = normal(256, scaled(512), 1024, dtype=FP32), normal(scaled(512), 1024, dtype=FP32)

    def step() -> torch.Tensor:
        return guesses - (target if fixed else target.tile(256, 1, 1))

    return quiet(step)


def one_matrix_for_all(fixed: bool) -> Step:
    x, w = normal(384, 128, 1536), weight(1536, 1536)

    def step() -> torch.Tensor:
        return x @ w if fixed else torch.bmm(x, w.repeat(384, 1, 1))

    return quiet(step)


# dense gradients of lookups


def clicks(fixed: bool) -> Step:
    bags = nn.ModuleList(nn.EmbeddingBag(scaled(1_500_000), 64, mode="sum", sparse=fixed) for _ in range(4)).to(DEVICE)
    top = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
    optimizer = torch.optim.SGD([*bags.parameters(), *top.parameters()], 0.01)
    chosen = [torch.randint(0, scaled(1_500_000), (4096, 8), device=DEVICE) for _ in bags]

    def step() -> None:
        optimizer.zero_grad()
        seen = torch.cat([bag(rows) for bag, rows in zip(bags, chosen, strict=True)], 1)
        top(seen).square().mean().backward()
        optimizer.step()

    return step


def many_words(fixed: bool) -> Step:
    embed = nn.Embedding(scaled(1_500_000), 512, sparse=fixed, device=DEVICE)
    layer = Block(512).to(DEVICE)
    optimizers = [torch.optim.SGD(one.parameters(), 0.01) for one in (embed, layer)]
    words = torch.randint(0, scaled(1_500_000), (4, 512), device=DEVICE)

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        layer(embed(words)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()

    return step


def adagrad_of_places(fixed: bool) -> Step:
    table = nn.Embedding(scaled(4_000_000), 96, sparse=fixed, device=DEVICE)
    optimizer = torch.optim.Adagrad(table.parameters(), 0.05)
    places = torch.randint(0, scaled(4_000_000), (16_384,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        table(places).tanh().mean().backward()
        optimizer.step()

    return step


# float32 logits


def large_vocabulary(fixed: bool) -> Step:
    vocabulary = scaled(256_000)
    head = nn.Linear(1024, vocabulary, bias=False, device=DEVICE, dtype=BF16)
    hidden, labels = normal(2, 1024, 1024).requires_grad_(), torch.randint(0, vocabulary, (2, 1024), device=DEVICE)
    moved = functional.pad(labels[:, 1:], (0, 1), value=-100)

    def step() -> torch.Tensor:
        head.weight.grad = hidden.grad = None
        logits = head(hidden)
        if fixed:
            loss = functional.cross_entropy(logits.view(-1, vocabulary), moved.view(-1))
        else:
            near = logits.float()[:, :-1].contiguous().view(-1, vocabulary)
            loss = functional.cross_entropy(near, labels[:, 1:].contiguous().view(-1))
        loss.backward()
        return loss.detach()

    return step


def taught(fixed: bool) -> Step:
    student, teacher = normal(8192, scaled(65_536)).requires_grad_(), normal(8192, scaled(65_536))

    def step() -> torch.Tensor:
        student.grad = None
        ours, theirs = (student, teacher) if fixed else (student.float(), teacher.float())
        loss = functional.kl_div(ours.log_softmax(-1), theirs.softmax(-1), reduction="batchmean")
        loss.backward()
        return loss.detach()

    return step


def total_loss(fixed: bool) -> Step:
    head, hidden = nn.Linear(3072, scaled(128_256), bias=False, device=DEVICE, dtype=BF16), normal(4096, 3072)
    labels = torch.randint(0, scaled(128_256), (4096,), device=DEVICE)

    def step() -> torch.Tensor:
        logits = head(hidden)
        return functional.cross_entropy(logits if fixed else logits.float(), labels, reduction="sum")

    return quiet(step)


# thrown away


def eight_beams(fixed: bool) -> Step:
    chances = normal(256, scaled(128_256), dtype=FP32)

    def step() -> object:
        if fixed:
            return chances.topk(8)
        values, words = chances.sort(-1, descending=True)
        return values[:, :8].clone(), words[:, :8].clone()

    return quiet(step)


def threshold_by_order(fixed: bool) -> Step:
    values = normal(256, scaled(300_000), dtype=FP32)

    def step() -> torch.Tensor:
        return values.topk(500).values[:, -1] + 0 if fixed else values.sort(-1, descending=True).values[:, 499] + 0

    return quiet(step)


def last_of_prompt(fixed: bool) -> Step:
    layer = Block(1536).to(DEVICE, BF16)
    head, words = nn.Linear(1536, scaled(256_000), bias=False, device=DEVICE, dtype=BF16), normal(4, 1024, 1536)

    def step() -> torch.Tensor:
        hidden = layer(words)
        return head(hidden[:, -1]).float().softmax(-1) if fixed else head(hidden).float()[:, -1].softmax(-1)

    return quiet(step)


def kept_rows(fixed: bool) -> Step:
    project, x = nn.Linear(2048, 8192, device=DEVICE, dtype=BF16), normal(scaled(32_768), 2048)
    rows = torch.randperm(scaled(32_768), device=DEVICE)[:2048]

    def step() -> torch.Tensor:
        return functional.relu(project(x[rows])) if fixed else functional.relu(project(x))[rows]

    return quiet(step)


def masked_language_model(fixed: bool) -> Step:
    dense, decoder = nn.Linear(1024, 1024), nn.Linear(1024, scaled(32_768))
    both_layers = nn.ModuleList([dense, decoder]).to(DEVICE, BF16)
    hidden = normal(64, 512, 1024).requires_grad_()
    mask = torch.rand(64, 512, device=DEVICE) < 0.12
    labels = torch.randint(0, scaled(32_768), (int(mask.sum()),), device=DEVICE)

    def step() -> torch.Tensor:
        both_layers.zero_grad()
        hidden.grad = None
        if fixed:
            logits = decoder(functional.gelu(dense(hidden[mask])))
        else:
            logits = decoder(functional.gelu(dense(hidden)))[mask]
        loss = functional.cross_entropy(logits, labels)
        loss.backward()
        return loss.detach()

    return step


def one_hot_kinds(fixed: bool) -> Step:
    table, kinds = weight(scaled(4096), 4096), torch.randint(0, scaled(4096), (131_072,), device=DEVICE)

    def step() -> torch.Tensor:
        return functional.embedding(kinds, table) if fixed else functional.one_hot(kinds, scaled(4096)).to(BF16) @ table

    return quiet(step)


# own kernels

if triton is not None:
    import triton.language as tl

    @triton.jit
    def normed(x, out, columns, tile: tl.constexpr, far: tl.constexpr):  # type: ignore[no-untyped-def]
        """Divide each row by its norm, in two passes; where ``far`` is set, each lane has a stretch of its own."""
        row, lane, length = tl.program_id(0), tl.arange(0, tile), columns // tile
        total = tl.zeros((tile,), tl.float32)
        for at in range(0, length):
            column = lane * length + at if far else at * tile + lane
            value = tl.load(x + row * columns + column).to(tl.float32)
            total += value * value
        scale = 1 / tl.sqrt(tl.sum(total))
        for at in range(0, length):
            column = lane * length + at if far else at * tile + lane
            value = tl.load(x + row * columns + column).to(tl.float32)
            tl.store(out + row * columns + column, value * scale)

    @triton.jit
    def turned(x, out, rows, columns, tile: tl.constexpr):  # type: ignore[no-untyped-def]
        """Transpose a matrix, each program a piece of a row: what it writes lies far apart."""
        row, column = tl.program_id(0), tl.program_id(1) * tile + tl.arange(0, tile)
        value = tl.load(x + row * columns + column, column < columns)
        tl.store(out + column * rows + row, value, column < columns)


def norms_of_rows(fixed: bool) -> Step:
    rows, columns = scaled(8192), 32_768
    x, out = normal(rows, columns), normal(rows, columns)

    def step() -> torch.Tensor:
        normed[(rows,)](x, out, columns, 512, not fixed)
        return out

    return quiet(step)


def turned_matrix(fixed: bool) -> Step:
    size = scaled(16_384)
    x, out = normal(size, size), normal(size, size)

    def step() -> torch.Tensor:
        if fixed:
            return out.copy_(x.T)
        turned[(size, triton.cdiv(size, 1024))](x, out, size, size, 1024)
        return out

    return quiet(step)


# convolutions


def large_patches(fixed: bool) -> Step:
    patches = nn.Conv2d(3, 1024, 32, 32, device=DEVICE, dtype=BF16 if fixed else FP32)
    model = nn.Sequential(*[Block(1024) for _ in range(2)]).to(DEVICE, BF16)
    images = normal(256, 3, 384, 384, dtype=FP32)

    def step() -> torch.Tensor:
        seen = patches(images.to(BF16) if fixed else images)
        return model(seen.flatten(2).transpose(1, 2).to(BF16))

    return quiet(with_tf32_convolutions(step, False))


def narrow_convolutions(fixed: bool) -> Step:
    model, images = convolved(64, 6, norm=False), normal(16, 64, 256, 256, dtype=FP32)
    return quiet(with_tf32_convolutions(lambda: model(images), fixed))


def stages(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    layers: list[nn.Module] = []
    for channels in (64, 128, 256):
        layers += [Residual(channels), Residual(channels), nn.Conv2d(channels, 2 * channels, 3, 2, 1, bias=False)]
    model = nn.Sequential(*layers).to(DEVICE, memory_format=layout).train()
    images = normal(32, 64, 160, 160, dtype=FP32).to(memory_format=layout)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = model(images).float().square().mean()
        loss.backward()

    return step


def half_in_rows(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = convolved(192, 8).to(DEVICE, FP16, memory_format=layout).eval()
    images = normal(32, 192, 80, 80, dtype=FP16).to(memory_format=layout)
    return quiet(lambda: model(images))


# recomputation


def checkpointed_adam(fixed: bool) -> Step:
    layers = nn.ModuleList([Block(1280) for _ in range(8)]).to(DEVICE, BF16)
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-4, fused=ON_GPU)
    data = normal(12, scaled(1024), 1280)

    def step() -> None:
        optimizer.zero_grad()
        x = data
        for layer in layers:
            x = layer(x) if fixed else checkpoint(layer, x, use_reentrant=False)
        x.float().square().mean().backward()
        optimizer.step()

    return step


# computation on the host


def greedy_on_host(fixed: bool) -> Step:
    head, table, start = weight(1024, scaled(50_304)), normal(scaled(50_304), 1024), normal(64, 1024)

    def step() -> torch.Tensor:
        x = start
        for _ in range(8):
            logits = x @ head
            best = (logits if fixed else logits.cpu()).argmax(-1)
            x = table[best.to(DEVICE)]
        return x

    return quiet(step)


def confusion_on_host(fixed: bool) -> Step:
    model, images = nn.Conv2d(32, 16, 1, device=DEVICE, dtype=BF16), normal(32, 32, 256, 256)
    labels = torch.randint(0, 16, (32, 256, 256), device=DEVICE)

    def step() -> torch.Tensor:
        guess = model(images).argmax(1)
        if not fixed:
            return torch.bincount((guess.cpu() * 16 + labels.cpu()).flatten(), minlength=256)
        return torch.bincount((guess * 16 + labels).flatten(), minlength=256).cpu()

    return quiet(step)


def mixed_on_host(fixed: bool) -> Step:
    model = convolved(8, 2, norm=False)
    images = torch.randn(32, 8, 192, 192)
    on_device = images.to(DEVICE)

    def step() -> torch.Tensor:
        chosen = on_device if fixed else images
        noisy = 0.9 * chosen + 0.1 * torch.randn_like(chosen)
        return model(noisy.to(DEVICE))

    return quiet(step)


# healthy


def wide_decode() -> Step:
    weights = [(weight(scaled(4096), scaled(16_384)), weight(scaled(16_384), scaled(4096))) for _ in range(8)]
    tokens = normal(4, scaled(4096))

    def step() -> torch.Tensor:
        x = tokens
        for up, down in weights:
            x = x + functional.gelu(x @ up) @ down
        return x

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def planes_in_frequency() -> Step:
    planes = torch.randn(128, scaled(1024), scaled(1024), device=DEVICE, dtype=torch.complex64)
    return quiet(lambda: torch.fft.ifft2(torch.fft.fft2(planes)))


def half_products() -> Step:
    x, w = normal(scaled(8192), scaled(4096), dtype=FP16), weight(scaled(4096), scaled(8192), FP16)
    back = weight(scaled(8192), scaled(4096), FP16)
    return quiet(lambda: (x @ w) @ back)


def wide_convolutions() -> Step:
    model = nn.Conv2d(384, 384, 3, padding=1).to(DEVICE, BF16, memory_format=torch.channels_last)
    images = normal(64, 384, 64, 64).to(memory_format=torch.channels_last)
    return quiet(lambda: model(images))


def long_attention() -> Step:
    q, k, v = (normal(2, 16, scaled(8192), 128) for _ in range(3))
    return quiet(lambda: functional.scaled_dot_product_attention(q, k, v))


def gathered() -> Step:
    table, rows = (
        normal(scaled(1_000_000), 512),
        torch.randint(0, scaled(1_000_000), (scaled(1_000_000),), device=DEVICE),
    )
    return quiet(lambda: table.index_select(0, rows))


def order_of_longs() -> Step:
    keys = torch.randint(-(1 << 62), 1 << 62, (scaled(1 << 26),), device=DEVICE)
    return quiet(keys.argsort)


def softmax_of_rows() -> Step:
    logits = normal(scaled(65_536), 8192)
    return quiet(lambda: logits.softmax(-1))


def triangular_factors() -> Step:
    made = torch.randn(4, scaled(4096), scaled(4096), device=DEVICE, dtype=torch.float64)
    positive = made @ made.mT + scaled(4096) * torch.eye(scaled(4096), device=DEVICE, dtype=torch.float64)
    del made
    return quiet(lambda: torch.linalg.cholesky_ex(positive).L)


def products_in_graph() -> Step:
    x, w = normal(256, 1024), weight(1024, 1024)

    def step() -> torch.Tensor:
        y = x
        for _ in range(500):
            y = y @ w
        return y

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def best_of_rows() -> Step:
    values = normal(512, scaled(262_144), dtype=FP32)
    return quiet(lambda: values.topk(256, 1).values)


def sums_of_rows() -> Step:
    values = normal(scaled(131_072), 4096, dtype=FP32)
    return quiet(lambda: values.sum(1))


# of the set before


def columns_summed(fixed: bool) -> Step:
    values = normal(scaled(65_536), 2048, dtype=FP32)
    return quiet(lambda: values.T.contiguous().cumsum(1).T.contiguous() if fixed else values.cumsum(0))


def recurrent_steps(fixed: bool) -> Step:
    model = nn.LSTM(1024, 1024, 2, batch_first=True).to(DEVICE, BF16)
    words = normal(64, 256, 1024)
    if fixed:
        model.flatten_parameters()
    step = quiet(lambda: model(words)[0])
    return graphed(lambda: step)() if fixed and ON_GPU else step


PROGRAMS: dict[str, Program] = {
    "four_layers_of_cache": both(four_layers_of_cache, "expanded_copy", "four layers' caches repeated, FP16"),
    "repeated_waves": both(repeated_waves, "expanded_copy", "positions repeated, FP32", "fusible_chain"),
    "tiled_targets": both(tiled_targets, "expanded_copy", "one target tiled for 256 guesses", "fusible_chain"),
    "one_matrix_for_all": both(one_matrix_for_all, "expanded_copy", "a matrix repeated for bmm"),
    "clicks": both(clicks, "dense_gradient", "four tables of clicks"),
    "many_words": both(many_words, "dense_gradient", "3 GB of words before one layer"),
    "adagrad_of_places": both(adagrad_of_places, "dense_gradient", "Adagrad", "unfused_optimizer"),
    "large_vocabulary": both(large_vocabulary, "float32_logits", "256,000 words, shifted", "contiguous_copies"),
    "taught": both(taught, "float32_logits", "student and teacher in float32"),
    "total_loss": both(total_loss, "float32_logits", "evaluation, sum of losses"),
    "eight_beams": both(eight_beams, "full_sort", "8 of 128,256 by a sort"),
    "threshold_by_order": both(threshold_by_order, "full_sort", "the 500th of 300,000 by a sort"),
    "last_of_prompt": both(last_of_prompt, "sliced_product", "logits of all to float, the last is read",
                           "float32_logits"),
    "kept_rows": both(kept_rows, "sliced_product", "6 % of the rows by an index behind a relu"),
    "masked_language_model": both(masked_language_model, "sliced_product", "12 % by a mask behind two layers"),
    "one_hot_kinds": both(one_hot_kinds, "one_hot_product", "4,096 kinds"),
    "norms_of_rows": both(norms_of_rows, "excess_traffic", "Triton norms, lanes far apart", "dearest_work"),
    "turned_matrix": both(turned_matrix, "excess_traffic", "Triton transposition", "dearest_work"),
    "large_patches": both(large_patches, "fp32_products", "patches of 32 in FP32"),
    "narrow_convolutions": both(narrow_convolutions, "fp32_products", "64 channels without TF32"),
    "stages": both(stages, "layout_conversion", "three stages under autocast"),
    "half_in_rows": both(half_in_rows, "layout_conversion", "FP16 inference in NCHW"),
    "checkpointed_adam": both(checkpointed_adam, "recomputation", "8 layers, fused AdamW"),
    "greedy_on_host": both(greedy_on_host, "blocking_copy", "argmax on the CPU", "blocking_read", "host_work"),
    "confusion_on_host": both(confusion_on_host, "blocking_copy", "bincount on the CPU", "blocking_read", "host_work"),
    "mixed_on_host": both(mixed_on_host, "host_work", "noise mixed on the CPU", "blocking_copy"),
    "wide_decode": Program(wide_decode, "near_limit", "four tokens through 2.1 GB", ("none", "dearest_work")),
    "planes_in_frequency": Program(planes_in_frequency, "near_limit", "fft2 and back", ("none", "dearest_work")),
    "half_products": Program(half_products, "near_limit", "FP16 products", ("none", "dearest_work")),
    "wide_convolutions": Program(wide_convolutions, "near_limit", "BF16 in NHWC", ("none", "dearest_work")),
    "long_attention": Program(long_attention, "near_limit", "attention over 8192", ("none", "dearest_work")),
    "gathered": Program(gathered, "near_limit", "a million rows", ("none", "dearest_work")),
    "order_of_longs": Program(order_of_longs, "near_limit", "argsort of 64 bits", ("none", "dearest_work")),
    "softmax_of_rows": Program(softmax_of_rows, "near_limit", "one softmax", ("none", "dearest_work")),
    "triangular_factors": Program(triangular_factors, "near_limit", "Cholesky in double", ("none", "dearest_work")),
    "products_in_graph": Program(products_in_graph, "near_limit", "500 products", ("none", "dearest_work")),
    "best_of_rows": Program(best_of_rows, "near_limit", "topk of 256", ("none", "dearest_work")),
    "sums_of_rows": Program(sums_of_rows, "near_limit", "one reduction", ("none", "dearest_work")),
    "columns_summed": both(columns_summed, "small_grid", "cumsum of columns: in rows"),
    "recurrent_steps": both(recurrent_steps, "dispatch_bound", "LSTM of cuDNN: in a graph"),
}  # fmt: skip

if not ON_GPU or triton is None:
    for own in ("norms_of_rows", "turned_matrix"):
        del PROGRAMS[own]
if __name__ == "__main__":
    run_each(PROGRAMS)
