"""Exact counts of what Python allocates: a few lines of C around the allocators of the running interpreter.

`tracemalloc` tells what is alive, not what was allocated and freed again, and most objects of a call die within it.
So a hook is compiled when it is wanted (it needs a C compiler and nothing else) and put around the two allocators that
objects and their buffers come from (`PyMem_SetAllocator`, domains MEM and OBJ).

What counts: each block handed out, with the bytes asked for; also each block that growing has moved elsewhere.
What does not: objects that the interpreter takes from its free lists without asking an allocator, and memory that C
extensions take from the C library themselves, such as protobuf's arenas.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# The structure is PyMemAllocatorEx, written out so that no header of Python is needed.
_SOURCE = r"""
#include <stddef.h>
typedef struct {
    void *ctx;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator;
extern void PyMem_GetAllocator(int, Allocator *);
extern void PyMem_SetAllocator(int, Allocator *);

static Allocator inner[3];
static unsigned long long blocks, bytes;

static void *hook_malloc(void *ctx, size_t size) {
    Allocator *allocator = ctx;
    blocks++, bytes += size;
    return allocator->malloc(allocator->ctx, size);
}
static void *hook_calloc(void *ctx, size_t count, size_t size) {
    Allocator *allocator = ctx;
    blocks++, bytes += count * size;
    return allocator->calloc(allocator->ctx, count, size);
}
static void *hook_realloc(void *ctx, void *block, size_t size) {
    Allocator *allocator = ctx;
    void *moved = allocator->realloc(allocator->ctx, block, size);
    if (moved != block) blocks++, bytes += size;
    return moved;
}
static void hook_free(void *ctx, void *block) {
    Allocator *allocator = ctx;
    allocator->free(allocator->ctx, block);
}
void count_start(void) {
    blocks = bytes = 0;
    for (int domain = 1; domain < 3; domain++) {
        PyMem_GetAllocator(domain, &inner[domain]);
        Allocator hook = {&inner[domain], hook_malloc, hook_calloc, hook_realloc, hook_free};
        PyMem_SetAllocator(domain, &hook);
    }
}
void count_stop(unsigned long long *result) {
    for (int domain = 1; domain < 3; domain++) PyMem_SetAllocator(domain, &inner[domain]);
    result[0] = blocks, result[1] = bytes;
}
"""


@dataclass
class Counted:
    """What a counted phase allocated; zeros until it has ended.

    Attributes:
        allocations: Blocks handed out.
        bytes: Their sizes together.
    """

    allocations: int = 0
    bytes: int = 0


class CountingFailedError(Exception):
    """The hook could not be made; the text says why."""


def missing() -> str | None:
    """Says why nothing can be counted here, or None if it can."""
    try:
        _hook()
    except CountingFailedError as error:
        return str(error)
    return None


@contextmanager
def counted() -> Iterator[Counted]:
    """Counts what this process allocates within the block.  One block at a time.

    Raises:
        CountingFailedError: The hook could not be made.
    """
    hook = _hook()
    result = (ctypes.c_ulonglong * 2)()
    counts = Counted()
    hook.count_start()
    try:
        yield counts
    finally:
        hook.count_stop(result)
        counts.allocations, counts.bytes = result


@functools.cache
def _hook() -> ctypes.PyDLL:
    """Compiles the hook and loads it, once."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        raise CountingFailedError("counting allocations needs a C compiler: no `cc` on the path, no $CC")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "hook.c")
        library = Path(folder, "hook.so")
        source.write_text(_SOURCE)
        command = [*compiler.split(), "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        if sys.platform == "darwin":
            command += ["-undefined", "dynamic_lookup"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise CountingFailedError(
                f"counting allocations needs a C compiler: {compiler}: {error.strerror}"
            ) from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise CountingFailedError(f"counting allocations: {compiler} ended with code {done.returncode}: {last}")
        try:
            # PyDLL keeps the GIL, which the allocators of MEM and OBJ are used under.
            return ctypes.PyDLL(str(library))
        except OSError as error:
            raise CountingFailedError(f"counting allocations: {error}") from None
