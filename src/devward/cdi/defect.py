"""The errors about the content of a CDI document. Pure."""


class SpecError(ValueError):
    """A CDI document that container engines do not load; the text is one sentence without the file's name."""


class NotExamined(SpecError):
    """A document that cannot be judged here, for want of PyYAML or for a bound of ours: engines may well load it.

    The text is one of a few fixed sentences and quotes nothing of the document.
    """


class NotPlain(NotExamined):
    """A document that has to be read as YAML, which was not asked for."""
