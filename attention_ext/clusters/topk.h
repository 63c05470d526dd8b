// Streaming search for the top K keys of every cluster.
//
// Only scores above a cluster's threshold become candidates. The first threshold is a lower bound on the K-th
// highest score: at least K segments of the first chunk have a maximum that reaches it. A list that has grown well
// beyond K is cut to its top K, and the lowest of these becomes the threshold. Candidates stay in order of position,
// so that ties go to the lowest positions.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

// Cut a list in ascending order of position down to its top K in place; ties go to the lowest positions. Returns the
// number left. The K-th highest score is found by bisection, without a branch on individual scores.
template <class T>
int64_t select_top(int64_t count, int64_t K, Ordered<T>* scores, int32_t* positions) {
  typedef Ordered<T> Score;
  if (count <= K) return count;
  Score low = scores[0], high = scores[0];
  for (int64_t i = 1; i < count; ++i) {
    low = scores[i] < low ? scores[i] : low;
    high = scores[i] > high ? scores[i] : high;
  }
  // Invariant: at least K scores reach `low`, fewer than K exceed `high`.
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

// Compute the weights exp(score − maximum) / Σ of chosen keys and return their sum. `weights` holds whole vectors.
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

template <class T>
struct TopKeys {
  int64_t capacity;    // K plus one chunk
  T* segments;         // [chunk, W]
  T* threshold;        // per cluster
  Ordered<T>* scores;  // candidates per cluster: unconverted scores
  int32_t* positions;  // candidates per cluster: positions
  bool fresh;          // before the first chunk

  void start(int64_t C, int64_t padded_C, int32_t* count_C) {
    for (int64_t c = 0; c < padded_C; ++c) threshold[c] = c < C ? -__builtin_inf() : __builtin_inf();
    for (int64_t c = 0; c < C; ++c) count_C[c] = 0;
    fresh = true;
  }

  // Set each cluster's threshold to a bound that at least K keys exceed; as many vectors of clusters at a time as
  // `segments` has room for.
  void first_threshold(int64_t padded_C, int64_t K, int64_t keys, const T* from) {
    constexpr int64_t W = Simd<T>::width;
    const int64_t length = keys / (2 * K), count = (keys + length - 1) / length, room = keys / count * W;
    for (int64_t first = 0; first < padded_C; first += room) {
      const int64_t width = padded_C - first < room ? padded_C - first : room;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t end = (i + 1) * length < keys ? (i + 1) * length : keys;
        for (int64_t c = 0; c < width; c += W) {
          const T* score = from + first + c;
          Vec<T> top = load(score + i * length * padded_C);
          for (int64_t s = i * length + 1; s < end; ++s) top = larger<T>(top, load(score + s * padded_C));
          store(segments + i * width + c, top);
        }
      }
      for (int64_t c = 0; c < width; c += W) {
        Vec<T> low = splat<T>(__builtin_inf()), high = -low;
        for (int64_t i = 0; i < count; ++i) {
          const Vec<T> top = load(segments + i * width + c);
          low = (top < low) ? top : low;
          high = larger<T>(high, top);
        }
        for (int step = 0; step < 10; ++step) {
          const Vec<T> middle = low * static_cast<T>(0.5) + high * static_cast<T>(0.5);
          Mask<T> reach = {};
          for (int64_t i = 0; i < count; ++i) reach -= load(segments + i * width + c) >= middle;
          const Mask<T> enough = reach >= static_cast<Ordered<T>>(K);
          low = enough ? middle : low;
          high = enough ? high : middle;
        }
        const Vec<T> size = low < Vec<T>{} ? -low : low;
        T* bound = threshold + first + c;
        store(bound, larger<T>(load(bound), low - size * static_cast<T>(1e-6) - static_cast<T>(1e-30)));
      }
    }
  }

  // Keys compared at a time: 64, the bits of a word, or a shorter chunk. A list has room for at least K plus as many.
  // Lists are an odd number of cache lines apart, so that they do not compete for the same cache sets.
  int64_t word_keys(int64_t K) const { return capacity - K < 64 ? capacity - K : 64; }
  int64_t stride(int64_t K) const {
    constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
    const int64_t lines = (K + 144 + line - 1) / line | 1;
    return lines * line < capacity ? lines * line : capacity;
  }
  T* list(int64_t c, int64_t K) const { return reinterpret_cast<T*>(scores) + c * stride(K); }
  int32_t* places(int64_t c, int64_t K) const { return positions + c * stride(K); }

  // Cut one cluster's candidates down to K; ties go to the lowest positions.
  int32_t cut_one(int64_t c, int64_t count, int64_t K) {
    T* values = list(c, K);
    Ordered<T>* from = scores + c * stride(K);
    for (int64_t i = 0; i < count; ++i) {
      const Ordered<T> score = ordered(values[i]);
      memcpy(from + i, &score, sizeof(score));
    }
    const int64_t kept = select_top<T>(count, K, from, places(c, K));
    T lowest = __builtin_inf();
    for (int64_t i = 0; i < kept; ++i) {
      const T score = score_of(from[i]);
      lowest = score < lowest ? score : lowest;
      memcpy(from + i, &score, sizeof(score));
    }
    threshold[c] = lowest;
    return static_cast<int32_t>(kept);
  }

  // The same for W clusters from c on if any has more than `limit` ≥ K candidates: bisection as in `select_top` for all
  // clusters at once.
  void cut(int64_t c, int64_t C, int64_t K, int64_t limit, int32_t* count_C) {
    constexpr int64_t W = Simd<T>::width;
    typedef Ordered<T> Score;
    constexpr Score none = static_cast<Score>(static_cast<uint64_t>(1) << (8 * sizeof(Score) - 1));
    const int64_t clusters = C - c < W ? C - c : W;
    int32_t* const count = count_C + c;
    int64_t most = 0;
    for (int64_t i = 0; i < clusters; ++i) most = count[i] > most ? count[i] : most;
    if (most <= limit) return;
    const int64_t slots = round_up(most, 2 * W);
    Mask<T> low = {}, reach = {};
    if (slots + W <= stride(K) && slots <= capacity - K) {
      for (int64_t i = 0; i < clusters; ++i) {
        for (int64_t j = count[i]; j < slots; j += W) store(list(c + i, K) + j, splat<T>(-__builtin_inf()));
        low[i] = count[i] > K ? ordered(threshold[c + i]) : none;
      }
      Mask<T> high = low;
      for (int64_t j = 0; j < slots; j += W) {
        Vec<T> x[W];
        for (int64_t i = 0; i < W; ++i) x[i] = i < clusters ? load(list(c + i, K) + j) : Vec<T>{};
        transpose_square<T>(x);
#pragma GCC unroll 16
        for (int64_t i = 0; i < W; ++i) {
          const Mask<T> bits = (Mask<T>)(x[i] + T(0));  // −0 and 0 are equal
          const Mask<T> score = bits ^ ((bits < Mask<T>{}) & ~none);
          store(segments + (j + i) * W, (Vec<T>)score);
          high = (low != none) & (score > high) ? score : high;
        }
      }
      while (bits_of(low < high)) {
        const Mask<T> open = low < high, middle = (low | high) - ((low ^ high) >> 1);
        reach = reaching(slots, middle);
        low = open & (reach >= static_cast<Score>(K)) ? middle : low;
        high = open & (reach <= static_cast<Score>(K)) ? middle + (open & (reach != static_cast<Score>(K))) : high;
      }
      reach = reaching(slots, low);
    }
    for (int64_t i = 0; i < clusters; ++i) {
      if (count[i] <= K) continue;
      if (reach[i] != K) {
        count[i] = cut_one(c + i, count[i], K);
        continue;
      }
      T* from = list(c + i, K);
      int32_t* at = places(c + i, K);
      const T least = score_of(Score(low[i]));
      int64_t kept = 0;
      for (int64_t start = 0; start < count[i]; start += 64) {
        uint64_t word = 0;
        for (int64_t j = start; j < count[i] && j < start + 64; j += W)
          word |= static_cast<uint64_t>(bits_of(load(from + j) >= least)) << (j - start);
        for (; word; word &= word - 1) {
          const int64_t j = start + __builtin_ctzll(word);
          from[kept] = from[j];
          at[kept++] = at[j];
        }
      }
      count[i] = static_cast<int32_t>(kept);
      threshold[c + i] = least;
    }
  }

  // Number of each cluster's ordered scores (one cluster per lane) that reach its bound.
  Mask<T> reaching(int64_t slots, Mask<T> bound) const {
    constexpr int64_t W = Simd<T>::width;
    Mask<T> even = {}, odd = {};
    for (int64_t j = 0; j < slots; j += 2) {
      even -= (Mask<T>)load(segments + j * W) >= bound;
      odd -= (Mask<T>)load(segments + (j + 1) * W) >= bound;
    }
    return even + odd;
  }

  // Collect candidates among these keys and each cluster's highest score.
  void search(
      int64_t C, int64_t padded_C, int64_t K, int64_t first, int64_t keys, const T* from, int32_t* count_C,
      T* highest_C) {
    constexpr int64_t W = Simd<T>::width;
    if (fresh && keys >= 2 * K) first_threshold(padded_C, K, keys, from);
    fresh = false;
    for (int64_t c = 0; c < padded_C; c += W) store(highest_C + c, splat(lowest_score<T>()));
    const int64_t step = word_keys(K);
    for (int64_t start = 0; start < keys; start += step) {
      const int64_t left = keys - start < step ? keys - start : step;
      for (int64_t c = 0; c < padded_C; c += W)
        collect(
            c, C - c < W ? C - c : W, K, first + start, left, padded_C, from + start * padded_C + c, count_C,
            highest_C);
    }
    // Tolerate a few more than K: the first threshold lets 1.3 K scores of a chunk pass.
    for (int64_t c = 0; c < C; c += W) cut(c, C, K, K + 32, count_C);
  }

  // Collect candidates of W clusters among at most 64 keys. All comparisons come first, then the candidates of one
  // cluster after the other: the count stays in a register, whereas a loop over each key's few candidates would
  // mispredict its end every time.
  inline void collect(
      int64_t c, int64_t clusters, int64_t K, int64_t first, int64_t keys, int64_t stride_from, const T* from,
      int32_t* count_C, T* highest_C) {
    constexpr int64_t W = Simd<T>::width;
    uint8_t above[W > 8 ? 2 : 1][64];
    const Vec<T> bound = load(threshold + c);
    Vec<T> highest = load(highest_C + c);
    for (int64_t s = 0; s < keys; ++s) {
      const Vec<T> score = load(from + s * stride_from);
      const uint32_t bits = bits_of(score > bound);
      above[0][s] = static_cast<uint8_t>(bits);
      if constexpr (W > 8) above[1][s] = static_cast<uint8_t>(bits >> 8);
      highest = larger<T>(highest, score);
    }
    store(highest_C + c, highest);
    const int64_t most = stride(K) - word_keys(K);
    for (int64_t i = 0; i < clusters; ++i) {
      uint64_t word = bits_of_bytes(above[i / 8], static_cast<int>(i % 8));
      if (keys < 64) word &= (static_cast<uint64_t>(1) << keys) - 1;
      int64_t count = count_C[c + i];
      T* const found = list(c + i, K);
      int32_t* const at = places(c + i, K);
      for (; word; word &= word - 1) {
        const int64_t s = __builtin_ctzll(word);
        found[count] = from[s * stride_from + i];
        at[count++] = static_cast<int32_t>(first + s);
      }
      count_C[c + i] = count > most ? cut_one(c + i, count, K) : static_cast<int32_t>(count);
    }
  }

  void finish(int64_t C, int64_t K, int32_t* count_C, Ordered<T>* scores_CK, int32_t* top_CK) {
    for (int64_t c = 0; c < C; c += Simd<T>::width) cut(c, C, K, K, count_C);
    for (int64_t c = 0; c < C; ++c) {
      for (int64_t i = 0; i < count_C[c]; ++i) scores_CK[c * K + i] = ordered(list(c, K)[i]);
      memcpy(top_CK + c * K, places(c, K), count_C[c] * sizeof(int32_t));
    }
  }
};

}  // namespace
}  // namespace attention_ext
