"""The client of the route guide: a call of each of the four kinds, and two that end early.

Start the server first, then run ``python client.py``. An address may follow, e.g. ``unix:/tmp/guide``.
"""

from __future__ import annotations

import sys

import trio
from places import PLACES, SIDE
from route_guide_pb2 import Note, Point, Rectangle
from route_guide_trio_grpc import RouteGuideStub

import trio_grpc

WHOLE_MAP = Rectangle(south_west=Point(), north_east=Point(east=SIDE, north=SIDE))
SOUTH_WEST = Rectangle(south_west=Point(), north_east=Point(east=2_000, north=4_000))


async def get_place(guide: RouteGuideStub) -> None:
    print("-- GetPlace: one request, one reply.")
    place = await guide.GetPlace(PLACES[42].at)
    print(f"at {place.at.east}, {place.at.north} is {place.name}")

    print("   The same where there is nothing.")
    try:
        await guide.GetPlace(Point(east=1, north=1))
    except trio_grpc.RpcError as error:
        print(f"RpcError: {error.code.name}, {error.message!r}")
    else:
        raise SystemExit("there should be no place at 1, 1")


async def list_places(guide: RouteGuideStub) -> None:
    print("-- ListPlaces: one request, a stream of replies, which arrive one by one.")
    # A streaming call is a block: leaving it, in whatever way, leaves nothing behind.
    async with guide.ListPlaces(SOUTH_WEST) as places:
        async for place in places:
            print(f"received {place.name} at {place.at.east}, {place.at.north}")


async def record_walk(guide: RouteGuideStub) -> None:
    walk = [place.at for place in PLACES[::10]]
    print(f"-- RecordWalk: a stream of {len(walk)} requests, one reply.")
    summary = await guide.RecordWalk(walk)  # an async iterable would do as well
    print(f"{summary.points} points, {summary.places} of them places, {summary.metres / 1000:.1f} km")


async def exchange_notes(guide: RouteGuideStub) -> None:
    notes = [
        Note(at=PLACES[7].at, text="lovely view"),
        Note(at=PLACES[8].at, text="too many sheep"),
        Note(at=PLACES[7].at, text="but no coffee"),
        Note(at=PLACES[7].at, text="bring your own"),
    ]
    print("-- ExchangeNotes: a stream each way. One task sends, another one receives.")

    async with guide.ExchangeNotes() as exchange, trio.open_nursery() as nursery:
        nursery.start_soon(send_notes, exchange, notes)
        async for note in exchange:
            print(f"received {note.text!r}")


async def send_notes(exchange: trio_grpc.StreamStreamCall[Note, Note], notes: list[Note]) -> None:
    for note in notes:
        print(f"sent {note.text!r}")
        await exchange.send(note)
        await trio.sleep(0.1)  # people walk
    await exchange.done_sending()


async def leave_early(guide: RouteGuideStub) -> None:
    print("-- A cancellation: three places of the whole map are enough. Leaving the block tells the server to stop.")
    async with guide.ListPlaces(WHOLE_MAP) as places:
        for _ in range(3):
            place = await places.receive()
            print(f"received {place.name}")


async def run_out_of_time(guide: RouteGuideStub) -> None:
    print("-- A deadline: the whole map, in half a second at most. What came in time stays received.")
    received = 0
    try:
        async with guide.ListPlaces(WHOLE_MAP, timeout=0.5) as places:
            async for _ in places:
                received += 1
    except trio_grpc.RpcError as error:
        print(f"RpcError: {error.code.name} after {received} places")
    else:
        raise SystemExit("the whole map should have taken longer")


async def talk(channel: trio_grpc.Channel) -> None:
    guide = RouteGuideStub(channel)
    await get_place(guide)
    await list_places(guide)
    await record_walk(guide)
    await exchange_notes(guide)
    await leave_early(guide)
    await run_out_of_time(guide)


async def main(address: str) -> None:
    async with trio_grpc.open_channel(address) as channel:
        await talk(channel)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
