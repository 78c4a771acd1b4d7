"""Whether each item comes back exactly once, whatever becomes of the process that works at it."""

from pathlib import Path

import pytest

from opscope.base.errors import EnvironmentLacksError
from opscope.distributed.engines import Engine, InThisProcess, Lost, Processes
from tests.distributed import tasks

NUMBERS = list(range(12))


@pytest.mark.parametrize("engine", [InThisProcess(), Processes(2)], ids=["here", "processes"])
def test_each_item_comes_back_once_with_its_result(engine: Engine) -> None:
    found = list(engine.run(tasks.doubled, NUMBERS))
    assert sorted(found) == [(number, 2 * number) for number in NUMBERS]
    assert list(engine.run(tasks.doubled, [])) == []


@pytest.mark.parametrize("engine", [InThisProcess(), Processes(2)], ids=["here", "processes"])
def test_what_fails_is_lost_with_its_reason_and_the_rest_is_not(engine: Engine) -> None:
    found = dict(engine.run(tasks.fails, NUMBERS))
    assert len(found) == len(NUMBERS)
    assert found[3] == Lost("ValueError: 3 is a multiple of three")
    assert {number for number, one in found.items() if not isinstance(one, Lost)} == {n for n in NUMBERS if n % 3}


def test_what_a_killed_process_was_at_is_tried_again(tmp_path: Path) -> None:
    items = [(number, str(tmp_path)) for number in NUMBERS]
    found = list(Processes(2).run(tasks.dies_once, items))
    assert sorted(found) == [(item, item[0]) for item in items]
    assert {path.name for path in tmp_path.iterdir()} == {"1", "5", "9"}


def test_an_item_that_always_kills_its_process_is_lost_alone() -> None:
    found = dict(Processes(2).run(tasks.always_dies, NUMBERS))
    assert found.pop(5) == Lost("the process that read it died, twice")
    assert found == {number: number for number in NUMBERS if number != 5}


def test_a_cluster_of_dask_brings_back_what_killed_workers_were_at(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="opscope[ranks] is not installed")
    from opscope.distributed.engines import DaskCluster

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        engine = DaskCluster(cluster.scheduler_address)
        assert sorted(engine.run(tasks.doubled, NUMBERS)) == [(number, 2 * number) for number in NUMBERS]
        failed = dict(engine.run(tasks.fails, NUMBERS))
        assert failed[3] == Lost("ValueError: 3 is a multiple of three")
        items = [(number, str(tmp_path)) for number in NUMBERS]
        assert sorted(engine.run(tasks.dies_once, items)) == [(item, item[0]) for item in items]


def test_a_cluster_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="opscope[ranks] is not installed")
    from opscope.distributed import engines

    monkeypatch.setattr(engines, "_TIMEOUT_S", "0.5s")
    with pytest.raises(EnvironmentLacksError, match="no Dask scheduler answers"):
        list(engines.DaskCluster("tcp://127.0.0.1:9").run(tasks.doubled, NUMBERS))
