"""What a run prints: a line per stage and what the stages say, instead of every Dagster event."""

import logging
import sys

import dagster as dg


class _StageLines(logging.Handler):
    """Stage starts, results and failures, and everything that a stage says; other events are in the UI."""

    def emit(self, record: logging.LogRecord) -> None:
        meta = getattr(record, "dagster_meta", {})
        line = self._line(record, meta)
        if line:
            print(line, file=sys.stderr, flush=True)

    def _line(self, record: logging.LogRecord, meta: dict[str, object]) -> str | None:
        event = meta.get("dagster_event")
        if not isinstance(event, dg.DagsterEvent):
            if record.levelno < logging.INFO:
                return None
            return f"    {meta.get('orig_message') or record.getMessage()}"
        if event.is_step_start:
            return f"▶ {event.step_key}"
        if event.is_step_materialization:
            metadata = event.step_materialization_data.materialization.metadata
            state, seconds = metadata.get("state"), metadata.get("seconds")
            took = f" ({seconds.value:.1f} s)" if seconds and state and "made" in str(state.value) else ""
            return f"  {state.value if state else 'done'}{took}"
        if event.is_step_failure:
            error = event.step_failure_data.error
            cause = error.cause if error and error.cause else error
            return f"✗ {event.step_key}: {cause.message.strip() if cause else event.message}"
        return None


@dg.logger(config_schema={}, description="A line per stage on the terminal.")
def terminal_logger(_: dg.InitLoggerContext) -> logging.Logger:
    logger = logging.Logger("lineage", logging.DEBUG)
    logger.addHandler(_StageLines())
    return logger
