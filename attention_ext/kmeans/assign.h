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

// sum, a, b ↦ the sum's low bit in `sum`; returns the carry. `sum` comes last: it is the one waited for.
inline __attribute__((always_inline)) Word add3(Word& sum, Word a, Word b) {
  const Word half = a ^ b;
  const Word carry = (a & b) | (half & sum);
  sum ^= half;
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

// Where a centroid's patterns lie in the table, in bytes: they are looked up for every slice.
struct Patterns {
  uint16_t at[triples];
};

inline Patterns patterns_of(uint64_t centroid) {
  Patterns patterns;
  for (int t = 0; t < triples; ++t)
    patterns.at[t] = static_cast<uint16_t>((t * 8 + (centroid >> (3 * t) & 7)) * sizeof(Pair));
  return patterns;
}

// Four triples more: three carries into the fours.
#define TRIPLE(t) (*reinterpret_cast<const Pair*>(reinterpret_cast<const char*>(table) + centroid.at[t]))
template <int i>
inline __attribute__((always_inline)) void add_triples(
    const Patterns& centroid, const Pair* table, Word& ones, Word& twos, Word fours[3]) {
  const Pair &a = TRIPLE(4 * i + 1), &b = TRIPLE(4 * i + 2), &c = TRIPLE(4 * i + 3), &d = TRIPLE(4 * i + 4);
  fours[0] = add3(twos, a.high, b.high);
  fours[1] = add3(twos, c.high, d.high);
  const Word first = add3(ones, a.low, b.low);
  const Word second = add3(ones, c.low, d.low);
  fours[2] = add3(twos, first, second);
}

// The six bits of the distance, lowest first. 42 numbers of one and two halve into fours, eights, …, each as soon
// as its summands are there: few of them wait in registers.
inline __attribute__((always_inline)) void distance(const Patterns& centroid, const Pair* table, Word out[6]) {
  Word ones = TRIPLE(0).low, twos = TRIPLE(0).high;
  Word a[3], b[3];
  add_triples<0>(centroid, table, ones, twos, a);
  Word four = a[0];
  Word eight = add3(four, a[1], a[2]);
  add_triples<1>(centroid, table, ones, twos, b);
  const Word eight1 = add3(four, b[0], b[1]);
  add_triples<2>(centroid, table, ones, twos, a);
  const Word eight2 = add3(four, b[2], a[0]);
  Word sixteen = add3(eight, eight1, eight2);
  const Word eight3 = add3(four, a[1], a[2]);
  add_triples<3>(centroid, table, ones, twos, b);
  const Word eight4 = add3(four, b[0], b[1]);
  const Word sixteen1 = add3(eight, eight3, eight4);
  add_triples<4>(centroid, table, ones, twos, a);
  const Word eight5 = add3(four, b[2], a[0]);
  const Word eight6 = add3(four, a[1], a[2]);
  const Word sixteen2 = add3(eight, eight5, eight6);
  const Word thirty_two = add3(sixteen, sixteen1, sixteen2);
  out[0] = ones, out[1] = twos, out[2] = four, out[3] = eight, out[4] = sixteen, out[5] = thirty_two;
}
#undef TRIPLE

inline Word load_word(const void* from) {
  Word x;
  memcpy(&x, from, sizeof(x));
  return x;
}

inline void store_word(void* to, Word x) { memcpy(to, &x, sizeof(x)); }

// Sign bits of a vector's bytes, 64 of them from `bytes`.
inline uint64_t byte_signs(const uint8_t* bytes) {
#if defined(__AVX2__)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32));
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
#else
  uint64_t signs = 0;
  for (int i = 0; i < 64; ++i) signs |= static_cast<uint64_t>(bytes[i] >> 7) << i;
  return signs;
#endif
}

// Bit planes of a slice's numbers: plane p holds bit p of each.
template <int bits>
inline void planes_of(const uint8_t* numbers, Word out[bits]) {
  for (int p = 0; p < bits; ++p) {
    uint8_t shifted[slice_queries];
    for (int64_t i = 0; i < slice_queries; i += VECTOR_BYTES)  // bit p of each byte becomes its highest
      store_word(shifted + i, load_word(numbers + i) << (7 - p));
    uint64_t words[word_lanes];
    for (int lane = 0; lane < word_lanes; ++lane) words[lane] = byte_signs(shifted + lane * 64);
    out[p] = load_word(words);
  }
}

// Some of the centroids, in rising order.
struct Choice {
  int64_t count = 0;
  uint64_t centroids[1024];
  Patterns patterns[1024];
  uint16_t clusters[1024];
  void add(int64_t cluster, int64_t centroid) {
    centroids[count] = static_cast<uint64_t>(centroid);
    patterns[count] = patterns_of(centroids[count]);
    clusters[count++] = static_cast<uint16_t>(cluster);
  }
};

// The first nearest centroid of a choice, for queries where none is further away than `best` says: its place in the
// choice, bit by bit. Returns those queries.
template <int index_bits>
inline Word nearest_place(const Choice& choice, const Pair* table, const Word limit[6], Word index[10]) {
  Word best[6], open = ~Word{};
  for (int i = 0; i < 6; ++i) best[i] = limit[i];
  for (int i = 0; i < index_bits; ++i) index[i] = Word{};
  for (int64_t c = 0; c < choice.count; ++c) {
    Word now[6];
    distance(choice.patterns[c], table, now);
    Word less = open;  // against the limit, equality is enough
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) {
      const Word differ = now[i] ^ best[i];
      less = (differ & best[i]) | (less & ~differ);
    }
    open &= ~less;
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) best[i] ^= (best[i] ^ now[i]) & less;
#pragma GCC unroll 10
    for (int i = 0; i < index_bits; ++i) index[i] = (c >> i) & 1 ? index[i] | less : index[i] & ~less;
  }
  return ~open;
}

// The same for a choice of any size.
inline Word nearest_place(const Choice& choice, const Pair* table, const Word limit[6], Word index[10]) {
  if (choice.count <= 32) return nearest_place<5>(choice, table, limit, index);
  if (choice.count <= 128) return nearest_place<7>(choice, table, limit, index);
  return nearest_place<10>(choice, table, limit, index);
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

inline int differing(int64_t a, int64_t b) { return __builtin_popcountll(static_cast<uint64_t>(a ^ b)); }

inline void move_query(const AssignTask& task, int64_t i, int32_t now) {
  const int32_t before = task.groups[i];
  const uint64_t hash = static_cast<uint64_t>(task.hashes[i]);
  count_in(task.counters_C + now * task.levels, task.levels, hash);
  ++task.members_C[now];
  if (before >= 0) {
    count_out(task.counters_C + before * task.levels, task.levels, hash);
    --task.members_C[before];
  }
  task.groups[i] = now;
}

// A slice of queries, and the centroids that they have.
struct Slice {
  const uint64_t* planes;    // the queries' bits
  const uint8_t* distances;  // to the centroids that they have
  const uint8_t* places;     // of these centroids in the choice, its low 7 bits
  const int32_t* members;    // the queries
  int64_t count;
};

// Compare queries with a choice of centroids; those that are nearer, or as near and of a lower number, take them over.
inline bool take_over(const AssignTask& task, const Choice& choice, const Slice& slice) {
  Pair table[triples * 8];
  Word limit[6], own[7], index[10];
  planes_of<6>(slice.distances, limit);
  differences(slice.planes, table);
  Word found = nearest_place(choice, table, limit, index);
  if (choice.count <= 128) {  // most of them found the centroid that they have
    planes_of<7>(slice.places, own);
    Word other = {};
    for (int i = 0; i < (choice.count <= 32 ? 5 : 7); ++i) other |= index[i] ^ own[i];
    for (int i = choice.count <= 32 ? 5 : 7; i < 7; ++i) other |= own[i];
    found &= other;
  }
  const int index_bits = choice.count <= 32 ? 5 : choice.count <= 128 ? 7 : 10;
  bool changed = false;
  for (int lane = 0; lane < word_lanes; ++lane)
    for (uint64_t left = found[lane]; left; left &= left - 1) {
      const int bit = __builtin_ctzll(left);
      if (lane * 64 + bit >= slice.count) break;
      int64_t place = 0;
      for (int b = 0; b < index_bits; ++b) {
        uint64_t word;
        memcpy(&word, reinterpret_cast<const uint64_t*>(index + b) + lane, sizeof(word));
        place |= static_cast<int64_t>(word >> bit & 1) << b;
      }
      const int64_t i = slice.members[lane * 64 + bit];
      const int32_t now = choice.clusters[place];
      const int apart = differing(task.hashes[i], task.centroids_C[now]);
      if (apart == task.distances[i] && now >= task.groups[i] && !task.first) continue;
      task.distances[i] = static_cast<uint8_t>(apart);
      move_query(task, i, now);
      changed = true;
    }
  return changed;
}

// The same for one query.
inline bool take_over(const AssignTask& task, const Choice& choice, int64_t i) {
  const uint64_t hash = static_cast<uint64_t>(task.hashes[i]);
  // Distance above, cluster below: the smallest is the nearest, of equals the first.
  const int64_t had = task.distances[i] * 1024ll + task.groups[i];
  int64_t best = had;
  for (int64_t c = 0; c < choice.count; ++c) {
    const int64_t found = __builtin_popcountll(hash ^ choice.centroids[c]) * 1024ll + choice.clusters[c];
    best = found < best ? found : best;
  }
  if (best == had) return false;
  task.distances[i] = static_cast<uint8_t>(best / 1024);
  move_query(task, i, static_cast<int32_t>(best % 1024));
  return true;
}

// A query whose centroid has not moved away from it can only change to a centroid that has changed: the others were
// no nearer before. Those whose centroid has moved away are collected, and compared with the unchanged as well.
bool assign_block(const AssignTask& task) {
  Choice changed, same;
  uint8_t place_C[1024];
  bool all = task.first;
  for (int64_t c = 0; c < task.C; ++c) {
    place_C[c] = task.changed_C[c] ? changed.count & 127 : 255;
    (task.changed_C[c] ? changed : same).add(c, task.centroids_C[c]);
  }
  if (changed.count == 0) return false;
  if (10 * changed.count > 9 * task.C) {  // a second look would cost more than it saves
    all = true;
    changed.count = 0;
    for (int64_t c = 0; c < task.C; ++c) {
      place_C[c] = static_cast<uint8_t>(c & 127);
      changed.add(c, task.centroids_C[c]);
    }
  }
  bool moved = false;
  int32_t further[2 * slice_queries], members[slice_queries];
  uint8_t distances[slice_queries] = {}, places[slice_queries] = {};
  int64_t waiting = 0;
  const auto compare_rest = [&](int64_t count) {
    int64_t hashes[slice_queries];
    uint64_t planes[64 * word_lanes];
    for (int64_t i = 0; i < count; ++i) {
      hashes[i] = task.hashes[further[i]];
      distances[i] = task.distances[further[i]];
    }
    memset(places, 255, slice_queries);
    slice(count, hashes, planes);
    moved |= take_over(task, same, {planes, distances, places, further, count});
    waiting -= count;
    for (int64_t i = 0; i < waiting; ++i) further[i] = further[count + i];
  };
  for (int64_t start = 0; start < task.queries; start += slice_queries) {
    const int64_t count = task.queries - start < slice_queries ? task.queries - start : slice_queries;
    const int64_t* hashes = task.hashes + start;
    const int64_t* centroids_C = task.centroids_C;
    const int32_t* groups = task.groups + start;
    uint8_t* before = task.distances + start;
    for (int64_t i = 0; i < count; ++i) {
      members[i] = static_cast<int32_t>(start + i);
      if (task.first) {
        distances[i] = 63, places[i] = 255;  // any centroid will do
        continue;
      }
      const int apart = differing(hashes[i], centroids_C[groups[i]]);
      further[waiting] = static_cast<int32_t>(start + i);
      waiting += !all && apart > before[i];
      distances[i] = static_cast<uint8_t>(apart);
      places[i] = place_C[groups[i]];
    }
    memcpy(before, distances, count);
    moved |= take_over(
        task, changed, {task.planes + start / slice_queries * 64 * word_lanes, distances, places, members, count});
    while (waiting >= slice_queries) compare_rest(slice_queries);
  }
  if (waiting > slice_queries / 4)
    compare_rest(waiting);
  else  // too few to be worth a slice
    for (int64_t i = 0; i < waiting; ++i) moved |= take_over(task, same, further[i]);
  return moved;
}

}  // namespace
}  // namespace attention_ext
