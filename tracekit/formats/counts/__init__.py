"""Which files can be read as counts? How often each expert was used, and nothing more, one file a format.

Such a file is no trace: it does not say in which order the experts were used. To add a format, write
a file beside this one with a class derived from `CountsFormat` and decorated with ``@register``, and add
a line for it to ``all.py``. ``tests/counts_samples.py`` needs a small sample of it.
"""
