"""Durable tasks: their definition, their rules, the scheduler and its graph.

``rules`` is the table of transitions, ``core`` decides, ``scheduler`` carries out, ``runtime`` is what a phase's code
works with, ``signals`` reach a task from outside, ``graph`` and ``story`` are what a person sees, ``watchdog`` notices
code that blocks everything else.
"""

from .definition import Phase, StoredTask, Task
from .graph import TaskGraph, TaskNode
from .runtime import TaskRun, TaskTx
from .scheduler import TaskSession, Wake
from .signals import Received
from .workflow import StepFailed, WorkflowRun, workflow

__all__ = [
    "Phase",
    "Received",
    "StepFailed",
    "StoredTask",
    "Task",
    "TaskGraph",
    "TaskNode",
    "TaskRun",
    "TaskSession",
    "TaskTx",
    "Wake",
    "WorkflowRun",
    "workflow",
]
