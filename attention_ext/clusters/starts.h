// Where K-means starts on the CPU, and where empty clusters start again; `starts.py` states the rules.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace attention_ext {
namespace {

// The first position of each distinct code, ascending; no code may be −2⁶³. A hash table with linear probing, at most
// half full; without a branch on whether a code is new, which is hard to predict.
inline std::vector<int32_t> distinct_positions(int64_t n, const int64_t* codes) {
  int bits = 1;
  while ((1ll << bits) < 2 * n) ++bits;
  const uint64_t last = (1ull << bits) - 1;
  std::vector<uint64_t> table(last + 1);  // 0: free
  std::vector<int32_t> positions(n);
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t code = static_cast<uint64_t>(codes[i]), entry = code + (1ull << 63);
    uint64_t slot = code * 0x9e3779b97f4a7c15ull >> (64 - bits);
    while (table[slot] != 0 && table[slot] != entry) slot = (slot + 1) & last;
    positions[count] = static_cast<int32_t>(i);
    count += table[slot] == 0;
    table[slot] = entry;
  }
  positions.resize(count);
  return positions;
}

// The position that cluster j of C starts from.
inline int64_t start_position(const std::vector<int32_t>& distinct, int64_t j, int64_t C) {
  return distinct[j * static_cast<int64_t>(distinct.size()) / C];
}

// Call restart(cluster, position) for each empty cluster, in ascending order, with the codes farthest from their
// centroids, the farthest first. distance(position) is a non-negative integer below 2³²; codes at distance 0 are left.
template <class Distance, class Restart>
void refill(
    const std::vector<int32_t>& distinct, const std::vector<int32_t>& empty, const Distance& distance,
    const Restart& restart) {
  std::vector<uint64_t> codes;  // distance in the upper half; the lower one prefers low positions
  for (const int32_t position : distinct)
    if (const uint64_t apart = distance(position)) codes.push_back(apart << 32 | static_cast<uint32_t>(~position));
  const auto count = static_cast<std::ptrdiff_t>(std::min(empty.size(), codes.size()));
  std::partial_sort(codes.begin(), codes.begin() + count, codes.end(), std::greater<>());
  for (std::ptrdiff_t e = 0; e < count; ++e) restart(empty[e], static_cast<int32_t>(~static_cast<uint32_t>(codes[e])));
}

}  // namespace
}  // namespace attention_ext
