"""The version, in one place: packaging, manifests and ``opscope --version`` read it here.

A literal and not installed metadata, because opscope also runs straight from its source tree.
"""

__version__ = "0.2.0"
