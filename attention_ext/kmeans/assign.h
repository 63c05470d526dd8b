// Nearest centroids in Hamming space for a slice of queries at a time. See NOTES.md.
#pragma once

#include "../cpu/kernels.h"
#include "centroids.h"
#include "slices.h"

namespace attention_ext {
namespace {

// A subset of the centroids, in ascending order.
struct Choice {
  int64_t count = 0;
  uint16_t clusters[1024 + 3];
  void add(int64_t cluster) { clusters[count++] = static_cast<uint16_t>(cluster); }
  // Centroids are compared four at a time, so that two bits of their place are constants. Repeating the last one has no
  // effect, as it is not nearer than itself.
  void fill_up() {
    for (int64_t i = count; i % 4; ++i) clusters[i] = clusters[count - 1];
  }
};

constexpr int place_bits = 11;

// For each query, find the first nearest centroid of a choice within the distance `best`: its place in the choice, as
// bit planes. Returns the queries that have one.
template <int index_bits>
inline Word nearest_place(
    const uint16_t* patterns_C, const Choice& choice, const Pair* table, Word best_out[6], Word index[place_bits]) {
  Word best[6], low[2] = {}, high[index_bits - 2] = {}, open = ~Word{};
  for (int i = 0; i < 6; ++i) best[i] = best_out[i];
  for (int64_t c = 0; c < choice.count; c += 4) {
    Word any = {};
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      Word now[6];
      distance(patterns_C + choice.clusters[c + k] * triples, table, now);
      Word less = open;  // the first centroid need only equal the limit
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) {
        const Word differ = now[i] ^ best[i];
        less = (differ & best[i]) | (less & ~differ);
      }
      open &= ~less;
      any |= less;
#pragma GCC unroll 6
      for (int i = 0; i < 6; ++i) best[i] ^= (best[i] ^ now[i]) & less;
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) low[i] = (k >> i) & 1 ? low[i] | less : low[i] & ~less;
    }
#pragma GCC unroll 8
    for (int i = 0; i < index_bits - 2; ++i) high[i] = (c >> (i + 2)) & 1 ? high[i] | any : high[i] & ~any;
  }
  for (int i = 0; i < 6; ++i) best_out[i] = best[i];
  for (int i = 0; i < 2; ++i) index[i] = low[i];
  for (int i = 2; i < index_bits; ++i) index[i] = high[i - 2];
  for (int i = index_bits; i < place_bits; ++i) index[i] = Word{};
  return ~open;
}

// The same for a choice of up to 1024 centroids.
inline Word nearest_place(
    const uint16_t* patterns_C, const Choice& choice, const Pair* table, Word best[6], Word index[place_bits]) {
  if (choice.count <= 32) return nearest_place<5>(patterns_C, choice, table, best, index);
  if (choice.count <= 128) return nearest_place<7>(patterns_C, choice, table, best, index);
  return nearest_place<10>(patterns_C, choice, table, best, index);
}

inline void join(const AssignTask& task, int64_t i, int32_t now) {
  move_query(task.counters_C, task.groups[i], now, static_cast<uint64_t>(task.hashes[i]));
  task.groups[i] = now;
}

// Call f(lane) for each set bit among the first `count`.
template <class F>
inline void for_lanes(Word bits, int64_t count, const F& f) {
  for (int lane = 0; lane < word_lanes && lane * 64 < count; ++lane) {
    uint64_t left = bits[lane];
    if (count - lane * 64 < 64) left &= (1ull << (count - lane * 64)) - 1;
    for (; left; left &= left - 1) f(lane * 64 + __builtin_ctzll(left));
  }
}

// The place of each centroid in a choice, or where it would be inserted.
struct Places {
  uint8_t low_C[1024], above_C[1024];  // `places` and `places_above` of a Slice
  void put(int64_t cluster, int64_t place, bool present) {
    low_C[cluster] = static_cast<uint8_t>((place & 127) | (present ? 0 : 128));
    above_C[cluster] = static_cast<uint8_t>(place >> 7);
  }
};

// Input and output of the comparison of a slice with a choice, a byte per query. Bit 7 of a place is set if the query's
// centroid is absent from the choice; `places_above` holds bits 7 … 10 of the place.
struct Slice {
  uint8_t distances[slice_queries], places[slice_queries], places_above[slice_queries];
};

// Compare queries with a choice of centroids and move each query to the nearest one if it is nearer than its present
// centroid, or as near with a lower index. The distance of a query whose centroid is in the choice is recomputed.
// Updates the distances. Returns the queries that may be as near or nearer to centroids outside the choice: their own
// centroid has moved away, and none in the choice is as near as it was.
inline Word take_over(
    const AssignTask& task, const Choice& choice, const uint64_t* planes, const int32_t* members, int64_t count,
    bool large, Slice& slice) {
  Pair table[triples * 8];
  Word before[6], best[6], own[place_bits + 1] = {}, index[place_bits];
  planes_of<6>(slice.distances, before);
  planes_of<8>(slice.places, own);
  const Word absent = own[7];
  own[7] = Word{};
  if (large) planes_of<4>(slice.places_above, own + 7);
  for (int i = 0; i < 6; ++i) best[i] = before[i] | ~absent;
  differences(planes, table);
  const Word found = nearest_place(task.patterns_C, choice, table, best, index);

  Word other = {}, lower = {}, nearer = {}, differs = {};  // the first two compare places, the others distances
  for (int i = 0; i < place_bits; ++i) {
    const Word differ = index[i] ^ own[i];
    other |= differ;
    lower = (differ & own[i]) | (lower & ~differ);
  }
  for (int i = 0; i < 6; ++i) {
    const Word differ = best[i] ^ before[i];
    differs |= differ;
    nearer = (differ & before[i]) | (nearer & ~differ);
  }
  const Word won = found & ((~absent & other) | (absent & (nearer | lower)));
  numbers_of<6>(best, slice.distances);
  numbers_of<7>(index, slice.places);
  if (choice.count > 128) numbers_of<3>(index + 7, slice.places_above);
  for_lanes(won, count, [&](int lane) {
    int64_t place = slice.places[lane];
    if (choice.count > 128) place += slice.places_above[lane] * 128;
    join(task, members[lane], choice.clusters[place]);
  });
  return ~absent & ~nearer & (differs | other);
}

// Number of set bits in each lane.
inline Word bits_set(Word x) {
#if VECTOR_BYTES == 32 && defined(__AVX2__)
  const __m256i of_nibble =
      _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i low = (__m256i)(x & 0x0f0f0f0f0f0f0f0full), high = (__m256i)(x >> 4 & 0x0f0f0f0f0f0f0f0full);
  const __m256i bytes = _mm256_add_epi8(_mm256_shuffle_epi8(of_nibble, low), _mm256_shuffle_epi8(of_nibble, high));
  return (Word)_mm256_sad_epu8(bytes, _mm256_setzero_si256());
#else
  x -= x >> 1 & 0x5555555555555555ull;
  x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full;
  x += x >> 8;
  x += x >> 16;
  return (x + (x >> 32)) & 127;
#endif
}

// The same for single queries.
void take_over(const AssignTask& task, const Choice& choice, const int32_t* members, int64_t count) {
  uint64_t centroids[1024 + word_lanes], clusters[1024 + word_lanes];
  const int64_t end = round_up(choice.count, word_lanes);
  for (int64_t c = 0; c < end; ++c) {  // repeat the last one to fill a vector
    clusters[c] = choice.clusters[c < choice.count ? c : choice.count - 1];
    centroids[c] = static_cast<uint64_t>(task.centroids_C[clusters[c]]);
  }
  for (int64_t j = 0; j < count; ++j) {
    const int64_t i = members[j];
    const Word hash = static_cast<uint64_t>(task.hashes[i]) - Word{};
    // Distance in the upper bits, cluster in the lower: the minimum is the nearest, ties go to the lowest cluster.
    const uint64_t had = task.distances[i] * 1024ull + static_cast<uint64_t>(task.groups[i]);
    Simd<double>::Mask best = (Simd<double>::Mask)(had - Word{});
    for (int64_t c = 0; c < end; c += word_lanes) {
      const Word apart = bits_set(hash ^ load_word(centroids + c));
      const Simd<double>::Mask found = (Simd<double>::Mask)((apart << 10) + load_word(clusters + c));
      best = found < best ? found : best;
    }
    int64_t first = best[0];
    for (int lane = 1; lane < word_lanes; ++lane) first = best[lane] < first ? best[lane] : first;
    if (first == static_cast<int64_t>(had)) continue;
    task.distances[i] = static_cast<uint8_t>(first / 1024);
    join(task, i, static_cast<int32_t>(first % 1024));
  }
}

// A query whose centroid has not moved away from it can only move to a changed centroid, because the others were no
// nearer before. So all queries are compared with the changed centroids, and only those that find none as near as
// their own was are collected and compared with the unchanged ones as well.
void assign_block(const AssignTask& task) {
  Choice changed, same;
  for (int64_t c = 0; c < task.C; ++c) {
    (task.changed_C[c] ? changed : same).add(c);
    if (task.changed_C[c]) patterns_of(static_cast<uint64_t>(task.centroids_C[c]), task.patterns_C + c * triples);
  }
  const bool all = 10 * changed.count > 9 * task.C;  // a second comparison would cost more than it saves
  if (all) {
    changed.count = same.count = 0;
    for (int64_t c = 0; c < task.C; ++c) changed.add(c);
  }
  changed.fill_up();
  same.fill_up();
  Places in_changed, in_same;
  for (int64_t c = 0, place = 0; c < task.C; ++c) {
    const bool here = all || task.changed_C[c];
    in_changed.put(c, place, here);
    in_same.put(c, c - place, !here);
    place += here;
  }
  const bool large = task.C > 127;
  Slice slice;

  int32_t members[slice_queries], further[2 * slice_queries];
  int64_t waiting = 0;
  const auto compare_rest = [&](int64_t count) {
    int64_t hashes[slice_queries];
    uint64_t planes[64 * word_lanes];
    for (int64_t i = 0; i < count; ++i) {
      const int32_t group = task.groups[further[i]];
      hashes[i] = task.hashes[further[i]];
      slice.distances[i] = task.distances[further[i]];
      slice.places[i] = in_same.low_C[group];
      slice.places_above[i] = in_same.above_C[group];
    }
    attention_ext::slice(count, hashes, planes);
    take_over(task, same, planes, further, count, large, slice);
    for (int64_t i = 0; i < count; ++i) task.distances[further[i]] = slice.distances[i];
    waiting -= count;
    for (int64_t i = 0; i < waiting; ++i) further[i] = further[count + i];
  };
  for (int64_t start = 0; start < task.queries; start += slice_queries) {
    const int64_t count = task.queries - start < slice_queries ? task.queries - start : slice_queries;
    for (int64_t i = 0; i < count; ++i) members[i] = static_cast<int32_t>(start + i);
    if (task.first) {  // no centroid yet: a place beyond all others
      memset(slice.places, 127, slice_queries);
      memset(slice.places_above, 15, slice_queries);
    } else {
      const int32_t* groups = task.groups + start;
#pragma GCC unroll 8
      for (int64_t i = 0; i < count; ++i) slice.places[i] = in_changed.low_C[groups[i]];
      for (int64_t i = 0; large && i < count; ++i) slice.places_above[i] = in_changed.above_C[groups[i]];
    }
    memcpy(slice.distances, task.distances + start, slice_queries);
    const Word unsettled =
        take_over(task, changed, task.planes + start / slice_queries * 64 * word_lanes, members, count, large, slice);
    memcpy(task.distances + start, slice.distances, slice_queries);
    if (all) continue;
    for_lanes(unsettled, count, [&](int lane) { further[waiting++] = members[lane]; });
    if (waiting >= slice_queries) compare_rest(slice_queries);
  }
  if (waiting > slice_queries / 2)
    compare_rest(waiting);
  else if (waiting)  // too few for a slice
    take_over(task, same, further, waiting);
}

}  // namespace
}  // namespace attention_ext
