"""Let an agent repair slow steps, and count what it solved: with opscope, and without.

    python benchmarks/repair/run.py 'my-agent --prompt-file TASK.md' OUTPUT.json --arm with --device cuda
    python benchmarks/repair/run.py reference OUTPUT.json      # the known repairs: must solve all
    python benchmarks/repair/run.py none OUTPUT.json           # nothing is done: must solve none

The agent is any command of the shell. It runs in a folder of its own with TASK.md, step.py (which it edits) and
check.py (which says whether values are right, and the time), for at most BUDGET seconds. With --arm with, opscope is on
its PATH and TASK.md names it; with --arm without, neither. A task is solved if the step returns what it returned before
and takes no longer than the target: the original's time less 70 % of what the known repair saves, all timed in turn
on this machine after the agent has ended (judge.py), so that the target suits any machine. The result has Wilson's
interval of the share that was solved; compare arms with the same agent, budget and machine, and at least three repeats.

The judge loads the agent's step.py into its own process: it is a test of honest agents, not a jail for others.
"""

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TASKS = sorted(path for path in (HERE / "tasks").iterdir() if (path / "task.toml").exists())
SHARE = 0.7  # of what the known repair saves
JUDGING = 600  # seconds

TASK = """# A slow step

`step.py` has a class `Step`, which is made once and then called again and again with new tensors from `inputs`.
Make a call take less time on {device}, without changing what it returns or what it is called with: edit `step.py` only.

- `python check.py` says whether the values are right, and how long a call takes.
- One call takes {before:.3f} ms now. The task is solved at {target:.3f} ms or less.
- Results of earlier calls must not be kept: inputs are new every time.
{tool}"""
TOOL = """- opscope, a profiler, is installed: `opscope skill` says how to use it.
"""
CHECK = """import subprocess, sys
command = [sys.executable, {judge!r}, {folder!r}, "step.py", "--device", {device!r}, "--rounds", "5"]
sys.exit(subprocess.run(command).returncode)
"""


def judged(task: Path, candidate: Path, device: str, rounds: int = 15) -> dict[str, object]:
    command = [
        sys.executable,
        str(HERE / "judge.py"),
        str(task),
        str(candidate),
        "--device",
        device,
        "--rounds",
        str(rounds),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=JUDGING, check=False)
        found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"correct": False, "why": f"it took longer than {JUDGING} s to judge"}
    except (ValueError, IndexError):
        return {"correct": False, "why": done.stderr[-300:]}
    return found


def target_of(found: dict[str, object]) -> float:
    before, best = float(str(found["original_ns"])), float(str(found["reference_ns"]))
    return before - SHARE * (before - best)


def workspace(folder: Path, task: Path, device: str, arm: str, before: float, target: float) -> dict[str, str]:
    """Fill a folder for the agent, and return its environment."""
    shutil.copy(task / "step.py", folder / "step.py")
    original = folder / ".original"
    original.mkdir()
    shutil.copy(task / "step.py", original)
    shutil.copy(task / "step.py", original / "repaired.py")  # check.py knows no repair
    shutil.copy(task / "task.toml", original)
    check = CHECK.format(judge=str(HERE / "judge.py"), folder=str(original), device=device)
    (folder / "check.py").write_text(check)
    words = {"device": device, "before": before / 1e6, "target": target / 1e6, "tool": TOOL if arm == "with" else ""}
    (folder / "TASK.md").write_text(TASK.format(**words))
    programs = folder / ".bin"
    programs.mkdir()
    wrapped = {"python": f'exec "{sys.executable}" "$@"'}
    if arm == "with":
        wrapped["opscope"] = f'PYTHONPATH="{ROOT / "src"}:$PYTHONPATH" exec "{sys.executable}" -P -m opscope "$@"'
    for name, line in wrapped.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    hidden = str(Path(sys.executable).parent)
    path = [str(programs), *(one for one in os.environ.get("PATH", "").split(os.pathsep) if one != hidden)]
    return {**os.environ, "PATH": os.pathsep.join(path), "REPAIR_TASK": task.name}


def ran(agent: str, folder: Path, task: Path, environment: dict[str, str], budget: float) -> tuple[float, str]:
    """Let the agent work; return how long it did, and how it ended."""
    begin = time.monotonic()
    if agent == "reference":
        shutil.copy(task / "repaired.py", folder / "step.py")
    if agent in ("reference", "none"):
        return time.monotonic() - begin, "control"
    process = subprocess.Popen(agent, shell=True, cwd=folder, env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=budget)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return time.monotonic() - begin, "out of time"
    return time.monotonic() - begin, f"exit code {code}"


def tried(agent: str, task: Path, given: argparse.Namespace) -> dict[str, object]:
    base = judged(task, task / "repaired.py", given.device, 7)
    if not base["correct"]:
        return {"task": task.name, "solved": None, "why": f"the known repair: {base['why']}"}
    with tempfile.TemporaryDirectory(prefix="repair-") as name:
        folder = Path(name)
        environment = workspace(folder, task, given.device, given.arm, float(str(base["original_ns"])), target_of(base))
        seconds, ended = ran(agent, folder, task, environment, given.budget)
        found = judged(task, folder / "step.py", given.device)
    solved = bool(found["correct"]) and float(str(found["candidate_ns"])) <= target_of(found)
    return {"task": task.name, "solved": solved, "seconds": round(seconds, 1), "ended": ended, **found}


def wilson(solved: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    if not count:
        return 0.0, 1.0
    share, more = solved / count, z * z / count
    middle = (share + more / 2) / (1 + more)
    half = z * math.sqrt(share * (1 - share) / count + more / (4 * count)) / (1 + more)
    return max(0.0, middle - half), min(1.0, middle + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="a command of the shell, or one of the controls: reference, none")
    parser.add_argument("output", type=Path)
    parser.add_argument("--arm", choices=["with", "without"], default="with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=600, help="seconds for each task")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", choices=[task.name for task in TASKS], metavar="TASK")
    given = parser.parse_args()
    chosen = [task for task in TASKS if not given.tasks or task.name in given.tasks]
    results = []
    for repeat in range(given.repeats):
        for task in chosen:
            results.append({"repeat": repeat, **tried(given.agent, task, given)})
            print(json.dumps(results[-1]), flush=True)
    counted = [one for one in results if one["solved"] is not None]
    solved = sum(bool(one["solved"]) for one in counted)
    low, high = wilson(solved, len(counted))
    summary = {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"platform": platform.platform(), "python": platform.python_version(), "device": given.device},
        "agent": given.agent,
        "arm": given.arm,
        "budget_s": given.budget,
        "tasks": len(chosen),
        "repeats": given.repeats,
        "solved": solved,
        "counted": len(counted),
        "share": solved / max(len(counted), 1),
        "interval_95": [low, high],
        "results": results,
    }
    given.output.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{solved} of {len(counted)} solved, {low:.0%} to {high:.0%}")


if __name__ == "__main__":
    main()
