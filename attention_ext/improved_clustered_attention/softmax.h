// Softmax of short rows and its derivative, as many rows at a time as a vector has lanes.
#pragma once

#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

// Softmax over K of each of `rows` ≤ W rows of padded values, scaled to `total`.
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

// The same for any number of rows (gradients need it unscaled: 1). Whole groups are a case of their own, so that
// their loops have constant ends.
template <class T>
void softmax_rows(int64_t rows, int64_t K, int64_t padded_K, T scale, T total, T* scores) {
  constexpr int64_t W = Simd<T>::width;
  int64_t i = 0;
  for (; i + W <= rows; i += W) softmax_group<T>(W, K, padded_K, scale, total, scores + i * padded_K);
  if (i < rows) softmax_group<T>(rows - i, K, padded_K, scale, total, scores + i * padded_K);
}

// ds = a ∘ (da − Σ a da) of each of `rows` ≤ W rows, in place of da: a and the result times `mass`, the latter also
// times `scale`.
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
