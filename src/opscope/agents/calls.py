"""Answers a call of a tool: the words of its command, confined to some folders, run in a process of its own."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from opscope.agents.tools import Tool
from opscope.base.errors import OpscopeError, UsageError
from opscope.base.processes import own_environment, own_process, run_within
from opscope.base.text import count_tokens, quoted
from opscope.record.sweep import MANIFEST
from opscope.render.brief import MOST_TOKENS, fitted

_ENTRIES: Final = 20_000  # of a folder, which are looked at for links that lead out of it
_LONGEST_ERROR: Final = 600  # characters of a line on standard error
_SAID: Final = 300  # tokens of what a command says on standard error


class Answer(Struct, frozen=True):
    """What a tool answers: its text, and whether the command failed."""

    text: str
    failed: bool = False


class Caller(Struct, frozen=True):
    """Answers calls of tools.

    Attributes:
        roots: the folders whose files may be read, resolved; relative paths are of the first.
        tools: what is offered.
        seconds: how long a command may take.
    """

    roots: tuple[Path, ...]
    tools: tuple[Tool, ...]
    seconds: float = 300.0

    @classmethod
    def of(cls, roots: Sequence[Path], tools: Sequence[Tool], *, seconds: float = 300.0) -> "Caller":
        """Resolve the folders.

        Raises:
            UsageError: one is not a folder.
        """
        for root in roots:
            if not root.is_dir():
                raise UsageError(f"{root} is not a folder")
        return cls(tuple(root.resolve() for root in roots), tuple(tools), seconds)

    def __call__(self, name: str, values: Mapping[str, Any]) -> Answer:
        """Call a tool.

        Args:
            name: the tool's name.
            values: its parameters.
        """
        try:
            words = self.words(name, values)
            # It ends with this process: a program that it runs must not outlive the server.
            command = [*own_process("opscope.base.tethered"), *own_process("opscope"), *words]
            done = run_within(command, self.seconds, environment=own_environment(), folder=self.roots[0])
        except (OpscopeError, OSError, ValueError, RuntimeError) as error:  # such as links that lead in a circle
            return Answer(_as_data(str(error)), failed=True)
        except subprocess.TimeoutExpired:
            return Answer(f"{name} took longer than {self.seconds:g} s and was ended", failed=True)
        text = done.stdout.decode("utf-8", "replace").strip()
        # Errors quote files and their names.
        message = "\n".join(
            map(_as_data, filter(None, map(str.strip, done.stderr.decode("utf-8", "replace").splitlines())))
        )
        if not text:
            return Answer(fitted(message, _SAID) or f"{name} ended with exit code {done.returncode}", failed=True)
        # Exit codes tell verdicts too (a failed check, a regression): what was printed is the answer then.
        left = MOST_TOKENS - count_tokens(text) - 1
        more = fitted(message, min(_SAID, left)) if done.returncode and left > 0 else ""
        return Answer("\n".join(part for part in (fitted(text, MOST_TOKENS), more) if part))

    def words(self, name: str, values: Mapping[str, Any]) -> list[str]:
        """Return the words of the command of a call, with resolved paths.

        Raises:
            UsageError: there is no such tool, a value is wrong, or a path leads out of the folders.
        """
        tool = self._tool(name)
        words = tool.words(values)  # checks the kinds of the values
        resolved = {one: str(self.inside(str(values[one]))) for one in tool.paths(values)}
        return tool.words({**values, **resolved}) if resolved else words

    def _tool(self, name: str) -> Tool:
        for tool in self.tools:
            if tool.name == name:
                return tool
        raise UsageError(f"there is no tool {name}")

    def inside(self, path: str) -> Path:
        """Return a path with its links resolved.

        Raises:
            UsageError: it, or a link in the folder that it is, leads out of the folders; there is nothing, or a pipe, a
                device or a socket, which may never end.
        """
        named = self.roots[0] / path
        # RUN/CONFIGURATION is not a file: what is read then is the run directory.
        of_run = not os.path.lexists(named) and os.path.isfile(named.parent / MANIFEST)
        try:
            result = (named.parent if of_run else named).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise UsageError(f"there is no {path}") from error
        self._check(result, path)
        if not (result.is_file() or result.is_dir()):
            raise UsageError(f"{path} is not a regular file: name a trace or a folder")
        for number, entry in enumerate(_links(result)):
            if number >= _ENTRIES:
                raise UsageError(f"{path} has more than {_ENTRIES:,} files: name one of its folders")
            if entry is not None:
                self._check(entry, path)
        return result / named.name if of_run else result

    def _check(self, resolved: Path, path: str) -> None:
        if not any(resolved == root or root in resolved.parents for root in self.roots):
            raise UsageError(f"{path} is outside of {', '.join(map(str, self.roots))}")


def _as_data(text: str) -> str:
    """Return a line of an error as a quotation: what it says of a file may be the file's own words."""
    return quoted(text, _LONGEST_ERROR)


def _links(folder: Path) -> list[Path | None]:
    """Return for every file of a folder where it leads if it is a link, else None."""
    if not folder.is_dir():
        return []
    results: list[Path | None] = []
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entry = Path(place, name)
            results.append(entry.resolve() if entry.is_symlink() else None)
        if len(results) > _ENTRIES:
            break
    return results
