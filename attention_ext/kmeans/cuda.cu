// K-means in Hamming space on CUDA: two launches per iteration, integers only.
//
// Counters: [heads, C, 64] int32; entry p < 63 counts the members with bit p set, entry 63 all members.
#include "../clusters/cuda_starts.h"

namespace attention_ext {
namespace {

constexpr int counted = 64;
constexpr int shared_clusters = 128;  // most clusters whose counters fit into shared memory, 32 KiB

struct Iteration {
  bool first, last;
  int block_queries;             // does not change the result
  const int32_t* before;         // counters of the previous iteration
  int32_t* counters;             // of this iteration, initially zero
  int32_t* next;                 // of the next iteration, to be zeroed
  const int64_t* old_centroids;  // [heads, C]
  int64_t* centroids;
  const int32_t* restart_C;  // see `choose_restarts`
  Distinct distinct;
};

// The previous iteration's groups, for `choose_restarts`.
struct HashGroups {
  const int64_t *hashes, *centroids;
  const int32_t *groups, *counters;
  __device__ bool empty(int64_t head, int64_t c, int64_t C) const {
    return counters[(head * C + c) * counted + 63] == 0;
  }
  __device__ uint64_t distance(int64_t head, int64_t i, int64_t N, int64_t C) const {
    return __popcll(hashes[head * N + i] ^ centroids[head * C + groups[head * N + i]]);
  }
};

// Each centroid: its initial hash, the majority of its members, or if it has none, another hash or the old centroid.
// Contains a barrier.
__device__ inline void make_centroids(
    const Iteration& step, int64_t head, int64_t N, int C, const int64_t* hashes, int64_t* centroid) {
  for (int c = threadIdx.x; c < C; c += threads) {
    const int64_t at = head * C + c;
    if (step.first) {
      centroid[c] = hashes[head * N + step.distinct.start(head, N, c, C)];
      continue;
    }
    const int32_t* count = step.before + at * counted;
    const int32_t members = count[63];
    uint64_t majority = 0;
#pragma unroll 21
    for (int p = 0; p < 63; ++p) majority |= static_cast<uint64_t>(2ll * count[p] > members) << p;
    const int32_t restart = step.restart_C[at];
    centroid[c] = members > 0    ? static_cast<int64_t>(majority)
                  : restart >= 0 ? hashes[head * N + restart]
                                 : step.old_centroids[at];
  }
  __syncthreads();
  if (blockIdx.x == 0)
    for (int c = threadIdx.x; c < C; c += threads) step.centroids[head * C + c] = centroid[c];
}

// Assign queries, and count bits for the next iteration's centroids. Grid (blocks of queries, heads).
__global__ void __launch_bounds__(threads) assign(
    Iteration step, int64_t H, int64_t N, int C, const int64_t* hashes, const int64_t* length_B, int32_t* groups) {
  __shared__ int64_t centroid[most_clusters];
  __shared__ int32_t shared_counters[shared_clusters * counted];
  __shared__ uint64_t hash_of[threads];
  __shared__ int32_t group_of[threads];
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * step.block_queries;
  const int thread = threadIdx.x;
  const int64_t last = first + step.block_queries < N ? first + step.block_queries : N;
  const int64_t head_counters = head * C * counted;

  const int64_t blocks = gridDim.x;
  for (int64_t i = blockIdx.x * static_cast<int64_t>(threads) + thread; i < C * counted; i += blocks * threads)
    step.next[head_counters + i] = 0;
  if (n <= C || first >= n) {  // uniform within the block
    for (int64_t i = first + thread; i < last; i += threads)
      groups[head * N + i] = i < n ? static_cast<int32_t>(i) : -1;
    return;
  }
  make_centroids(step, head, N, C, hashes, centroid);
  const bool in_shared = C <= shared_clusters;
  int32_t* counters = in_shared ? shared_counters : step.counters + head_counters;
  if (in_shared)
    for (int i = thread; i < C * counted; i += threads) shared_counters[i] = 0;
  __syncthreads();

  for (int64_t start = first; start < last; start += threads) {
    const int64_t i = start + thread;
    const uint64_t hash = i < n ? static_cast<uint64_t>(hashes[head * N + i]) : 0;
    int nearest = 1 << 30;  // distance · 1024 + cluster: ties go to the lowest cluster
    for (int c = 0; c < C; ++c) {
      const int distance = __popcll(hash ^ static_cast<uint64_t>(centroid[c]));
      const int candidate = distance * most_clusters + c;
      nearest = candidate < nearest ? candidate : nearest;
    }
    const int32_t group = i < n ? nearest % most_clusters : -1;
    if (i < last) groups[head * N + i] = group;
    if (step.last) continue;
    // 32 lanes count adjacent bits of one query: different counters in different banks.
    hash_of[thread] = hash | 1ull << 63;
    group_of[thread] = group;
    __syncthreads();
    const int lane = thread % 32;
    for (int j = thread / 32 * 32; j < thread / 32 * 32 + 32; ++j) {
      if (group_of[j] < 0) continue;
      for (int p = lane; p < counted; p += 32)
        if (hash_of[j] >> p & 1) atomicAdd(&counters[group_of[j] * counted + p], 1);
    }
    __syncthreads();
  }
  if (!in_shared || step.last) return;
  for (int i = thread; i < C * counted; i += threads)
    if (shared_counters[i] != 0) atomicAdd(&step.counters[head_counters + i], shared_counters[i]);
}

Tensor hamming_kmeans(const Tensor& hashes, const Tensor& lengths, int64_t clusters, int64_t iterations, int64_t bits) {
  check_kmeans(hashes, lengths, clusters, iterations, bits);
  require_heads(hashes);
  const Launcher launch(hashes);
  const int64_t B = hashes.size(0), H = hashes.size(1), N = hashes.size(2), heads = B * H;
  const Tensor contiguous = contiguous_as(hashes, ScalarType::Long);
  const Tensor lengths_B = lengths_on_device(lengths);
  const Tensor groups = new_tensor(hashes, {B, H, N}, ScalarType::Int);
  Tensor counters = new_tensor(hashes, {3, heads * clusters * counted}, ScalarType::Int);
  const Tensor centroids = new_tensor(hashes, {2, heads * clusters}, ScalarType::Long);
  const Tensor restarts = new_tensor(hashes, {heads, clusters}, ScalarType::Int);
  torch::stable::zero_(counters);
  const int64_t* length_B = static_cast<const int64_t*>(lengths_B.const_data_ptr());
  const int64_t* hashes_N = static_cast<const int64_t*>(contiguous.const_data_ptr());
  const DistinctCodes distinct(launch, contiguous, heads, H, N, length_B);
  int32_t* counter = data_of<int32_t>(counters);
  const int64_t size = heads * clusters * counted;
  // Small blocks fill the device; large blocks add to the global counters less often.
  const int block_queries = N * heads <= 65536 ? 256 : 1024;
  // All iterations are launched: only the device knows whether a query moved, and the host doesn't wait for it.
  for (int64_t i = 0; i < iterations; ++i) {
    const Iteration step{
        .first = i == 0,
        .last = i + 1 == iterations,
        .block_queries = block_queries,
        .before = counter + (i + 2) % 3 * size,
        .counters = counter + i % 3 * size,
        .next = counter + (i + 1) % 3 * size,
        .old_centroids = data_of<int64_t>(centroids) + (i + 1) % 2 * heads * clusters,
        .centroids = data_of<int64_t>(centroids) + i % 2 * heads * clusters,
        .restart_C = data_of<int32_t>(restarts),
        .distinct = distinct.found()};
    if (i > 0)
      launch(
          "choose_restarts", choose_restarts<HashGroups>, heads, 1, 1,
          HashGroups{hashes_N, step.old_centroids, data_of<int32_t>(groups), step.before}, step.distinct, H, N,
          clusters, length_B, data_of<int32_t>(restarts));
    launch(
        "assign", assign, ceil_div(N, block_queries), heads, 1, step, H, N, clusters, hashes_N, length_B,
        data_of<int32_t>(groups));
  }
  return groups;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(attention_ext, ATTENTION_EXT_DEVICE, library) {
  library.impl("hamming_kmeans", TORCH_BOX(&hamming_kmeans));
}

}  // namespace attention_ext
