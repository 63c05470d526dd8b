// The K best keys of every cluster, found while the scores pass by.
//
// Only scores above a cluster's threshold become candidates. The first threshold is a lower bound of the K-th
// best score: at least K segments of the first chunk have a maximum that reaches it. Later it is the K-th
// best so far. Candidates stay in the order of their positions, which decides between equal scores.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

// Keep the K best of a list in rising positions, of equals the first. The K-th best is found by bisection:
// no branch depends on single scores.
template <class T>
int64_t select_top(int64_t count, int64_t K, Ordered<T>* scores, int32_t* positions) {
  typedef Ordered<T> Score;
  if (count <= K) return count;
  Score low = scores[0], high = scores[0];
  for (int64_t i = 1; i < count; ++i) {
    low = scores[i] < low ? scores[i] : low;
    high = scores[i] > high ? scores[i] : high;
  }
  // At least K scores reach `low`, fewer than K exceed `high`.
  while (low < high) {
    const Score half = static_cast<Score>((static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1) >> 1);
    const Score middle = low + (half ? half : high - low);
    Score reach = 0;
    for (int64_t i = 0; i < count; ++i) reach += scores[i] >= middle;
    if (reach >= K) low = middle;
    if (reach <= K) high = reach == K ? middle : middle - 1;
  }
  int64_t room = K;
  for (int64_t i = 0; i < count; ++i) room -= scores[i] > low;
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Score score = scores[i];
    const bool level = score == low && room > 0;
    scores[kept] = score;
    positions[kept] = positions[i];
    room -= level;
    kept += score > low || level;
  }
  return kept;
}

// Weights exp(score − maximum) / Σ of chosen keys; returns their sum. There is room for whole vectors.
template <class T>
T weigh_top(int64_t count, const Ordered<T>* scores, T maximum, T inverse_sum, T* weights) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < count; ++i) weights[i] = score_of(scores[i]) - maximum;
  for (int64_t i = count; i % W; ++i) weights[i] = 0;
  for (int64_t i = 0; i < count; i += W) store(weights + i, exp_vec(load(weights + i)) * inverse_sum);
  T sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += weights[i];
  return sum;
}

constexpr int64_t largest_chunk = 512;
#if VECTOR_BYTES == 64
typedef uint16_t LaneBits;
#else
typedef uint8_t LaneBits;
#endif
constexpr int64_t keys_per_word = 8 / sizeof(LaneBits);

template <class T>
struct TopKeys {
  int64_t capacity;         // K and one chunk
  T* segments;
  T* threshold;             // of each cluster
  Ordered<T>* scores;       // [C, capacity]
  int32_t* positions;

  void start(int64_t C, int64_t padded_C, int32_t* count_C) {
    for (int64_t c = 0; c < padded_C; ++c) threshold[c] = -__builtin_inf();
    for (int64_t c = 0; c < C; ++c) count_C[c] = 0;
  }

  // A bound that at least K of the keys exceed, for each of W clusters.
  Vec<T> first_threshold(int64_t padded_C, int64_t K, int64_t keys, const T* from) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t length = keys / (2 * K), count = (keys + length - 1) / length;
    Vec<T> low = splat<T>(__builtin_inf()), high = -low;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t end = (i + 1) * length < keys ? (i + 1) * length : keys;
      Vec<T> top = load(from + i * length * padded_C);
      for (int64_t s = i * length + 1; s < end; ++s) top = larger<T>(top, load(from + s * padded_C));
      store(segments + i * W, top);
      low = (top < low) ? top : low;
      high = larger<T>(high, top);
    }
    for (int step = 0; step < 10; ++step) {
      const Vec<T> middle = low * static_cast<T>(0.5) + high * static_cast<T>(0.5);
      Mask<T> reach = {};
      for (int64_t i = 0; i < count; ++i) reach -= load(segments + i * W) >= middle;
      const Mask<T> enough = reach >= static_cast<Ordered<T>>(K);
      low = enough ? middle : low;
      high = enough ? high : middle;
    }
    const Vec<T> size = low < Vec<T>{} ? -low : low;
    return low - size * static_cast<T>(1e-6) - static_cast<T>(1e-30);
  }

  // Also finds each cluster's highest score among these keys.
  void search(
      int64_t C, int64_t padded_C, int64_t K, int64_t first, int64_t keys, const T* from, int32_t* count_C,
      T* highest_C) {
    constexpr int64_t W = Simd<T>::width;
    for (int64_t c = 0; c < padded_C; c += W) {
      Vec<T> bound = load(threshold + c);
      if (keys >= 2 * K && count_C[c] == 0) bound = larger<T>(bound, first_threshold(padded_C, K, keys, from + c));
      // The comparisons of all keys first, then the candidates of 64 comparisons at a time: a loop over each
      // key's few candidates would mispredict its end every time.
      const LaneBits lanes = static_cast<LaneBits>(C - c < W ? (1u << (C - c)) - 1 : ~0u);
      LaneBits above[largest_chunk];
      Vec<T> highest = splat(lowest_score<T>());
      for (int64_t s = 0; s < keys; ++s) {
        const Vec<T> score = load(from + s * padded_C + c);
        above[s] = static_cast<LaneBits>(bits_of(score > bound)) & lanes;
        highest = larger<T>(highest, score);
      }
      store(highest_C + c, highest);
      for (int64_t s = keys; s % keys_per_word; ++s) above[s] = 0;
      for (int64_t s = 0; s < keys; s += keys_per_word) {
        uint64_t word;
        memcpy(&word, above + s, sizeof(word));
        for (; word; word &= word - 1) {
          const int bit = __builtin_ctzll(word);
          const int64_t key = s + bit / (64 / keys_per_word), cluster = c + bit % (64 / keys_per_word);
          const int64_t at = cluster * capacity + count_C[cluster]++;
          scores[at] = ordered(from[key * padded_C + cluster]);
          positions[at] = static_cast<int32_t>(first + key);
        }
      }
      for (int64_t i = c; i < C && i < c + W; ++i) {
        if (count_C[i] <= K) continue;
        count_C[i] = static_cast<int32_t>(
            select_top<T>(count_C[i], K, scores + i * capacity, positions + i * capacity));
        Ordered<T> lowest = scores[i * capacity];
        for (int64_t j = 1; j < K; ++j)
          lowest = scores[i * capacity + j] < lowest ? scores[i * capacity + j] : lowest;
        threshold[i] = score_of(lowest);
      }
    }
  }

  void finish(int64_t C, int64_t K, const int32_t* count_C, Ordered<T>* scores_CK, int32_t* top_CK) const {
    for (int64_t c = 0; c < C; ++c) {
      memcpy(scores_CK + c * K, scores + c * capacity, count_C[c] * sizeof(Ordered<T>));
      memcpy(top_CK + c * K, positions + c * capacity, count_C[c] * sizeof(int32_t));
    }
  }
};

}  // namespace
}  // namespace attention_ext
