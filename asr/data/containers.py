"""The length of audio according to Ogg, Opus and MP3 containers, and whether libsndfile can rely on it."""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

OGG = b"OggS"  # capture pattern of a page
CONTINUES, BEGINS, ENDS = 1, 2, 4  # flags: continues the previous page's last packet; first page; last page
OGG_BODY = 29  # bytes of a page's first packet to read: up to the sizes of Vorbis's windows
ID3_TAG = 128  # bytes of an ID3v1 tag at the end
# MPEG layer III: bit rates in kbit/s by index, for MPEG 1, and for MPEG 2 and 2.5; sample rates of MPEG 1.
BIT_RATES = (
    (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
MPEG1_RATES = (44_100, 48_000, 32_000)


class OggPage(NamedTuple):
    """A page of an Ogg file.

    Attributes:
        flags: whether it begins or ends a stream, or continues a packet.
        stated: length in bytes according to its header.
        found: length in bytes in the file.
        granule: number of samples up to its end, for audio codecs; −1: no packet ends on the page.
        packets: number of packets that end on the page.
        body: beginning of the first packet.
    """

    flags: int
    stated: int
    found: int
    granule: int
    packets: int
    body: bytes


def ogg_pages(file: BinaryIO, size: int) -> Iterator[OggPage]:
    """Yield the pages of an Ogg file up to its end, or to bytes that aren't a page (RFC 3533, section 6)."""
    place = 0
    while place < size:
        file.seek(place)
        head = file.read(27 + 255 + OGG_BODY)
        if not OGG.startswith(head[:4]):
            return
        count = head[26] if len(head) > 26 else 0
        segments = head[27 : 27 + count]
        stated = 27 + count + sum(segments)
        yield OggPage(
            head[5] if len(head) > 5 else 0,
            stated,
            min(stated, size - place),
            int.from_bytes(head[6:14], "little", signed=True),
            sum(length < 255 for length in segments),
            head[27 + count : 27 + count + OGG_BODY],
        )
        place += stated


def is_one_ogg_stream(file: BinaryIO, size: int) -> bool:
    """Return whether an Ogg file contains a single stream without gaps, with a mark of its end.

    libsndfile reads only the first of several streams, and ignores gaps. In Opus without an end mark, as
    recorded from a network, it seeks to wrong samples.
    """
    flags = granule = longest = 0  # longest: samples of a packet; 0: unknown
    opus = False
    for number, page in enumerate(ogg_pages(file, size)):
        flags = page.flags
        if number and flags & BEGINS:
            return False
        if page.body.startswith(b"OpusHead"):
            opus = True
        elif page.body.startswith(b"\x01vorbis"):
            longest = 1 << (page.body[-1] >> 4) >> 1  # half of the larger window
        elif opus and len(page.body) > 1 and not flags & CONTINUES:
            longest = opus_packet_samples(page.body)
        if longest and page.granule > granule + page.packets * longest:
            return False
        granule = max(granule, page.granule)
    return bool(flags & ENDS)


def opus_packet_samples(packet: bytes) -> int:
    """Return the number of samples at 48 kHz in an Opus packet, from its first two bytes (RFC 6716, 3.1)."""
    config, code = packet[0] >> 3, packet[0] & 3
    if config < 12:
        frame = (480, 960, 1920, 2880)[config & 3]
    elif config < 16:
        frame = (480, 960)[config & 1]
    else:
        frame = 120 << (config & 3)
    return frame * (packet[1] & 63 if code == 3 else 1 + (code > 0))


def states_mp3_length(file: BinaryIO, size: int) -> bool:
    """Return whether an MP3 file has a Xing header with the number of its frames, and no audio after them.

    Without the header, libsndfile estimates the length from the initial bit rate. With it, libsndfile ignores
    audio appended to the file. A file with fewer bytes than the header states is truncated.
    """
    file.seek(0)
    place = id3_bytes(file.read(10))
    file.seek(place)
    frame = file.read(64)
    if len(frame) < 64 or not mp3_frame_bytes(frame):
        return False
    mono, mpeg1 = frame[3] >> 6 == 3, frame[1] >> 3 & 3 == 3
    side = (17 if mono else 32) if mpeg1 else (9 if mono else 17)  # bytes of side information
    xing = frame[4 + side :]
    if xing[:4] not in (b"Xing", b"Info") or xing[7] & 3 != 3:  # frames and bytes
        return False
    return place + int.from_bytes(xing[12:16], "big") + ID3_TAG >= size


def id3_bytes(head: bytes) -> int:
    """Return the length of an ID3v2 tag in bytes, from its first ten; 0 if they don't begin a tag."""
    if head[:3] != b"ID3":
        return 0
    return 10 + sum((byte & 0x7F) << 7 * (3 - i) for i, byte in enumerate(head[6:10]))


def mp3_frame_bytes(head: bytes) -> int:
    """Return the length of an MPEG layer III frame in bytes, from its first four; 0 if they don't state it.

    ISO/IEC 11172-3, section 2.4.3.1; with a free bit rate, the length isn't stated.
    """
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2 or head[1] & 0x18 == 0x08:
        return 0
    version = head[1] >> 3 & 3  # 3: MPEG 1, 2: MPEG 2, 0: MPEG 2.5
    rate, bits = head[2] >> 2 & 3, head[2] >> 4
    if rate == 3 or bits in (0, 15):
        return 0
    per_second = MPEG1_RATES[rate] >> {3: 0, 2: 1, 0: 2}[version]
    kbits = BIT_RATES[version != 3][bits - 1]
    return (144 if version == 3 else 72) * 1000 * kbits // per_second + (head[2] >> 1 & 1)
