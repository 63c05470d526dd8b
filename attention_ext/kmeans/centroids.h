// Centroids in Hamming space: bit counts of the members, and their majorities.
//
// A cluster has 64 counters of 16 bits: 62 … 0 count members with that bit, 63 counts the members. Bit
// 16·(k mod 4) + k / 4 is counted by counter k: where 64 bits lie in four 16-bit lanes, none has to move.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

typedef int16_t Counts __attribute__((vector_size(VECTOR_BYTES)));
constexpr int count_vectors = 64 * sizeof(int16_t) / VECTOR_BYTES;
constexpr int64_t most_members = 32767;
constexpr int member_counter = 63;

// The bits that the counters of vector v count, one in each of its lanes.
inline __attribute__((always_inline)) Word counted_bits(int v) {
  Word bits;
  for (int i = 0; i < word_lanes; ++i) bits[i] = 0x0001000100010001ull << (v * word_lanes + i);
  return bits;
}

// −1 for each counter whose bit is set, for the members as well.
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

// The bits that more than half of the members have.
inline uint64_t majority(const int16_t* counters) {
  const int16_t half_of_them = static_cast<int16_t>(counters[member_counter] / 2);
  const Counts half = half_of_them - Counts{};
  Word bits = {};
#pragma GCC unroll 8
  for (int v = 0; v < count_vectors; ++v)
    bits |= (Word)(load_counts(counters + v * (VECTOR_BYTES / 2)) > half) & counted_bits(v);
  uint64_t all = 0;
  for (int i = 0; i < word_lanes; ++i) all |= bits[i];
  return all & ~(1ull << 63);
}

// The same of members in several blocks.
inline uint64_t majority(const int16_t* counters, int64_t blocks, int64_t stride, int64_t* members) {
  int32_t sum[64] = {};
  for (int64_t i = 0; i < blocks; ++i)
    for (int k = 0; k < 64; ++k) sum[k] += counters[i * stride + k];
  *members = sum[member_counter];
  uint64_t all = 0;
  for (int k = 0; k < member_counter; ++k)
    all |= static_cast<uint64_t>(sum[k] > sum[member_counter] / 2) << (16 * (k % 4) + k / 4);
  return all;
}

// New centroids of some clusters; one without members keeps its own.
void update_centroids(const UpdateTask& task) {
  for (int64_t c = task.first; c < task.end; ++c) {
    const int16_t* counters = task.counters_C + c * 64;
    int64_t members = counters[member_counter];
    const uint64_t bits =
        task.blocks == 1 ? majority(counters) : majority(counters, task.blocks, task.stride, &members);
    const int64_t before = task.centroids_C[c], now = members ? static_cast<int64_t>(bits) : before;
    task.centroids_C[c] = now;
    task.changed_C[c] = now != before;
  }
}

}  // namespace
}  // namespace attention_ext
