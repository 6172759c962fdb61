"""A function over many items on several processes, results in the items' order."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar, cast

from megatron_tlm.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 4  # items per worker that may wait for a slower one before them: bounds memory


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int
) -> Generator[Result, None, None]:
    """`map(function, items)` on forked processes; the function itself is inherited, never pickled.

    An exception of the function is raised when its turn comes, so the first bad item is the one reported. Raises
    DataError when a worker dies, naming its item. Leaving the iteration, however, ends all workers; so does the death
    of this process.
    """
    if workers == 1:
        yield from map(function, items)
        return
    crew = _Crew(function, workers)
    try:
        yield from crew.run(iter(items))
    finally:
        crew.end()


class _Crew(Generic[Item, Result]):
    """Each worker holds one item at a time, so neither end can block the other on a full pipe."""

    def __init__(self, function: Callable[[Item], Result], workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self.lines: dict[Connection, BaseProcess] = {}
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(function, theirs, [*self.lines, ours]), daemon=True)
            process.start()
            theirs.close()  # now only the worker holds it: its death is the end of the line
            self.lines[ours] = process

    def run(self, items: Iterator[Item]) -> Iterator[Result]:
        idle, busy = list(self.lines), dict[Connection, int]()
        self.holds: dict[Connection, Item] = {}
        results: dict[int, Result | BaseException] = {}
        given = told = 0
        more = True
        while more or told < given:
            while more and idle and given - told < AHEAD * len(self.lines):
                try:
                    item = next(items)
                except StopIteration:
                    more = False
                except Exception as error:  # told in its turn, after what the earlier items have to say
                    more = False
                    results[given] = error
                    given += 1
                else:
                    line = idle.pop()
                    self.holds[line] = item
                    self._send(line, item)
                    busy[line] = given
                    given += 1
            ready = cast(list[Connection], wait(list(busy)) if busy else [])
            for line in ready:
                results[busy.pop(line)] = self._receive(line)
                idle.append(line)
            while told in results:
                result = results.pop(told)
                told += 1
                if isinstance(result, BaseException):
                    raise result
                yield result

    def _send(self, line: Connection, item: Item) -> None:
        try:
            line.send(item)
        except OSError:
            raise self._loss(line) from None

    def _receive(self, line: Connection) -> Result | BaseException:
        try:
            answer: Result | BaseException = line.recv()
        except (EOFError, OSError):
            raise self._loss(line) from None
        return answer

    def _loss(self, line: Connection) -> DataError:
        process = self.lines[line]
        process.join(timeout=5)
        code = process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return DataError(
            f"workers = {len(self.lines)} lost one ({how}) at {self.holds[line]}; "
            "if memory ran out, give fewer --workers, and start again"
        )

    def end(self) -> None:
        for line, process in self.lines.items():
            line.close()
            process.terminate()
        for process in self.lines.values():
            process.join()


def _serve(function: Callable[[Item], Result], line: Connection, inherited: list[Connection]) -> None:
    """A worker's life: answer items until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:  # the parent's ends: held here, they would hide its death
        other.close()
    with contextlib.suppress(EOFError, OSError):
        while True:
            item = line.recv()
            try:
                answer: Result | Exception = function(item)
            except Exception as error:
                answer = error
            line.send(answer)
