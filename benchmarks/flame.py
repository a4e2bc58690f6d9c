"""Flame graphs: where the CPU time of a running Python process goes, sampled by py-spy and drawn as SVG.

py-spy reads the process from outside, so nothing of ours is changed or slowed by being watched.  The drawing is ours,
because a picture in the documentation must be small: frames that nobody could see are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

# Odd, so that it does not fall into step with anything that happens a round number of times a second.
SAMPLES_PER_SECOND = 397
# What py-spy needs beyond the time that it samples: to start, and to write.
GRACE = 30.0

WIDTH = 900.0
MARGIN = 10.0
FRAME_HEIGHT = 17.0
FONT_SIZE = 11.0
# Of the font above; a fixed width makes it possible to know what fits.
CHARACTER_WIDTH = 6.62
#: Frames narrower than this are not drawn, in units of the picture, which is about as many pixels wide.
NARROWEST = 1.6
#: A frame at the bottom that has at least this share of its parent says nothing: such ones are cut away.
TRUNK = 0.98

Stacks = dict[str, int]


class FlameError(Exception):
    """No samples came; the text says why."""


class Sampler:
    """Samples one process for some seconds, in the background.

    Args:
        pid: The process.
        seconds: How long; py-spy wants whole seconds.
    """

    def __init__(self, pid: int, seconds: int) -> None:
        self._seconds = seconds
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "stacks"
        program = Path(sys.executable).parent / "py-spy"
        command = [str(program), "record", "--pid", str(pid), "--duration", str(seconds), "--format", "raw"]
        command += ["--rate", str(SAMPLES_PER_SECOND), "--function", "--output", str(self._file)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        except OSError as error:
            self._folder.cleanup()
            raise FlameError(f"{program}: {error.strerror}; it is in the dependency group `bench`") from error

    def result(self) -> Stacks:
        """Waits for the end, and returns how often each stack was seen, its frames joined by `;`.

        Raises:
            FlameError: There are none.
        """
        try:
            said, _ = self._process.communicate(timeout=self._seconds + GRACE)
        except subprocess.TimeoutExpired:
            self.close()
            raise FlameError(f"py-spy did not end {GRACE:.0f} s after its time") from None
        try:
            if self._process.returncode or not self._file.exists():
                last = (said.strip().splitlines() or ["it printed nothing"])[-1].strip()
                raise FlameError(f"py-spy cannot sample (it needs the right to trace other processes): {last}")
            stacks = parse(self._file.read_text())
        finally:
            self._folder.cleanup()
        if not stacks:
            raise FlameError("py-spy saw nothing running")
        return stacks

    def close(self) -> None:
        """Ends sampling without a result."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()


def parse(text: str) -> Stacks:
    """Reads py-spy's raw form: a line for each stack, frames from the outermost on, then how often it was seen."""
    stacks: Stacks = {}
    for line in text.splitlines():
        stack, _, seen = line.rpartition(" ")
        if not stack or not seen.isdigit():
            raise FlameError(f"py-spy wrote {line!r}, which is no stack")
        stacks[stack] = stacks.get(stack, 0) + int(seen)
    return stacks


@dataclass
class Frame:
    """A function, called along one way from the outermost.

    Attributes:
        name: Function and file.
        samples: How often it was on the stack.
        callees: What it called, by name.
    """

    name: str
    samples: int = 0
    callees: dict[str, Frame] = field(default_factory=dict)

    @property
    def own(self) -> int:
        """How often it was the innermost."""
        return self.samples - sum(callee.samples for callee in self.callees.values())


def tree(stacks: Stacks) -> Frame:
    """Joins stacks into a tree; its root is not a function but all samples."""
    root = Frame("all")
    for stack, seen in stacks.items():
        frame = root
        frame.samples += seen
        for name in stack.split(";"):
            frame = frame.callees.setdefault(name, Frame(name))
            frame.samples += seen
    return root


def without_trunk(root: Frame) -> Frame:
    """Returns the first frame that forks: below it, everything is on the way there and nothing else."""
    frame = root
    while frame.callees:
        largest = max(frame.callees.values(), key=lambda callee: callee.samples)
        if largest.samples < TRUNK * root.samples:
            break
        frame = largest
    return frame


def within(stacks: Stacks, function: str) -> Stacks:
    """Returns what was sampled inside a function, whose frame's name begins so.

    Raises:
        FlameError: Nothing was.
    """
    inside: Stacks = {}
    for stack, seen in stacks.items():
        names = stack.split(";")
        starts = [index for index, name in enumerate(names) if name.startswith(function)]
        if starts:
            path = ";".join(names[starts[0] :])
            inside[path] = inside.get(path, 0) + seen
    if not inside:
        raise FlameError(f"py-spy never saw {function} running")
    return inside


def pruned(stacks: Stacks, least: float) -> Stacks:
    """Cuts branches that have less than the share `least` of all samples: their samples become their caller's own."""
    root = tree(stacks)
    smallest = least * root.samples
    kept: Stacks = {}

    def walk(frame: Frame, path: tuple[str, ...]) -> None:
        large = [callee for callee in frame.callees.values() if callee.samples >= smallest]
        own = frame.samples - sum(callee.samples for callee in large)
        if own and path:
            kept[";".join(path)] = own
        for callee in large:
            walk(callee, (*path, callee.name))

    walk(root, ())
    return kept


def shares_by_file(stacks: Stacks) -> dict[str, float]:
    """Returns the share of samples whose innermost frame is in each file, largest first."""
    total = sum(stacks.values())
    shares: dict[str, float] = {}
    for stack, seen in stacks.items():
        file = _file(stack.rpartition(";")[2])
        shares[file] = shares.get(file, 0.0) + seen / total
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _file(name: str) -> str:
    """Returns the file of a frame named as py-spy does: `function (file:line)`."""
    return re.sub(r":\d+$", "", name.rpartition("(")[2].removesuffix(")"))


@dataclass(frozen=True)
class Kind:
    """Whose code a frame is.

    Attributes:
        title: What the legend says.
        colour: Its colour.
        files: How its files begin.
    """

    title: str
    colour: str
    files: tuple[str, ...]


KINDS = (
    Kind("trio_grpc", "#f2a25c", ("trio_grpc/", "<attrs generated methods trio_grpc.")),
    Kind("trio", "#8fbbe3", ("trio/", "outcome/", "<attrs generated methods trio.")),
    Kind("protobuf, h2, hpack", "#9fd3a5", ("google/", "h2/", "hpack/", "hyperframe/")),
    Kind("the benchmark", "#e6dc8a", ("benchmarks/",)),
)
OTHER = Kind("Python's own and the rest", "#d0d0d0", ())


def kind(name: str) -> Kind:
    """Says whose code a frame is."""
    file = _file(name)
    return next((kind for kind in KINDS if file.startswith(kind.files)), OTHER)


def _label(name: str, width: float) -> str:
    """Returns what of a function's name fits into `width`, its own end first; nothing if that would tell nothing."""
    fits = int((width - 4) / CHARACTER_WIDTH)
    function = name.rpartition(" (")[0] or name
    full = function.replace("<locals>.", "")
    for text in (full, ".".join(full.split(".")[-2:]), full.rpartition(".")[2]):
        if len(text) <= fits:
            return text
    last = full.rpartition(".")[2]
    return last[: fits - 1] + "…" if fits >= 5 else ""


def _rectangles(root: Frame, scale: float) -> Iterator[tuple[Frame, float, float, int]]:
    """Yields each visible frame with its left edge, width and depth."""

    def walk(frame: Frame, left: float, depth: int) -> Iterator[tuple[Frame, float, float, int]]:
        width = frame.samples * scale
        if width < NARROWEST:
            return
        yield frame, left, width, depth
        # By name, as is usual for these pictures: left to right is no order of time.
        for _, callee in sorted(frame.callees.items()):
            yield from walk(callee, left, depth + 1)
            left += callee.samples * scale

    return walk(root, MARGIN, 0)


def draw(stacks: Stacks, title: str, about: Sequence[str]) -> str:
    """Returns a flame graph as SVG: the outermost function at the bottom, width is time, callees above their caller.

    Args:
        stacks: What was sampled.
        title: The picture's title.
        about: Lines below it.
    """
    root = without_trunk(tree(stacks))
    inner = WIDTH - 2 * MARGIN
    rectangles = list(_rectangles(root, inner / root.samples))
    depth = max(depth for _, _, _, depth in rectangles) + 1
    legend = 32.0 + 16 * len(about)
    head = legend + 26
    height = head + depth * FRAME_HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH:g}" height="{height:g}" fill="#ffffff"/>',
        f'<g font-family="DejaVu Sans, Arial, sans-serif" font-size="{FONT_SIZE:g}">',
        f'<text x="{MARGIN:g}" y="22" font-size="15" font-weight="bold" fill="#111111">{escape(title)}</text>',
    ]
    for index, text in enumerate(about):
        lines.append(f'<text x="{MARGIN:g}" y="{40 + 16 * index}" fill="#555555">{escape(text)}</text>')
    left = MARGIN
    drawn = {kind(frame.name) for frame, _, _, _ in rectangles}
    for one in (one for one in (*KINDS, OTHER) if one in drawn):
        lines.append(f'<rect x="{left:.0f}" y="{legend:g}" width="12" height="12" fill="{one.colour}"/>')
        lines.append(f'<text x="{left + 17:.0f}" y="{legend + 10:g}" fill="#333333">{escape(one.title)}</text>')
        left += 17 + len(one.title) * 6.6 + 18
    lines.append("</g>")
    lines.append(f'<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{FONT_SIZE:g}">')
    for frame, left, width, level in rectangles:
        top = height - MARGIN - (level + 1) * FRAME_HEIGHT
        share = f"{frame.samples / root.samples:.1%}"
        own = f"{frame.own / root.samples:.1%}"
        lines.append(
            f'<g><title>{escape(frame.name)}: {share}, itself {own}</title><rect x="{left:.1f}" y="{top:g}"'
            f' width="{max(width - 0.5, 0.5):.1f}" height="{FRAME_HEIGHT - 1:g}" fill="{kind(frame.name).colour}"/>'
        )
        if label := _label(frame.name, width):
            lines.append(f'<text x="{left + 2.5:.1f}" y="{top + 12:g}">{escape(label)}</text>')
        lines.append("</g>")
    lines.append("</g>")
    lines.append("</svg>")
    return "\n".join(lines) + "\n"
