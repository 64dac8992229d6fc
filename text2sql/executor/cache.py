"""Results of statements that were run before, bounded in bytes, least recently used first out."""

import threading
from collections import OrderedDict

from text2sql.executor.result import Answer, Execution, Job

# what Python takes beside the cells' own content, roughly
ENTRY_BYTES = 1000
ROW_BYTES = 56
CELL_BYTES = 40


class AnswerCache:
    """
    Keyed by the whole job: database file and its version, SQL text, limits. A changed file is another key. Safe to use
    from several threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[Job, tuple[Execution, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, job: Job) -> Execution | None:
        with self._lock:
            entry = self._entries.get(job)
            if entry is None:
                return None
            self._entries.move_to_end(job)
            return entry[0]

    def put(self, job: Job, answer: Answer) -> None:
        """An answer that alone would take more than a quarter of the room is not kept."""
        execution = answer.execution
        rows = len(execution.rows) * (ROW_BYTES + CELL_BYTES * len(execution.columns))
        size = answer.size + rows + len(job.sql) + ENTRY_BYTES
        if size > self._max_bytes // 4:
            return
        with self._lock:
            replaced = self._entries.pop(job, None)
            self._entries[job] = (execution, size)
            self._bytes += size - (replaced[1] if replaced else 0)
            while self._bytes > self._max_bytes:
                self._bytes -= self._entries.popitem(last=False)[1][1]
