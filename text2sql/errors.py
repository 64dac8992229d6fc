"""
Every exception of the project.

    Text2SqlError
    ├── ProfileError          an experiment file cannot be used (unknown key, wrong type, impossible value)
    ├── DataError             a benchmark file is missing or broken (names file, dialogue, turn)
    ├── DatabaseError         a database file is missing or is no database
    ├── InfrastructureError   the machine failed, not the SQL: dead worker, full disk; never scored as a wrong answer
    ├── EngineError           a generation engine cannot start or was lost
    ├── PolicyError           a model directory cannot be loaded or does not fit its manifest
    ├── TrajectoryError       a stored trajectory breaks one of its own rules
    ├── ArtifactError         an artifact is incomplete, damaged or being written by another process
    ├── TrackingError         MLflow cannot be reached
    └── TrainingError         training stopped for a stated reason
        └── DivergenceError   loss or gradient is no longer finite: the weights are worth nothing

A query that fails is none of these: it is data (`text2sql.executor.Execution.status`).
Every message says what was found, what was expected and what to do next.
"""


class Text2SqlError(Exception):
    """Base of all errors that a user can act on; command lines print its text without a traceback."""


class ProfileError(Text2SqlError):
    """An experiment file cannot be used."""


class DataError(Text2SqlError):
    """A benchmark file is missing or broken."""


class DatabaseError(Text2SqlError):
    """A database file is missing or is no SQLite database."""


class InfrastructureError(Text2SqlError):
    """The machine failed, not the SQL; the work can be tried again."""


class EngineError(Text2SqlError):
    """A generation engine cannot start or was lost."""


class PolicyError(Text2SqlError):
    """A model directory cannot be loaded or does not fit its own record."""


class TrajectoryError(Text2SqlError):
    """A stored trajectory breaks one of its own rules."""


class ArtifactError(Text2SqlError):
    """An artifact is incomplete, damaged or being written by another process."""


class TrackingError(Text2SqlError):
    """MLflow cannot be reached."""


class TrainingError(Text2SqlError):
    """Training stopped for a stated reason."""


class DivergenceError(TrainingError):
    """Loss or gradient is no longer finite; the weights after such a step are never saved."""
