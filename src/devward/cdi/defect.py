"""The errors about the content of a CDI document. Pure."""


class SpecError(ValueError):
    """A CDI document that container engines do not load; the text is one sentence without the file's name."""


class NotExamined(SpecError):
    """A document that cannot be judged here: it is YAML, and PyYAML is not installed or too slow for it."""
