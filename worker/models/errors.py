"""What can be wrong with a model on disk. Every message says what to do next.

ModelError
|- ModelNotFound      no such name, directory, file or package
|- ModelUnsupported   a sound model of a kind that this worker does not serve
`- ModelBroken        a model whose files contradict each other or are cut short
"""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be used. The message is one line for the user."""


class ModelNotFound(ModelError):
    """No such name, directory, file or package."""


class ModelUnsupported(ModelError):
    """A sound model of a kind that this worker does not serve."""


class ModelBroken(ModelError):
    """A model whose files contradict each other or are cut short."""
