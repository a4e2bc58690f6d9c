"""The server of the route guide: a handler of each of the four kinds.

Run it with ``python server.py`` and stop it with Ctrl-C. An address may follow, e.g. ``unix:/tmp/guide``.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import AsyncIterator

import trio
from places import PLACES
from route_guide_pb2 import Note, Place, Point, Rectangle, WalkSummary
from route_guide_trio_grpc import RouteGuideServicer

import trio_grpc


class RouteGuide(RouteGuideServicer):
    def __init__(self) -> None:
        self.places = {(place.at.east, place.at.north): place for place in PLACES}
        self.notes: defaultdict[tuple[int, int], list[Note]] = defaultdict(list)

    # One request, one reply: a plain async function.
    async def GetPlace(self, request: Point, context: trio_grpc.ServicerContext[Place]) -> Place:
        place = self.places.get((request.east, request.north))
        if place is None:
            await context.abort(trio_grpc.StatusCode.NOT_FOUND, f"nothing at {request.east}, {request.north}")
        return place

    # A stream of replies: an async generator. What it yields goes out; it waits in `yield` while the client is behind.
    async def ListPlaces(self, request: Rectangle, context: trio_grpc.ServicerContext[Place]) -> AsyncIterator[Place]:
        listed = 0
        try:
            for place in PLACES:
                if contains(request, place.at):
                    await trio.sleep(0.05)  # so that there is something to see
                    yield place
                    listed += 1
        finally:
            # Also when the client has left in the middle: then the generator is cancelled where it stands.
            print(f"ListPlaces: listed {listed} places")

    # A stream of requests: iterate over them. The loop ends when the client has done sending.
    async def RecordWalk(
        self, requests: trio_grpc.RequestStream[Point], context: trio_grpc.ServicerContext[WalkSummary]
    ) -> WalkSummary:
        summary = WalkSummary()
        last: Point | None = None
        async for point in requests:
            summary.points += 1
            summary.places += (point.east, point.north) in self.places
            if last is not None:
                summary.metres += math.hypot(point.east - last.east, point.north - last.north)
            last = point
        print(f"RecordWalk: a walk of {summary.points} points")
        return summary

    # A stream each way: receive and yield in any order, here some replies for each request.
    async def ExchangeNotes(
        self, requests: trio_grpc.RequestStream[Note], context: trio_grpc.ServicerContext[Note]
    ) -> AsyncIterator[Note]:
        async for note in requests:
            here = self.notes[note.at.east, note.at.north]
            print(f"ExchangeNotes: {note.text!r} at {note.at.east}, {note.at.north}, after {len(here)} others")
            for other in tuple(here):
                yield other
            here.append(note)


def contains(rectangle: Rectangle, point: Point) -> bool:
    """Tell whether a point lies in a rectangle."""
    low, high = rectangle.south_west, rectangle.north_east
    return low.east <= point.east <= high.east and low.north <= point.north <= high.north


async def main(address: str) -> None:
    async with trio.open_nursery() as nursery:
        server = await nursery.start(trio_grpc.serve, [RouteGuide()], address)
        print(f"listening on {server.addresses[0]}")
        # At the first Ctrl-C (or SIGTERM) no new calls, five seconds for those that run; at the second one, the end.
        await trio_grpc.drain_on_signal(server, grace=5)
        print("stopped")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
