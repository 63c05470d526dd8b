// Centroids in Hamming space: bit counts of the members, and their majorities.
//
// A cluster has 64 counters of 16 bits. Counter k counts the members with bit 16·(k mod 4) + k / 4 set; counter 63
// counts all members. This order spreads 64 bits to 16-bit lanes without a shuffle. An update takes at most 29
// cycles; bit-sliced counters took 115, because their chain of carries has a random length.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

typedef int16_t Counts __attribute__((vector_size(VECTOR_BYTES)));
constexpr int count_vectors = 64 * sizeof(int16_t) / VECTOR_BYTES;
constexpr int64_t most_members = 32767;
constexpr int member_counter = 63;

// The bits counted by vector v of the counters, one per lane.
inline __attribute__((always_inline)) Word counted_bits(int v) {
  Word bits;
  for (int i = 0; i < word_lanes; ++i) bits[i] = 0x0001000100010001ull << (v * word_lanes + i);
  return bits;
}

// −1 for each counter whose bit is set, and for the counter of members.
inline __attribute__((always_inline)) Counts counts_of(uint64_t hash, int v) {
  const Counts bits = (Counts)counted_bits(v);
  return ((Counts)((hash | 1ull << 63) - Word{}) & bits) == bits;
}

inline Counts load_counts(const int16_t* from) {
  Counts x;
  memcpy(&x, from, sizeof(x));
  return x;
}

inline void move_query(int16_t* counters_C, int32_t before, int32_t now, uint64_t hash) {
  constexpr int64_t W = VECTOR_BYTES / 2;
#pragma GCC unroll 8
  for (int v = 0; v < count_vectors; ++v) {
    const Counts one = counts_of(hash, v);
    const Counts more = load_counts(counters_C + now * 64 + v * W) - one;
    memcpy(counters_C + now * 64 + v * W, &more, sizeof(more));
    if (before < 0) continue;
    const Counts fewer = load_counts(counters_C + before * 64 + v * W) + one;
    memcpy(counters_C + before * 64 + v * W, &fewer, sizeof(fewer));
  }
}

// The bits whose counters exceed a limit.
inline uint64_t bits_above(const int16_t* counters, int16_t limit) {
  Word bits = {};
#pragma GCC unroll 8
  for (int v = 0; v < count_vectors; ++v)
    bits |= (Word)(load_counts(counters + v * (VECTOR_BYTES / 2)) > limit - Counts{}) & counted_bits(v);
  uint64_t all = 0;
  for (int i = 0; i < word_lanes; ++i) all |= bits[i];
  return all & ~(1ull << 63);
}

// The bits set in more than half of the members.
inline uint64_t majority(const int16_t* counters) {
  return bits_above(counters, static_cast<int16_t>(counters[member_counter] / 2));
}

// The same for members in several blocks.
inline uint64_t majority(const int16_t* counters, int64_t blocks, int64_t stride, int64_t* members) {
  int64_t together = 0;
  for (int64_t i = 0; i < blocks; ++i) together += counters[i * stride + member_counter];
  *members = together;
  if (together <= most_members) {
    int16_t sum[64];
#pragma GCC unroll 8
    for (int v = 0; v < count_vectors; ++v) {
      Counts x = load_counts(counters + v * (VECTOR_BYTES / 2));
      for (int64_t i = 1; i < blocks; ++i) x += load_counts(counters + i * stride + v * (VECTOR_BYTES / 2));
      memcpy(sum + v * (VECTOR_BYTES / 2), &x, sizeof(x));
    }
    return majority(sum);
  }
  int32_t sum[64] = {};
  for (int64_t i = 0; i < blocks; ++i)
    for (int k = 0; k < 64; ++k) sum[k] += counters[i * stride + k];
  int16_t above[64];
  for (int k = 0; k < 64; ++k) above[k] = sum[k] > sum[member_counter] / 2;
  return bits_above(above, 0);
}

// New centroids of some clusters; an empty cluster keeps its centroid.
void update_centroids(const UpdateTask& task) {
  for (int64_t c = task.first; c < task.end; ++c) {
    const int16_t* counters = task.counters_C + c * 64;
    int64_t members = counters[member_counter];
    const uint64_t bits =
        task.blocks == 1 ? majority(counters) : majority(counters, task.blocks, task.stride, &members);
    const int64_t before = task.centroids_C[c], now = members ? static_cast<int64_t>(bits) : before;
    task.centroids_C[c] = now;
    task.changed_C[c] = now != before;
    task.empty_C[c] = members == 0;
  }
}

}  // namespace
}  // namespace attention_ext
