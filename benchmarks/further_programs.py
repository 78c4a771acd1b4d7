"""More programs of the kinds of ``needless_programs.py``, written when the rules on needless work were frozen.

No rule was changed for these. What is ``fixed`` returns the same up to precision.
"""

import torch
from needless_programs import both, convolved, quiet, triton, with_tf32_convolutions
from programs import BF16, DEVICE, FP32, Block, Program, Step, graphed, normal, run_each, scaled, weight
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

ON_GPU = DEVICE == "cuda"


# needless expansion


def rotated_queries(fixed: bool) -> Step:
    x = normal(16, 32, scaled(2048), 128)
    turned = torch.cat([-x[..., 64:], x[..., :64]], -1)
    cosine, sine = normal(1, 1, scaled(2048), 128), normal(1, 1, scaled(2048), 128)

    def step() -> torch.Tensor:
        cos, sin = (one if fixed else one.repeat(16, 32, 1, 1) for one in (cosine, sine))
        return x * cos + turned * sin

    return quiet(step)


def whole_masks(fixed: bool) -> Step:
    q, k, v = (normal(16, 16, scaled(2048), 64) for _ in range(3))
    allowed = torch.zeros(16, 1, 1, scaled(2048), device=DEVICE, dtype=BF16)

    def step() -> torch.Tensor:
        shape = (16, 16, scaled(2048), scaled(2048))
        mask = allowed.expand(shape) if fixed else allowed.expand(shape).contiguous()
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return quiet(step)


def grouped_heads_training(fixed: bool) -> Step:
    q = normal(8, 32, scaled(1024), 128).requires_grad_()
    k, v = (normal(8, 8, scaled(1024), 128).requires_grad_() for _ in range(2))

    def step() -> None:
        q.grad = k.grad = v.grad = None
        keys, values = (k, v) if fixed else (one.repeat_interleave(4, 1) for one in (k, v))
        result = functional.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=fixed)
        result.sum().backward()

    return step


def pair_differences(fixed: bool) -> Step:
    x, y = normal(scaled(4096), 1, 64, dtype=FP32), normal(1, scaled(4096), 64, dtype=FP32)

    def step() -> torch.Tensor:
        if fixed:
            return (x - y).abs_()
        left, right = (one.expand(scaled(4096), scaled(4096), 64).contiguous() for one in (x, y))
        return (left - right).abs_()

    return quiet(step)


def one_filter_for_all(fixed: bool) -> Step:
    x, w = normal(512, 128, 1024), weight(1024, 1024)

    def step() -> torch.Tensor:
        return torch.matmul(x, w) if fixed else torch.bmm(x, w[None].repeat(512, 1, 1))

    return quiet(step)


# dense gradients


def bags(fixed: bool) -> Step:
    table = torch.nn.EmbeddingBag(scaled(4_000_000), 64, mode="sum", sparse=fixed, device=DEVICE)
    optimizer = torch.optim.SGD(table.parameters(), 0.01)
    items = torch.randint(0, scaled(4_000_000), (2048, 20), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        table(items).square().mean().backward()
        optimizer.step()

    return step


def two_tables(fixed: bool) -> Step:
    sizes = (5_000_000, 1_000_000)
    users, items = (torch.nn.Embedding(scaled(size), 96, sparse=fixed, device=DEVICE) for size in sizes)
    optimizer = torch.optim.SGD([*users.parameters(), *items.parameters()], 0.01)
    who, what = (torch.randint(0, scaled(size), (8192,), device=DEVICE) for size in sizes)

    def step() -> None:
        optimizer.zero_grad()
        (users(who) * items(what)).sum(1).sigmoid().mean().backward()
        optimizer.step()

    return step


def vocabulary_adagrad(fixed: bool) -> Step:
    table = torch.nn.Embedding(scaled(3_000_000), 128, sparse=fixed, device=DEVICE)
    optimizer = torch.optim.Adagrad(table.parameters(), 0.01)
    words = torch.randint(0, scaled(3_000_000), (64, 128), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        table(words).mean(1).square().sum().backward()
        optimizer.step()

    return step


# float32 logits


def distilled(fixed: bool) -> Step:
    student, teacher = (normal(4096, scaled(128_256)) for _ in range(2))
    student.requires_grad_()

    def step() -> torch.Tensor:
        student.grad = None
        mine, other = (student, teacher) if fixed else (student.float(), teacher.float())
        loss = functional.kl_div(mine.log_softmax(-1), other.log_softmax(-1), log_target=True, reduction="batchmean")
        loss.backward()
        return loss.detach()

    return step


def translated(fixed: bool) -> Step:
    head = torch.nn.Linear(1024, scaled(64_000), bias=False, device=DEVICE, dtype=BF16)
    hidden = normal(16, 512, 1024).requires_grad_()
    labels = torch.randint(0, scaled(64_000), (16, 512), device=DEVICE)

    def step() -> torch.Tensor:
        head.weight.grad = hidden.grad = None
        logits = head(hidden)
        logits = logits if fixed else logits.float()
        loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))
        loss.backward()
        return loss.detach()

    return step


def next_words(fixed: bool) -> Step:
    head = torch.nn.Linear(2048, scaled(151_936), bias=False, device=DEVICE, dtype=BF16)
    hidden = normal(2, 2048, 2048).requires_grad_()
    labels = torch.randint(0, scaled(151_936), (2, 2048), device=DEVICE)
    moved = functional.pad(labels[:, 1:], (0, 1), value=-100)

    def step() -> torch.Tensor:
        head.weight.grad = hidden.grad = None
        if fixed:
            loss = functional.cross_entropy(head(hidden).view(-1, scaled(151_936)), moved.view(-1))
        else:
            logits = head(hidden).float()
            near, wanted = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
            loss = functional.cross_entropy(near.view(-1, scaled(151_936)), wanted.view(-1))
        loss.backward()
        return loss.detach()

    return step


# thrown away


def best_candidates(fixed: bool) -> Step:
    scores = normal(4096, scaled(50_304), dtype=FP32)

    def step() -> object:
        if fixed:
            return scores.topk(50)
        values, places = torch.sort(scores, descending=True)
        return values[:, :50].contiguous(), places[:, :50].contiguous()

    return quiet(step)


def strongest_gradients(fixed: bool) -> Step:
    gradient = normal(scaled(100_000_000), dtype=FP32)

    def step() -> torch.Tensor:
        size = gradient.abs()
        return size.topk(10_000).values if fixed else size.sort(descending=True).values[:10_000].clone()

    return quiet(step)


def prompt_logits(fixed: bool) -> Step:
    layers = torch.nn.Sequential(*[Block(2048) for _ in range(2)]).to(DEVICE, BF16)
    head, tokens = torch.nn.Linear(2048, scaled(151_936), bias=False, device=DEVICE, dtype=BF16), normal(4, 2048, 2048)

    def step() -> torch.Tensor:
        hidden = layers(tokens)
        return head(hidden[:, -1:]).argmax(-1) if fixed else head(hidden)[:, -1, :].argmax(-1)

    return quiet(step)


def pooled_tokens(fixed: bool) -> Step:
    project, hidden = torch.nn.Linear(4096, 4096, device=DEVICE, dtype=BF16), normal(64, 512, 4096)

    def step() -> torch.Tensor:
        return project(hidden[:, 0]).tanh() if fixed else project(hidden)[:, 0].tanh()

    return quiet(step)


def one_hot_experts(fixed: bool) -> Step:
    biases, chosen = weight(scaled(16_384), 2048), torch.randint(0, scaled(16_384), (32_768,), device=DEVICE)

    def step() -> torch.Tensor:
        return biases[chosen] if fixed else functional.one_hot(chosen, scaled(16_384)).to(BF16) @ biases

    return quiet(step)


# own kernels behind an operator

if triton is not None:
    from needless_programs import add_rows

    @torch.library.custom_op("bench::add", mutates_args=("out",))
    def added(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, rows: int, columns: int) -> None:
        """Add two matrices with a kernel of one's own."""
        grid = (triton.cdiv(x.shape[0], rows), triton.cdiv(x.shape[1], columns))
        add_rows[grid](x, y, out, x.shape[0], x.shape[1], rows, columns)


def own_operator(fixed: bool) -> Step:
    x, y, out = (normal(scaled(16_384), scaled(16_384)) for _ in range(3))

    def step() -> torch.Tensor:
        added(x, y, out, *((1, 2048) if fixed else (1024, 2)))
        return out

    return quiet(step)


# convolutions


def volumes(fixed: bool) -> Step:
    model = torch.nn.Sequential(*[torch.nn.Conv3d(64, 64, 3, padding=1) for _ in range(4)]).to(DEVICE)
    data = normal(2, 64, 64, 64, 64, dtype=FP32)
    return quiet(with_tf32_convolutions(lambda: model(data), fixed))


def upsampled(fixed: bool) -> Step:
    model = torch.nn.Sequential(
        *(torch.nn.ConvTranspose2d(256, 256, 4, 2, 1), torch.nn.ReLU(), torch.nn.ConvTranspose2d(256, 128, 4, 2, 1))
    ).to(DEVICE)
    data = normal(16, 256, 64, 64, dtype=FP32)
    return quiet(with_tf32_convolutions(lambda: model(data), fixed))


def segmenter(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = convolved(128, 10).to(memory_format=layout).train()
    images = normal(8, 128, 192, 192, dtype=FP32).to(memory_format=layout)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = model(images).square().mean()
        loss.backward()

    return step


def backbone(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    model = convolved(256, 10).to(DEVICE, BF16, memory_format=layout).eval()
    images = normal(32, 256, 64, 64).to(memory_format=layout)
    return quiet(lambda: model(images))


# recomputation


def checkpointed_stages(fixed: bool) -> Step:
    model = torch.nn.Sequential(*[Block(1536) for _ in range(12)]).to(DEVICE, BF16)
    data = normal(8, scaled(1024), 1536).requires_grad_()

    def step() -> None:
        model.zero_grad()
        result = model(data) if fixed else checkpoint_sequential(model, 4, data, use_reentrant=False)
        result.square().mean().backward()

    return step


def checkpointed_images(fixed: bool) -> Step:
    stages = torch.nn.ModuleList([convolved(256, 2) for _ in range(5)]).to(
        DEVICE, BF16, memory_format=torch.channels_last
    )
    images = normal(16, 256, 96, 96).to(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        stages.zero_grad()
        x = images
        for stage in stages:
            x = stage(x) if fixed else checkpoint(stage, x, use_reentrant=False)
        x.square().mean().backward()

    return step


# computation on the host


def host_noise(fixed: bool) -> Step:
    model = torch.nn.Sequential(*[torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]).to(DEVICE)

    def step() -> torch.Tensor:
        noise = torch.randn(16, 8, 256, 256, device=DEVICE if fixed else "cpu")
        return model(noise if fixed else noise.to(DEVICE))

    return quiet(step)


def host_scores(fixed: bool) -> Step:
    boxes, model = normal(64, 8192, 64), weight(64, 91)

    def step() -> torch.Tensor:
        scores = (boxes @ model).float().softmax(-1)
        if fixed:
            return (scores.amax(-1) > 0.5).sum(1).cpu()
        return (scores.cpu().amax(-1) > 0.5).sum(1)

    return quiet(step)


# healthy


def replayed_decode() -> Step:
    weights = [weight(scaled(8192), scaled(8192)) for _ in range(24)]
    token = normal(4, scaled(8192))

    def step() -> torch.Tensor:
        x = token
        for one in weights:
            x = functional.silu(x @ one)
        return x

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def images_in_frequency() -> Step:
    images = torch.randn(64, 2048, 2048, device=DEVICE) if ON_GPU else torch.randn(2, 64, 64)
    return quiet(lambda: torch.fft.irfft2(torch.fft.rfft2(images)))


def order_of_keys() -> Step:
    keys = torch.randn(scaled(1 << 26), device=DEVICE)
    return quiet(keys.argsort)


def linear_systems() -> Step:
    size = scaled(2048)
    left, right = torch.randn(32, size, size, device=DEVICE), torch.randn(32, size, 16, device=DEVICE)
    return quiet(lambda: torch.linalg.solve(left, right))


def triangular_systems() -> Step:
    size = scaled(4096)
    left = torch.randn(size, size, device=DEVICE).tril() + size * torch.eye(size, device=DEVICE)
    right = torch.randn(size, size, device=DEVICE)
    return quiet(lambda: torch.linalg.solve_triangular(left, right, upper=False))


def mixed_graph() -> Step:
    x, w = normal(256, 256), weight(256, 256)

    def step() -> torch.Tensor:
        y = x
        for _ in range(600):
            y = functional.gelu(y @ w)
        return y

    return graphed(lambda: quiet(step))() if ON_GPU else quiet(step)


def good_convolutions() -> Step:
    model = torch.nn.Conv2d(512, 512, 3, padding=1).to(DEVICE, BF16, memory_format=torch.channels_last)
    images = normal(64, 512, 64, 64).to(memory_format=torch.channels_last)
    return quiet(lambda: model(images))


def random_rows() -> Step:
    table, rows = (
        normal(scaled(2_000_000), 256),
        torch.randint(0, scaled(2_000_000), (4_000_000 if ON_GPU else 99,), device=DEVICE),
    )
    return quiet(lambda: functional.embedding(rows, table))


def doubled_products() -> Step:
    x, w = (
        torch.randn(scaled(4096), scaled(4096), device=DEVICE),
        torch.randn(scaled(4096), scaled(4096), device=DEVICE),
    )

    def step() -> torch.Tensor:
        torch.set_float32_matmul_precision("high")
        try:
            return x @ w @ w
        finally:
            torch.set_float32_matmul_precision("highest")

    return quiet(step)


def eigenvalues() -> Step:
    made = torch.randn(8, 512, 512, device=DEVICE)
    symmetric = made + made.mT
    return quiet(lambda: torch.linalg.eigvalsh(symmetric))


NEAR = ("none", "dearest_work")
PROGRAMS: dict[str, Program] = {
    "rotated_queries": both(rotated_queries, "expanded_copy", "cosines and sines repeated per head", "fusible_chain"),
    "whole_masks": both(whole_masks, "expanded_copy", "a mask per key made whole for all queries and heads"),
    "grouped_heads_training": both(grouped_heads_training, "expanded_copy", "keys and values repeated, with backward"),
    "pair_differences": both(pair_differences, "expanded_copy", "both sides of all pairs made whole"),
    "one_filter_for_all": both(one_filter_for_all, "expanded_copy", "one matrix repeated for 512 products"),
    "bags": both(bags, "dense_gradient", "EmbeddingBag of 1 GB, SGD"),
    "two_tables": both(two_tables, "dense_gradient", "two tables in one optimizer"),
    "vocabulary_adagrad": both(vocabulary_adagrad, "dense_gradient", "1.5 GB, Adagrad"),
    "distilled": both(distilled, "float32_logits", "divergence of float() logits", "fusible_chain"),
    "translated": both(translated, "float32_logits", "cross_entropy of float() logits of 64,000"),
    "next_words": both(next_words, "float32_logits", "float(), [..., :-1, :].contiguous()"),
    "best_candidates": both(best_candidates, "full_sort", "50 of 50,304, 4096 times"),
    "strongest_gradients": both(strongest_gradients, "full_sort", "10,000 of 100 million"),
    "prompt_logits": both(prompt_logits, "sliced_product", "logits of 2048 positions, one is used"),
    "pooled_tokens": both(pooled_tokens, "sliced_product", "a projection of all tokens of which the first is used"),
    "one_hot_experts": both(one_hot_experts, "one_hot_product", "biases of experts by one-hot rows"),
    "own_operator": both(own_operator, "excess_traffic", "one's own operator, a tile of 1024 rows", "dearest_work"),
    "volumes": both(volumes, "fp32_products", "3D convolutions in FP32"),
    "upsampled": both(upsampled, "fp32_products", "transposed convolutions in FP32"),
    "segmenter": both(segmenter, "layout_conversion", "NCHW under autocast, training"),
    "backbone": both(backbone, "layout_conversion", "NCHW in BF16, inference", "fusible_chain"),
    "checkpointed_stages": both(checkpointed_stages, "recomputation", "checkpoint_sequential of 12 layers in 4"),
    "checkpointed_images": both(checkpointed_images, "recomputation", "checkpoint around stages of convolutions"),
    "host_noise": both(host_noise, "blocking_copy", "noise drawn on the CPU", "host_work"),
    "host_scores": both(host_scores, "blocking_copy", "scores reduced on the CPU", "blocking_read", "host_work"),
    "replayed_decode": Program(replayed_decode, "near_limit", "a graph of products with weights of 3 GB", NEAR),
    "images_in_frequency": Program(images_in_frequency, "near_limit", "2D FFT and back", NEAR),
    "order_of_keys": Program(order_of_keys, "near_limit", "argsort of all keys", NEAR),
    "linear_systems": Program(linear_systems, "near_limit", "32 systems of 2048", NEAR),
    "triangular_systems": Program(triangular_systems, "near_limit", "a triangular system of 4096", NEAR),
    "mixed_graph": Program(mixed_graph, "near_limit", "1,200 dependent kernels in one graph", NEAR),
    "good_convolutions": Program(good_convolutions, "near_limit", "BF16 convolutions, channels_last", NEAR),
    "random_rows": Program(random_rows, "near_limit", "4 million rows by index", NEAR),
    "doubled_products": Program(doubled_products, "near_limit", "TF32 products of 4096", NEAR),
    "eigenvalues": Program(eigenvalues, "near_limit", "eigenvalues of 8 matrices of 512", NEAR),
}  # fmt: skip

if not ON_GPU or triton is None:
    del PROGRAMS["own_operator"]
if __name__ == "__main__":
    run_each(PROGRAMS)
