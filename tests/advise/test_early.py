"""On a machine of many cores, what a proof and a patch need starts at once; what is said is the same."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from opscope.advise.comparing import Comparing
from opscope.advise.measured import Baseline, ChangeResult
from opscope.advise.messages import NO_WEIGHTS, Broken, Built, Loaded, VariantJob
from opscope.advise.proof import Judgement
from opscope.advise.proving import Written
from opscope.advise.search import ChangeNames, first_tries
from opscope.advise.session import AdviseError, OutOfTimeError, Session, Worker
from opscope.advise.source import ScriptPlaces
from opscope.advise.trying import SearchPlan, _Trying, try_changes
from opscope.documents.advise import Outcome
from opscope.measuring.rounds import Interval
from opscope.record.configuration import Configuration
from tests.advise.facts import facts

SCRIPT = """
import torch

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(64, 192)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) * 64 ** -0.5
        return scores.softmax(-1) @ v

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
model = Attention()
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
x = torch.randn(8, 256, 64)
while True:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_patch_stands_as_soon_as_its_proof(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plan = SearchPlan(
        configuration=Configuration(target=str(script)),
        device="cpu",
        only=("fused_attention", "no_anomaly_detection"),
        budget_s=150,
        log=str(tmp_path / "log"),
        width=4,  # on fewer, nothing starts early
    )
    said: list[str] = []
    document = try_changes(plan, said.append)
    proven = [one for one in document.results if one.verdict is Outcome.PROVEN]
    assert proven, document.results
    best = max(proven, key=lambda one: one.ratio or 0)
    assert best.patch is not None
    assert best.patch.diff is not None, best.patch.reason
    assert "set_detect_anomaly" in best.patch.diff or "scaled_dot_product_attention" in best.patch.diff
    assert best.patch.ratio is not None
    assert best.patch.ratio == best.ratio  # what is proven is the patch
    # No further comparison is made for it.
    assert sum(line.startswith("comparing with float64") for line in said) <= sum(
        line.startswith("again, in new processes") for line in said
    )


@pytest.mark.slow
@pytest.mark.torch
def test_what_fails_as_a_patch_is_proven_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    fails = Written(
        {str(script): SCRIPT.replace("while True:", "raise ValueError('not so')\nwhile True:")}, "", tmp_path
    )
    monkeypatch.setattr("opscope.advise.proving.written_or_why", lambda *_: fails)
    plan = SearchPlan(
        configuration=Configuration(target=str(script)),
        device="cpu",
        only=("no_anomaly_detection",),
        budget_s=150,
        log=str(tmp_path / "log"),
    )
    document = try_changes(plan, lambda _: None)
    for one in document.results:
        assert one.patch is None or one.patch.diff is None
    # On a machine that others use, the change itself may not be decidable.
    for one in (one for one in document.results if one.verdict is Outcome.PROVEN):
        assert one.patch is not None
        assert one.patch.reason is not None
        assert "written into the source it fails: ValueError: not so (train.py:" in one.patch.reason


class Played:
    """Stands for a comparison, whose answers are given."""

    starts_early, has_early, lacked_memory = True, False, False

    def __init__(self, answer: Callable[[Mapping[ChangeNames, object]], dict[ChangeNames, Judgement]]) -> None:
        self.answer, self.right = answer, set[ChangeNames]()

    def needed(self, *_: object) -> list[VariantJob]:
        return []

    def drop_early(self) -> None:
        pass

    def proofs(self, finalists: Mapping[ChangeNames, object], _: object) -> dict[ChangeNames, Judgement]:
        result = self.answer(finalists)
        self.right |= {names for names, one in result.items() if one.right}
        return result


ONE, OTHER = ("fused_optimizer",), ("set_to_none",)


def trying(
    gains: dict[ChangeNames, float],
    patched: dict[ChangeNames, ChangeResult],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Mapping[ChangeNames, object]], dict[ChangeNames, Judgement]] = lambda finalists: {
        names: Judgement(True, "", 0.0, 0.0) for names in finalists
    },
) -> _Trying:
    """Return a search that has measured some gains, and whose patches are measured as given, without processes."""
    job = VariantJob(configuration=Configuration(target="train.py"), device="cpu")
    with Session(job, width=1, timeout_s=1) as session:
        made = _Trying(SearchPlan(configuration=job.configuration, device="cpu"), session, job, lambda _: None)
    made._prover.built = Built(facts(), "cpu", 1.0, None, ScriptPlaces(), "")
    made._known.measured = {
        names: ChangeResult(gain=Interval(gain, gain - 0.01, gain + 0.01, 6)) for names, gain in gains.items()
    }
    searched = dict(made._known.measured)
    made._prover.comparing = Played(answer)  # type: ignore[assignment]
    monkeypatch.setattr(
        "opscope.advise.proving.written_or_why", lambda *_: Written({"train.py": "x"}, "diff", Path("/tmp"))
    )
    monkeypatch.setattr(
        made._prover,
        "_measure_again",
        lambda jobs, _: {
            names: patched.get(names, searched[names]) if job.sources else searched[names]
            for names, job in jobs.items()
        },
    )
    return made


def test_what_a_patch_breaks_is_proven_without_one_however_small_its_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying({ONE: 1.06}, {ONE: ChangeResult(broken="ValueError: x")}, monkeypatch)
    assert made._prover.prove([ONE], facts()) == set()
    assert made._known.proven() == {ONE: 1.06}
    assert made._known.patches[ONE].reason == "written into the source it fails: ValueError: x"


def test_a_patch_whose_process_was_ended_has_another_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying({ONE: 1.5}, {ONE: ChangeResult(broken="ended with code -9", is_passing=True)}, monkeypatch)
    made._prove_early(facts())
    assert made._finalists() == [ONE]
    assert ONE not in made._known.patches


def test_what_may_be_noise_is_not_proven_before_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying({ONE: 1.12}, {}, monkeypatch)
    clear = made._known.measured[ONE]
    made._known.measured[ONE] = ChangeResult(gain=Interval(1.12, 0.91, 1.21, 6), least=1.13)  # minGPT on three cores
    made._prove_early(facts())
    assert made._known.proven() == {}
    assert made._finalists() == [ONE]
    made._known.measured[ONE] = clear
    made._prove_early(facts())
    assert made._known.proven() == {ONE: 1.12}


def test_time_that_runs_out_leaves_what_the_search_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_: Mapping[ChangeNames, object]) -> dict[ChangeNames, Judgement]:
        raise OutOfTimeError("the time is up")

    made = trying({ONE: 1.5, OTHER: 1.6}, {ONE: ChangeResult(broken="ValueError: x")}, monkeypatch, ends)
    with pytest.raises(OutOfTimeError):
        made._prover.prove([ONE, OTHER], facts())
    gain = made._known.measured[ONE].gain
    assert gain is not None
    assert gain.median == 1.5


def test_what_was_right_as_a_patch_that_then_differs_is_not_called_right(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying(
        {ONE: 1.5},
        {},
        monkeypatch,
        lambda finalists: {names: Judgement(False, "other losses", 0.0, 0.0) for names in finalists},
    )
    made._prover.comparing.right.add(ONE)
    made._budget.seconds = 0.0  # no time is left for a proof without a patch
    made._prover.prove([ONE], facts())
    assert made._prover.comparing.right == set()
    assert made._known.proven() == {}
    assert made._known.patches[ONE].reason == "written into the source it does something else: other losses"


def test_a_patch_that_noise_hides_is_timed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying({ONE: 1.5}, {}, monkeypatch)
    noise = ChangeResult(gain=Interval(1.5, 0.8, 2.4, 6), least=1.05)
    clear = ChangeResult(gain=Interval(1.5, 1.4, 1.6, 6), least=1.05)
    seen = iter([noise, clear])
    monkeypatch.setattr(made._prover, "_measure_again", lambda jobs, _: {names: next(seen) for names in jobs})
    made._prover.prove([ONE], facts())
    assert made._known.proven() == {ONE: 1.5}
    assert made._known.patches[ONE].diff == "diff"
    made = trying({ONE: 1.5}, {ONE: noise}, monkeypatch)
    made._prover.prove([ONE], facts())
    reason = made._known.patches[ONE].reason
    assert reason is not None
    assert reason.startswith("whether it is faster once it is in the source is not decidable: 0.80 to 2.40")


def test_a_patch_that_breaks_is_not_timed_again_for_the_noise_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying({ONE: 1.5}, {}, monkeypatch)
    noise = made._known.measured[ONE] = ChangeResult(gain=Interval(1.5, 0.8, 2.4, 6), least=1.05)
    clear = ChangeResult(gain=Interval(1.5, 1.4, 1.6, 6), least=1.05)
    asked: list[bool] = []

    def again(jobs: Mapping[ChangeNames, VariantJob], _: object) -> dict[ChangeNames, ChangeResult]:
        asked.extend(bool(job.sources) for job in jobs.values())
        return {names: ChangeResult(broken="ValueError: x") if job.sources else clear for names, job in jobs.items()}

    monkeypatch.setattr(made._prover, "_measure_again", again)
    made._prover.prove([ONE], facts())
    assert asked == [True, False]  # as a patch, then without one
    assert made._known.measured[ONE] is clear
    assert made._known.measured[ONE] is not noise
    assert made._known.patches[ONE].reason == "written into the source it fails: ValueError: x"


def test_what_is_proven_stands_where_the_proof_of_another_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trying({ONE: 1.5, OTHER: 1.6}, {ONE: ChangeResult(broken="ValueError: x")}, monkeypatch)
    monkeypatch.setattr(
        made._prover, "_prove_unpatched", lambda *_: (_ for _ in ()).throw(AdviseError("the script has ended"))
    )
    monkeypatch.setattr(made, "_together_with", lambda *_: [ONE, OTHER])
    made._prove_early(facts())
    assert made._known.proven() == {OTHER: 1.6}


@pytest.mark.torch
def test_the_step_as_written_starts_before_those_that_wait_for_its_weights(tmp_path: Path) -> None:
    job = VariantJob(configuration=Configuration(target="train.py"), device="cpu")
    with Session(job, width=4, timeout_s=1) as session:
        comparing = Comparing(session, job, lambda _: None)
        names = ("autocast_bf16", "fused_optimizer")
        finalist = (replace(job, changes=names), replace(job, changes=("fused_optimizer",)))
        first, *others = comparing.needed({names: finalist}, facts(training=True))
    assert first.proving
    assert first.is_as_written
    assert {(one.changes, one.reference, one.rounding) for one in others if one.proving} == {
        (names, False, ()),
        (("fused_optimizer",), False, ()),
        ((), True, ()),
        ((), True, ("autocast_bf16",)),
    }


def test_what_only_finds_mistakes_is_taken_out_of_all_that_is_tried() -> None:
    possible = ("no_anomaly_detection", "fused_optimizer", "autocast_bf16", "compile")
    tries = first_tries(possible)
    assert tries[0] == ("no_anomaly_detection",)
    assert all("no_anomaly_detection" in names for names in tries if len(names) > 1)


def test_where_launches_are_waited_for_graphs_come_first() -> None:
    possible = ("fused_attention", "tf32", "autocast_bf16", "fused_optimizer", "compile", "compile_reduce_overhead")
    first, second, third, *rest = first_tries(possible, launch_bound=True)
    assert first == ("fused_attention", "tf32", "fused_optimizer", "compile_reduce_overhead")
    assert "autocast_bf16" in second
    assert "compile_reduce_overhead" in second
    assert third == ("fused_attention", "tf32", "fused_optimizer")  # it starts in seconds, and is there to compare with
    assert {first, second, third, *rest} == set(first_tries(possible)) | {
        ("fused_attention", "fused_optimizer", "compile_reduce_overhead")
    }


def test_what_helps_most_likely_is_proven_first_where_launches_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    possible = ("tf32", "fused_optimizer", "compile", "compile_reduce_overhead")
    best = ("tf32", "fused_optimizer", "compile_reduce_overhead")
    made = trying({}, {}, monkeypatch)
    made._known.baseline = Baseline(10e6, 1.0, (0.95, 1.05))
    made._session.width = 8
    assert made._likely(possible) is None  # how long the device works is not known
    made._device_ns = 9e6
    assert made._likely(possible) == ("tf32", "fused_optimizer")  # it works for most of a step
    for made._device_ns in (7e6, 2e6):  # the host sets the pace
        assert made._likely(possible) == best
    made._wait_ns = 3e6
    assert made._likely(possible) is None  # loading comes first
    made._wait_ns, made._session.width = None, 4
    assert made._likely(possible) is None  # its processes would delay each other
    made._session.width = 8
    made._known.measured = {OTHER: ChangeResult(gain=Interval(1.0, 0.9, 1.1, 6))}
    assert made._likely(possible) is None  # something was timed, in the run that this one goes on from


def worker_of(job: VariantJob, blocks: list[float], broken: Broken | None = None) -> Worker:
    """Return a process that has been timed, without one."""
    worker = Worker(job, None, None)  # type: ignore[arg-type]
    worker.built = Built(facts(), "cuda", 1.0, None, ScriptPlaces(), "")
    worker.blocks, worker.broken = blocks, broken
    return worker


LIKELY = ("tf32", "fused_optimizer")


def proven_at_once(
    monkeypatch: pytest.MonkeyPatch,
    *,
    right: bool | None = True,
    broken: Broken | None = None,
    written_broken: Broken | None = None,
    lacked_memory: bool = False,
    has_patch: bool = True,
) -> _Trying:
    """Let a combination that is twice as fast be proven at once, with processes that only say what they took."""
    made = trying(
        {}, {}, monkeypatch, lambda finalists: {names: Judgement(right, "so", 0.0, 0.0) for names in finalists}
    )
    if not has_patch:
        monkeypatch.setattr("opscope.advise.proving.written_or_why", lambda *_: "it cannot be written")
    played = made._prover.comparing
    played.lacked_memory = lacked_memory
    monkeypatch.setattr(played, "started", lambda jobs, *_: [worker_of(jobs[0], [5.0] * 6, broken)], raising=False)
    monkeypatch.setattr("opscope.advise.proving.time_finalists", lambda *_: None)
    monkeypatch.setattr(made._session, "leave", lambda _: None)
    monkeypatch.setattr(made._prover, "_measure_again", lambda *_: pytest.fail("it is not timed again"))
    # A process as written that ends has one block less.
    written = [worker_of(made._job, [10.0] * (5 if written_broken else 6), written_broken) for _ in range(2)]
    made._prover.prove_at_once(LIKELY, written, facts(), 10.0)
    return made


def test_what_is_proven_at_once_is_not_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = proven_at_once(monkeypatch)
    assert made._known.proven() == {LIKELY: 2.0}
    assert made._known.unproven() == {}
    assert made._known.patches[LIKELY].diff == "diff"
    assert made._known.jobs[LIKELY].sources == {"train.py": "x"}


def test_what_fails_at_once_is_taken_up_by_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = proven_at_once(monkeypatch, right=False)  # as a patch; without one it may be right
    assert wrong._known.unproven() == {LIKELY: 2.0}
    assert (wrong._known.proofs, wrong._known.patches, wrong._prover.comparing.right) == ({}, {}, set())
    final = proven_at_once(monkeypatch, right=False, has_patch=False)
    assert (final._known.unproven(), final._known.proven()) == ({}, {})
    assert final._known.proofs[LIKELY].right is False
    crowded = proven_at_once(monkeypatch, right=False, has_patch=False, lacked_memory=True)
    assert crowded._known.unproven() == {LIKELY: 2.0}
    assert crowded._known.proofs == {}


def test_what_does_not_run_at_once_is_tried_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    breaks = proven_at_once(monkeypatch, broken=Broken("ValueError: x"))
    assert breaks._known.measured == {}
    assert breaks._prover.unwritten == {LIKELY: "written into the source it fails: ValueError: x"}
    crowded = proven_at_once(monkeypatch, broken=Broken("out of memory", lacks_memory=True))
    assert (crowded._known.measured, crowded._prover.unwritten) == ({}, {})
    late = proven_at_once(monkeypatch, broken=Broken("it took longer than 9 s", is_passing=True))
    assert late._known.measured[LIKELY].is_passing  # the search does not wait as long once more
    ended = proven_at_once(monkeypatch, written_broken=Broken("the script has ended", has_ended=True))
    assert ended._known.measured == {}


@pytest.mark.slow
@pytest.mark.torch
def test_what_helps_most_likely_comes_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    first = ("no_anomaly_detection",)
    monkeypatch.setattr(_Trying, "_likely", lambda *_: first)
    configuration = Configuration(target=str(script))
    plan = SearchPlan(
        configuration=configuration, device="cpu", only=first, budget_s=150, log=str(tmp_path / "log"), width=4
    )
    said: list[str] = []
    (one,) = try_changes(plan, said.append).results
    assert said.index("what most likely helps: no_anomaly_detection") == 1
    assert not any(line.startswith("alone and in known combinations") for line in said)  # it was timed
    if one.verdict is Outcome.PROVEN:  # others may use the machine
        assert one.patch is not None
        assert one.patch.diff is not None
        assert "set_detect_anomaly" in one.patch.diff
        assert one.patch.ratio == one.ratio


@pytest.mark.parametrize(
    ("waits", "order"),
    [
        (0.05, ["search", "proven", "the last round", "loading"]),
        (0.2, ["search", "proven", "loading", "the last round"]),
        (0.4, ["loading", "search", "proven", "the last round"]),
    ],
)
def test_loading_has_its_turn_by_what_it_may_save(
    waits: float, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seen = trying({}, {}, monkeypatch), list[str]()
    step = facts(training=True, loaders=1)
    made._known.baseline = Baseline(10e6, 1.0, (0.95, 1.05))

    def waiting(_: object) -> None:
        made._wait_ns = waits * 10e6

    def together(*_: object) -> list[ChangeNames]:
        seen.append("search")
        made._known.measured[ONE] = ChangeResult(gain=Interval(2.0, 1.9, 2.1, 6))
        return []

    def prove(_: object) -> None:
        made._known.again.add(ONE)
        made._known.proofs[ONE] = Judgement(True, "", 0.0, 0.0)
        seen.append("proven")

    def load(*_: object) -> None:
        if "loading" not in seen:  # at the end it is asked for again, as nothing was found
            seen.append("loading")

    for name, other in (
        ("_look_at_waiting", waiting),
        ("_measure_together", together),
        ("_prove_early", prove),
        ("_input", load),
        ("_finals", lambda _: seen.append("the last round")),
        *((name, lambda *_: None) for name in ("_time_written", "_check_losses")),
    ):
        monkeypatch.setattr(made, name, other)
    monkeypatch.setattr(made._known, "note_written", lambda _: None)
    monkeypatch.setattr(made._session, "close", lambda _: None)
    made._try([None], Built(step, "cuda", 1.0, None, ScriptPlaces(), ""), ["fused_optimizer"])  # type: ignore[list-item]
    assert seen == order


def test_starting_workers_counts_once_an_epoch() -> None:
    loaded = Loaded(steps=10, waits_ns=[100] * 20, received_ns=[10] * 20, starts_ns=[5000], epoch=500)
    assert loaded.batches == 2
    assert loaded.wait_ns == 200
    assert loaded.start_ns == 10  # a batch: 5,000 ns for 500 of them
    unknown = Loaded(steps=10, waits_ns=[100] * 20, received_ns=[10] * 20, starts_ns=[5000], epoch=None)
    assert unknown.start_ns == 250
    # The loop leaves its epochs after 20 of 500 batches.
    left = Loaded(steps=10, waits_ns=[100] * 40, received_ns=[10] * 40, starts_ns=[4000, 5000, 6000], epoch=500)
    assert left.start_ns == 250
    assert Loaded(steps=0, waits_ns=[], received_ns=[], starts_ns=[], epoch=None).wait_ns == 0


class Memory:
    """Stands for a session on a device with memory for so many processes."""

    width = 8

    def __init__(self, most: int) -> None:
        self.most, self.alive, self.folder = most, 0, Path()
        self.built: list[list[VariantJob]] = []

    def room(self) -> int:
        return self.most - self.alive

    def build(self, jobs: list[VariantJob], _: object = None) -> list[Worker]:
        self.built += [jobs] if jobs else []
        workers = [Worker(job, None, None) for job in jobs]  # type: ignore[arg-type]
        self.alive += sum(2 if job.reference else 1 for job in jobs)
        assert self.alive <= self.most
        return workers

    def close(self, workers: list[Worker]) -> None:
        self.alive -= sum(2 if worker.job.reference else 1 for worker in workers)

    leave = close

    def ask_each(self, asked: list[tuple[Worker, object]], _: object) -> list[object]:
        return [worker.job for worker, _ in asked]


@pytest.mark.parametrize("most", [2, 3, 4, 5, 6, 7, 100])
def test_no_more_processes_run_than_the_device_has_memory_for(most: int) -> None:
    job = VariantJob(configuration=Configuration(target="train.py"), device="cuda")
    memory = Memory(most)
    comparing = Comparing(memory, job, lambda _: None)  # type: ignore[arg-type]
    names = ("tf32", "fused_optimizer")
    finalist = (replace(job, changes=names), replace(job, changes=("fused_optimizer",)))
    later = comparing.needed({names: finalist}, facts(training=True))
    (first,) = comparing.started([finalist[0]], later)
    early = [one for one, _ in comparing._early]
    assert first.job == finalist[0]
    assert early == [] or early[0] == later[0]  # the others wait for its weights
    if most == 100:
        assert sorted(map(repr, early)) == sorted(map(repr, later))
    memory.close([first])
    jobs = comparing._compared_jobs({names: finalist[0], names[1:]: finalist[1]})  # type: ignore[dict-item]
    longer = [job, job, job]
    workers, results = comparing._asked_in_turns(jobs, list(jobs), object, longer)
    assert results == jobs  # each has its answer, in order
    assert [worker.job for worker in workers] == jobs
    begun = [one for one, _ in comparing._early if one == job]
    # What is asked next starts beside the last that record, where memory is left: in float64 one takes twice as much.
    assert begun == longer[: {5: 1, 6: 3, 7: 3, 100: 3}.get(most, 0)]
    comparing.drop_early()
    assert memory.alive == 0


def test_what_a_process_takes_of_the_devices_memory_limits_how_many_start() -> None:
    gib = 2**30
    job = VariantJob(configuration=Configuration(target="train.py"), device="cuda")
    with Session(job, width=8, timeout_s=1) as session:
        assert session.room() is None
        workers = [Worker(job, None, None) for _ in range(2)]  # type: ignore[arg-type]
        for worker, free in zip(workers, (70, 50), strict=True):
            worker.built = Built(facts(), "cuda", 1.0, 9 * gib + gib // 4, ScriptPlaces(), "", free * gib)
        session._open += workers
        session._note_memory(workers)
        assert session.room() == 4  # nine tenths of 50 GiB, 10 GiB each
        session._open.pop()
        assert session.room() == 5
        session._open.clear()


@pytest.mark.slow
@pytest.mark.torch
def test_no_one_waits_for_weights_that_will_not_come(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    flag, script = tmp_path / "flag", tmp_path / "train.py"
    # The first process fails, as one does for which there is no memory.
    fails = f"import pathlib\nif not pathlib.Path({str(flag)!r}).exists():\n    raise MemoryError('none is left')\n"
    script.write_text(SCRIPT.replace("while True:", fails + "while True:"))
    job = VariantJob(configuration=Configuration(target=str(script)), device="cpu", proving=True)
    with Session(job, width=1, timeout_s=100) as session:
        begin = str(session.folder / "begin.pt")
        (writes,) = session.build([replace(job, begin=begin)])
        assert writes.broken is not None
        flag.touch()
        began = time.monotonic()
        (waits,) = session.build([replace(job, begin=begin, changes=("fused_optimizer",))])
        assert waits.broken is not None
        assert NO_WEIGHTS in waits.broken.reason
        assert time.monotonic() - began < 45  # not the minute for which it waits for one that is busy
        (writes,) = session.build([replace(job, begin=begin)])  # another turn
        (waits,) = session.build([replace(job, begin=begin, changes=("fused_optimizer",))])
        assert (writes.broken, waits.broken) == (None, None)
