// Softmax of short rows and its derivative, one row per vector lane: sums across the lanes of one row after the other
// are faster for ten rows and slower for forty.
#pragma once

#include "../cpu/rows.h"
#include "../cpu/simd.h"

namespace attention_ext {
namespace {

// Replace the first K values of each of `rows` ≤ W padded rows by exp(scale · (value − highest)). Returns the rows'
// sums.
template <class T>
inline __attribute__((always_inline)) Vec<T> exp_group(
    int64_t rows, int64_t K, int64_t padded_K, T scale, T* scores, T* highest) {
  constexpr int64_t W = Simd<T>::width;
  Vec<T> lanes[W] = {};
  for (int64_t i = 0; i < rows; ++i) {
    T* row = scores + i * padded_K;
    for (int64_t j = K; j < padded_K; ++j) row[j] = lowest_score<T>();
    lanes[i] = load(row);
    for (int64_t j = W; j < padded_K; j += W) lanes[i] = larger<T>(lanes[i], load(row + j));
  }
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
  return fold_lanes<T>(lanes, [](Vec<T> a, Vec<T> b) { return a + b; });
}

// Softmax over the first K values of each row, scaled to sum to `total`.
template <class T>
inline __attribute__((always_inline)) void softmax_group(
    int64_t rows, int64_t K, int64_t padded_K, T scale, T total, T* scores) {
  constexpr int64_t W = Simd<T>::width;
  T highest[W], factor[W];
  store(factor, total / exp_group<T>(rows, K, padded_K, scale, scores, highest));
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

// The weights exp(scale · (value − highest)) of any number of rows; row i's scaled maximum and sum go to picked[i].
template <class T>
void exp_rows(
    int64_t rows, int64_t K, int64_t padded_K, T scale, T* scores, const int32_t* picked, T* maximum, T* sum) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < rows; i += W) {
    const int64_t count = rows - i < W ? rows - i : W;
    T highest[W], total[W];
    T* from = scores + i * padded_K;
    store(
        total, count == W ? exp_group<T>(W, K, padded_K, scale, from, highest)
                          : exp_group<T>(count, K, padded_K, scale, from, highest));
    for (int64_t j = 0; j < count; ++j) maximum[picked[i + j]] = scale * highest[j], sum[picked[i + j]] = total[j];
  }
}

// Given the maximum, 1/Σ and δ = gradient · output of a softmax over more keys: replace scores by weights.
template <class T>
void given_weights(
    int64_t rows, int64_t K, int64_t padded_K, T scale, const int32_t* picked, const T* maximum, const T* inverse_sum,
    T* scores) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < rows; ++i) {
    T* row = scores + i * padded_K;
    for (int64_t j = K; j < padded_K; ++j) row[j] = lowest_score<T>();
    for (int64_t j = 0; j < padded_K; j += W)
      store(row + j, exp_vec(load(row + j) * scale - maximum[picked[i]]) * inverse_sum[picked[i]]);
    for (int64_t j = K; j < padded_K; ++j) row[j] = 0;
  }
}

// Then replace da by ds = a (da − δ), scaled.
template <class T>
void given_slopes(
    int64_t rows, int64_t padded_K, T scale, const int32_t* picked, const T* delta, const T* weights, T* slopes) {
  constexpr int64_t W = Simd<T>::width;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i * padded_K; j < (i + 1) * padded_K; j += W)
      store(slopes + j, load(weights + j) * ((load(slopes + j) - delta[picked[i]]) * scale));
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
