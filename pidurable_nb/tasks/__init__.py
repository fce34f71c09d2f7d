"""Durable tasks: their definition, their rules, the scheduler and its graph.

``rules`` is the table of transitions, ``core`` decides, ``scheduler`` carries out, ``runtime`` is what a phase's code
works with, ``graph`` is what a person sees.
"""

from .definition import Phase, StoredTask, Task
from .graph import TaskGraph, TaskNode
from .runtime import TaskRun, TaskTx
from .scheduler import TaskSession, Wake

__all__ = ["Phase", "StoredTask", "Task", "TaskGraph", "TaskNode", "TaskRun", "TaskSession", "TaskTx", "Wake"]
