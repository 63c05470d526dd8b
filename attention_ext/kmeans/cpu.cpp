// K-means in Hamming space on the CPU: assignments run in parallel over blocks of queries, updates over clusters.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "../clusters/starts.h"
#include "../common.h"
#include "../cpu/kernels.h"
#include "../cpu/phases.h"

namespace attention_ext {
namespace {

constexpr int64_t clusters_per_update = 16;  // in a task

int64_t in_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Memory layout of a sequence and its blocks, in bytes.
struct Sizes {
  int64_t C, blocks, queries;  // queries in each block but the last
  int64_t planes, distances, patterns_C, counters_C, block;
  int64_t centroids_C, changed_C, sequence;
  Sizes(const WordKernels& kernel, int64_t clusters, int64_t n, int64_t block_queries)
      : C(clusters), blocks((n + block_queries - 1) / block_queries), queries(block_queries) {
    const int64_t most = std::min(queries, n);
    planes = in_lines(kernel.slice_bytes(most));
    distances = (most + kernel.block - 1) / kernel.block * kernel.block;
    patterns_C = in_lines(C * triples * sizeof(uint16_t));
    counters_C = C * 64 * sizeof(int16_t);
    block = planes + distances + patterns_C + counters_C;
    centroids_C = in_lines(C * sizeof(int64_t));
    changed_C = in_lines(C);
    sequence = blocks * block + centroids_C + 2 * changed_C;
  }
};

struct Sequence {
  const int64_t* hashes;
  int32_t* groups;
  int64_t n;
  Sizes sizes;
  char* memory = nullptr;
  bool first = true;  // before the first assignment
  bool done = false;
  std::vector<int32_t> distinct;  // positions of the distinct hashes

  int64_t* centroids_C() const { return reinterpret_cast<int64_t*>(memory + sizes.blocks * sizes.block); }
  uint8_t* changed_C() const { return reinterpret_cast<uint8_t*>(centroids_C()) + sizes.centroids_C; }
  uint8_t* empty_C() const { return changed_C() + sizes.changed_C; }

  uint8_t* distances(int64_t i) const { return reinterpret_cast<uint8_t*>(memory + i * sizes.block + sizes.planes); }

  void start() {
    distinct = distinct_positions(n, hashes);
    for (int64_t j = 0; j < sizes.C; ++j) centroids_C()[j] = hashes[start_position(distinct, j, sizes.C)];
    std::memset(changed_C(), 1, sizes.C);
  }

  void assign(const WordKernels& kernel, int64_t i) {
    if (done) return;
    const int64_t start = i * sizes.queries, queries = std::min(sizes.queries, n - start);
    char *planes = memory + i * sizes.block, *patterns_C = planes + sizes.planes + sizes.distances;
    char* counters_C = patterns_C + sizes.patterns_C;
    if (first) {
      std::memset(counters_C, 0, sizes.counters_C);
      kernel.slice(queries, hashes + start, reinterpret_cast<uint64_t*>(planes));
    }
    kernel.assign(
        {.queries = queries,
         .C = sizes.C,
         .planes = reinterpret_cast<const uint64_t*>(planes),
         .hashes = hashes + start,
         .centroids_C = centroids_C(),
         .changed_C = changed_C(),
         .first = first,
         .groups = groups + start,
         .distances = distances(i),
         .patterns_C = reinterpret_cast<uint16_t*>(patterns_C),
         .counters_C = reinterpret_cast<int16_t*>(counters_C)});
  }

  void update(const WordKernels& kernel, int64_t begin, int64_t end) {
    if (done) return;
    const char* counters_C = memory + sizes.planes + sizes.distances + sizes.patterns_C;
    kernel.update(
        {.first = begin,
         .end = end,
         .blocks = sizes.blocks,
         .stride = sizes.block / static_cast<int64_t>(sizeof(int16_t)),
         .counters_C = reinterpret_cast<const int16_t*>(counters_C),
         .centroids_C = centroids_C(),
         .changed_C = changed_C(),
         .empty_C = empty_C()});
  }

  // After the updates. If no centroid has changed, further iterations would not change any either.
  void finish_update() {
    if (done) return;
    first = false;
    std::vector<int32_t> empty;
    for (int64_t j = 0; j < sizes.C; ++j)
      if (empty_C()[j]) empty.push_back(static_cast<int32_t>(j));
    const auto distance = [&](int64_t i) { return distances(i / sizes.queries)[i % sizes.queries]; };
    if (!empty.empty())
      refill(distinct, empty, distance, [&](int64_t cluster, int64_t position) {
        centroids_C()[cluster] = hashes[position];
        changed_C()[cluster] = 1;
      });
    done = std::none_of(changed_C(), changed_C() + sizes.C, [](uint8_t any) { return any; });
  }
};

Tensor hamming_kmeans(const Tensor& hashes, const Tensor& lengths, int64_t clusters, int64_t iterations, int64_t bits) {
  check_kmeans(hashes, lengths, clusters, iterations, bits);
  const int64_t B = hashes.size(0), H = hashes.size(1), N = hashes.size(2);
  const std::vector<int64_t> length_B = lengths_of(lengths, N, "lengths");
  const Tensor contiguous = contiguous_as(hashes, ScalarType::Long);
  const int64_t* hashes_BHN = static_cast<const int64_t*>(contiguous.const_data_ptr());
  const Tensor groups = new_tensor(hashes, {B, H, N}, ScalarType::Int);
  int32_t* groups_BHN = data_of<int32_t>(groups);
  std::fill_n(groups_BHN, B * H * N, -1);

  const WordKernels& kernel = instruction_set().words;
  const int64_t threads = torch::stable::get_num_threads();
  const bool split = B * H < threads;
  std::vector<Sequence> sequences;
  for (int64_t s = 0; s < B * H; ++s) {
    const int64_t n = length_B[s / H];
    uint64_t used = 0;
    for (int64_t i = 0; i < n; ++i) used |= static_cast<uint64_t>(hashes_BHN[s * N + i]);
    if (used >> bits) fail("hashes must have no bits above the lowest " + std::to_string(bits));
    if (n <= clusters) {
      std::iota(groups_BHN + s * N, groups_BHN + s * N + n, 0);
      continue;
    }
    // Counts are integers, so that the split into blocks does not change the result.
    const int64_t parts = split ? std::min<int64_t>(threads, 16) : 1;
    const int64_t share = std::max<int64_t>(1024, (n + parts - 1) / parts), most = kernel.most_members;
    const int64_t size = std::min(share + kernel.block - 1, most) / kernel.block * kernel.block;
    sequences.push_back(
        {.hashes = hashes_BHN + s * N, .groups = groups_BHN + s * N, .n = n, .sizes = {kernel, clusters, n, size}});
  }
  if (!split) {
    int64_t bytes = 0;
    for (const Sequence& sequence : sequences) bytes = std::max(bytes, sequence.sizes.sequence);
    parallel_with_scratch(sequences.size(), bytes, [&](int64_t s, char* scratch) {
      Sequence& sequence = sequences[s];  // independent of all others
      sequence.memory = scratch;
      sequence.start();
      for (int64_t iteration = 0; iteration < iterations && !sequence.done; ++iteration) {
        for (int64_t i = 0; i < sequence.sizes.blocks; ++i) sequence.assign(kernel, i);
        if (iteration + 1 == iterations) break;
        sequence.update(kernel, 0, clusters);
        sequence.finish_update();
      }
    });
    return groups;
  }
  int64_t bytes = 64;
  for (const Sequence& sequence : sequences) bytes += sequence.sizes.sequence;
  const std::unique_ptr<char[]> memory(new char[bytes]);
  char* free = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64) % 64;
  std::vector<std::pair<int64_t, int64_t>> blocks;  // sequence and block
  for (Sequence& sequence : sequences) {
    sequence.memory = free;
    free += sequence.sizes.sequence;
    sequence.start();
    for (int64_t i = 0; i < sequence.sizes.blocks; ++i) blocks.push_back({&sequence - sequences.data(), i});
  }
  const int64_t parts = (clusters + clusters_per_update - 1) / clusters_per_update;
  const int64_t updates = sequences.size() * parts, assignments = blocks.size();
  int64_t iteration = 0;
  bool updating = true;  // so that the first phase is an assignment
  const auto next = [&]() -> int64_t {
    updating = !updating;
    if (updating) return ++iteration == iterations ? 0 : updates;
    bool done = true;
    for (Sequence& sequence : sequences) {
      if (iteration) sequence.finish_update();
      done &= sequence.done;
    }
    return done ? 0 : assignments;
  };
  Phases(threads, std::max(assignments, updates)).run(next, [&](int64_t i) {
    if (!updating) return sequences[blocks[i].first].assign(kernel, blocks[i].second);
    const int64_t begin = i % parts * clusters_per_update;
    sequences[i / parts].update(kernel, begin, std::min(begin + clusters_per_update, clusters));
  });
  return groups;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, CPU, library) { library.impl("hamming_kmeans", TORCH_BOX(&hamming_kmeans)); }

}  // namespace attention_ext
