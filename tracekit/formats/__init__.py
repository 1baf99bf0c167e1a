"""Readers of other people's traces, one file a format, told apart by content.

To add a format: write a file beside this one with a class derived from `Format`, decorate it with
``@register``, and import it below.
"""

from tracekit.formats.base import FORMATS, Format, as_trace, open_any, register
from tracekit.formats.route_trace import RouteTraceCsv

__all__ = ["FORMATS", "Format", "RouteTraceCsv", "as_trace", "open_any", "register"]
