// Shared by all CUDA kernels on the device: block size, lengths, dropout, reductions, one tensor-core step.
//
// Without nvcc the kernels compile as C++ against tests/attention_ext/cuda_emulation.h, which runs each thread as a
// fiber and emulates barriers and warp exchanges.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "cuda_emulation.h"
#endif

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

namespace attention_ext {
namespace {

using BFloat16 = torch::headeronly::BFloat16;
using Half = torch::headeronly::Half;

constexpr int threads = 256;  // per block
constexpr int most_clusters = 1024, most_topk = 1024;

__host__ __device__ inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Lengths are read on the device, which cannot raise errors; values out of range are clamped.
__device__ inline int64_t length_of(const int64_t* length_B, int64_t head, int64_t H, int64_t size) {
  const int64_t length = length_B[head / H];
  return length < 0 ? 0 : (length > size ? size : length);
}

// Keys per split; at most 128 splits. The size depends on the length alone, so that the bits are the same for an
// utterance alone, in any batch, and with any padding.
__host__ __device__ inline int64_t split_keys(int64_t keys) {
  const int64_t share = ceil_div(ceil_div(keys, 128), 64) * 64;
  return share < 128 ? 128 : share;
}

// Splits of the members of each cluster, of about 256 members; like `split_keys`, by the length alone.
__host__ __device__ inline int64_t member_splits(int64_t queries, int64_t clusters) {
  const int64_t splits = clusters < 1 ? 1 : ceil_div(queries, 256 * clusters);
  return splits < 1 ? 1 : splits > 16 ? 16 : splits;
}

// Random numbers as in cpu/kernels.h, so that a seed drops the same weights on every device.
__device__ inline uint32_t scramble(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

struct Dropout {
  const int64_t* seed;  // on the device; null without dropout
  uint32_t threshold;
  float factor;
};

__device__ inline float keep_factor(const Dropout& dropout, int64_t row, int64_t key) {
  if (dropout.seed == nullptr) return 1.0f;
  uint64_t x = static_cast<uint64_t>(*dropout.seed) + static_cast<uint64_t>(row + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  const uint32_t code = static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
  const uint32_t mixed = scramble(code ^ scramble(static_cast<uint32_t>(key) + 0x9e3779b9u));
  return mixed < dropout.threshold ? 0.0f : dropout.factor;
}

// Sum over the threads of a block in a fixed order, returned to every thread. `shared` holds one value per thread.
__device__ inline float block_sum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  const float sum = shared[0];
  __syncthreads();
  return sum;
}

__device__ inline float block_maximum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half)
      shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  const float maximum = shared[0];
  __syncthreads();
  return maximum;
}

// Join the values of each group of adjacent threads in a fixed order. Every thread of the block takes part.
template <int Group, class Join>
__device__ inline float join_group(float value, float* shared, Join join) {
  const int first = static_cast<int>(threadIdx.x) / Group * Group;
  shared[threadIdx.x] = value;
  __syncthreads();
  value = shared[first];
#pragma unroll
  for (int i = 1; i < Group; ++i) value = join(value, shared[first + i]);
  __syncthreads();
  return value;
}

template <int Group>
__device__ inline float group_sum(float value, float* shared) {
  return join_group<Group>(value, shared, [](float a, float b) { return a + b; });
}

template <int Group>
__device__ inline float group_maximum(float value, float* shared) {
  return join_group<Group>(value, shared, [](float a, float b) { return fmaxf(a, b); });
}

#ifdef __CUDACC__
// c += a · b on the tensor cores: a is 16 × 8, b 8 × 8, c 16 × 8, distributed over a warp as the PTX manual specifies
// for m16n8k8. Values are TF32: floats whose 13 lowest bits are zero.
__device__ inline void tensor_product(float* c, const float* a, const float* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
#endif

}  // namespace
}  // namespace attention_ext
