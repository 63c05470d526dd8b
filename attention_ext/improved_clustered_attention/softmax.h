// Softmax of short rows and its derivative, one row per vector lane: sums across the lanes of one row after the other
// are faster for ten rows and slower for forty.
#pragma once

#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

// Softmax over the first K values of each of `rows` ≤ W padded rows, scaled to sum to `total`.
template <class T>
inline __attribute__((always_inline)) void softmax_group(
    int64_t rows, int64_t K, int64_t padded_K, T scale, T total, T* scores) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> lanes[W] = {};
  for (int64_t i = 0; i < rows; ++i) {
    T* row = scores + i * padded_K;
    for (int64_t j = K; j < padded_K; ++j) row[j] = lowest_score<T>();
    lanes[i] = load(row);
    for (int64_t j = W; j < padded_K; j += W) lanes[i] = larger<T>(lanes[i], load(row + j));
  }
  T highest[W], factor[W];
  store(highest, fold_lanes<T>(lanes, [](Vec<T> a, Vec<T> b) { return larger<T>(a, b); }));
  for (int64_t i = 0; i < rows; ++i) {
    T* row = scores + i * padded_K;
    lanes[i] = Vec<T>{};
    for (int64_t j = 0; j < padded_K; j += W) {
      const Vec<T> weight = exp_vec((load(row + j) - highest[i]) * scale);
      lanes[i] += weight;
      store(row + j, weight);
    }
  }
  store(factor, total / fold_lanes<T>(lanes, [](Vec<T> a, Vec<T> b) { return a + b; }));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < padded_K; j += W)
      store(scores + i * padded_K + j, load(scores + i * padded_K + j) * factor[i]);
}

// The same for any number of rows. Full groups are a separate case so that their loops have constant bounds.
template <class T>
void softmax_rows(int64_t rows, int64_t K, int64_t padded_K, T scale, T total, T* scores) {
  constexpr int64_t W = Simd<T>::width;
  int64_t i = 0;
  for (; i + W <= rows; i += W) softmax_group<T>(W, K, padded_K, scale, total, scores + i * padded_K);
  if (i < rows) softmax_group<T>(rows - i, K, padded_K, scale, total, scores + i * padded_K);
}

// Replace da by ds = a ∘ (da − Σ a da) in each of `rows` ≤ W rows. `weights` are a · mass; ds is scaled by
// mass · scale.
template <class T>
inline __attribute__((always_inline)) void slopes_group(
    int64_t rows, int64_t padded_K, const T* weights, T mass, T scale, T* slopes) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> lanes[W] = {};
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i * padded_K; j < (i + 1) * padded_K; j += W) lanes[i] += load(weights + j) * load(slopes + j);
  T mean[W];
  store(mean, fold_lanes<T>(lanes, [](Vec<T> a, Vec<T> b) { return a + b; }) / mass);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i * padded_K; j < (i + 1) * padded_K; j += W)
      store(slopes + j, load(weights + j) * ((load(slopes + j) - mean[i]) * scale));
}

template <class T>
void softmax_slopes(int64_t rows, int64_t padded_K, const T* weights, T mass, T scale, T* slopes) {
  constexpr int64_t W = Simd<T>::width;
  int64_t i = 0;
  for (; i + W <= rows; i += W)
    slopes_group<T>(W, padded_K, weights + i * padded_K, mass, scale, slopes + i * padded_K);
  if (i < rows) slopes_group<T>(rows - i, padded_K, weights + i * padded_K, mass, scale, slopes + i * padded_K);
}

}  // namespace
}  // namespace attention_ext
