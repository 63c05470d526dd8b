// The top K scores of a row on CUDA.
#pragma once

#include "cuda_heads.h"

namespace attention_ext {
namespace {

// Map a score to a positive integer with the same ordering; 0 for −∞ and NaN, which are never chosen.
__device__ inline uint32_t ordered(float score) {
  if (!(score > -INFINITY)) return 0;
  const uint32_t x = __float_as_uint(score + 0.0f);  // −0 and 0 are equal
  return x & 0x80000000u ? ~x : x | 0x80000000u;
}

// A unique rank: the ordered score, then the reversed position, so that ties go to the lowest position.
__device__ inline uint64_t rank_of(float score, int64_t s) {
  const uint32_t high = ordered(score);
  return high == 0 ? 0 : static_cast<uint64_t>(high) << 32 | (0xffffffffu - static_cast<uint32_t>(s));
}

#ifndef ATTENTION_EXT_MOST_LISTED
#define ATTENTION_EXT_MOST_LISTED 1024
#endif
constexpr int most_listed = ATTENTION_EXT_MOST_LISTED;

struct TopMemory {
  float maxima[threads];
  int count[256];
  int32_t chosen[most_topk];
  uint64_t listed_ranks[most_listed], prefix;
  uint32_t bound;
  int eligible, need, found, shift, listed;
};

// Call take(s, score) for this thread's share of a row of n scores, with several loads in flight.
template <class F>
__device__ inline void each_of_share(const float* row, int64_t n, F take) {
  constexpr int some = 8;
  for (int64_t first = threadIdx.x; first < n; first += some * threads) {
    float score[some];
#pragma unroll
    for (int i = 0; i < some; ++i) score[i] = first + i * threads < n ? row[first + i * threads] : 0.0f;
#pragma unroll
    for (int i = 0; i < some; ++i)
      if (first + i * threads < n) take(first + i * threads, score[i]);
  }
}

// The highest score of this thread's share of a row of n scores; counts in `eligible` those that may be chosen.
__device__ inline float highest_of_share(TopMemory& memory, const float* row, int64_t n) {
  if (threadIdx.x == 0) memory.eligible = 0;
  __syncthreads();
  float mine = -INFINITY;
  int eligible = 0;
  each_of_share(row, n, [&](int64_t, float score) {
    mine = fmaxf(mine, score);  // skips NaN
    eligible += score > -INFINITY;
  });
  atomicAdd(&memory.eligible, eligible);
  __syncthreads();
  return mine;
}

// Find the ranks of the top `take` of the row, which begin with `prefix`, by radix selection, eight bits at a time.
__device__ inline void select_by_radix(TopMemory& memory, const float* row, int64_t n, int take) {
  const int thread = threadIdx.x;
  for (int shift = 56; take > 0 && shift >= 0; shift -= 8) {
    for (int i = thread; i < 256; i += threads) memory.count[i] = 0;
    __syncthreads();
    const uint64_t known = memory.prefix;
    each_of_share(row, n, [&](int64_t s, float score) {
      const uint64_t rank = rank_of(score, s);
      if (rank == 0 || rank >> 32 < memory.bound) return;
      if (shift == 56 || rank >> (shift + 8) == known) atomicAdd(&memory.count[rank >> shift & 255], 1);
    });
    __syncthreads();
    if (thread == 0) {
      int digit = 255;
      while (digit > 0 && memory.count[digit] < memory.need) memory.need -= memory.count[digit--];
      memory.prefix = known << 8 | static_cast<uint64_t>(digit);
      memory.shift = shift;
      if (memory.count[digit] == memory.need) memory.found = 1;  // all of them are in the top K
    }
    __syncthreads();
    const bool done = memory.found != 0;
    __syncthreads();
    if (done) break;
  }
  if (thread == 0) memory.found = 0;
  __syncthreads();
  each_of_share(row, n, [&](int64_t s, float score) {
    const uint64_t rank = rank_of(score, s);
    if (take == 0 || rank == 0 || rank >> 32 < memory.bound) return;
    if (rank >> memory.shift >= memory.prefix) memory.chosen[atomicAdd(&memory.found, 1)] = static_cast<int32_t>(s);
  });
}

// Write the positions of the top K of a row of n scores in ascending order, then −1. `mine` is the maximum of this
// thread's share of the row; the K-th highest of these maxima is a lower bound on the K-th highest score, so that few
// scores take part. They are listed and ranked; where the list is too short, all scores are selected by radix.
__device__ inline void choose_top(TopMemory& memory, const float* row, int64_t n, int K, float mine, int32_t* top) {
  const int thread = threadIdx.x;
  const int take = memory.eligible < K ? memory.eligible : K;
  memory.maxima[thread] = mine;
  if (thread == 0)
    memory.prefix = 0, memory.bound = 0, memory.need = take, memory.found = 0, memory.shift = 0, memory.listed = 0;
  __syncthreads();
  int better = 0;
  for (int i = 0; i < threads; ++i)
    better += ordered(memory.maxima[i]) > ordered(mine) || (ordered(memory.maxima[i]) == ordered(mine) && i < thread);
  if (take <= threads && better == take - 1) memory.bound = ordered(mine);
  __syncthreads();
  each_of_share(row, n, [&](int64_t s, float score) {
    const uint64_t rank = rank_of(score, s);
    if (rank == 0 || rank >> 32 < memory.bound) return;
    const int place = atomicAdd(&memory.listed, 1);
    if (place < most_listed) memory.listed_ranks[place] = rank;
  });
  __syncthreads();
  if (memory.listed > most_listed) {
    select_by_radix(memory, row, n, take);
  } else {
    for (int i = thread; i < memory.listed; i += threads) {
      const uint64_t rank = memory.listed_ranks[i];
      int place = 0;
      for (int j = 0; j < memory.listed; ++j) place += memory.listed_ranks[j] > rank;
      if (place < take) memory.chosen[place] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(rank));
    }
  }
  __syncthreads();
  for (int i = thread; i < K; i += threads) {
    if (i >= take) {
      top[i] = -1;
      continue;
    }
    int before = 0;
    for (int j = 0; j < take; ++j) before += memory.chosen[j] < memory.chosen[i];
    top[before] = memory.chosen[i];
  }
  __syncthreads();
}

}  // namespace
}  // namespace attention_ext
