// K-means in Hamming space on the CPU: assignment in parallel over blocks of queries, majorities over clusters.
#include <algorithm>
#include <cstring>

#include "../common.h"
#include "../cpu/kernels.h"

namespace attention_ext {
namespace {

struct Block {
  int64_t sequence, start, queries;
  std::vector<uint64_t> planes;
  std::vector<uint8_t> distances;
  std::vector<uint64_t> counters_C;  // of members in this block
  std::vector<int32_t> members_C;
  bool changed;
};

struct Sequence {
  int64_t n, first_block, blocks, levels;
  std::vector<int64_t> centroids_C;
  std::vector<uint8_t> changed_C;  // by the last update
  bool first;                      // nothing is assigned yet
  bool done;
};

int64_t bits_of_count(int64_t n) {
  int64_t bits = 1;
  while (n >> bits) ++bits;
  return bits;
}

// total += counters, numbers that lie bit by bit.
void add_counters(uint64_t* total, const uint64_t* counters, int64_t levels) {
  uint64_t carry = 0;
  for (int64_t i = 0; i < levels; ++i) {
    const uint64_t half = total[i] ^ counters[i], both = total[i] & counters[i];
    total[i] = half ^ carry;
    carry = both | (half & carry);
  }
}

// Bit p of the result: more than half of the members have bit p.
uint64_t majority(const uint64_t* counters, int64_t levels, int64_t members) {
  uint64_t above = 0, level = ~0ull;
  for (int64_t i = levels - 1; i >= 0; --i) {
    const uint64_t half = (members / 2) >> i & 1 ? ~0ull : 0;
    above |= level & counters[i] & ~half;
    level &= ~(counters[i] ^ half);
  }
  return above;
}

void update_centroid(Sequence& sequence, const std::vector<Block>& blocks, int64_t c) {
  uint64_t total[64] = {};
  int64_t members = 0;
  for (int64_t i = 0; i < sequence.blocks; ++i) {
    const Block& block = blocks[sequence.first_block + i];
    members += block.members_C[c];
    add_counters(total, block.counters_C.data() + c * sequence.levels, sequence.levels);
  }
  const int64_t before = sequence.centroids_C[c];
  if (members) sequence.centroids_C[c] = static_cast<int64_t>(majority(total, sequence.levels, members));
  sequence.changed_C[c] = sequence.centroids_C[c] != before;
}

// Nothing moved: neither would anything in a further iteration.
void note_end(Sequence& sequence, const std::vector<Block>& blocks) {
  bool changed = false;
  for (int64_t i = 0; i < sequence.blocks; ++i) changed |= blocks[sequence.first_block + i].changed;
  sequence.done |= !changed;
  sequence.first = false;
}

Tensor hamming_kmeans(
    const Tensor& hashes, const Tensor& lengths, int64_t clusters, int64_t iterations, int64_t bits) {
  require(hashes.dim() == 3, "hashes must be [B, H, N], found " + shape_of(hashes));
  require(hashes.scalar_type() == ScalarType::Long, "hashes must be int64");
  require(clusters >= 1 && clusters <= 1024, "clusters must lie in 1 … 1024, found " + std::to_string(clusters));
  require(iterations >= 1, "iterations must be at least 1, found " + std::to_string(iterations));
  require(bits >= 1 && bits <= 63, "bits must lie in 1 … 63, found " + std::to_string(bits));
  const int64_t B = hashes.size(0), H = hashes.size(1), N = hashes.size(2);
  const std::vector<int64_t> length_B = lengths_of(lengths, B, N, "lengths");
  const Tensor contiguous = torch::stable::contiguous(hashes);
  const int64_t* hashes_BHN = static_cast<const int64_t*>(contiguous.const_data_ptr());
  const Tensor groups = new_tensor(hashes, {B, H, N}, ScalarType::Int);
  int32_t* groups_BHN = data_of<int32_t>(groups);
  std::fill_n(groups_BHN, B * H * N, -1);

  const WordKernels& kernel = instruction_set().words;
  const int64_t threads = torch::stable::get_num_threads();
  const bool split = B * H < threads;
  std::vector<Sequence> sequences(B * H);
  std::vector<Block> blocks;
  for (int64_t s = 0; s < B * H; ++s) {
    const int64_t n = length_B[s / H];
    Sequence& sequence = sequences[s];
    sequence = {n, static_cast<int64_t>(blocks.size()), 0, 0, {}, {}, true, n <= clusters};
    if (sequence.done) {
      for (int64_t i = 0; i < n; ++i) groups_BHN[s * N + i] = static_cast<int32_t>(i);
      continue;
    }
    for (int64_t j = 0; j < clusters; ++j) sequence.centroids_C.push_back(hashes_BHN[s * N + j * n / clusters]);
    sequence.changed_C.assign(clusters, 1);
    // Counts are integers: no split into blocks can change the result.
    const int64_t parts = std::min<int64_t>(threads, 16), share = (n + parts - 1) / parts + kernel.block - 1;
    const int64_t size = split ? std::max<int64_t>(1024, share / kernel.block * kernel.block) : n;
    sequence.levels = bits_of_count(n);
    for (int64_t start = 0; start < n; start += size, ++sequence.blocks)
      blocks.push_back({s, start, std::min(size, n - start), {}, {}, {}, {}, false});
  }
  const int64_t count = static_cast<int64_t>(blocks.size());
  const auto prepare = [&](int64_t i) {
    Block& block = blocks[i];
    block.distances.resize(block.queries);
    block.planes.resize(kernel.slice_bytes(block.queries) / 8);
    block.counters_C.assign(clusters * sequences[block.sequence].levels, 0);
    block.members_C.assign(clusters, 0);
    kernel.slice(block.queries, hashes_BHN + block.sequence * N + block.start, block.planes.data());
  };
  const auto assign = [&](int64_t i) {
    Block& block = blocks[i];
    const Sequence& sequence = sequences[block.sequence];
    if (sequence.done) return;
    const int64_t first = block.sequence * N + block.start;
    block.changed = kernel.assign(
        {block.queries, clusters, block.planes.data(), hashes_BHN + first, sequence.centroids_C.data(),
         sequence.changed_C.data(), sequence.first, groups_BHN + first, block.distances.data(),
         block.counters_C.data(), block.members_C.data(), sequence.levels});
  };
  const auto update = [&](int64_t i) {
    Sequence& sequence = sequences[i / clusters];
    if (!sequence.done) update_centroid(sequence, blocks, i % clusters);
  };
  if (!split) {
    parallel(count, [&](int64_t i) {  // a block is a sequence: no thread waits for another
      const int64_t s = blocks[i].sequence;
      prepare(i);
      assign(i);
      for (int64_t iteration = 1; iteration < iterations && !sequences[s].done; ++iteration) {
        note_end(sequences[s], blocks);
        for (int64_t c = 0; c < clusters; ++c) update(s * clusters + c);
        assign(i);
      }
    });
    return groups;
  }
  parallel(count, prepare);
  parallel(count, assign);
  for (int64_t iteration = 1; iteration < iterations; ++iteration) {
    for (Sequence& sequence : sequences) note_end(sequence, blocks);
    parallel(B * H * clusters, update);
    parallel(count, assign);
  }
  return groups;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) {
  library.impl("hamming_kmeans", TORCH_BOX(&hamming_kmeans));
}

}  // namespace attention_ext
