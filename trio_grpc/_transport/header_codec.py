"""HPACK (RFC 7541) for one direction of one connection: header blocks to fields and back.

The encoder belongs to the task that writes and the decoder to the task that reads, because each carries a table
whose state must move in the order of the bytes on the wire. This room knows nothing of what the fields mean: the
decoder hands them to the ``parse`` function that it was given, and may hand out the same parsed record again when
the same block arrives under the same table. Frames, streams, gRPC rules and I/O may not live here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, TypeVar

from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

Field = tuple[bytes, bytes]
"""A header field: lower-case name and raw value."""

T = TypeVar("T")

_DEFAULT_TABLE_SIZE: Final = 4096  # RFC 9113 section 6.5.2: what both sides start with
_ENTRY_OVERHEAD: Final = 32  # RFC 7541 section 4.1

_STATIC: Final[tuple[Field, ...]] = tuple(HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC: Final = len(_STATIC) + 1
_STATIC_INDEX: Final[dict[Field, int]] = {field: index for index, field in enumerate(_STATIC, 1)}
_STATIC_NAME_INDEX: Final[dict[bytes, int]] = {
    name: index for index, (name, _) in reversed(list(enumerate(_STATIC, 1)))
}

# First octets of the field representations, RFC 7541 section 6.
_INDEXED: Final = 0x80
_INCREMENTAL: Final = 0x40
_SIZE_UPDATE: Final = 0x20
_NEVER_INDEXED: Final = 0x10
_NOT_INDEXED: Final = 0x00

_ALWAYS_SENSITIVE: Final = frozenset({b"authorization", b"cookie", b"set-cookie", b"proxy-authorization"})


def _encode_integer(value: int, prefix_bits: int, pattern: int) -> bytes:
    """Encodes an integer with a prefix (RFC 7541 section 5.1).

    Args:
        value: The integer, not negative.
        prefix_bits: How many bits of the first octet belong to the integer.
        pattern: The other bits of the first octet.

    Returns:
        The encoded integer.
    """
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((pattern | value,))
    octets = bytearray((pattern | limit,))
    value -= limit
    while value >= 0x80:
        octets.append(0x80 | (value & 0x7F))
        value >>= 7
    octets.append(value)
    return bytes(octets)


# The length of a plain (not Huffman-coded) string, for nearly all strings there are.
_LENGTHS: Final[tuple[bytes, ...]] = tuple(_encode_integer(length, 7, 0) for length in range(1024))


def _encode_string(value: bytes) -> bytes:
    """Encodes a string literal without Huffman coding (RFC 7541 section 5.2)."""
    return _encode_integer(len(value), 7, 0) + value


class HeaderBlockError(Exception):
    """A header block that breaks RFC 7541: the tables no longer agree, a connection error COMPRESSION_ERROR."""


class HeaderListTooLarge(Exception):
    """A header list above the limit, found after its whole block was decoded: an error of that stream only.

    Attributes:
        size: The size of the list, counted as RFC 9113 section 6.5.2 says.
        limit: The limit that it went over.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return f"header list of {self.size} bytes is larger than the limit of {self.limit} bytes"


class HeaderTemplate:
    """Fields that recur unchanged, such as the request head of one method or the head of every response.

    Two templates are never equal: the encoder remembers their blocks by identity, which is what makes its steady
    state one look-up. So make a template once and keep it.

    Attributes:
        fields: The fields, in the order in which they go on the wire.
        list_size: Their size, counted as RFC 9113 section 6.5.2 says.
    """

    __slots__ = ("fields", "list_size")

    fields: tuple[Field, ...]
    list_size: int

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.list_size = sum([len(name) + len(value) + _ENTRY_OVERHEAD for name, value in self.fields])

    def __repr__(self) -> str:
        return f"HeaderTemplate({self.fields!r})"


#: For blocks that will not come again: an encoder remembers each template for the life of its connection.
NO_TEMPLATE = HeaderTemplate(())


class HeaderEncoder:
    """Encodes the header blocks of one direction of a connection.

    Fields of templates are put into the dynamic table, so that they cost one octet each from the second time on.
    Literals never are: they differ from call to call and would only push the useful entries out.

    Attributes:
        max_table_size: The size of the dynamic table as the next block will leave it.
    """

    __slots__ = (
        "_blocks",
        "_inserted",
        "_names",
        "_positions",
        "_prefixes",
        "_sensitive",
        "_signalled_size",
        "_size_cap",
        "_smallest_size",
        "_table_size",
        "max_table_size",
    )

    # Bounds on what is remembered; both are far above what real programs need and keep odd ones from leaking.
    _MAX_BLOCKS: Final = 512
    _MAX_PREFIXES: Final = 256

    def __init__(
        self, max_table_size: int = _DEFAULT_TABLE_SIZE, *, sensitive: Collection[bytes] = frozenset()
    ) -> None:
        """Makes an encoder with an empty table.

        Args:
            max_table_size: The largest dynamic table to use, whatever the peer allows.
            sensitive: Names of further fields that must never enter a table, neither here nor in any proxy.
        """
        self._size_cap = max_table_size
        self._sensitive = _ALWAYS_SENSITIVE.union(sensitive) if sensitive else _ALWAYS_SENSITIVE
        # Both are only right for the table as it is now: every change of the table empties them.
        self._blocks: dict[HeaderTemplate, bytes] = {}
        self._prefixes: dict[bytes, bytes] = {}
        # The table, oldest entry first. An entry's position is the number of entries inserted before it.
        self._positions: dict[Field, int] = {}
        self._table_size = 0
        self._inserted = 0
        self._names: dict[bytes, int] = {}
        # What the peer's decoder believes, and the smallest size since it was last told.
        self._signalled_size = _DEFAULT_TABLE_SIZE
        self._smallest_size = _DEFAULT_TABLE_SIZE
        self.max_table_size = _DEFAULT_TABLE_SIZE
        self.set_max_table_size(_DEFAULT_TABLE_SIZE)

    def set_max_table_size(self, size: int) -> None:
        """Applies the peer's SETTINGS_HEADER_TABLE_SIZE; the next block tells the peer of the change.

        Args:
            size: The size that the peer allows.
        """
        size = min(size, self._size_cap)
        if size == self.max_table_size:
            return
        self.max_table_size = size
        self._smallest_size = min(self._smallest_size, size)
        self._evict(size)
        # Also when nothing was evicted: a remembered block would go out without the size update.
        self._forget()

    def encode(self, template: HeaderTemplate, literals: Sequence[Field] = ()) -> bytes:
        """Encodes one header block.

        Args:
            template: The fields that recur; they come first in the block.
            literals: The fields of this call only.

        Returns:
            The block.
        """
        try:
            block = self._blocks[template]
        except KeyError:
            block = self._encode_template(template)
        if not literals:
            return block
        parts = [block]
        prefixes = self._prefixes
        for name, value in literals:
            try:
                prefix = prefixes[name]
            except KeyError:
                prefix = self._make_prefix(name)
            length = len(value)
            parts += (prefix, _LENGTHS[length] if length < 1024 else _encode_integer(length, 7, 0), value)
        return b"".join(parts)

    def _encode_template(self, template: HeaderTemplate) -> bytes:
        """Encodes the fields of a template and remembers the block if it left the table as it was."""
        updates = self._encode_size_updates()
        inserted = self._inserted
        parts: list[bytes] = []
        for field in template.fields:
            index = _STATIC_INDEX.get(field)
            if index is None:
                position = self._positions.get(field)
                if position is not None:
                    index = _FIRST_DYNAMIC + self._inserted - 1 - position
            if index is not None:
                parts.append(_encode_integer(index, 7, _INDEXED))
                continue
            name, value = field
            size = len(name) + len(value) + _ENTRY_OVERHEAD
            if size > self.max_table_size or name in self._sensitive:
                # RFC 7541 section 4.4: inserting an entry larger than the table would only empty the table.
                parts.append(self._make_prefix(name))
            else:
                index = self._find_name(name)
                parts.append(_encode_integer(index, 6, _INCREMENTAL))
                if not index:
                    parts.append(_encode_string(name))
                self._insert(field, size)
            parts.append(_encode_string(value))
        block = b"".join(parts)
        if self._inserted == inserted:
            # Nothing but references and literals, and the table is as it was: right until the next change.
            if len(self._blocks) >= self._MAX_BLOCKS:
                self._blocks.clear()
            self._blocks[template] = block
        return updates + block

    def _encode_size_updates(self) -> bytes:
        """Takes the size updates that the peer has not been told of (RFC 7541 section 4.2)."""
        smallest, size = self._smallest_size, self.max_table_size
        updates = b""
        if smallest < self._signalled_size:
            # Also when the table has grown again since: the peer must evict as we did.
            updates = _encode_integer(smallest, 5, _SIZE_UPDATE)
            self._signalled_size = smallest
        if size != self._signalled_size:
            updates += _encode_integer(size, 5, _SIZE_UPDATE)
        self._signalled_size = self._smallest_size = size
        return updates

    def _find_name(self, name: bytes) -> int:
        """Returns the index of an entry with this name, or 0."""
        index = _STATIC_NAME_INDEX.get(name)
        if index is not None:
            return index
        position = self._names.get(name)
        return 0 if position is None else _FIRST_DYNAMIC + self._inserted - 1 - position

    def _make_prefix(self, name: bytes) -> bytes:
        """Returns, and remembers, everything of a literal that comes before the length of its value."""
        index = self._find_name(name)
        prefix = _encode_integer(index, 4, _NEVER_INDEXED if name in self._sensitive else _NOT_INDEXED)
        if not index:
            prefix += _encode_string(name)
        if len(self._prefixes) >= self._MAX_PREFIXES:
            self._prefixes.clear()
        self._prefixes[name] = prefix
        return prefix

    def _insert(self, field: Field, size: int) -> None:
        """Puts a field that is not there yet into the table."""
        self._evict(self.max_table_size - size)
        self._table_size += size
        self._positions[field] = self._names[field[0]] = self._inserted
        self._inserted += 1
        self._forget()

    def _evict(self, size: int) -> None:
        """Drops the oldest entries until the table is no larger than ``size``."""
        while self._table_size > size:
            field = next(iter(self._positions))
            name, value = field
            self._table_size -= len(name) + len(value) + _ENTRY_OVERHEAD
            position = self._positions.pop(field)
            if self._names[name] == position:
                del self._names[name]

    def _forget(self) -> None:
        """Drops what was remembered for the table as it was."""
        self._blocks.clear()
        self._prefixes.clear()


# What one octet does to a Huffman decoder: (state << 8 | octet) to the next state << 8, the decoded octets, and whether
# the string may end there. Filled from hpack's table of half octets as strings come in: a third of its time.
_HUFFMAN_STEPS: Final[dict[int, tuple[int, bytes, bool]]] = {}
_MAX_HUFFMAN_STEPS: Final = 8192


def _decode_huffman(data: bytes) -> bytes:
    """Decodes a Huffman-coded string (RFC 7541 section 5.2)."""
    state = 0
    may_end = True
    parts: list[bytes] = []
    steps = _HUFFMAN_STEPS
    for octet in data:
        try:
            state, decoded, may_end = steps[state | octet]
        except KeyError:
            state, decoded, may_end = _make_huffman_step(state | octet)
        parts.append(decoded)
    if not may_end:
        raise HeaderBlockError("header block has a Huffman-coded string with wrong padding")
    return b"".join(parts)


def _make_huffman_step(key: int) -> tuple[int, bytes, bool]:
    """Works out, and remembers, one step of the Huffman decoder."""
    state, octet = divmod(key, 256)
    decoded = bytearray()
    flags = 0
    for half in (octet >> 4, octet & 0x0F):
        state, flags, symbol = HUFFMAN_TABLE[state * 16 + half]
        if flags & HUFFMAN_FAIL:
            raise HeaderBlockError("header block has an invalid Huffman-coded string")
        if flags & HUFFMAN_EMIT_SYMBOL:
            decoded.append(symbol)
    if len(_HUFFMAN_STEPS) >= _MAX_HUFFMAN_STEPS:
        _HUFFMAN_STEPS.clear()
    step = _HUFFMAN_STEPS[key] = (state << 8, bytes(decoded), bool(flags & HUFFMAN_COMPLETE))
    return step


# Octets 0x81 to 0xFE are whole fields: an index of 1 to 126. 0x80 is invalid, 0xFF goes on in the next octet.
_match_indexed_run: Final = re.compile(rb"[\x81-\xfe]+").match

# Entry i of RFC 7541 section 2.3.3 is at 0x80 + i, so that the octet of an indexed field is its own index. What lies
# below is padding that no octet reaches. All connections share it; the dynamic tables go on where it ends.
_PADDING: Final[Field] = (b"", b"")
_STATIC_FIELDS: Final = (_PADDING,) * (_INDEXED + 1) + _STATIC
_DYNAMIC_START: Final = len(_STATIC_FIELDS)


class HeaderDecoder(Generic[T]):
    """Decodes the header blocks of one direction of a connection and parses what is in them.

    Three ways, fastest first: a block seen before under the same table gives the same record; a block that starts
    with a known run of indexed fields gives that run's record, extended by the rest; else all fields are parsed.

    Attributes:
        max_list_size: The limit for one header list, counted as RFC 9113 section 6.5.2 says.
    """

    __slots__ = (
        "_bases",
        "_extend",
        "_head_length",
        "_heads",
        "_max_table_size",
        "_parse",
        "_records",
        "_seen",
        "_size_limit",
        "_strings",
        "_table",
        "_table_size",
        "max_list_size",
    )

    # Bounds of the caches. A connection must stay small: a server has many.
    _MAX_RECORDS: Final = 128
    _MAX_HEADS: Final = 64
    _MAX_SEEN: Final = 256
    _MAX_STRINGS: Final = 128
    _MAX_BLOCK_LENGTH: Final = 1024
    _MAX_STRING_LENGTH: Final = 64

    def __init__(
        self,
        parse: Callable[[list[Field]], T],
        *,
        max_list_size: int,
        max_table_size: int = _DEFAULT_TABLE_SIZE,
        extend: Callable[[T, list[Field]], T | None] | None = None,
    ) -> None:
        """Makes a decoder with an empty table.

        Args:
            parse: Makes a record of a header list. The record must be immutable, because it may be handed out again.
            max_list_size: The largest header list to accept.
            max_table_size: The SETTINGS_HEADER_TABLE_SIZE that the peer was told.
            extend: Makes the record of ``head + tail`` from the record of ``head`` and the fields of ``tail``, or
                returns None if it cannot tell: then ``parse`` is asked.
        """
        self.max_list_size: int = max_list_size
        self._parse = parse
        self._extend = extend
        self._size_limit = max_table_size
        # Until it has seen our settings the peer may use the default size, whatever we allow.
        self._max_table_size = _DEFAULT_TABLE_SIZE
        # The dynamic table, newest entry first.
        self._table: list[Field] = []
        self._table_size = 0
        # These two are right for the table as it is now only: every change of it empties them.
        self._records: dict[bytes, T] = {}
        self._heads: dict[bytes, tuple[list[Field], int, T]] = {}
        self._head_length = 0
        self._bases: dict[tuple[Field, ...], T] = {}
        # Hashes of blocks that were not worth remembering at first sight; a hint, so it may be stale.
        self._seen: set[int] = set()
        # Huffman-coded strings; they mean the same under every table.
        self._strings: dict[bytes, bytes] = {}

    def decode(self, block: bytes) -> T:
        """Decodes one header block.

        Args:
            block: The whole block, put together from HEADERS and CONTINUATION frames.

        Returns:
            What ``parse`` made of the fields.

        Raises:
            HeaderBlockError: The block is not HPACK; the connection cannot go on.
            HeaderListTooLarge: The list is above the limit; the decoder stays usable.
        """
        record = self._records.get(block)
        if record is not None:
            return record
        try:
            return self._decode(block)
        except IndexError:
            raise HeaderBlockError("header block is truncated or refers to an entry that is not there") from None

    def _decode(self, block: bytes) -> T:
        """Decodes a block that is not remembered. An IndexError means a truncated block or a wrong index."""
        table = self._table
        limit = self.max_list_size
        end = len(block)
        may_remember = end <= self._MAX_BLOCK_LENGTH
        # The run of indexed fields that most blocks begin with. Most have one of the same length as the last.
        head = block[: self._head_length]
        known = self._heads.get(head)
        if known is not None:
            fields, size, _ = known
        else:
            run = _match_indexed_run(block)
            head = block[: run.end()] if run is not None else b""
            size = 0
            fields = []
            for octet in head:
                field = _STATIC_FIELDS[octet] if octet < _DYNAMIC_START else table[octet - _DYNAMIC_START]
                size += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
                # A bomb of such fields must not make a list.
                if size <= limit:
                    fields.append(field)
        head_size = size
        position = len(head)
        tail: list[Field] = []
        changed = False
        while position < end:
            octet = block[position]
            if octet >= _INDEXED:
                if octet == 0xFF:
                    index, position = self._decode_integer(block, position, 0x7F)
                    octet = _INDEXED + index
                elif octet == _INDEXED:
                    raise HeaderBlockError("header block refers to entry 0")
                else:
                    position += 1
                field = _STATIC_FIELDS[octet] if octet < _DYNAMIC_START else table[octet - _DYNAMIC_START]
                size += len(field[0]) + len(field[1]) + _ENTRY_OVERHEAD
                if size <= limit:
                    tail.append(field)
                continue
            if octet < _SIZE_UPDATE:
                index = octet & 0x0F
                if octet & _NEVER_INDEXED:
                    may_remember = False
                if index == 0x0F:
                    index, position = self._decode_integer(block, position, 0x0F)
                else:
                    position += 1
            elif octet >= _INCREMENTAL:
                index = octet & 0x3F
                if index == 0x3F:
                    index, position = self._decode_integer(block, position, 0x3F)
                else:
                    position += 1
            else:
                if size:
                    raise HeaderBlockError("size update is not at the start of the header block")
                new_size, position = self._decode_integer(block, position, 0x1F)
                if new_size > self._size_limit:
                    raise HeaderBlockError(f"size update to {new_size} is above the limit of {self._size_limit}")
                self._max_table_size = new_size
                self._evict(new_size)
                self._forget()
                changed = True
                continue
            if index:
                name = (_STATIC[index - 1] if index < _FIRST_DYNAMIC else table[index - _FIRST_DYNAMIC])[0]
            else:
                length = block[position]
                if length < 0x7F:
                    position += 1 + length
                    name = block[position - length : position]
                else:
                    name, position = self._decode_string(block, position, True)
            length = block[position]
            if length < 0x7F:
                position += 1 + length
                value = block[position - length : position]
            elif length == 0x7F and block[position + 1] & 0x80 and block[position + 2] < 0x80:
                # A plain string of 255 octets to 16 KiB, such as a bearer token.
                length += (block[position + 1] & 0x7F) + (block[position + 2] << 7)
                position += 3 + length
                value = block[position - length : position]
            else:
                value, position = self._decode_string(block, position, octet & 0xF0 != _NEVER_INDEXED)
            if position > end:
                raise IndexError
            field = (name, value)
            entry_size = len(name) + len(value) + _ENTRY_OVERHEAD
            size += entry_size
            if size <= limit:
                tail.append(field)
            if octet >= _INCREMENTAL:
                self._insert(field, entry_size)
                changed = True
        if size > limit:
            raise HeaderListTooLarge(size, limit)
        if tail:
            extended: T | None = None
            if fields and self._extend is not None:
                if known is not None:
                    base = known[2]
                else:
                    base = self._find_base(fields)
                    if not changed:
                        if len(self._heads) >= self._MAX_HEADS:
                            self._heads.clear()
                        self._heads[head] = (fields, head_size, base)
                        self._head_length = len(head)
                extended = self._extend(base, tail)
            record = self._parse(fields + tail) if extended is None else extended
            # A block with literals may never come again (timeouts, trace ids): remember it at second sight.
            mark = hash(block)
            if mark not in self._seen:
                may_remember = False
                if len(self._seen) >= self._MAX_SEEN:
                    self._seen.clear()
                self._seen.add(mark)
        else:
            record = self._parse(fields)
        if not may_remember or changed:
            return record
        if len(self._records) >= self._MAX_RECORDS:
            self._records.clear()
        self._records[block] = record
        return record

    def _find_base(self, fields: list[Field]) -> T:
        """Returns the record of the indexed fields at the start of a block."""
        # By content: when a peer puts a field that changes into the table with every block, as some do with
        # timeouts, then all indices change but the fields stay.
        key = tuple(fields)
        base = self._bases.get(key)
        if base is None:
            base = self._parse(fields)
            if len(self._bases) >= self._MAX_HEADS:
                self._bases.clear()
            self._bases[key] = base
        return base

    @staticmethod
    def _decode_integer(block: bytes, position: int, limit: int) -> tuple[int, int]:
        """Decodes an integer whose prefix has all the bits of ``limit`` (RFC 7541 section 5.1).

        Args:
            block: The header block.
            position: Where the integer starts.
            limit: The mask of the prefix.

        Returns:
            The integer and the position after it.
        """
        value = block[position] & limit
        position += 1
        if value < limit:
            return value, position
        # Five further octets hold more than any length or index here; longer ones are an attack.
        for shift in (0, 7, 14, 21, 28):
            octet = block[position]
            position += 1
            value += (octet & 0x7F) << shift
            if octet < 0x80:
                return value, position
        raise HeaderBlockError("header block has an integer that is too long")

    def _decode_string(self, block: bytes, position: int, may_remember: bool) -> tuple[bytes, int]:
        """Decodes a long or Huffman-coded string literal (RFC 7541 section 5.2).

        Args:
            block: The header block.
            position: Where the string starts.
            may_remember: Whether the string may be kept for later.

        Returns:
            The string and the position after it.
        """
        is_huffman = block[position] & 0x80
        length, position = self._decode_integer(block, position, 0x7F)
        # A string that is too short is found by the caller, which looks at the octet after it.
        end = position + length
        data = block[position:end]
        if not is_huffman:
            return data, end
        value = self._strings.get(data)
        if value is None:
            value = _decode_huffman(data)
            if may_remember and length <= self._MAX_STRING_LENGTH:
                if len(self._strings) >= self._MAX_STRINGS:
                    self._strings.clear()
                self._strings[data] = value
        return value, end

    def _insert(self, field: Field, size: int) -> None:
        """Puts a field into the table; one that is too large for it empties it (RFC 7541 section 4.4)."""
        self._evict(self._max_table_size - size)
        if size <= self._max_table_size:
            self._table.insert(0, field)
            self._table_size += size
        self._forget()

    def _evict(self, size: int) -> None:
        """Drops the oldest entries until the table is empty or no larger than ``size``."""
        table_size = self._table_size
        while table_size > size and table_size:
            name, value = self._table.pop()
            table_size -= len(name) + len(value) + _ENTRY_OVERHEAD
        self._table_size = table_size

    def _forget(self) -> None:
        """Drops what was remembered for the table as it was."""
        self._records.clear()
        self._heads.clear()
