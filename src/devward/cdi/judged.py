"""What is known of the content of CDI files, remembered by content and by file, and how much time new content may take. No I/O.

Whoever can write one file can have it read as often as they like: content that was seen is never parsed again, and what is new takes a
bounded share of one processor, however it is made.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

from devward.cdi.spec import LoadedSpec, NotExamined, NotPlain, SpecError, load

#: Contents that no file had in the latest scan, and their bytes: what comes back is known still.
SPARE_CONTENTS: Final = 100
SPARE_BYTES: Final = 4 * 1024 * 1024

#: (st_dev, st_ino, st_mtime_ns, st_ctime_ns, st_size, whether the name ends in .json)
FileKey: TypeAlias = tuple[int, int, int, int, int, bool]
#: The digest, and whether the name ends in .json, which decides about remarks.
ContentKey: TypeAlias = tuple[bytes, bool]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What engines make of a content; `examined` is False where that is not known."""

    spec: LoadedSpec | None
    defect: str = ""
    examined: bool = True


def content_key(data: bytes, name: str) -> ContentKey:
    """Return what stands for this content in a file of this name."""
    return hashlib.sha256(data).digest(), name.endswith(".json")


def judge_plain(data: bytes, name: str) -> Verdict | None:
    """Return the verdict on a content, None where it would have to be read as YAML."""
    try:
        return Verdict(load(data, name, plain_only=True))
    except NotPlain:
        return None
    except SpecError as error:
        return _refusal(error)


def judge(data: bytes, name: str) -> Verdict:
    """Return the verdict on a content."""
    try:
        return Verdict(load(data, name))
    except SpecError as error:
        return _refusal(error)


def _refusal(error: SpecError) -> Verdict:
    return Verdict(None, str(error), examined=not isinstance(error, NotExamined))


class Verdicts:
    """The verdicts on what was met in the latest scan, and on a little of what went before."""

    def __init__(self) -> None:
        """Know nothing."""
        self._contents: dict[ContentKey, tuple[Verdict, int]] = {}
        self._files: dict[FileKey, ContentKey] = {}
        self._met_contents: dict[ContentKey, tuple[Verdict, int]] = {}
        self._met_files: dict[FileKey, ContentKey] = {}

    def of_file(self, file: FileKey) -> Verdict | None:
        """Return the verdict on a file whose times say that it is unchanged."""
        content = self._met_files.get(file) or self._files.get(file)
        verdict = self.of_content(content) if content is not None else None
        if content is not None and verdict is not None:
            self._met_files[file] = content
        return verdict

    def of_content(self, content: ContentKey) -> Verdict | None:
        """Return the verdict on a content that was judged before."""
        known = self._met_contents.get(content) or self._contents.get(content)
        if known is None:
            return None
        self._met_contents[content] = known
        return known[0]

    def add(self, content: ContentKey, verdict: Verdict, size: int) -> None:
        """Remember the verdict on a content of `size` bytes."""
        self._met_contents[content] = (verdict, size)

    def vouch(self, file: FileKey, content: ContentKey) -> None:
        """Remember that a file with these times has this content."""
        self._met_files[file] = content

    def end_scan(self) -> None:
        """Forget the files that were not met since the last call, and of the contents all but the newest few."""
        spare: dict[ContentKey, tuple[Verdict, int]] = {}
        left = SPARE_BYTES
        for content in reversed(self._contents):
            if content in self._met_contents:
                continue
            verdict, size = self._contents[content]
            left -= size
            if left < 0 or len(spare) >= SPARE_CONTENTS:
                break
            spare[content] = (verdict, size)
        self._contents = {**dict(reversed(spare.items())), **self._met_contents}
        self._files = self._met_files
        self._met_contents, self._met_files = {}, {}


class Allowance:
    """Processor time to spend: `burst` seconds, refilled by `share` of the time that passes. One piece of work may overdraw it."""

    def __init__(self, burst: float, share: float, *, monotonic: Callable[[], float], cpu: Callable[[], float]) -> None:
        """`cpu` returns the seconds of processor time that the calling thread has used."""
        self._burst = burst
        self._share = share
        self._monotonic = monotonic
        self._cpu = cpu
        self._balance = burst
        self._then = monotonic()

    def left(self) -> bool:
        """Tell whether anything may be spent now."""
        now = self._monotonic()
        self._balance = min(self._burst, self._balance + (now - self._then) * self._share)
        self._then = now
        return self._balance > 0

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Charge what the body takes."""
        began = self._cpu()
        try:
            yield
        finally:
            self._balance -= self._cpu() - began
