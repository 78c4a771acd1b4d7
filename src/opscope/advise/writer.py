"""The ways in which changes are written into the user's source: what `proving` puts together. Needs no PyTorch."""

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from opscope.advise.source import Call, CallSite, EditedFile, NotWritableError, ScriptPlaces, Stack

T = TypeVar("T")


class Writer:
    """Edits the files of a script; each method is a way in which changes are written.

    In what is written, TORCH stands for the name of PyTorch in that file, and other words in capitals for settings; but
    lines of `for_model` get both names themselves.

    Args:
        script: the script.
        places: where it does what the changes concern.
        settings: values that changes write, see `written`.

    Attributes:
        script: its absolute path.
        places: as given.
        sources: the files that were edited, or looked into, by path.
    """

    def __init__(self, script: Path, places: ScriptPlaces, settings: Mapping[str, str]) -> None:
        self.script, self.places, self._settings = str(script.absolute()), places, settings
        self.sources: dict[str, EditedFile] = {}

    def source(self, path: str) -> EditedFile:
        """Return a file that can be edited."""
        if path not in self.sources:
            self.sources[path] = EditedFile(Path(path))
        return self.sources[path]

    def calls(self) -> list[Call]:
        """Return where the models are called.

        Raises:
            NotWritableError: one of them is called outside the user's own source.
        """
        if not self.places.calls or not all(call.stack for call in self.places.calls):
            raise NotWritableError("the model is not called in your own source")
        return self.places.calls

    # ---------------------------------------------------------------- once for the whole process

    def for_process(self, line: str) -> None:
        """Write a line behind the imports of the script."""
        source = self.source(self.script)
        source.insert_after_imports(self._filled(line, source))

    def _filled(self, text: str, source: EditedFile) -> str:
        return filled(text.replace("TORCH", source.name_of_torch()), self._settings)

    # ---------------------------------------------------------------- once for each model

    def for_model(self, line_of: Callable[[Call, str, str], str]) -> None:
        """Write a line before the loop that calls a model, or behind where it gets its name.

        Args:
            line_of: gets the call, the model's name in that place and that of PyTorch; returns the line.
        """
        for call in self.calls():
            for place in call.stack:
                if self._line_for_model(call, place, line_of):
                    break
            else:
                raise NotWritableError("the model has no name before the loop that calls it")

    def _line_for_model(self, call: Call, place: CallSite, line_of: Callable[[Call, str, str], str]) -> bool:
        source = self.source(place.file)
        statement = source.statement_at(place)
        if not place.names:
            return False
        name = place.names[0]
        if place is call.stack[0]:
            called = source.segment(source.call_at(place).func)
            name = called if called in place.names else name
        line = line_of(call, name, source.name_of_torch())
        loop = source.outermost_loop(statement)
        if loop is not None:
            # A model that is made inside of the loop has its name only there.
            assigned = source.last_assignment(name, statement)
            if assigned is not None and assigned.lineno > loop.lineno:
                source.insert_after(assigned, line)
            else:
                source.insert_before(loop, line)
            return True
        assigned = source.last_assignment(name, statement)
        if assigned is None:
            return False
        source.insert_after(assigned, line)
        return True

    # ---------------------------------------------------------------- the inputs of each call

    def inputs(self, names_of: Callable[[Call], Sequence[int | str]], method: str) -> None:
        """Put a method's call behind inputs of the models."""
        for call in self.calls():
            place = call.stack[0]
            source = self.source(place.file)
            node = source.call_at(place)
            given_by: dict[int | str, ast.expr] = dict(enumerate(node.args))
            given_by.update({one.arg: one.value for one in node.keywords if one.arg is not None})
            for name in names_of(call):
                values = given_by.get(name)
                if values is None or any(isinstance(one, ast.Starred) for one in node.args):
                    raise NotWritableError(f"the inputs in line {node.lineno} of {source.path.name} are unpacked")
                source.append_to(values, self._filled(method, source))

    # ---------------------------------------------------------------- contexts

    def around_forward(self, header: str) -> None:
        """Put forward passes and what is made of their results inside a context, up to the backward pass."""
        for call in self.calls():
            wrapped = self._up_to_backward(call.stack) or self._statement_of(call.stack)
            source, first, last = wrapped
            source.wrap(first, last, self._filled(header, source))
            if self.places.backward:
                return  # the first call up to the backward pass has the others inside

    def _statement_of(self, stack: Stack) -> tuple[EditedFile, ast.stmt, ast.stmt]:
        source = self.source(stack[0].file)
        statement = source.statement_at(stack[0])
        return source, statement, statement

    def _up_to_backward(self, stack: Stack) -> tuple[EditedFile, ast.stmt, ast.stmt] | None:
        if len({backward[0].at for backward in self.places.backward if backward}) > 1:
            raise NotWritableError("there are several backward passes: put each forward pass inside autocast by hand")
        for backward in self.places.backward:
            for place in backward:
                forward = next((one for one in stack if one.is_same_run(place)), None)
                if forward is None:
                    continue
                source = self.source(place.file)
                first, last = source.common_block(source.statement_at(forward), source.statement_at(place))
                if first is last:
                    return source, first, last
                if first.lineno > last.lineno:
                    raise NotWritableError("the backward pass comes before the forward pass in the source")
                return source, first, source.before(last)
        if self.places.backward:
            raise NotWritableError("forward and backward pass are called from no function of yours together")
        return None

    def without_gradients(self) -> None:
        """Use ``inference_mode`` instead of ``no_grad``, or around the calls."""
        done: set[ast.AST] = set()
        for call in self.calls():
            results = [
                (self.source(place.file), node)
                for place in call.stack
                for node in _no_grads(self.source(place.file), self.source(place.file).statement_at(place))
            ]
            if not results:
                source, first, last = self._statement_of(call.stack)
                source.wrap(first, last, f"with {source.name_of_torch()}.inference_mode()")
            for source, node in results:
                if node not in done:
                    done.add(node)
                    source.rename(node, f"{source.name_of_torch()}.inference_mode")

    # ---------------------------------------------------------------- calls that make something

    def making(self, stack: Stack, what: str) -> tuple[EditedFile, ast.Call]:
        """Return the call that makes something."""
        if not stack:
            raise NotWritableError(f"{what} is not made in your own source")
        source = self.source(stack[0].file)
        return source, source.call_at(stack[0])

    def optimizers(self, keyword: str, without: Sequence[str] = ()) -> None:
        """Make every optimizer with a keyword that is true, and without some others."""
        for name, stack in _each(self.places.optimizers, lambda one: one[1]):
            source, call = self.making(stack, name)
            if name not in ast.unparse(call.func):
                raise NotWritableError(f"{name} is made by {ast.unparse(call.func)}, which may take no {keyword}=True")
            source.set_keywords(call, {keyword: "True"}, without)

    def loaders(self, **keywords: str) -> None:
        """Make every loader with some keywords."""
        for stack in _each(self.places.loaders, lambda one: one):
            source, call = self.making(stack, "a loader")
            if "DataLoader" not in ast.unparse(call.func):
                first = next(iter(keywords))
                raise NotWritableError(f"a loader is made by {ast.unparse(call.func)}, which may take no {first}")
            source.set_keywords(call, {name: self._filled(value, source) for name, value in keywords.items()})

    def kept_gradients(self) -> list[Stack]:
        """Return where the user's code asks for gradients of zero, once for each place."""
        return _each(self.places.kept_gradients, lambda one: one)


def _each(results: Sequence[T], stack_of: Callable[[T], Stack]) -> list[T]:
    """Return what was found, one for each place in the source."""
    places = {stack[0].at if (stack := stack_of(one)) else None: one for one in results}
    return list(places.values())


def _no_grads(source: EditedFile, statement: ast.stmt) -> list[ast.expr]:
    """Return the names of ``no_grad`` in ``with`` statements and decorators around a statement."""
    results: list[ast.expr] = []
    for one in (statement, *source.around(statement)):
        items = [item.context_expr for item in one.items] if isinstance(one, ast.With) else []
        decorators = one.decorator_list if isinstance(one, ast.FunctionDef) else []
        for expression in (*items, *decorators):
            name = expression.func if isinstance(expression, ast.Call) else expression
            if ast.unparse(name).rpartition(".")[2] == "no_grad":
                results.append(name)
    return results


def filled(text: str, settings: Mapping[str, str]) -> str:
    """Put values in the place of the words in capitals that stand for them.

    Args:
        text: what a change writes.
        settings: the values, by the words in small letters; see `settings_of`.
    """
    for word, value in settings.items():
        text = text.replace(word.upper(), value)
    return text
