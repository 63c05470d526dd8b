import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, SupervisionSegment
from numpy.typing import NDArray
from tone_corpora import save_cuts

from asr.data.audio import load_cut
from asr.data.audio_file import open_audio
from asr.data.facts import audio_facts
from asr.data.manifest import read_cuts
from asr.data.recording import read_recording
from asr.data.shorten import decode, mulaw_codes
from asr.data.sphere import is_sphere, read_header
from asr.errors import UserError
from asr.preparation.cuts import recording
from tests.data.shorten_encoder import shorten, sphere_header, write_sphere


def read_sphere(path: Path, start: int = 0, samples: int | None = None) -> NDArray[np.float32]:
    with open_audio(path) as file:
        file.seek(start)
        return file.read(samples).T


def speechlike(samples: int, channels: int = 1, seed: int = 0) -> NDArray[np.int16]:
    """Slow and fast noise of varying loudness, so that every difference order is the best in some block."""
    random = np.random.default_rng(seed)
    slow = np.cumsum(random.standard_normal((samples, channels)), axis=0) * 50
    loudness = 3000 * np.abs(np.sin(np.arange(samples) / 900))[:, None]
    return np.clip(slow + loudness * random.standard_normal((samples, channels)), -32768, 32767).astype("i2")


def with_silence() -> NDArray[np.int16]:
    samples = speechlike(3000)
    samples[700:2000] = 0
    return samples


def coarse_in_the_middle() -> NDArray[np.int16]:
    """Blocks whose lowest bits are zero, which shorten shifts out, between ordinary blocks."""
    samples = speechlike(4096)
    samples[1024:2048] = samples[1024:2048] // 8 * 8
    return samples


SIGNALS = {
    **{
        f"{samples} samples, {channels} channel(s)": speechlike(samples, channels)
        for samples in (1, 255, 256, 257, 9973)
        for channels in (1, 2)
    },
    "a pause": with_silence(),
    "coarse blocks": coarse_in_the_middle(),
    "constant": np.full((3000, 1), 1234, dtype="i2"),
    "extremes": np.where(np.arange(3000) % 2, 32767, -32768)[:, None].astype("i2"),
    "white": np.random.default_rng(1).integers(-32768, 32768, (5000, 1)).astype("i2"),
}


@pytest.mark.parametrize(("version", "lpc"), [(2, 0), (2, 3), (1, 0), (1, 3)])
def test_embedded_shorten_is_decoded_bit_for_bit(tmp_path: Path, version: int, lpc: int) -> None:
    path = tmp_path / "a.wv1"
    for name, signal in SIGNALS.items():
        write_sphere(path, signal, compressed=True, lpc=lpc, version=version)
        decoded = read_sphere(path)
        assert decoded.dtype == np.float32
        np.testing.assert_array_equal(decoded * 32768, signal.T, name)


def test_a_name_with_a_colon_is_no_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg found no protocol `call`."""
    monkeypatch.chdir(tmp_path)
    write_sphere(Path("call:1.sph"), SIGNALS["white"], compressed=True)
    np.testing.assert_array_equal(read_sphere(Path("call:1.sph")) * 32768, SIGNALS["white"].T)


def test_compression_saves_space(tmp_path: Path) -> None:
    """The test encoder uses prediction and Rice codes rather than storing samples as they are."""
    time = np.arange(16000)
    samples = (3000 * np.sin(time / 20) + np.random.default_rng(0).integers(-8, 8, 16000)).astype("i2")
    assert len(shorten(samples)) < 0.5 * samples.nbytes


@pytest.mark.parametrize("channels", [1, 2])
def test_plain_samples(tmp_path: Path, channels: int) -> None:
    samples = speechlike(5000, channels)
    write_sphere(tmp_path / "A.WV1", samples)
    np.testing.assert_array_equal(read_sphere(tmp_path / "A.WV1") * 32768, samples.T)
    np.testing.assert_array_equal(read_sphere(tmp_path / "A.WV1", 100, 50) * 32768, samples[100:150].T)


def test_big_endian_samples(tmp_path: Path) -> None:
    samples = speechlike(500)
    header = sphere_header(500, sample_byte_format="-s2 10")
    (tmp_path / "a.wv1").write_bytes(header + samples.astype(">i2").tobytes())
    np.testing.assert_array_equal(read_sphere(tmp_path / "a.wv1") * 32768, samples.T)


def test_two_channels_of_mu_law(tmp_path: Path) -> None:
    """The layout of Switchboard's discs; libsndfile expands the 8-bit codes according to G.711."""
    codes = np.random.default_rng(0).integers(0, 256, (4000, 2)).astype(np.uint8)
    path = tmp_path / "sw02001.sph"
    path.write_bytes(sphere_header(4000, 8000, 2, "ulaw", 1) + codes.tobytes())
    linear = expanded(codes.astype(int))
    np.testing.assert_array_equal(read_sphere(path, 1000, 2000) * 32768, linear[1000:3000].T)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("suffix", ["wv1", "WV1", "sph"])
def test_a_cut_into_a_file_loads_its_own_samples(tmp_path: Path, compressed: bool, suffix: str) -> None:
    samples = speechlike(16000, channels=2)
    path = tmp_path / f"a.{suffix}"
    write_sphere(path, samples, compressed=compressed)
    source = recording("a", path, *audio_facts(path))
    assert (source.num_samples, source.sampling_rate, source.channel_ids) == (16000, 16000, [0, 1])
    supervision = SupervisionSegment("a-1", "a", 0.0, 0.3, channel=1, text="x", speaker="a")
    cut = MonoCut("a-1", 0.25, 0.3, 1, [supervision], recording=source)
    save_cuts([cut], tmp_path / "x.cuts.jsonl.gz")
    [loaded] = read_cuts(tmp_path / "x.cuts.jsonl.gz")
    np.testing.assert_array_equal(load_cut(loaded, 16000) * 32768, samples[4000:8800, 1])


def test_another_format_under_a_name_of_sphere_is_read_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.sph"
    samples = speechlike(1600)
    soundfile.write(path, samples[:, 0], 16000, subtype="PCM_16", format="WAV")
    source = recording("a", path, *audio_facts(path))
    cut = MonoCut("a-1", 0.0, 0.1, 0, [], recording=source)
    np.testing.assert_array_equal(load_cut(cut, 16000) * 32768, samples[:, 0])


def test_a_recording_that_differs_from_its_manifest_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, speechlike(16000)[:, 0], 16000, subtype="PCM_16")
    cut = MonoCut("a-1", 0.0, 1.0, 0, [], recording=recording("a", path, 8000, 8000, 1))
    message = r"a-1: .*a\.wav: expected 8,000 samples at 8,000 Hz as in .*, found 16,000 at 16,000 Hz"
    with pytest.raises(UserError, match=message):
        load_cut(cut, 8000)


def test_a_recording_is_detected_by_its_content(tmp_path: Path) -> None:
    samples = speechlike(3000)
    write_sphere(tmp_path / "strange.name", samples, compressed=True)
    (found,) = read_recording(tmp_path / "strange.name", 16000)
    np.testing.assert_array_equal(found * 32768, samples[:, 0])


def test_other_files_are_not_sphere(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros(100), 16000)
    assert not is_sphere(tmp_path / "a.wav")
    assert not is_sphere(tmp_path / "missing.wav")


@pytest.mark.parametrize("missing", [0.02, 0.3, 0.9, 0.999])
def test_truncated_shorten_data(tmp_path: Path, missing: float) -> None:
    path = tmp_path / "01ac0201.wv1"
    write_sphere(path, speechlike(9000), compressed=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: 1024 + round((1 - missing) * (len(whole) - 1024))])
    with pytest.raises(UserError, match=r"01ac0201\.wv1: expected 9000 samples in 1 channel.* end after \d+"):
        read_sphere(path)


def test_a_cut_of_truncated_data_is_rejected_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.wv1"
    write_sphere(path, speechlike(9000), compressed=True)
    source = recording("a", path, *audio_facts(path))
    path.write_bytes(path.read_bytes()[:3000])
    cut = MonoCut("utt", 0.0, source.duration, 0, [], recording=source)
    with pytest.raises(UserError, match=r"^utterance utt: .*a\.wv1: expected 9000 samples") as caught:
        load_cut(cut, 16000)
    assert "\n" not in str(caught.value)


def test_truncated_plain_data(tmp_path: Path) -> None:
    write_sphere(tmp_path / "a.wv1", speechlike(1000))
    (tmp_path / "a.wv1").write_bytes((tmp_path / "a.wv1").read_bytes()[:-10])
    with pytest.raises(UserError, match=r"a\.wv1: expected 3024 bytes for 1000 samples, found 3014"):
        read_header(tmp_path / "a.wv1")


GOOD = sphere_header(4)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", r"expected a SPHERE header \(NIST_1A\), found b''"),
        (b"RIFF" + GOOD[4:], r"expected a SPHERE header \(NIST_1A\), found b'RIFF"),
        (GOOD.replace(b"   1024\n", b"   oops\n"), "expected the length of the SPHERE header"),
        (GOOD.replace(b"end_head", b"end_hea_"), "expected `end_head`"),
        (GOOD[:100], "expected `end_head`"),
        (GOOD.replace(b"sample_count -i 4", b"sample_kount -i 4"), "expected sample_count .* found nothing"),
        (
            GOOD.replace(b"sample_rate -i 16000", b"sample_rate -i zero "),
            "expected sample_rate .* found zero",
        ),
        (GOOD.replace(b"channel_count -i", b"channel_count ??"), "expected `name -i value`"),
        (sphere_header(4, coding="pcm,embedded-shorten-v2.00") + b"xxxx", "expected emb.* found b'xxxx'"),
    ],
)
def test_a_corrupt_header_is_reported(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "a.wv1").write_bytes(raw)
    with pytest.raises(UserError, match=rf"a\.wv1: {message}"):
        read_header(tmp_path / "a.wv1")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.wv1: expected a SPHERE file, found none"):
        read_header(tmp_path / "a.wv1")


def expanded(codes: NDArray[np.int_]) -> NDArray[np.int_]:
    """Expand µ-law codes to 16-bit samples (G.711)."""
    exponent, mantissa = (~codes >> 4) & 7, ~codes & 15
    return np.where(codes & 0x80, 1, -1) * ((((mantissa << 3) + 132) << exponent) - 132)


def telephone(samples: int, channels: int, seed: int = 0) -> NDArray[np.int_]:
    """µ-law codes of intermittent speech, with zeros of both signs as silence."""
    quiet = np.random.default_rng(seed).choice([0x7F, 0xFF, 0xFF], (samples, channels))
    loud = np.frombuffer(_mulaw(speechlike(samples, channels, seed)), dtype=np.uint8).reshape(samples, -1)
    return np.where((np.arange(samples) // 700 % 3 == 1)[:, None], quiet, loud).astype(np.int64)


def _mulaw(samples: NDArray[np.int16]) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 8000, format="RAW", subtype="ULAW")
    return file.getvalue()


def coarse_codes() -> NDArray[np.int_]:
    """For each shift, blocks of the codes it can represent, after blocks of other codes."""
    random = np.random.default_rng(3)
    blocks = [np.full(256, 0x7F), np.zeros(256, dtype=int), random.integers(0, 256, 256)]
    for shift in range(13):
        steps = random.integers(-32768 // (8 << shift), 32767 // (8 << shift) + 1, 512) * (8 << shift)
        blocks.append(np.frombuffer(_mulaw(steps.astype(np.int16)), dtype=np.uint8).astype(int))
    return np.concatenate(blocks)[:, None]


MULAW = {
    **{f"{n} samples, {c} channel(s)": telephone(n, c) for n in (1, 256, 9973) for c in (1, 2)},
    "every shift": coarse_codes(),
    "white": np.random.default_rng(1).integers(0, 256, (5000, 2)),
}


@pytest.fixture(autouse=True)
def no_sph2pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)


@pytest.mark.parametrize(("version", "lpc", "type"), [(2, 0, "ulaw"), (2, 3, "ulaw"), (1, 0, "ulaw_first")])
def test_shortened_mu_law_is_decoded_bit_for_bit(tmp_path: Path, version: int, lpc: int, type: str) -> None:
    path = tmp_path / "sw02001.sph"
    for name, codes in MULAW.items():
        header = sphere_header(len(codes), 8000, codes.shape[1], f"ulaw,embedded-shorten-v{version}.00", 1)
        compressed = shorten(codes, type=type, lpc=lpc, version=version, means=4 if version > 1 else 0)
        path.write_bytes(header + compressed)
        np.testing.assert_array_equal(decode(compressed, len(codes), mulaw=True), codes.T, name)
        np.testing.assert_array_equal(read_sphere(path) * 32768, expanded(codes).T, name)
        part = slice(len(codes) // 3, len(codes) // 2 + 1)
        found = read_sphere(path, part.start, part.stop - part.start)
        np.testing.assert_array_equal(found * 32768, expanded(codes[part]).T, name)


@pytest.mark.parametrize(("version", "lpc"), [(2, 0), (2, 6), (1, 0), (1, 3)])
def test_our_decoder_reads_16_bit_samples(version: int, lpc: int) -> None:
    """FFmpeg decodes the same data, so both decoders implement one format."""
    for name, samples in SIGNALS.items():
        data = shorten(samples, lpc=lpc, version=version, means=4 if version > 1 else 0, verbatim=b"RIFF")
        np.testing.assert_array_equal(decode(data, len(samples), mulaw=False), samples.T, name)


@pytest.mark.parametrize(
    ("shift", "low", "high"),
    [
        # Codes of the lowest numbers and of the numbers around zero, from the table in shorten's source.
        (0, [127, 0, 1, 2], [124, 125, 126, 255, 254, 253]),
        (1, [112, 114, 116, 118, 120, 122, 124, 126, 127, 0, 1], [121, 123, 125, 255, 253, 251]),
        (5, [49, 51, 53, 55, 57, 59, 61, 63, 64, 66, 67, 68, 70], [77, 83, 91, 103, 255, 231, 219, 211, 205]),
        (8, [2, 4, 6, 8, 10, 12, 14, 16, 17, 18, 20, 21], [39, 47, 62, 255, 190, 175]),
        (9, [1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16], [15, 23, 31, 47, 255, 175, 159, 151]),
        (12, [1, 2, 3, 4], [126, 127, 0, 255, 254, 253]),
    ],
)
def test_mu_law_codes_are_numbered_as_shorten_does(shift: int, low: list[int], high: list[int]) -> None:
    codes = mulaw_codes(shift).tolist()
    assert sorted(codes) == list(range(256))
    assert codes[: len(low)] == low
    zero = high.index(255)
    assert codes[128 - zero : 128 - zero + len(high)] == high


@pytest.mark.parametrize("missing", [0.02, 0.5, 0.999])
def test_truncated_mu_law(tmp_path: Path, missing: float) -> None:
    codes = telephone(9000, 2)
    data = shorten(codes, type="ulaw")
    path = tmp_path / "a.sph"
    header = sphere_header(9000, 8000, 2, "ulaw,embedded-shorten-v2.00", 1)
    path.write_bytes(header + data[: round((1 - missing) * len(data)) + 6])
    with pytest.raises(UserError, match=r"a\.sph: expected 9000 samples in 2 channels.* end after \d+ "):
        read_sphere(path)


@pytest.mark.parametrize(
    ("coding", "data", "message"),
    [
        (
            "ulaw",
            shorten(speechlike(300)),
            "expected lossless µ-law compressed by shorten, found sample type 5",
        ),
        ("ulaw", b"ajkg\7", "expected shorten of version 1 or 2, found b'ajkg.x07'"),
        ("ulaw", shorten(telephone(900, 1), type="ulaw")[:9] + bytes(range(200)), "expected .* shorten"),
        (
            "alaw",
            shorten(telephone(300, 1), type="ulaw"),
            "expected samples coded as pcm or ulaw, found alaw,embedded-shorten",
        ),
    ],
)
def test_data_other_than_compressed_mu_law_are_rejected(
    tmp_path: Path, coding: str, data: bytes, message: str
) -> None:
    path = tmp_path / "a.sph"
    path.write_bytes(sphere_header(300, 8000, 1, f"{coding},embedded-shorten-v2.00", 1) + data)
    with pytest.raises(UserError, match=rf"a\.sph: {message}") as caught:
        read_sphere(path)
    assert "\n" not in str(caught.value)


def test_output_of_sph2pipe_is_used_and_its_errors_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script replaces the program and records its arguments."""
    codes = np.random.default_rng(0).integers(0, 256, (600, 1))
    path = tmp_path / "a.sph"
    header = sphere_header(600, 8000, 1, "ulaw,embedded-shorten-v2.00", 1)
    path.write_bytes(header + shorten(codes, type="ulaw"))
    program = tmp_path / "sph2pipe"
    monkeypatch.setattr(shutil, "which", lambda name: str(program))
    program.write_text("#!/bin/sh\necho no such thing >&2\n")
    program.chmod(0o755)
    with pytest.raises(UserError, match=r"a\.sph: sph2pipe can't read it \(no such thing\)"):
        read_sphere(path)
    soundfile.write(tmp_path / "answer.wav", codes[:500, 0] / 32768, 8000, subtype="PCM_16")
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\ncat {tmp_path}/answer.wav\n')
    np.testing.assert_array_equal(read_sphere(path, 100, 400)[0] * 32768, codes[100:500, 0])
    assert (tmp_path / "called").read_text().split() == ["-p", "-f", "wav", "-s", "0:500", str(path)]
