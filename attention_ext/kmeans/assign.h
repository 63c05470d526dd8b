// Nearest centroids in Hamming space, bit-sliced: lane i of a vector's bits belongs to query i.
//
// A slice holds one bit plane after the other: plane p is a vector whose bit i is bit p of query i. The
// distance to a centroid is then a sum of 63 one-bit numbers taken for all queries of the slice at once by
// full adders, and the search for the smallest a comparison of six-bit numbers. See NOTES.md.
#pragma once

#include "../cpu/kernels.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

constexpr int64_t slice_queries = VECTOR_BYTES * 8;
constexpr int triples = 21;  // 63 bit planes in threes

inline int64_t slice_bytes(int64_t queries) {
  return round_up(queries, slice_queries) / slice_queries * 64 * VECTOR_BYTES;
}

// Transpose bits: 64 queries to a lane of 64 bits, all lanes at once. Missing queries read as zero.
void slice(int64_t queries, const int64_t* hashes, uint64_t* planes) {
  for (int64_t start = 0; start < queries; start += slice_queries) {
    Word x[64];
    for (int i = 0; i < 64; ++i)
      for (int lane = 0; lane < word_lanes; ++lane) {
        const int64_t query = start + lane * 64 + i;
        x[i][lane] = query < queries ? static_cast<uint64_t>(hashes[query]) : 0;
      }
    uint64_t low = 0x00000000ffffffffull;
    for (int step = 32; step; step >>= 1, low ^= low << step)
      for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
        const Word swap = ((x[i] >> step) ^ x[i | step]) & low;
        x[i | step] ^= swap;
        x[i] ^= swap << step;
      }
    memcpy(planes, x, sizeof(x));
    planes += 64 * word_lanes;
  }
}

// sum, a, b ↦ the sum's low bit in `sum`; returns the carry.
inline __attribute__((always_inline)) Word add3(Word& sum, Word a, Word b) {
  const Word half = sum ^ a;
  const Word carry = (sum & a) | (half & b);
  sum = half ^ b;
  return carry;
}

struct Pair {
  Word low, high;
};

// For each triple of planes and each pattern of three centroid bits: how many of the three differ, two bits.
inline void differences(const uint64_t* planes, Pair* table) {
  for (int t = 0; t < triples; ++t) {
    Word x[3];
    memcpy(x, planes + 3 * t * word_lanes, sizeof(x));
    for (int pattern = 0; pattern < 8; ++pattern) {
      Word low = pattern & 1 ? ~x[0] : x[0];
      const Word high = add3(low, pattern & 2 ? ~x[1] : x[1], pattern & 4 ? ~x[2] : x[2]);
      table[t * 8 + pattern] = {low, high};
    }
  }
}

// The six bits of the distance, lowest first. 42 numbers of one and two halve into fours, eights, …
inline __attribute__((always_inline)) void distance(uint64_t centroid, const Pair* table, Word out[6]) {
#define TRIPLE(t) table[(t) * 8 + ((centroid >> (3 * (t))) & 7)]
  Word ones = TRIPLE(0).low, twos = TRIPLE(0).high;
  Word fours[15];
#pragma GCC unroll 5
  for (int i = 0; i < 5; ++i) {
    const Pair &a = TRIPLE(4 * i + 1), &b = TRIPLE(4 * i + 2), &c = TRIPLE(4 * i + 3), &d = TRIPLE(4 * i + 4);
    fours[3 * i] = add3(twos, a.high, b.high);
    fours[3 * i + 1] = add3(twos, c.high, d.high);
    const Word first = add3(ones, a.low, b.low);
    const Word second = add3(ones, c.low, d.low);
    fours[3 * i + 2] = add3(twos, first, second);
  }
#undef TRIPLE
  Word four = fours[0], eights[7];
#pragma GCC unroll 7
  for (int i = 0; i < 7; ++i) eights[i] = add3(four, fours[2 * i + 1], fours[2 * i + 2]);
  Word eight = eights[0], sixteens[3];
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) sixteens[i] = add3(eight, eights[2 * i + 1], eights[2 * i + 2]);
  Word sixteen = sixteens[0];
  const Word thirty_two = add3(sixteen, sixteens[1], sixteens[2]);
  out[0] = ones, out[1] = twos, out[2] = four, out[3] = eight, out[4] = sixteen, out[5] = thirty_two;
}

// Write bits `lane_bits` of 8 queries, one per byte.
inline uint64_t spread(uint64_t eight_bits) {
  const uint64_t chosen = (eight_bits * 0x0101010101010101ull) & 0x8040201008040201ull;
  return ((chosen + 0x7f7f7f7f7f7f7f7full) | chosen) >> 7 & 0x0101010101010101ull;
}

template <int index_bits>
inline void nearest(int64_t C, const int64_t* centroids, const Pair* table, uint16_t* groups) {
  Word best[6], index[index_bits];
  for (int i = 0; i < index_bits; ++i) index[i] = Word{};
  distance(static_cast<uint64_t>(centroids[0]), table, best);
  for (int64_t c = 1; c < C; ++c) {
    Word now[6];
    distance(static_cast<uint64_t>(centroids[c]), table, now);
    Word less = Word{};
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) {
      const Word differ = now[i] ^ best[i];
      less = (differ & best[i]) | (less & ~differ);
    }
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) best[i] ^= (best[i] ^ now[i]) & less;
#pragma GCC unroll 10
    for (int i = 0; i < index_bits; ++i) index[i] = (c >> i) & 1 ? index[i] | less : index[i] & ~less;
  }
  for (int lane = 0; lane < word_lanes; ++lane)
    for (int byte = 0; byte < 8; ++byte) {
      uint64_t low = 0, high = 0;
      for (int i = 0; i < index_bits; ++i) {
        const uint64_t eight = spread((index[i][lane] >> (8 * byte)) & 0xff);
        if (i < 8)
          low |= eight << i;
        else
          high |= eight << (i - 8);
      }
      uint16_t* to = groups + lane * 64 + byte * 8;
      for (int i = 0; i < 8; ++i)
        to[i] = static_cast<uint16_t>(((low >> (8 * i)) & 0xff) | ((high >> (8 * i)) & 0xff) << 8);
    }
}

// Add a hash to, or take it from, 64 counters that are stored bit by bit.
inline void count_in(uint64_t* counters, int64_t levels, uint64_t carry) {
  for (int64_t i = 0; i < levels && carry; ++i) {
    const uint64_t both = counters[i] & carry;
    counters[i] ^= carry;
    carry = both;
  }
}

inline void count_out(uint64_t* counters, int64_t levels, uint64_t borrow) {
  for (int64_t i = 0; i < levels && borrow; ++i) {
    counters[i] ^= borrow;
    borrow &= counters[i];
  }
}

bool assign_block(const AssignTask& task) {
  bool changed = false;
  Pair table[triples * 8];
  uint16_t groups[slice_queries];
  for (int64_t start = 0; start < task.queries; start += slice_queries) {
    differences(task.planes + start / slice_queries * 64 * word_lanes, table);
    if (task.C <= 32)
      nearest<5>(task.C, task.centroids_C, table, groups);
    else if (task.C <= 128)
      nearest<7>(task.C, task.centroids_C, table, groups);
    else
      nearest<10>(task.C, task.centroids_C, table, groups);
    const int64_t here = task.queries - start < slice_queries ? task.queries - start : slice_queries;
    for (int64_t i = 0; i < here; ++i) {
      const int32_t before = task.groups[start + i], now = groups[i];
      if (before == now) continue;
      const uint64_t hash = static_cast<uint64_t>(task.hashes[start + i]);
      count_in(task.counters_C + now * task.levels, task.levels, hash);
      ++task.members_C[now];
      if (before >= 0) {
        count_out(task.counters_C + before * task.levels, task.levels, hash);
        --task.members_C[before];
      }
      task.groups[start + i] = now;
      changed = true;
    }
  }
  return changed;
}

}  // namespace
}  // namespace attention_ext
