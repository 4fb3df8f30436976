"""Processes that form one world of torch.distributed over Gloo and answer many calls."""

import multiprocessing
import os
import time
import traceback
from datetime import timedelta
from multiprocessing import connection
from typing import Any, Callable

import torch
import torch.distributed as dist


class WorldError(RuntimeError):
    """A call that failed on some rank or did not end in time; the world is closed."""


def _serve(rank: int, ranks: int, port: int, timeout: float, pipe: connection.Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    while (call := pipe.recv()) is not None:
        function, arguments = call
        try:
            pipe.send((True, function(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class World:
    """`ranks` processes of one thread each, closed at the end of a `with`.

    `start` "forkserver" is quick: all are copies of one process that has loaded
    torch; "spawn" makes each from nothing, so that its memory is its own.
    """

    def __init__(self, ranks: int, timeout: float = 60, start: str = "forkserver"):
        context = multiprocessing.get_context(start)
        if start == "forkserver":
            context.set_forkserver_preload(["torch.distributed.pipelining.schedules"])
        self.timeout = timeout
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, ranks, self.store.port, timeout, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(*arguments)`, called on every rank at once, returns on each."""
        if self.closed:
            raise WorldError("the world is closed")
        for pipe in self.pipes:
            pipe.send((function, arguments))
        results: dict[int, Any] = {}
        deadline = time.monotonic() + self.timeout
        while len(results) < len(self.pipes):
            missing = [rank for rank in range(len(self.pipes)) if rank not in results]
            ready = connection.wait([self.pipes[rank] for rank in missing], deadline - time.monotonic())
            if not ready:
                self._fail(f"no answer in {self.timeout} s from ranks {missing}")
            for pipe in ready:
                rank = self.pipes.index(pipe)
                try:
                    succeeded, results[rank] = pipe.recv()
                except (EOFError, ConnectionError):
                    self._fail(f"the process of rank {rank} is gone")
                if not succeeded:
                    self._fail(f"rank {rank}: {results[rank]}")
        return [results[rank] for rank in range(len(self.pipes))]

    @property
    def closed(self) -> bool:
        """Whether it was closed, or a call has failed."""
        return not self.processes

    def close(self) -> None:
        """Ends the processes, by force where they do not end by themselves."""
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                pass
        for process in self.processes:
            process.join(5)
        self._kill()

    def _fail(self, message: str) -> None:
        self._kill()
        raise WorldError(message)

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self.pipes, self.processes = [], []

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
