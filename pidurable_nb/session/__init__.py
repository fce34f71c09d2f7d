"""The commit line: transactions, documents, watches, model context and forks.

Nothing here knows about agents, models or notebooks. ``Session`` is the whole of it for people who want durable
documents and entries alone.
"""

from .branches import Comparison, compare_entries
from .context import ContextView
from .documents import Address, Document
from .mirror import DocumentChange
from .report import Report, ReportedTask
from .scan import Scan
from .session import Opening, Publication, Session, SessionEnd
from .transaction import Tx
from .watch import Change, Watch, WatchEnd

__all__ = [
    "Address",
    "Change",
    "Comparison",
    "ContextView",
    "Document",
    "DocumentChange",
    "Opening",
    "Publication",
    "Report",
    "ReportedTask",
    "Scan",
    "Session",
    "SessionEnd",
    "Tx",
    "Watch",
    "WatchEnd",
    "compare_entries",
]
