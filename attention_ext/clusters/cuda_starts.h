// Where K-means starts on CUDA, and where empty clusters start again; `starts.py` states the rules.
#pragma once

#include "../cuda/launch.h"

namespace attention_ext {
namespace {

// Slots of a head's hash table: a power of two, so that it is at most half full.
inline int slot_bits(int64_t N) {
  int bits = 1;
  while ((1ll << bits) < 2 * N) ++bits;
  return bits;
}

// A slot holds N − position for the first position of its code, 0 if it is free.
__global__ void __launch_bounds__(threads) note_codes(
    int64_t H, int64_t N, int bits, const int64_t* code_N, const int64_t* length_B, int32_t* table, int32_t* slot_N) {
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (at >= n) return;
  const int64_t* codes = code_N + head * N;
  int32_t* slots = table + (head << bits);
  const uint64_t last = (1ull << bits) - 1;
  const int32_t mine = static_cast<int32_t>(N - at);
  uint64_t slot = static_cast<uint64_t>(codes[at]) * 0x9e3779b97f4a7c15ull >> (64 - bits);
  for (;; slot = (slot + 1) & last) {
    const int32_t found = atomicCAS(&slots[slot], 0, mine);
    if (found == 0) break;
    if (codes[N - found] != codes[at]) continue;
    atomicMax(&slots[slot], mine);
    break;
  }
  slot_N[head * N + at] = static_cast<int32_t>(slot);
}

__device__ inline bool occurs_first(
    int64_t head, int64_t n, int64_t N, int64_t at, int bits, const int32_t* table, const int32_t* slot_N) {
  return at < n && table[(head << bits) + slot_N[head * N + at]] == N - at;
}

// The number of distinct codes that first occur in each block of positions. Grid (blocks of positions, heads).
__global__ void __launch_bounds__(threads) count_codes(
    int64_t H, int64_t N, int bits, const int64_t* length_B, const int32_t* table, const int32_t* slot_N,
    int32_t* counts) {
  __shared__ int count;
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (occurs_first(head, n, N, at, bits, table, slot_N)) atomicAdd(&count, 1);
  __syncthreads();
  if (threadIdx.x == 0) counts[head * gridDim.x + blockIdx.x] = count;
}

// The first position of each distinct code, ascending, and their number. Grid as before.
__global__ void __launch_bounds__(threads) list_codes(
    int64_t H, int64_t N, int bits, const int64_t* length_B, const int32_t* table, const int32_t* slot_N,
    const int32_t* counts, int32_t* distinct_N, int32_t* distinct) {
  __shared__ int before;
  __shared__ bool first[threads];
  const int64_t head = blockIdx.y, n = length_of(length_B, head, H, N);
  const int64_t at = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (threadIdx.x == 0) before = 0;
  first[threadIdx.x] = occurs_first(head, n, N, at, bits, table, slot_N);
  __syncthreads();
  int sum = 0;
  for (unsigned i = threadIdx.x; i < blockIdx.x; i += threads) sum += counts[head * gridDim.x + i];
  if (sum > 0) atomicAdd(&before, sum);
  __syncthreads();
  int number = before;
  for (unsigned i = 0; i < threadIdx.x; ++i) number += first[i];
  if (first[threadIdx.x]) distinct_N[head * N + number] = static_cast<int32_t>(at);
  if (blockIdx.x + 1 == gridDim.x && threadIdx.x + 1 == threads) distinct[head] = number + first[threadIdx.x];
}

// The distinct codes of each head, as kernels take them.
struct Distinct {
  const int32_t *positions, *count;  // [heads, N], [heads]

  // The position that cluster c of C starts from.
  __device__ int64_t start(int64_t head, int64_t N, int64_t c, int64_t C) const {
    return positions[head * N + c * count[head] / C];
  }
};

// Finds the distinct codes and owns their memory.
class DistinctCodes {
 public:
  DistinctCodes(
      const Launcher& launch, const Tensor& codes, int64_t heads, int64_t H, int64_t N, const int64_t* length_B)
      : bits_(slot_bits(N)),
        blocks_(ceil_div(N, threads)),
        table_(new_tensor(codes, {heads, 1ll << bits_}, ScalarType::Int)),
        slots_(new_tensor(codes, {heads, N}, ScalarType::Int)),
        counts_(new_tensor(codes, {heads, blocks_}, ScalarType::Int)),
        positions_(new_tensor(codes, {heads, N}, ScalarType::Int)),
        count_(new_tensor(codes, {heads}, ScalarType::Int)) {
    torch::stable::zero_(table_);
    int32_t *table = data_of<int32_t>(table_), *slots = data_of<int32_t>(slots_), *counts = data_of<int32_t>(counts_);
    launch(
        "note_codes", note_codes, blocks_, heads, 1, H, N, bits_, static_cast<const int64_t*>(codes.const_data_ptr()),
        length_B, table, slots);
    launch("count_codes", count_codes, blocks_, heads, 1, H, N, bits_, length_B, table, slots, counts);
    launch(
        "list_codes", list_codes, blocks_, heads, 1, H, N, bits_, length_B, table, slots, counts,
        data_of<int32_t>(positions_), data_of<int32_t>(count_));
  }

  Distinct found() const { return {data_of<int32_t>(positions_), data_of<int32_t>(count_)}; }

 private:
  int bits_;
  int64_t blocks_;
  Tensor table_, slots_, counts_, positions_, count_;
};

// For each empty cluster the position whose code becomes its centroid, else −1. `groups` tells which clusters are empty
// and how far a position is from its centroid, less than 2³². The farthest codes are found byte by byte. Grid (heads).
template <class Groups>
__global__ void __launch_bounds__(threads) choose_restarts(
    Groups groups, Distinct codes, int64_t H, int64_t N, int C, const int64_t* length_B, int32_t* restart_C) {
  __shared__ uint64_t farthest[most_clusters], prefix;
  __shared__ int32_t empty[most_clusters];
  __shared__ int histogram[256], empties, wanted, found;
  const int64_t head = blockIdx.x, n = length_of(length_B, head, H, N);
  const int thread = threadIdx.x;
  if (n <= C) return;  // uniform within the block
  if (thread == 0) empties = 0;
  __syncthreads();
  for (int c = thread; c < C; c += threads) {
    empty[c] = groups.empty(head, c, C);
    restart_C[head * C + c] = -1;
    if (empty[c]) empties = 1;
  }
  __syncthreads();
  if (empties == 0) return;
  const int count = codes.count[head];
  // Distance in the upper half, 0 for none; the lower half prefers low positions.
  const auto key = [&](int i) {
    const int32_t position = codes.positions[head * N + i];
    const uint64_t apart = groups.distance(head, position, N, C);
    return apart == 0 ? uint64_t{0} : apart << 32 | static_cast<uint32_t>(~position);
  };
  if (thread == 0) {
    int next = 0;
    for (int c = 0; c < C; ++c)
      if (empty[c]) empty[next++] = c;  // next ≤ c
    wanted = next, prefix = 0, found = 0;
  }
  for (int shift = 56; shift >= 0; shift -= 8) {
    __syncthreads();
    histogram[thread] = 0;
    __syncthreads();
    for (int i = thread; i < count; i += threads) {
      const uint64_t x = key(i);
      if (x > 0 && (shift == 56 || (x ^ prefix) >> (shift + 8) == 0)) atomicAdd(&histogram[x >> shift & 255], 1);
    }
    __syncthreads();
    if (thread != 0) continue;
    int byte = 255;
    for (; byte > 0 && histogram[byte] < wanted; --byte) wanted -= histogram[byte];
    prefix |= static_cast<uint64_t>(byte) << shift;
  }
  __syncthreads();
  for (int i = thread; i < count; i += threads) {
    const uint64_t x = key(i);
    if (x > 0 && x >= prefix) farthest[atomicAdd(&found, 1)] = x;
  }
  __syncthreads();
  for (int i = thread; i < found; i += threads) {
    int place = 0;
    for (int j = 0; j < found; ++j) place += farthest[j] > farthest[i];
    restart_C[head * C + empty[place]] = static_cast<int32_t>(~static_cast<uint32_t>(farthest[i]));
  }
}

}  // namespace
}  // namespace attention_ext
