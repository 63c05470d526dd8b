"""Lets mkdocstrings show this project's `Example:` sections as examples that run."""

import griffe


class Examples(griffe.Extension):
    """Names sections of docstrings as griffe expects them."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the sections of an object."""
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
