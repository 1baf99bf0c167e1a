"""The report: one self-contained HTML page about a trace."""

from tracekit.report.build import build_report

__all__ = ["build_report"]
