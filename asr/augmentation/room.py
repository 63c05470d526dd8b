"""Random rooms: impulse responses of a shoebox by the image method, with a diffuse tail."""

import math

import numpy as np
from numpy.typing import NDArray

SOUND_M_S = 343.0
SIZES_M = ((3.0, 10.0), (3.0, 8.0), (2.4, 4.0))  # length, width, height
FROM_WALL_M = 0.5
NEAREST_M = 0.3  # shortest distance between mouth and microphone
DIFFUSE_S = 0.06  # time after the direct sound from which images are so dense that they are noise
MATCHED_S = 0.02  # time before DIFFUSE_S in which the tail's power is measured


def room_response(rng: np.random.Generator, sample_rate: int, t60_s: float) -> NDArray[np.float32]:
    """Return the impulse response of a random room, mouth and microphone.

    The response consists of images (Allen and Berkley 1979) up to `DIFFUSE_S` after the direct sound, then of
    exponentially decaying noise of the same power (Lehmann and Johansson 2010). Walls reflect −β of the
    pressure, because responses with positive pulses only would boost low frequencies, unlike rooms; β follows
    from Eyring's formula.

    Args:
        rng: source of randomness.
        sample_rate: sample rate in Hz.
        t60_s: reverberation time in seconds, in which sound decays by 60 dB.

    Returns:
        [samples], from the direct sound, whose amplitude is 1, to the decay by 60 dB.

    Example:
        >>> response = room_response(np.random.default_rng(0), 16000, 0.3)
        >>> len(response), float(response[0]) == float(abs(response).max())
        (4800, True)
    """
    size_m = np.array([rng.uniform(*limits) for limits in SIZES_M])
    while True:
        mouth_m, microphone_m = rng.uniform(FROM_WALL_M, size_m - FROM_WALL_M, (2, 3))
        if (direct_m := float(np.linalg.norm(mouth_m - microphone_m))) >= NEAREST_M:
            break
    volume_m3, surface_m2 = size_m.prod(), 2 * (size_m.prod() / size_m).sum()
    reflected = -math.exp(-0.0805 * volume_m3 / (surface_m2 * t60_s))
    length, early = round(t60_s * sample_rate), round(DIFFUSE_S * sample_rate)
    squares_m2, gains = np.zeros(1), np.ones(1)
    for own_m, mouth, microphone in zip(size_m, mouth_m, microphone_m, strict=True):
        offsets_m, bounces = _images(own_m, mouth, direct_m + DIFFUSE_S * SOUND_M_S)
        squares_m2 = np.add.outer(squares_m2, (offsets_m - microphone) ** 2).ravel()
        gains = np.multiply.outer(gains, reflected**bounces).ravel()
    distances_m = np.sqrt(squares_m2)
    places = np.rint((distances_m - direct_m) / SOUND_M_S * sample_rate).astype(np.int64)
    kept = places < min(early, length)
    response = np.zeros(length)
    np.add.at(response, places[kept], gains[kept] * direct_m / distances_m[kept])
    if length > early:
        _add_tail(response, rng, early, round(MATCHED_S * sample_rate))
    response[0] = max(1.0, abs(response).max())  # an image may fall on the direct sound
    return (response / response[0]).astype(np.float32)


def _images(size_m: float, mouth_m: float, reach_m: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the positions of the mouth's images along one axis, and their numbers of reflections."""
    most = math.ceil(reach_m / (2 * size_m)) + 1
    rooms = np.arange(-most, most + 1)
    positions_m = np.concatenate([2 * rooms * size_m + mouth_m, 2 * rooms * size_m - mouth_m])
    return positions_m, np.concatenate([abs(2 * rooms), abs(2 * rooms - 1)])


def _add_tail(response: NDArray[np.float64], rng: np.random.Generator, early: int, matched: int) -> None:
    """Fill a response from sample `early` on with noise that continues the power of the samples before."""
    decay = 10 ** (-3 * np.arange(len(response)) / len(response))
    before = slice(early - matched, early)
    level = np.sqrt(np.square(response[before] / decay[before]).mean())
    response[early:] = level * decay[early:] * rng.standard_normal(len(response) - early)
